"""Divide a text into units: words, ideographs, and copies of a word that are written without spaces.

Units are compared by their keys. The key of a unit is its text in lower case, without accents and invisible
characters, and with full-width characters converted to half width.
"""

from __future__ import annotations

import operator
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from stickytoken.cleaning._characters import INVISIBLE, MARKS
from stickytoken.cleaning.rules import alternation

if TYPE_CHECKING:
    import regex

# A word is divided into copies if it consists of at least `_FEWEST_COPIES` copies of the same
# `_SHORTEST_COPY` to `_LONGEST_COPY` characters, such as "ableableableable". "banana", "hahaha", "couscous"
# and "bonbon" are not divided.
_SHORTEST_COPY = 3
_LONGEST_COPY = 32
_FEWEST_COPIES = 4
# Two copies are enough for a flagged word of at least this length, in characters. For example,
# "contractcontract" is divided if "contract" is flagged.
_SHORTEST_DOUBLED = 4

# Letters of DNA and RNA sequences, which repeat naturally.
_BASES = frozenset("acgtu")

# Size limits of the cache of divided words: the number of words, and the length of a word in characters.
_REMEMBERED = 50_000
_LONGEST_REMEMBERED = 64

# A character that decomposes into more characters than this is left as it is, because it stands for a whole
# phrase and does not occur within words.
_LONGEST_DECOMPOSED = 4

_BREAKS = re.compile(f"[{MARKS}{INVISIBLE}]+")
_IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
# Matches a single ideograph, or a part of a word without ideographs.
_IDEOGRAPH_OR_OTHERS = re.compile(f"[{_IDEOGRAPHS}]|[^{_IDEOGRAPHS}]+")
# Ideographs that stay the same when the key of a word is computed.
_PLAIN_IDEOGRAPHS = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]+")
_ASCII_WORD = "[A-Za-z0-9]+"
_LOWER_WORD = "[a-z0-9]+"
_WORD = r"[\p{L}\p{N}][\p{L}\p{N}\p{M}\p{Cf}]*"


class Units(NamedTuple):
    """The units of a text: the key of each unit, and its start and end (exclusive) in the text."""

    keys: list[str]
    starts: list[int]
    ends: list[int]


class Part(NamedTuple):
    """A unit that is part of a word: its key, and where it starts and ends (exclusive) in the word."""

    key: str
    start: int
    end: int


class Repeat(NamedTuple):
    """Copies that follow each other directly in the key of a word, as in "ableableableable".

    ``start`` and ``end`` (exclusive) are the offsets of all copies together, and ``period`` is the length of
    one copy.
    """

    start: int
    end: int
    period: int


