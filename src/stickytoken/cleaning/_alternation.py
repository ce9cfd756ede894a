"""One regular expression for many texts, which branches only where they differ."""

from __future__ import annotations

import re
from collections.abc import Iterable


def alternation(texts: Iterable[str]) -> str:
    """Return the source of a pattern that matches any of the texts, the longest first; empty without any.

    The time of a search does not grow with the number of texts, as it does with ``a|b|c``.
    """
    different = sorted(set(texts) - {""})
    return _branches(different) if different else ""


def _branches(texts: list[str]) -> str:
    """Group sorted texts by their first character."""
    groups: dict[str, list[str]] = {}
    for text in texts:
        groups.setdefault(text[0], []).append(text[1:])
    branches = [re.escape(first) + _rest(rests) for first, rests in groups.items()]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def _rest(rests: list[str]) -> str:
    longer = [rest for rest in rests if rest]
    if not longer:
        return ""
    source = _branches(longer)
    return source if len(longer) == len(rests) else f"(?:{source})?"
