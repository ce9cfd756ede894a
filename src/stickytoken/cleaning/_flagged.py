"""Find copies of flagged words that ordinary text would not have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from stickytoken.cleaning._common_words import COMMON_SIGNS, COMMON_WORDS
from stickytoken.cleaning._document import Document

FEWEST_COPIES = 4
_MOST_BETWEEN = 2
# Words between copies belong to the pattern if each of them is there so often, and for every fourth copy.
_REPEATED = 2
_REPEATED_SHARE = 0.25
_UNITS_PER_COPY = 250
_ENOUGH_COPIES = 16
# A word in ordinary use is told by its company; both figures are from `benchmarks/cleaning.py`.
_ALIKE = 0.5
_TIMES_CHANCE = 3.0
# A word that is common in every text must make up a large part of one to be conspicuous.
_COMMON_COPIES = 6
_COMMON_SHARE = 0.2


def flagged_copies(document: Document, words: frozenset[str]) -> set[int]:
    """Return the places of copies of flagged words.

    Copies are found where at least four have at most two other words between each, or where the whole text
    has more than its length explains and their company says that they were put in.
    """
    found: set[int] = set()
    for key in words.intersection(document.positions):
        places = document.positions[key]
        if len(places) < FEWEST_COPIES:
            continue
        if is_common(key):
            if len(places) >= max(_COMMON_COPIES, _COMMON_SHARE * len(document)):
                found.update(places)
            continue
        if _is_spread(document, places):
            found.update(places)
        for first, last in close_groups(places, 1 + _MOST_BETWEEN, FEWEST_COPIES):
            found.update(places[first:last])
            found.update(_repeated_between(document, places[first:last]))
    for stretch in _mixed_runs(document, words):
        found.update(stretch)
    return found


def is_common(key: str) -> bool:
    """Whether a word or sign is so common that copies of it far apart prove nothing."""
    return (len(key) == 1 and key.isascii()) or key in COMMON_WORDS or key in COMMON_SIGNS


def close_groups(places: Sequence[int], farthest: int, least: int) -> Iterator[tuple[int, int]]:
    """Yield groups of enough neighbouring places that are close together."""
    start = 0
    for number in range(1, len(places) + 1):
        if number == len(places) or places[number] - places[number - 1] > farthest:
            if number - start >= least:
                yield start, number
            start = number


def _repeated_between(document: Document, places: Sequence[int]) -> list[int]:
    """Return the places of the other words between copies, if each of them is repeated as the copies are."""
    keys, copies = document.keys, set(places)
    first, last = places[0], places[-1] + 1
    words = set(keys[first:last])
    # One more on either side belongs to the pattern, as the last in "able to able by able to able by".
    while first > max(0, places[0] - _MOST_BETWEEN) and keys[first - 1] in words:
        first -= 1
    while last < min(len(keys), places[-1] + 1 + _MOST_BETWEEN) and keys[last] in words:
        last += 1
    others = [place for place in range(first, last) if place not in copies]
    repeated = Counter(keys[place] for place in others)
    fewest = max(_REPEATED, len(places) * _REPEATED_SHARE)
    return others if len(others) >= FEWEST_COPIES and min(repeated.values()) >= fewest else []


def _is_spread(document: Document, places: Sequence[int]) -> bool:
    if len(places) < min(len(document) / _UNITS_PER_COPY, _ENOUGH_COPIES):
        return False
    company = document.company(places)
    return company.alike <= _ALIKE + _TIMES_CHANCE * company.chance


def _mixed_runs(document: Document, words: frozenset[str]) -> Iterator[range]:
    """Yield stretches of at least four flagged words, equal or not, without another word in between."""
    places = sorted(
        place for key in words.intersection(document.positions) for place in document.positions[key]
    )
    for first, last in close_groups(places, 1, FEWEST_COPIES):
        group = range(places[first], places[last - 1] + 1)
        if not all(is_common(document.keys[place]) for place in group):
            yield group