class UnitReader:
    """Divides texts into units.

    Args:
        flagged: The texts of the flagged tokens. Each flagged text is a unit, even if it is not a word, like
            "'s". Two copies of a flagged word without a space between them are enough to be recognized as
            copies.

    Attributes:
        flagged: The keys of the flagged texts.
        lower_word: Regular expression that matches one unit of lower-case ASCII text.
    """

    def __init__(self, flagged: Iterable[str]) -> None:
        """Separate flagged words from other flagged texts, and compile the patterns that find units."""
        texts = {text.strip() for text in flagged} - {""}
        words = set()
        self._flagged_nonwords = set()  # flagged texts that are not words, such as "'s"
        for text in texts:
            key = word_key(text)
            if key.isalnum():
                words.add(key)
            else:
                self._flagged_nonwords.add(text.casefold())
        self.flagged = frozenset(words | self._flagged_nonwords)
        # Matches two or more copies of a flagged word without spaces between them.
        self._copies = re.compile(f"({alternation(words)})\\1+") if words else None
        # Texts repeat words, and dividing a word into units takes much longer than looking it up. So there
        # are two caches: the units of words, and the lower-case ASCII words that consist of a single unit.
        self._divide_cached = lru_cache(_REMEMBERED)(self._divide)
        self._undivided_words: set[str] = set()
        # Patterns that find the words and the flagged texts in an ASCII text: `_ascii_word` in any case,
        # `lower_word` in lower case.
        ascii_nonwords = sorted(text for text in self._flagged_nonwords if text.isascii())
        self._ascii_word = re.compile(_literal_or_word(ascii_nonwords, _ASCII_WORD), re.IGNORECASE)
        self.lower_word = re.compile(_literal_or_word(ascii_nonwords, _LOWER_WORD))

    @cached_property
    def _unicode_word(self) -> regex.Pattern[str]:
        """Pattern that finds words and flagged texts in any text, but is slower than `_ascii_word`."""
        import regex  # imported only when needed, because the import takes longer than loading a cleaner

        return regex.compile(_literal_or_word(sorted(self._flagged_nonwords), _WORD), regex.IGNORECASE)

    def plain_keys(self, text: str) -> list[str] | None:
        """Return the keys of a plain ASCII text, several times as fast as `read`.

        Returns:
            The keys of all units. None if the text is not ASCII or contains copies without spaces between
            them; `read` must be used for such a text.
        """
        if not text.isascii():
            return None
        # The key of an ASCII word is the word in lower case.
        words: list[str] = self.lower_word.findall(text.lower())
        new_words = set(words) - self._undivided_words
        # An ASCII word has several parts only if it contains copies without spaces between them.
        if any(len(self._parts_of(word)) > 1 for word in new_words):
            return None
        if len(self._undivided_words) > _REMEMBERED:
            self._undivided_words.clear()
        self._undivided_words.update(word for word in new_words if len(word) <= _LONGEST_REMEMBERED)
        return words

    def read(self, text: str) -> Units:
        """Return the units of a text.

        A unit is a word, an ideograph, one of several copies that are joined without spaces, or a flagged
        text that is not a word.
        """
        units = Units([], [], [])
        pattern = self._ascii_word if text.isascii() else self._unicode_word
        for match in pattern.finditer(text):
            start = match.start()
            word = match[0]
            # In a word of ideographs, each ideograph is a unit. Nearly all other words sort before the first
            # ideograph, so comparing strings rules out these words without a regex search.
            if word > "\u3400" and _PLAIN_IDEOGRAPHS.fullmatch(word):
                units.keys.extend(word)
                units.starts.extend(range(start, start + len(word)))
                units.ends.extend(range(start + 1, start + len(word) + 1))
                continue
            if self._flagged_nonwords and word.casefold() in self._flagged_nonwords:
                parts: Sequence[Part] = [Part(word.casefold(), 0, len(word))]
            else:
                parts = self._parts_of(word)
            for part in parts:
                units.keys.append(part.key)
                units.starts.append(start + part.start)
                units.ends.append(start + part.end)
        return units

    def _parts_of(self, word: str) -> tuple[Part, ...]:
        """Return the units of a word, from the cache if the word is short."""
        return self._divide_cached(word) if len(word) <= _LONGEST_REMEMBERED else self._divide(word)

    def _divide(self, word: str) -> tuple[Part, ...]:
        """Divide a word into units.

        The word is divided before and after each ideograph, between adjoining copies, and between copies that
        are separated by invisible characters.
        """
        if word.isascii():
            return tuple(self._split_copies(word.lower(), range(len(word) + 1)))
        parts: list[Part] = []
        for piece_key, positions in _pieces(word):
            if piece_key.isascii() and len(piece_key) <= _LONGEST_REMEMBERED:
                # The cache may already have the parts of this key, as those of an ASCII word. Convert their
                # offsets in the key to positions in the word.
                for key, start, end in self._parts_of(piece_key):
                    parts.append(Part(key, positions[start], positions[end]))
                continue
            for match in _IDEOGRAPH_OR_OTHERS.finditer(piece_key):
                start, end = match.span()
                parts += self._split_copies(piece_key[start:end], positions[start : end + 1])
        return tuple(parts)

    def _split_copies(self, key: str, positions: Sequence[int]) -> Iterator[Part]:
        """Yield the units of a word or of a part of a word: copies without spaces, and any text between them.

        Example: "xableableableabley" -> "x", "able", "able", "able", "able", "y".

        Args:
            key: The key of the word or part.
            positions: For each character of the key, its position in the word, followed by the position in
                the word where the key ends.
        """
        done = 0
        if len(key) >= _FEWEST_COPIES:
            for repeat in self._copies_in(key):
                if repeat.start > done:
                    yield Part(key[done : repeat.start], positions[done], positions[repeat.start])
                for start in range(repeat.start, repeat.end, repeat.period):
                    end = start + repeat.period
                    yield Part(key[start:end], positions[start], positions[end])
                done = repeat.end
        if done < len(key):
            yield Part(key[done:], positions[done], positions[len(key)])

    def _copies_in(self, key: str) -> Iterator[Repeat]:
        """Yield all repeats in the key of a word, in order.

        Repeats of flagged words take precedence: other repeats are found only in the text before, between and
        after the repeats of flagged words.
        """
        done = 0
        if self._copies is not None:
            for match in self._copies.finditer(key):
                period = len(match[1])
                copies = (match.end() - match.start()) // period
                # Two copies of a short flagged word can be part of an ordinary word, as "an" in "banana".
                if copies >= _FEWEST_COPIES or period >= _SHORTEST_DOUBLED:
                    yield from _repeats_between(key, done, match.start())
                    yield Repeat(match.start(), match.end(), period)
                    done = match.end()
        yield from _repeats_between(key, done, len(key))


def _literal_or_word(literals: Sequence[str], word: str) -> str:
    """Return a pattern that matches a literal text (the longest one if several match), or else a word.

    A literal that begins or ends with a letter or digit matches only where no further letter or digit adjoins
    it.
    """
    guarded = [text for text in literals if text[0].isalnum() or text[-1].isalnum()]
    alternatives = []
    for text in sorted(guarded, key=len, reverse=True):
        before = r"(?<!\w)" if text[0].isalnum() else ""
        after = r"(?!\w)" if text[-1].isalnum() else ""
        alternatives.append(before + re.escape(text) + after)
    signs = alternation(set(literals) - set(guarded))
    return "|".join(alternative for alternative in (*alternatives, signs, word) if alternative)


