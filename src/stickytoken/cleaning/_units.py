"""Cut a text into units: words, ideographs, and the copies of words that are glued together."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from stickytoken.cleaning._words import WordReader

if TYPE_CHECKING:
    import regex

_ASCII_WORD = re.compile(r"[A-Za-z0-9]+")
_LOWER_WORD = re.compile(r"[a-z0-9]+")


class Units(NamedTuple):
    """The units of a text in order.

    Attributes:
        keys: What each is compared by.
        starts: Offset of its first character.
        ends: Offset behind its last character.
    """

    keys: list[str]
    starts: list[int]
    ends: list[int]


def read_keys(text: str, reader: WordReader) -> list[str]:
    """Return the keys of a text's units; for plain English this is several times as fast as `read_units`."""
    if text.isascii():
        words = _LOWER_WORD.findall(text.lower())
        if reader.all_whole(words):
            return words
    return read_units(text, reader).keys


def read_units(text: str, reader: WordReader) -> Units:
    """Return the units of a text."""
    units = Units([], [], [])
    pattern = _ASCII_WORD if text.isascii() else _word_pattern()
    for match in pattern.finditer(text):
        start = match.start()
        for key, first, last in reader.parts(match.group()):
            units.keys.append(key)
            units.starts.append(start + first)
            units.ends.append(start + last)
    return units


@cache
def _word_pattern() -> regex.Pattern[str]:
    """Letters and digits, with the marks and invisible characters among them."""
    import regex  # takes longer to import than a cleaner to load

    return regex.compile(r"[\p{L}\p{N}][\p{L}\p{N}\p{M}\p{Cf}]*")
