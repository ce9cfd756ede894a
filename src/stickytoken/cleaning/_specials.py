"""Find the text of special tokens, even if written with full-width or invisible characters."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from stickytoken.cleaning._flagged import FEWEST_COPIES, Document, close_groups, is_common
from stickytoken.cleaning._repeats import Stretch
from stickytoken.cleaning.rules import alternation

_INVISIBLE = "\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
_DISGUISED = re.compile(f"[{_INVISIBLE}\uff01-\uff5e]")
_INVISIBLE_CHARACTERS = re.compile(f"[{_INVISIBLE}]+")
_NARROW = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}


class Found(NamedTuple):
    """Adjacent special tokens.

    Attributes:
        start: Offset of the first character.
        end: Offset behind the last one.
        name: The first token.
        copies: How many there are.
        first_end: Where the first ends.
    """

    start: int
    end: int
    name: str
    copies: int
    first_end: int


class SpecialFinder:
    """Finds the text of special tokens."""

    def __init__(self, specials: Iterable[str]) -> None:
        texts = {text.strip() for text in specials}
        source = alternation(texts)
        # Tokens that follow each other are one match.
        self._pattern = re.compile(rf"(?P<first>{source})(?:\s*(?:{source}))*") if source else None
        self._single = re.compile(source)
        self._reach = max(map(len, texts), default=1) - 1

    def find(self, text: str) -> Iterator[Found]:
        """Yield the special tokens in a text, adjacent ones together."""
        if self._pattern is None:
            return
        plain, places = _plain(text)
        for match in self._pattern.finditer(plain):
            alone = match.end() == match.end("first")
            copies = 1 if alone else sum(1 for _ in self._single.finditer(plain, *match.span()))
            start, end = places[match.start()], places[match.end() - 1] + 1
            yield Found(start, end, match["first"], copies, places[match.end("first") - 1] + 1)

    def starts(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield where each special token in a text begins, and its name."""
        if self._pattern is not None:
            plain, places = _plain(text)
            for match in self._single.finditer(plain):
                yield places[match.start()], match.group()

    def find_nested(self, text: str) -> list[tuple[int, int, str]]:
        """Find what to remove from a text so that no special token remains or arises.

        Each removal joins what stands before and behind it, and only there a new special token can arise; so
        the time is linear in the length of the text, however deep tokens are nested in each other.
        """
        plain, places = _plain(text)
        if self._pattern is None or not self._pattern.search(plain):
            return []
        kept, names = self._kept(plain, self._pattern)
        bounds = [(0, 0), *kept, (len(plain), len(plain))]
        return [
            (
                places[end - 1] + 1 if end else 0,
                places[start] if start < len(plain) else len(text),
                names[end],
            )
            for (_, end), (start, _) in pairwise(bounds)
            if end in names and start > end
        ]

    def _kept(self, plain: str, pattern: re.Pattern[str]) -> tuple[list[tuple[int, int]], dict[int, str]]:
        """Return the parts of a text that are kept, and a name for each removal by where it begins."""
        kept: list[tuple[int, int]] = []
        names: dict[int, str] = {}
        place = 0
        while match := pattern.search(plain, place):
            if match.start() > place:
                kept.append((place, match.start()))
            place, name = match.end(), match["first"]
            while True:
                before = self._tail(plain, kept)
                joined = pattern.search(before + plain[place : place + self._reach])
                if joined is None or joined.start() >= len(before):
                    break
                place += max(0, joined.end() - len(before))
                _shorten(kept, len(before) - joined.start())
            names[kept[-1][1] if kept else 0] = name
        if place < len(plain):
            kept.append((place, len(plain)))
        return kept, names

    def _tail(self, plain: str, kept: Sequence[tuple[int, int]]) -> str:
        """Return the last characters that are kept, as many as a token that spans a joint can begin with."""
        parts: list[str] = []
        missing = self._reach
        for start, end in reversed(kept):
            parts.append(plain[max(start, end - missing) : end])
            missing -= end - start
            if missing <= 0:
                break
        return "".join(reversed(parts))


def _shorten(kept: list[tuple[int, int]], characters: int) -> None:
    """Take characters off the end of what is kept."""
    while characters > 0:
        start, end = kept.pop()
        if end - start > characters:
            kept.append((start, end - characters))
        characters -= end - start


class _Offsets:
    """Offsets in a text of the characters that are left without the invisible ones."""

    def __init__(self, gaps: Iterable[re.Match[str]]) -> None:
        self._starts, self._left_out = [0], [0]
        for gap in gaps:
            left_out = self._left_out[-1]
            self._starts.append(gap.start() - left_out)
            self._left_out.append(left_out + gap.end() - gap.start())

    def __getitem__(self, place: int) -> int:
        return place + self._left_out[bisect_right(self._starts, place) - 1]


def _plain(text: str) -> tuple[str, range | _Offsets]:
    """Return a text without invisible and full-width characters, and the offset of each of its characters."""
    if text.isascii() or not _DISGUISED.search(text):
        return text, range(len(text))
    plain, gaps = _INVISIBLE_CHARACTERS.subn("", text)
    offsets = _Offsets(_INVISIBLE_CHARACTERS.finditer(text)) if gaps else range(len(text))
    return plain.translate(_NARROW), offsets


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