def word_key(word: str) -> str:
    """Return the key of a word: the word in lower case, without accents and invisible characters.

    Full-width characters are converted to half width.
    """
    return "".join(map(_plain, _BREAKS.sub("", word)))


@cache
def _plain(character: str) -> str:
    """Return a character in lower case, without accents, and converted from full width to half width.

    The result can be one character, several (such as "ss" for a sharp s) or none (for an accent alone).
    """
    decomposed = unicodedata.normalize("NFKD", character)
    if len(decomposed) > _LONGEST_DECOMPOSED:
        return character
    return unicodedata.normalize("NFC", _BREAKS.sub("", decomposed)).casefold()


def _pieces(word: str) -> list[tuple[str, list[int]]]:
    """Divide a word at invisible characters and combining marks, if these characters separate copies.

    If any two pieces of several letters are equal, the pieces are returned separately, because they are
    copies. If all such pieces differ, all pieces are joined into one, because invisible characters and
    combining marks also occur within a single word or copy.

    Returns:
        The pieces as pairs of a key and a list of positions. The list has one entry more than the key has
        characters: the position of each character within the word, followed by the position where the next
        piece begins or the word ends. Examples, with an invisible character at position 2: "ab_ab" -> ("ab",
        [0, 1, 3]) and ("ab", [3, 4, 5]), but "ab_cd" -> ("abcd", [0, 1, 3, 4, 5]).
    """
    breaks = [match.span() for match in _BREAKS.finditer(word)]
    pieces: list[tuple[str, list[int]]] = []
    start = 0
    for end, next_start in [*breaks, (len(word), len(word))]:
        characters = []
        piece_positions = []
        for position in range(start, end):
            # `_plain` can turn one character into several or none, so the position is repeated as often.
            plain = _plain(word[position])
            characters.append(plain)
            piece_positions += [position] * len(plain)
        if piece_positions:
            pieces.append(("".join(characters), [*piece_positions, next_start]))
        start = next_start
    long_keys = [key for key, _ in pieces if len(key) > 1]
    has_copies = len(set(long_keys)) < len(long_keys)
    if has_copies or len(pieces) <= 1:
        return pieces
    joined_key = "".join(key for key, _ in pieces)
    # The last entry of each piece's positions repeats the start of the next piece, so it is dropped for every
    # piece but the last.
    joined_positions = []
    for _, piece_positions in pieces:
        joined_positions += piece_positions[:-1]
    _, last_positions = pieces[-1]
    return [(joined_key, [*joined_positions, last_positions[-1]])]


def _repeats_between(key: str, start: int, end: int) -> list[Repeat]:
    """Return the repeats in the part of a word's key from ``start`` to ``end`` (exclusive), in order.

    A repeat is at least four copies, of three characters or more, that follow each other directly. The
    offsets of a repeat are offsets in the whole key. Example: "xableableableabley" -> a repeat from 1 to 17
    with the period 4.

    Repeats of digits, of signs or of a single letter are left out, and so are repeats in DNA and RNA
    sequences.
    """
    repeats = []
    for repeat in _repeats_in(key[start:end]):
        first = start + repeat.start
        root = key[first : first + repeat.period]  # the text of a single copy
        if root.isalpha() and len(set(root)) > 1 and not _BASES.issuperset(key):
            repeats.append(Repeat(first, start + repeat.end, repeat.period))
    return sorted(repeats)


def _repeats_in(text: str) -> Iterator[Repeat]:
    """Yield sequences of adjacent copies in a text, without overlaps. The shortest copies come first.

    In copies with a period of p characters, each character equals the one p characters later. In
    "xabcabcabcabc", the nine characters at positions 1 to 9 each equal the one three positions later, which
    makes four copies of three characters from position 1.
    """
    # Quick exit: copies repeat their characters, and hardly any ordinary word repeats as many characters.
    if len(text) - len(set(text)) < (_FEWEST_COPIES - 1) * _SHORTEST_COPY:
        return
    taken = bytearray(len(text))
    for period in range(_SHORTEST_COPY, min(_LONGEST_COPY, len(text) // _FEWEST_COPIES) + 1):
        # The byte of each character is 1 if the character equals the one a period later. A copy that another
        # copy follows has only ones, so copies begin where enough ones follow each other.
        is_equal = bytes(map(operator.eq, text, text[period:]))
        enough = b"\1" * (period * (_FEWEST_COPIES - 1))
        start = is_equal.find(enough)
        while start >= 0:
            last = is_equal.find(b"\0", start)
            if last < 0:
                last = len(is_equal)
            copies = (last - start) // period + 1
            end = start + copies * period
            if not any(taken[start:end]):
                taken[start:end] = b"\1" * (end - start)
                yield Repeat(start, end, period)
            start = is_equal.find(enough, last)
