"""Numbers that users set."""

from __future__ import annotations

from collections.abc import Mapping
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


def proportion(name: str, value: Any) -> float:
    """The value as a float above 0 and below 1, such as a coverage.

    Raises:
        InputError: it is no such number.
    """
    number = real_number(name, value)
    if not 0 < number < 1:
        raise InputError(f"{name} is {number}: it must lie between 0 and 1")
    return number


def set_whole_numbers(settings: object, least: Mapping[str, int]) -> None:
    """Give fields of frozen settings one spelling: 8.0 and numpy's 8 are 8.

    Args:
        settings: while they are made.
        least: the smallest value of each field, by name.

    Raises:
        InputError: names a field that is not whole, or below its smallest value.
    """
    for name, bound in least.items():
        object.__setattr__(settings, name, whole_number(name, getattr(settings, name), bound))
