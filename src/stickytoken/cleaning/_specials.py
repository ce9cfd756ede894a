"""Find the text of special tokens, even if written with full-width or invisible characters."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from stickytoken.cleaning.rules import alternation

_INVISIBLE = "\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
_DISGUISED = re.compile(f"[{_INVISIBLE}\uff01-\uff5e]")
_INVISIBLE_CHARACTERS = re.compile(f"[{_INVISIBLE}]+")
_NARROW = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}


class SpecialFinder:
    def __init__(self, specials: Iterable[str]) -> None:
        texts = {text.strip() for text in specials}
        source = alternation(texts)
        # Tokens that follow each other are one match.
        self._pattern = re.compile(rf"(?P<first>{source})(?:\s*(?:{source}))*") if source else None
        self._single = re.compile(source)
        self._reach = max(map(len, texts), default=1) - 1

    def find(self, text: str) -> Iterator[tuple[int, int, str, int, int]]:
        """Yield adjacent special tokens: start, end, name of the first, how many, end of the first."""
        if self._pattern is None:
            return
        plain, places = _plain(text)
        for match in self._pattern.finditer(plain):
            alone = match.end() == match.end("first")
            copies = 1 if alone else sum(1 for _ in self._single.finditer(plain, *match.span()))
            start, end = places[match.start()], places[match.end() - 1] + 1
            yield start, end, match["first"], copies, places[match.end("first") - 1] + 1

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
        bounds = pairwise([(0, 0), *kept, (len(plain), len(plain))])
        removed = [
            (end, start, names[end]) for (_, end), (start, _) in bounds if end in names and start > end
        ]
        return [
            (places[end - 1] + 1 if end else 0, places[start] if start < len(plain) else len(text), name)
            for end, start, name in removed
        ]

    def _kept(self, plain: str, pattern: re.Pattern[str]) -> tuple[list[tuple[int, int]], dict[int, str]]:
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
                characters = len(before) - joined.start()
                while characters > 0:  # taken off the end of what is kept
                    start, end = kept.pop()
                    if end - start > characters:
                        kept.append((start, end - characters))
                    characters -= end - start
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


class _Offsets:
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
