"""The parts of one word: ideographs, and copies with nothing or invisible characters between them.

Parts are compared by key: lower case, without accents, width variants and invisible characters, as tokenizers
without case read them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

from stickytoken.cleaning._alternation import alternation

_REPEATED = re.compile(r"(.{1,32}?)\1{3,}", re.DOTALL)
_SHORTEST_ROOT = 3
_SHORTEST_DOUBLED = 4
_LEAST_COPIES = 4
_GENETIC = frozenset("acgtun")
_FILLERS = frozenset("\u115f\u1160\u3164\uffa0")
_DIACRITICS = ((0x0300, 0x036F), (0x1AB0, 0x1AFF), (0x1DC0, 0x1DFF), (0x20D0, 0x20FF), (0xFE00, 0xFE2F))
_IDEOGRAPHS = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF))
_REMEMBERED = 50_000


class Part(NamedTuple):
    """A part of a word: what it is compared by, and where it stands in the word."""

    key: str
    start: int
    end: int


class WordReader:
    """Divides words into parts, and remembers the words that it has seen.

    Args:
        flagged: Keys of flagged words.
    """

    def __init__(self, flagged: Iterable[str]) -> None:
        self._flagged = frozenset(flagged)
        self._copies = re.compile(f"({alternation(self._flagged)})\\1+") if self._flagged else None
        self._seen: dict[str, tuple[Part, ...]] = {}
        self._whole: set[str] = set()

    def all_whole(self, words: list[str]) -> bool:
        """Whether each of these words in lower-case ASCII is one part, itself."""
        new = set(words) - self._whole
        if len(self._whole) > _REMEMBERED:
            self._whole.clear()
        for word in new:
            if len(self.parts(word)) > 1:
                return False
            self._whole.add(word)
        return True

    def parts(self, word: str) -> tuple[Part, ...]:
        """Return the parts of a word in order; invisible characters alone are no part."""
        found = self._seen.get(word)
        if found is None:
            found = tuple(self._divide(word))
            if len(self._seen) > _REMEMBERED:
                self._seen.clear()
            self._seen[word] = found
        return found

    def _divide(self, word: str) -> Iterator[Part]:
        if word.isascii():
            yield from self._split_copies(Part(word.lower(), 0, len(word)), range(len(word) + 1))
            return
        for piece, places in _pieces(word):
            for first, last in _runs_of_letters(piece):
                inner = Part(piece[first:last], places[first], places[last])
                yield from self._split_copies(inner, places[first : last + 1])

    def _split_copies(self, part: Part, places: range | list[int]) -> Iterator[Part]:
        """Split copies that are glued together; ``places`` are the offsets of the characters of the key."""
        done = 0
        for start, end, root in self._copies_in(part.key):
            if start > done:
                yield Part(part.key[done:start], places[done], places[start])
            for place in range(start, end, root):
                yield Part(part.key[place : place + root], places[place], places[place + root])
            done = end
        if not done:
            yield part
        elif done < len(part.key):
            yield Part(part.key[done:], places[done], places[len(part.key)])

    def _copies_in(self, key: str) -> Iterator[tuple[int, int, int]]:
        """Find glued copies in a key: start, end and the length of one."""
        if len(key) < _LEAST_COPIES:
            return
        done = 0
        if self._copies is not None:
            for match in self._copies.finditer(key):
                root = len(match[1])
                copies = (match.end() - match.start()) // root
                if copies >= _LEAST_COPIES or (root >= _SHORTEST_DOUBLED and key != match[1]):
                    yield from _repeats(key, done, match.start())
                    yield match.start(), match.end(), root
                    done = match.end()
        yield from _repeats(key, done, len(key))


def key_of(word: str) -> str:
    """Return what a word is compared by."""
    return word.lower() if word.isascii() else "".join(_plain(character) for character in word)


def _repeats(key: str, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    if end - start < _LEAST_COPIES * _SHORTEST_ROOT:
        return
    for match in _REPEATED.finditer(key, start, end):
        root = match[1]
        if len(root) >= _SHORTEST_ROOT and root.isalpha() and not _GENETIC.issuperset(root):
            yield match.start(), match.end(), len(root)


def _pieces(word: str) -> Iterator[tuple[str, list[int]]]:
    """Normalise a word, and divide it at invisible characters if that gives equal pieces.

    Yields:
        The key of a piece, and the offset of each of its characters, with the end of the piece.
    """
    pieces: list[tuple[list[str], list[int]]] = [([], [])]
    for place, character in enumerate(word):
        plain = _plain(character)
        if not plain and _is_invisible(character):
            if pieces[-1][0]:
                pieces.append(([], []))
            continue
        for each in plain:
            pieces[-1][0].append(each)
            pieces[-1][1].append(place)
    found = [("".join(characters), places) for characters, places in pieces if characters]
    if len(found) > 1 and len({key for key, _ in found}) == len(found):
        found = [("".join(key for key, _ in found), [place for _, places in found for place in places])]
    for number, (key, places) in enumerate(found):
        stop = found[number + 1][1][0] if number + 1 < len(found) else len(word)
        yield key, [*places, stop]


def _runs_of_letters(key: str) -> Iterator[tuple[int, int]]:
    """Divide a key: each ideograph alone, other characters together."""
    start = 0
    for place, character in enumerate(key):
        if _within(ord(character), _IDEOGRAPHS):
            if place > start:
                yield start, place
            yield place, place + 1
            start = place + 1
    if start < len(key):
        yield start, len(key)


@cache
def _plain(character: str) -> str:
    if _is_invisible(character) or _within(ord(character), _DIACRITICS):
        return ""
    decomposed = unicodedata.normalize("NFKD", character)
    kept = "".join(each for each in decomposed if not _within(ord(each), _DIACRITICS))
    return unicodedata.normalize("NFC", kept).casefold()


@cache
def _is_invisible(character: str) -> bool:
    return unicodedata.category(character) == "Cf" or character in _FILLERS


def _within(code: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(first <= code <= last for first, last in ranges)
