"""Steps that all adapters share."""

from __future__ import annotations

from typing import NamedTuple

from stickytoken.cleaning.cleaner import Cleaner, summary
from stickytoken.errors import InputError, RefusedTextError
from stickytoken.validation import shown

NOTE = "stickytoken"
"""The key under which a document says what was found in it."""


class CleanText(NamedTuple):
    """A cleaned text.

    Attributes:
        text: The text.
        changed: Whether it differs from what it was.
        note: How much was found, by kind, without the text of it; empty if nothing was.
    """

    text: str
    changed: bool
    note: str


def cleaned_text(cleaner: Cleaner, text: str, name: str) -> CleanText:
    """Clean the text of a document."""
    if not isinstance(text, str):
        raise InputError(f"the text of {name} is {shown(text)}: it must be a string")
    try:
        cleaned = cleaner.clean(text)
    except RefusedTextError as error:
        raise RefusedTextError(f"{name}: {error}") from error
    return CleanText(cleaned.text, cleaned.text != text, summary(cleaned))
