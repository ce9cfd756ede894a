"""Cut a text into units: words, ideographs, flagged signs, and each of several words glued together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from stickytoken.cleaning._alternation import alternation
from stickytoken.cleaning._words import FIRST_IDEOGRAPH, Part, WordReader, is_plain_ideographs, key_of

if TYPE_CHECKING:
    import regex

_WORD = r"[\p{L}\p{N}][\p{L}\p{N}\p{M}\p{Cf}]*"


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


class UnitReader:
    """Cuts texts into units.

    Args:
        flagged: Texts of flagged vocabulary entries: words, signs, or both together, such as ``'s``.
    """

    def __init__(self, flagged: Iterable[str]) -> None:
        texts = {text.strip() for text in flagged} - {""}
        words = {key_of(text) for text in texts if key_of(text).isalnum()}
        self._literals = {text.casefold() for text in texts if not key_of(text).isalnum()}
        self.flagged = frozenset(words | self._literals)
        self._words = WordReader(words)
        ascii_literals = sorted(text for text in self._literals if text.isascii())
        self._ascii_word = re.compile(_either(ascii_literals, "[A-Za-z0-9]+"), re.IGNORECASE)
        self._lower_word = re.compile(_either(ascii_literals, "[a-z0-9]+"))

    @cached_property
    def _unicode_word(self) -> regex.Pattern[str]:
        """Letters and digits, with the marks and invisible characters among them."""
        import regex  # takes longer to import than a cleaner to load

        return regex.compile(_either(sorted(self._literals), _WORD), regex.IGNORECASE)

    def plain_keys(self, text: str) -> list[str] | None:
        """Return the keys of a plain text, several times as fast as `read`; None for any other text."""
        if not text.isascii():
            return None
        words: list[str] = self._lower_word.findall(text.lower())
        return words if self._words.all_whole(words) else None

    def read_plain(self, text: str, keys: list[str]) -> Units:
        """Return the units of a text with plain keys."""
        spans = [match.span() for match in self._lower_word.finditer(text.lower())]
        return Units(keys, [start for start, _ in spans], [end for _, end in spans])

    def read(self, text: str) -> Units:
        """Return the units of a text."""
        keys: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        pattern = self._ascii_word if text.isascii() else self._unicode_word
        for match in pattern.finditer(text):
            start, word = match.start(), match[0]
            if word > FIRST_IDEOGRAPH and is_plain_ideographs(word):
                keys.extend(word)
                starts.extend(range(start, start + len(word)))
                ends.extend(range(start + 1, start + len(word) + 1))
                continue
            for key, first, last in self._parts(word):
                keys.append(key)
                starts.append(start + first)
                ends.append(start + last)
        return Units(keys, starts, ends)

    def _parts(self, word: str) -> tuple[Part, ...]:
        if self._literals and (folded := word.casefold()) in self._literals:
            return ((folded, 0, len(word)),)
        return self._words.parts(word)


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
