"""Divide a text into units: words, ideographs, and copies of a word that are written without spaces.

Units are compared by their keys. Two words have the same key if the model's normaliser makes them equal, so
that its tokenizer reads the same tokens. If the normaliser isn't known, only words that are spelled alike are
equal.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from stickytoken.cleaning._markup import PAD
from stickytoken.cleaning.rules import match_any

if TYPE_CHECKING:
    import regex

# A word is divided if it contains at least this many copies in a row: of a flagged word, or of any other text
# of `_SHORTEST_COPY` characters or more. "banana", "hahaha" and "bonbon" are not divided.
FEWEST_GLUED = 4
_SHORTEST_COPY = 3
_LONGEST_COPY = 32
# Letters of DNA and RNA sequences, which repeat naturally.
_BASES = frozenset("acgtu")
# Number of words whose keys are remembered.
_REMEMBERED = 200_000
# A space before a word, as the normalisers of some tokenizers write it.
_WORD_MARK = "\u2581"

_ASCII_WORD = "[A-Za-z0-9]+"
_LETTER = r"[\p{L}\p{N}--\p{Han}]"
_IN_WORD = rf"[\p{{L}}\p{{N}}\p{{M}}\p{{Cf}}{PAD}--\p{{Han}}]"  # some models see invisible characters
# Invisible characters that separate words or hide in them. Joiners are no part, because letters need them.
INVISIBLE = "\u00ad\u061c\u180e\u200b\u200e\u200f\u2060\u2061\u2062\u2063\u2064\ufeff"
# What may stand between copies that are written without spaces. These are as invisible, but cleaning leaves
# those around copies: joiners, and characters that set the direction of writing, annotate, or tag a text.
_FURTHER_INVISIBLE = (
    *(0x200C, 0x200D),
    *range(0x202A, 0x202F),
    *range(0x2066, 0x2070),
    *range(0xFFF9, 0xFFFC),
    *range(0xE0020, 0xE0080),
)
_INVISIBLE_IN_RUNS = INVISIBLE + "".join(map(chr, _FURTHER_INVISIBLE))
_BETWEEN_COPIES = f"[{_INVISIBLE_IN_RUNS}]*"


class Part(NamedTuple):
    """A unit in a word: its key (normalised form), and its start and end (exclusive) in the word."""

    key: str
    start: int
    end: int


class Units(NamedTuple):
    """The units of a text: the key (normalised form), start and end (exclusive) of each."""

    keys: list[str]
    starts: list[int]
    ends: list[int]


def key_function(normalizer: str | None) -> Callable[[str], str]:
    """Return a function that gives the key of a word: the word as a tokenizer normalises it, without spaces.

    Args:
        normalizer: The normaliser in JSON, as the tokenizers library writes it; None if it isn't known, so
            that words are their own keys.
    """
    if normalizer is None:
        return str.strip
    from tokenizers import Tokenizer

    # The library reads a normaliser only as part of a tokenizer, so make one that has nothing else.
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": json.loads(normalizer),
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {}, "unk_token": ""},
    }
    tokenizer_normalizer = Tokenizer.from_str(json.dumps(tokenizer)).normalizer
    if tokenizer_normalizer is None:
        return str.strip
    normalise = tokenizer_normalizer.normalize_str
    # Some normalisers put a mark in front of every word, in place of a space.
    return lambda word: normalise(word).replace(_WORD_MARK, " ").strip()


class UnitReader:
    """Divides texts into units.

    Args:
        flagged: The texts of the flagged tokens. Each is a unit, even if it is not a word, like "'s".
        normalizer: The normaliser of the model's tokenizer; see `key_function`.

    Attributes:
        flagged: The flagged texts, keyed by their keys. Of texts with equal keys, the first is kept.
    """

    def __init__(self, flagged: Iterable[str], normalizer: str | None) -> None:
        self._key_function = key_function(normalizer)
        self._folds_case = self.key_of("A") == self.key_of("a")
        # Invisible characters that the normaliser makes a space of, as that of T5 does: they end a word.
        self._invisible_spaces = "".join(
            character for character in _INVISIBLE_IN_RUNS if " " in self.key_of(f"a{character}a")
        )
        texts = [text.strip() for text in flagged]
        # Of texts with equal keys, a dictionary keeps the last. The order is reversed, so this is the first
        # of `texts`.
        self.flagged = {self.key_of(text): text for text in reversed(texts) if self.key_of(text)}
        flagged_words = {key for key in self.flagged if key.isalnum()}
        # Copies that are written without spaces: of a flagged word, or of any other text.
        flagged_pattern = match_any(flagged_words) or "(?!)"  # matches nothing if there is no flagged word
        other_pattern = rf"\w{{{_SHORTEST_COPY},{_LONGEST_COPY}}}?"
        self._runs_of_copies = re.compile(
            f"{_make_copies_pattern('flagged', flagged_pattern)}|"
            f"{_make_copies_pattern('other', other_pattern)}"
        )
        # Flagged texts that no pattern of words matches as a whole, such as "'s".
        self._literals = [text for text in texts if text and not self._is_one_word(text)]
        # Flagged symbols that are part of a word behind a letter, as in "Na⁺", where BERT reads another entry
        # than for "⁺" alone. The normaliser tells such a model; its type may stand in a sequence of others.
        self._symbols_in_words = ""
        if normalizer is not None and '"BertNormalizer"' in normalizer:
            self._symbols_in_words = "".join(filter(_is_symbol_in_words, "".join(self._literals)))
        ascii_literals = [text for text in self._literals if text.isascii()]
        case = re.IGNORECASE if self._folds_case else re.NOFLAG
        self._ascii_units = re.compile(_make_literal_or_word_pattern(ascii_literals, _ASCII_WORD), case)
        self._key_of_character = _KeyOfCharacter(self.key_of)
        # What `_divide` has returned for each word.
        self._key_or_parts: dict[str, str | tuple[Part, ...]] = {}

    @cached_property
    def _unicode_units(self) -> regex.Pattern[str]:
        import regex  # imported only when needed, because the import takes longer than loading a cleaner

        # A word with the marks and invisible characters in it, or a single ideograph with its marks.
        in_word = (
            f"(?:{_IN_WORD}|[{re.escape(self._symbols_in_words)}])" if self._symbols_in_words else _IN_WORD
        )
        word = rf"\p{{Cf}}*{_LETTER}{in_word}*"
        if self._invisible_spaces:
            spaces = f"[{self._invisible_spaces}]"
            # A word keeps those behind it: an edit that leaves a joiner would cut a character.
            word = rf"[\p{{Cf}}--{spaces}]*{_LETTER}[{_IN_WORD}--{spaces}]*{spaces}*"
        word += rf"|\p{{Han}}[\p{{M}}{PAD}]*"
        case = regex.IGNORECASE if self._folds_case else 0
        return regex.compile(_make_literal_or_word_pattern(self._literals, word), regex.VERSION1 | case)

    def _is_one_word(self, text: str) -> bool:
        if text.isascii():
            return text.isalnum()
        import regex

        return bool(regex.fullmatch(rf"{_LETTER}{_IN_WORD}*|\p{{Han}}\p{{M}}*", text, regex.VERSION1))

    def key_of(self, word: str) -> str:
        """Return the key of a word, in which placeholders may stand for an entity."""
        return self._key_function(word.replace(PAD, "") if PAD in word else word)

    def normalise(self, text: str) -> str:
        """Return a text normalised character by character."""
        return text.translate(self._key_of_character)

    def find_positions(self, text: str) -> list[int]:
        """Return the offset of each character of what `normalise` returns, and the length of the text."""
        positions: list[int] = []
        for index, character in enumerate(text):
            positions += [index] * len(self._key_of_character[ord(character)])
        return [*positions, len(text)]

    def keys(self, text: str) -> list[str] | None:
        """Return the keys of all units of a text, twice as fast as `read`.

        None if a word consists of several units; `read` must be used for such a text.
        """
        words = self._choose_pattern(text).findall(text)
        if len(self._key_or_parts) > _REMEMBERED:
            self._key_or_parts = {}
        # A local variable, because another thread may replace the attribute during this call.
        key_or_parts = self._key_or_parts
        keys: list[str] = []
        for word in words:
            divided = key_or_parts.get(word)
            if divided is None:
                divided = self._divide(word)
                key_or_parts[word] = divided
            if not isinstance(divided, str):
                return None
            keys.append(divided)
        return keys

    def read(self, text: str) -> Units:
        """Return the units of a text with their offsets."""
        units = Units([], [], [])
        for match in self._choose_pattern(text).finditer(text):
            word = match[0]
            start, end = match.span()
            divided = self._key_or_parts.get(word)
            if divided is None:
                divided = self._divide(word)
                self._key_or_parts[word] = divided
            if isinstance(divided, str):  # the key of a word that is one unit
                divided = (Part(divided, 0, end - start),)
            for part in divided:
                units.keys.append(part.key)
                units.starts.append(start + part.start)
                units.ends.append(start + part.end)
        return units

    def _choose_pattern(self, text: str) -> re.Pattern[str] | regex.Pattern[str]:
        return self._ascii_units if text.isascii() else self._unicode_units

    def _divide(self, word: str) -> str | tuple[Part, ...]:
        """Return the key (normalised form) of a word that is one unit, or else the units in it.

        A word that the normaliser removes has no unit. A word that contains copies without spaces consists of
        these copies and of the text around them: "xableableableabley" -> "x", "able" (4 times) and "y".
        """
        key = self.key_of(word)
        if not key:
            return ()
        # Every copy after the first repeats characters. This quick check spares most words the search.
        repeated_characters = len(key) - len(set(key))
        if repeated_characters < FEWEST_GLUED - 1 or key in self.flagged:
            return key
        runs = [match for match in self._runs_of_copies.finditer(key) if self._repeats_a_word(match)]
        positions = self._find_positions_in_word(word, key) if runs else None
        if positions is None:
            return key
        bounds = {0, len(key)}  # where the units begin and end, in the key
        for run in runs:
            repeated_text = run["other"] or run["flagged"]
            copies = re.finditer(re.escape(repeated_text), run[0])
            bounds.update(run.start() + copy.start() for copy in copies)
            bounds.add(run.end())
        parts = []
        for start, end in pairwise(sorted(bounds)):
            # What separates copies makes no other word of them.
            part_key = key[start:end].strip(_INVISIBLE_IN_RUNS)
            if part_key:
                parts.append(Part(part_key, positions[start], positions[end]))
        return tuple(parts)

    def _repeats_a_word(self, run: re.Match[str]) -> bool:
        repeated_text = run["other"]
        if repeated_text is None:  # the run has copies of a flagged word
            return True
        # Numbers, rows of one letter and DNA sequences repeat naturally.
        is_one_letter = len(set(repeated_text)) == 1
        is_dna = _BASES.issuperset(repeated_text.casefold())
        return repeated_text.isalpha() and not is_one_letter and not is_dna

    def _find_positions_in_word(self, word: str, key: str) -> Sequence[int] | None:
        """Return the offset in a word of each character of its key, followed by the length of the word.

        The result is None if the offsets are unknown.
        """
        if self.normalise(word) == key:
            return self.find_positions(word)
        # The normaliser doesn't treat one character after the other, but may still have kept their number.
        return range(len(word) + 1) if len(key) == len(word) else None


class _KeyOfCharacter(dict[int, str]):
    """The key of each character, by its code point, as `str.translate` looks it up."""

    def __init__(self, key_of: Callable[[str], str]) -> None:
        self._key_of = key_of

    def __missing__(self, code_point: int) -> str:
        character = chr(code_point)
        # White space stays. So does half of a character in UTF-16, which the tokenizers library doesn't take.
        stays = character.isspace() or "\ud800" <= character <= "\udfff"
        key = character if stays else self._key_of(character)
        self[code_point] = key
        return key


def _make_copies_pattern(group_name: str, copy_pattern: str) -> str:
    """Return a pattern that matches copies without spaces. The named group has the text of the first copy."""
    further_copies = f"(?:{_BETWEEN_COPIES}(?P={group_name})){{{FEWEST_GLUED - 1},}}"
    return f"(?P<{group_name}>{copy_pattern}){further_copies}{_BETWEEN_COPIES}"


def _make_literal_or_word_pattern(literals: Iterable[str], word_pattern: str) -> str:
    """Return a pattern that matches a literal, the longest if several match, or else a word."""
    alternatives = []
    for text in sorted(set(literals), key=len, reverse=True):
        # A literal must not be part of a longer word. Ideographs, which no spaces set apart, match anywhere.
        before = r"(?<!\w)" if text[0].isalnum() and ord(text[0]) < _FIRST_IDEOGRAPH else ""
        after = r"(?!\w)" if text[-1].isalnum() and ord(text[-1]) < _FIRST_IDEOGRAPH else ""
        alternatives.append(before + re.escape(text) + after)
    return "|".join([*alternatives, word_pattern])


_FIRST_IDEOGRAPH = 0x3400


def _is_symbol_in_words(character: str) -> bool:
    """Return whether BERT's tokenizers take a character behind a letter for a part of the letter's word.

    They divide words at punctuation, for which they take all symbols of ASCII, too, and around ideographs.
    """
    is_punctuation = character.isascii() or unicodedata.category(character).startswith("P")
    return not (is_punctuation or character.isalnum() or character.isspace())
