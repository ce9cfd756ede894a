"""Find copies of an unflagged word that look inserted between other words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from stickytoken.cleaning._document import Document
from stickytoken.cleaning._flagged import FEWEST_COPIES, close_groups, is_common
from stickytoken.cleaning._repeats import Stretch

# All figures are from `benchmarks/cleaning.py`.
_MANY = 8
_UNITS_PER_COPY = 60
_TIMES_CHANCE = 1.6
_MOSTLY_BARE = 0.9
_REGULAR = 6
_REGULAR_AND_CLOSE = 5
_UNEVEN = 1.2
_VARIED = 0.8
_OFTEN_BARE = 0.8
_DENSE_SHARE = 5
_MOST_BETWEEN = 2


def planted_copies(document: Document, words: frozenset[str], runs: Iterable[Stretch]) -> set[int]:
    """Return the places of copies of unflagged words.

    Without a flag more must come together: many copies in ever new company, or copies at regular distances,
    in each case between plain spaces.

    Args:
        document: The text.
        words: Keys of the flagged words, which are left out.
        runs: Stretches whose units are left out.
    """
    found: set[int] = set()
    taken = {place for run in runs for place in range(run.first, run.last)}
    for key, everywhere in document.positions.items():
        if not _can_be_planted(key, len(everywhere)) or key in words:
            continue
        places = [place for place in everywhere if place not in taken] if taken else everywhere
        if len(places) < FEWEST_COPIES or document.is_listed(places):
            continue
        if _is_planted(document, places):
            found.update(places)
            continue
        for first, last in close_groups(places, 1 + _MOST_BETWEEN, _REGULAR_AND_CLOSE):
            if _is_regular(document, places[first:last]):
                found.update(places[first:last])
    return found


def _can_be_planted(key: str, copies: int) -> bool:
    return copies >= FEWEST_COPIES and len(key) > 1 and not key[0].isdigit() and not is_common(key)


def _is_planted(document: Document, places: Sequence[int]) -> bool:
    copies = len(places)
    many = copies >= _MANY and copies * _UNITS_PER_COPY >= len(document)
    dense = copies * _DENSE_SHARE >= len(document)
    if (many or dense) and document.bare(places) >= _MOSTLY_BARE:
        company = document.company(places)
        if many and company.alike <= _TIMES_CHANCE * company.chance:
            return True
        if dense and company.varied >= _VARIED:
            return True
    return copies >= _REGULAR and _is_regular(document, places)


def _is_regular(document: Document, places: Sequence[int]) -> bool:
    gaps = [after - before for before, after in pairwise(places)]
    if max(gaps) > _UNEVEN * min(gaps) + 1:
        return False
    return document.company(places).varied >= _VARIED and document.bare(places) >= _OFTEN_BARE
