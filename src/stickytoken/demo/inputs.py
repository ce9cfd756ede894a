"""How much a visitor may ask for at a time. Pure."""

from __future__ import annotations

from stickytoken.errors import InputError

TEXT_CHARACTERS = 1000
TOKEN_CHARACTERS = 200
COPIES = 32
EXPLAIN_CARRIERS = 20
EXPLAIN_BENIGN = 16
TABLE_ROWS = 500
WAITING = 32
"""Requests that may wait for the model; more are turned away."""


def checked_text(name: str, text: str | None) -> str:
    """A text that a visitor typed.

    Raises:
        InputError: it is empty or too long.
    """
    if text is None or not text.strip():
        raise InputError(f"{name} is empty: write a sentence")
    if len(text) > TEXT_CHARACTERS:
        raise InputError(
            f"{name} has {len(text):,} characters, {TEXT_CHARACTERS:,} are the most here: shorten it"
        )
    return text


def checked_count(name: str, value: float | None, least: int, most: int) -> int:
    """A whole number within its limits.

    Raises:
        InputError: it is none.
    """
    if value is None or value != int(value) or not least <= value <= most:
        shown = "empty" if value is None else f"{value:g}"
        raise InputError(f"{name}: {shown} is not a whole number from {least} to {most}")
    return int(value)
