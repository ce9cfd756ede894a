"""Numbers that users set."""

from __future__ import annotations

from typing import Any

from stickytoken.errors import InputError


def real_number(name: str, value: Any) -> float:
    """The value as a float.

    Raises:
        InputError: it is no number.
    """
    if isinstance(value, (str, bytes)):
        raise InputError(f"{name} is {value!r}: it must be a number")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} is {value!r}: it must be a number") from None


def whole_number(name: str, value: Any, least: int) -> int:
    """The value as an int.

    Raises:
        InputError: it is not whole, or below ``least``.
    """
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} is {value}: it must be a whole number") from None
    if isinstance(value, str) or number != value:
        raise InputError(f"{name} is {value}: it must be a whole number")
    if number < least:
        raise InputError(f"{name} is {value}: it must be at least {least}")
    return number
