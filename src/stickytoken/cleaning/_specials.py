"""Find the text of special tokens, also where it is written with full-width or invisible characters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator

from stickytoken.cleaning._alternation import alternation

_INVISIBLE = "\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
_DISGUISED = re.compile(f"[{_INVISIBLE}\uff01-\uff5e]")
_INVISIBLE_CHARACTER = re.compile(f"[{_INVISIBLE}]")


def special_pattern(specials: Iterable[str]) -> re.Pattern[str] | None:
    """Return a pattern for the texts of special tokens; None without any."""
    source = alternation(text.strip() for text in specials)
    return re.compile(source) if source else None


def find_specials(text: str, pattern: re.Pattern[str] | None) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and name of each special token in a text."""
    if pattern is None:
        return
    if text.isascii() or not _DISGUISED.search(text):
        for match in pattern.finditer(text):
            yield match.start(), match.end(), match.group()
        return
    places = [place for place, each in enumerate(text) if not _INVISIBLE_CHARACTER.match(each)]
    plain = "".join(_narrow(text[place]) for place in places)
    for match in pattern.finditer(plain):
        yield places[match.start()], places[match.end() - 1] + 1, match.group()


def _narrow(character: str) -> str:
    return unicodedata.normalize("NFKC", character) if "\uff01" <= character <= "\uff5e" else character
