"""Text that a spreadsheet displays but does not evaluate."""

from __future__ import annotations

from stickytoken.visible_text import visible

_FORMULAS = ("=", "+", "-", "@")


def harmless(text: str) -> str:
    """Make text visible, and keep a spreadsheet from reading it as a formula."""
    shown = visible(text)
    return f"'{shown}" if shown.startswith(_FORMULAS) else shown
