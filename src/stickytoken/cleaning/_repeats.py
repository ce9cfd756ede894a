"""Find stretches of a text in which a word or phrase is repeated, from the keys of its units."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from stickytoken.cleaning.rules import alternation

if TYPE_CHECKING:
    import regex


_LONGEST_PHRASE = 16
_MOST_BETWEEN = 3
_FEW_WORDS = 3
MIXED_RUN = 16
"""So many units of three different words in a row are a run in whatever order; fewer may be natural."""


class Stretch(NamedTuple):
    first: int
    last: int  # the unit behind the last one
    period: int  # how many units one copy takes; 0 for a few words in no fixed order


def stretches_of(keys: Sequence[str], positions: Mapping[str, list[int]], copies: int) -> list[Stretch]:
    """Find the stretches in which a word or phrase is repeated at least ``copies`` times.

    A phrase of up to 16 words counts where nothing else stands between its copies. A word also counts where
    at most two other words stand between its copies, again and again, in any order.
    """
    gaps = copies - 1
    regular: list[Stretch] = []
    mixed: list[Stretch] = []
    for places in positions.values():
        done = mixed_done = 0
        for first, last in zip(places, places[gaps:], strict=False):
            if first < done or last - first > gaps * _LONGEST_PHRASE:
                continue
            period, rest = divmod(last - first, gaps)
            if not rest and keys[first : last - period] == keys[first + period : last]:
                regular.append(_lengthened(keys, first, last, period))
                done = regular[-1].last
            elif first >= mixed_done and last - first <= gaps * (1 + _MOST_BETWEEN):
                words = set(keys[first : last + 1])
                if len(words) <= _FEW_WORDS:
                    mixed.append(_widened(keys, first, last + 1, words))
                    mixed_done = mixed[-1].last
    return _apart(regular, mixed, len(keys))


def _lengthened(keys: Sequence[str], first: int, last: int, period: int) -> Stretch:
    step = 1
    while step:
        if keys[last : last + step] == keys[last - period : last - period + step]:
            last, step = last + step, 2 * step
        else:
            step //= 2
    step = 1
    while step:
        if step <= first and keys[first - step : first] == keys[first - step + period : first + period]:
            first, step = first - step, 2 * step
        else:
            step //= 2
    return Stretch(first, last, period)


def _widened(keys: Sequence[str], first: int, last: int, words: set[str]) -> Stretch:
    while first > 0 and keys[first - 1] in words:
        first -= 1
    while last < len(keys) and keys[last] in words:
        last += 1
    return Stretch(first, last, 0)


def _apart(regular: list[Stretch], mixed: list[Stretch], units: int) -> list[Stretch]:
    """Sort stretches without those that overlap another: earlier ones go first, then longer ones."""
    long = [each for each in mixed if each.last - each.first >= MIXED_RUN]
    taken = bytearray(units)
    kept = []
    for stretch in chain.from_iterable(
        sorted(stretches, key=lambda each: (each.first, -each.last)) for stretches in (long, regular, mixed)
    ):
        if taken.find(1, stretch.first, stretch.last) < 0:
            taken[stretch.first : stretch.last] = b"\1" * (stretch.last - stretch.first)
            kept.append(stretch)
    return sorted(kept)


Repeat = tuple[int, int, int]
"""Copies of one piece that follow each other: start, end, and length of one."""

_SHORTEST = 3
_LONGEST = 32
_COPIES = 4
_NOT_ZERO = re.compile(rb"[^\0]")


def _repeats_in(text: str) -> Iterator[Repeat]:
    """Yield where four or more copies of a piece of 3 to 32 characters follow each other, short pieces first.

    Where a text is equal to itself moved by a period, the bytes of their exclusive or are zero. Python
    computes it for a whole text at once.
    """
    if len(text) - len(set(text)) < (_COPIES - 1) * _SHORTEST:
        return
    coding, width = ("latin-1", 1) if max(text) <= "\xff" else ("utf-32-le", 4)
    data = text.encode(coding, "surrogatepass")
    number = int.from_bytes(data, "little")
    taken = bytearray(len(text))
    for period in range(_SHORTEST, min(_LONGEST, len(text) // _COPIES) + 1):
        equal = (number ^ number >> 8 * width * period).to_bytes(len(data), "little")
        least = (_COPIES - 1) * period
        for first, last in _zeros(equal, least * width):
            start = -(-first // width)
            copies = (last // width - start) // period + 1
            end = start + copies * period
            if copies >= _COPIES and not any(taken[start:end]):
                taken[start:end] = b"\1" * (end - start)
                yield start, end, period


def _zeros(data: bytes, least: int) -> Iterator[tuple[int, int]]:
    """Yield where at least so many bytes in a row are zero; several times as fast as a regular expression."""
    wanted = bytes(least)
    start = data.find(wanted)
    while start >= 0:
        other = _NOT_ZERO.search(data, start + least)
        end = other.start() if other else len(data)
        yield start, end
        start = data.find(wanted, end)


Part = tuple[str, int, int]
"""The key of a part, and where it begins and ends in its word."""

_SHORTEST_DOUBLED = 4
_GENETIC = frozenset("acgtu")
_DIACRITICS = "\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f"
_INVISIBLE = "\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
_BREAKS = re.compile(f"[{_DIACRITICS}{_INVISIBLE}\U000e0000-\U000e0fff]+")
_IDEOGRAPHS = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af]")
_PLAIN_IDEOGRAPHS = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]+")
_REMEMBERED = 50_000
_LONGEST_REMEMBERED = 64
_LONGEST_DECOMPOSED = 4
"""Some signs stand for whole phrases, up to 18 characters; no one writes a word with them."""


class _WordReader:
    def __init__(self, flagged: Iterable[str]) -> None:
        words = frozenset(flagged)
        self._copies = re.compile(f"({alternation(words)})\\1+") if words else None
        self._remembered = lru_cache(_REMEMBERED)(self._divided)
        self._whole: set[str] = set()

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
        return self._remembered(word) if len(word) <= _LONGEST_REMEMBERED else self._divided(word)

    def _divided(self, word: str) -> tuple[Part, ...]:
        return tuple(self._divide(word))

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
        for start, end, period in self._copies_in(key) if len(key) >= _COPIES else ():
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
            if copies >= _COPIES or period >= _SHORTEST_DOUBLED:
                yield from _repeats_between(key, done, match.start())
                yield match.start(), match.end(), period
                done = match.end()
        yield from _repeats_between(key, done, len(key))


def _key_of(word: str) -> str:
    return word.lower() if word.isascii() else "".join(_plain(each) for each in _BREAKS.sub("", word))


def _repeats_between(key: str, start: int, end: int) -> list[Repeat]:
    """Find repeated pieces of letters in a part of a key, in order; but not in genetic sequences."""
    found = []
    for first, last, period in _repeats_in(key[start:end]):
        root = key[start + first : start + first + period]
        if root.isalpha() and len(set(root)) > 1 and not _GENETIC.issuperset(key):
            found.append((start + first, start + last, period))
    return sorted(found)


def _pieces(word: str) -> list[tuple[str, Sequence[int]]]:
    """Normalise a word, and split it at invisible characters and loose accents into equal pieces."""
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


_WORD = r"[\p{L}\p{N}][\p{L}\p{N}\p{M}\p{Cf}]*"


class Units(NamedTuple):
    keys: list[str]  # what each is compared by
    starts: list[int]
    ends: list[int]  # offsets behind the last characters


class UnitReader:
    def __init__(self, flagged: Iterable[str]) -> None:
        texts = {text.strip() for text in flagged} - {""}
        words = {_key_of(text) for text in texts if _key_of(text).isalnum()}
        self._literals = {text.casefold() for text in texts if not _key_of(text).isalnum()}
        self.flagged = frozenset(words | self._literals)
        self._words = _WordReader(words)
        ascii_literals = sorted(text for text in self._literals if text.isascii())
        self._ascii_word = re.compile(_either(ascii_literals, "[A-Za-z0-9]+"), re.IGNORECASE)
        self._lower_word = re.compile(_either(ascii_literals, "[a-z0-9]+"))

    @cached_property
    def _unicode_word(self) -> regex.Pattern[str]:
        import regex  # takes longer to import than a cleaner to load

        return regex.compile(_either(sorted(self._literals), _WORD), regex.IGNORECASE)

    def plain_keys(self, text: str) -> list[str] | None:
        """Return the keys of a plain text, several times as fast as `read`; None for any other text."""
        if not text.isascii():
            return None
        words: list[str] = self._lower_word.findall(text.lower())
        return words if self._words.all_whole(words) else None

    def read_plain(self, text: str, keys: list[str]) -> Units:
        spans = [match.span() for match in self._lower_word.finditer(text.lower())]
        return Units(keys, [start for start, _ in spans], [end for _, end in spans])

    def read(self, text: str) -> Units:
        keys: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        pattern = self._ascii_word if text.isascii() else self._unicode_word
        for match in pattern.finditer(text):
            start, word = match.start(), match[0]
            # Each ideograph is a unit, and these are their own keys.
            if word > "\u3400" and _PLAIN_IDEOGRAPHS.fullmatch(word):
                keys.extend(word)
                starts.extend(range(start, start + len(word)))
                ends.extend(range(start + 1, start + len(word) + 1))
                continue
            folded = word.casefold() if self._literals else ""
            parts = ((folded, 0, len(word)),) if folded in self._literals else self._words.parts(word)
            for key, first, last in parts:
                keys.append(key)
                starts.append(start + first)
                ends.append(start + last)
        return Units(keys, starts, ends)


def _either(literals: list[str], word: str) -> str:
    """Return the source of a pattern for some texts, as whole words where they begin or end like one."""
    guarded = [text for text in literals if text[0].isalnum() or text[-1].isalnum()]
    source = "|".join(
        (r"(?<!\w)" if text[0].isalnum() else "")
        + re.escape(text)
        + (r"(?!\w)" if text[-1].isalnum() else "")
        for text in sorted(guarded, key=len, reverse=True)
    )
    signs = alternation(set(literals) - set(guarded))
    return "|".join(part for part in (source, signs, word) if part)
