"""Check the values that the browser sent, and enforce limits. Pure."""

from __future__ import annotations

from stickytoken.errors import InputError
from stickytoken.insertion import Placement

TEXT_CHARACTERS = 1000
TOKEN_CHARACTERS = 200
COPIES = 32
EXPLAIN_CARRIERS = 20
EXPLAIN_BENIGN = 16
TABLE_ROWS = 500
WAITING = 32
"""Requests that may wait for the model; more are refused."""


_MOST_IDS = 10**9


def checked_text(name: str, text: object) -> str:
    """Return a sentence that a visitor typed."""
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{name} is empty: write a sentence")
    if len(text) > TEXT_CHARACTERS:
        raise InputError(
            f"{name} has {len(text):,} characters, and the limit is {TEXT_CHARACTERS:,}: shorten it"
        )
    return text


def checked_count(name: str, value: object, least: int, most: int) -> int:
    """Return a whole number between its limits."""
    wanted = f"enter a whole number from {least} to {most}"
    if value is None:
        raise InputError(f"{name} is empty: {wanted}")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{name} is not a number: {wanted}")
    if not least <= value <= most or value != int(value):
        raise InputError(f"{name} is {value!s:.20}: {wanted}")
    return int(value)


def checked_placement(value: object) -> Placement:
    """Return the placement of the copies."""
    if not isinstance(value, str) or value not in set(Placement):
        raise InputError(f"the place of the copies is unknown: choose one of {', '.join(Placement)}")
    return Placement(value)


def checked_choices(name: str, values: object) -> tuple[str, ...]:
    """Return the entries chosen in a list; an empty selection gives none."""
    if values is None:
        return ()
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise InputError(f"{name} is not a list of entries: choose some from the list")
    return tuple(values)


def checked_token_id(value: object) -> int:
    """Return the id of a token chosen in a list or a table."""
    # A cell of a table holds the id as text.
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_IDS:
        return value
    raise InputError("no token with that id: choose one from the list")
