"""The parts of one word: ideographs, and copies with nothing or invisible characters between them.

Parts are compared by key: lower case, without accents, width variants and invisible characters, as tokenizers
without case read them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from stickytoken.cleaning._alternation import alternation
from stickytoken.cleaning._periods import COPIES, Repeat, repeats_in

Part = tuple[str, int, int]
"""The key of a part, and where it begins and ends in its word."""

_SHORTEST_DOUBLED = 4
_GENETIC = frozenset("acgtu")
_DIACRITICS = "\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f"
_INVISIBLE = "\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
_BREAKS = re.compile(f"[{_DIACRITICS}{_INVISIBLE}\U000e0000-\U000e0fff]+")
_IDEOGRAPHS = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af]")
_PLAIN_IDEOGRAPHS = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]+")
FIRST_IDEOGRAPH = "\u3400"
_REMEMBERED = 50_000
_LONGEST_REMEMBERED = 64
_LONGEST_DECOMPOSED = 4
"""Some signs stand for whole phrases, up to 18 characters; no one writes a word with them."""


class WordReader:
    """Divides words into parts, and remembers the words that it has seen."""

    def __init__(self, flagged: Iterable[str]) -> None:
        words = frozenset(flagged)
        self._copies = re.compile(f"({alternation(words)})\\1+") if words else None
        self._seen: dict[str, tuple[Part, ...]] = {}
        self._whole: set[str] = set()
        self._last_long: tuple[str, tuple[Part, ...]] = ("", ())

    def all_whole(self, words: list[str]) -> bool:
        """Whether each of these words in lower-case ASCII is one part, itself."""
        new = set(words) - self._whole
        if any(len(self.parts(word)) > 1 for word in new):
            return False
        if len(self._whole) > _REMEMBERED:
            self._whole.clear()
        self._whole.update(word for word in new if len(word) <= _LONGEST_REMEMBERED)
        return True

    def parts(self, word: str) -> tuple[Part, ...]:
        """Return the parts of a word in order; invisible characters alone are not a part."""
        if len(word) > _LONGEST_REMEMBERED:
            # A text is read twice, once for its keys and, if they are not plain, once for its offsets.
            last, parts = self._last_long
            if word != last:
                parts = tuple(self._divide(word))
                self._last_long = word, parts
            return parts
        found = self._seen.get(word)
        if found is None:
            found = tuple(self._divide(word))
            if len(self._seen) > _REMEMBERED:
                self._seen.clear()
            self._seen[word] = found
        return found

    def _divide(self, word: str) -> Iterator[Part]:
        if word.isascii():
            yield from self._split_copies(word.lower(), range(len(word) + 1))
            return
        for piece, places in _pieces(word):
            if piece.isascii() and len(piece) <= _LONGEST_REMEMBERED:
                for key, first, last in self.parts(piece):
                    yield key, places[first], places[last]
                continue
            for first, last in _around_ideographs(piece):
                if last - first == 1:
                    yield piece[first], places[first], places[last]
                    continue
                yield from self._split_copies(piece[first:last], places[first : last + 1])

    def _split_copies(self, key: str, places: Sequence[int]) -> Iterator[Part]:
        """Split glued copies; ``places`` are the offsets of the characters of the key, with its end."""
        done = 0
        for start, end, period in self._copies_in(key) if len(key) >= COPIES else ():
            if start > done:
                yield key[done:start], places[done], places[start]
            for place in range(start, end, period):
                yield key[place : place + period], places[place], places[place + period]
            done = end
        if done < len(key):
            yield key[done:] if done else key, places[done], places[len(key)]

    def _copies_in(self, key: str) -> Iterator[Repeat]:
        """Find glued copies in a key, of flagged words first."""
        done = 0
        for match in self._copies.finditer(key) if self._copies else ():
            period = len(match[1])
            copies = (match.end() - match.start()) // period
            if copies >= COPIES or period >= _SHORTEST_DOUBLED:
                yield from _repeats_between(key, done, match.start())
                yield Repeat(match.start(), match.end(), period)
                done = match.end()
        yield from _repeats_between(key, done, len(key))


def is_plain_ideographs(word: str) -> bool:
    """Whether a word is ideographs alone that are their own keys: each is a unit, however many there are."""
    return _PLAIN_IDEOGRAPHS.fullmatch(word) is not None


def key_of(word: str) -> str:
    """Return the key by which a word is compared."""
    return word.lower() if word.isascii() else "".join(_plain(each) for each in _BREAKS.sub("", word))


def _repeats_between(key: str, start: int, end: int) -> list[Repeat]:
    """Find repeated pieces of letters in a part of a key, in order; but not in genetic sequences."""
    found = []
    for first, last, period in repeats_in(key[start:end]):
        root = key[start + first : start + first + period]
        if root.isalpha() and len(set(root)) > 1 and not _GENETIC.issuperset(key):
            found.append(Repeat(start + first, start + last, period))
    return sorted(found)


def _pieces(word: str) -> list[tuple[str, Sequence[int]]]:
    """Normalise a word, and divide it at invisible characters and loose accents if that gives equal pieces.

    Returns:
        The key of each piece, and the offsets of its characters with the end of the piece.
    """
    pieces = []
    start = 0
    for match in _BREAKS.finditer(word):
        pieces.append(_normalised(word, start, match.start(), match.end()))
        start = match.end()
    pieces.append(_normalised(word, start, len(word), len(word)))
    pieces = [piece for piece in pieces if piece[0]]
    long = [key for key, _ in pieces if len(key) > 1]
    if len(pieces) > 1 and len(set(long)) == len(long):
        joined = [place for _, places in pieces for place in places[:-1]]
        return [("".join(key for key, _ in pieces), [*joined, pieces[-1][1][-1]])]
    return pieces


def _normalised(word: str, start: int, end: int, stop: int) -> tuple[str, Sequence[int]]:
    """Return the key of a piece of a word, and the offsets of the key's characters with ``stop`` behind."""
    piece = word[start:end]
    if piece.isascii():
        return piece.lower(), [*range(start, end), stop]
    plain = [_plain(each) for each in piece]
    places = [start + number for number, each in enumerate(plain) for _ in each]
    return "".join(plain), [*places, stop]


def _around_ideographs(key: str) -> Iterator[tuple[int, int]]:
    """Divide a key: each ideograph alone, other characters together."""
    start = 0
    for match in _IDEOGRAPHS.finditer(key):
        if match.start() > start:
            yield start, match.start()
        yield match.span()
        start = match.end()
    if start < len(key):
        yield start, len(key)


@cache
def _plain(character: str) -> str:
    decomposed = unicodedata.normalize("NFKD", character)
    if len(decomposed) > _LONGEST_DECOMPOSED:
        return character
    return unicodedata.normalize("NFC", _BREAKS.sub("", decomposed)).casefold()
