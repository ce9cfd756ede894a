"""Find where a string repeats itself, in linear time for any string."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

SHORTEST = 3
_LONGEST = 32
COPIES = 4
_NOT_ZERO = re.compile(rb"[^\0]")


class Repeat(NamedTuple):
    """Copies of one piece that follow each other.

    Attributes:
        start: Where the first begins.
        end: Where the last whole one ends.
        period: Length of one.
    """

    start: int
    end: int
    period: int


def repeats_in(text: str) -> Iterator[Repeat]:
    """Yield where four or more copies of a piece of 3 to 32 characters follow each other, short pieces first.

    Where a text is equal to itself moved by a period, the bytes of their exclusive or are zero. Python
    computes it for a whole text at once.
    """
    if len(text) - len(set(text)) < (COPIES - 1) * SHORTEST:
        return
    coding, width = ("latin-1", 1) if max(text) <= "\xff" else ("utf-32-le", 4)
    data = text.encode(coding, "surrogatepass")
    number = int.from_bytes(data, "little")
    taken = bytearray(len(text))
    for period in range(SHORTEST, min(_LONGEST, len(text) // COPIES) + 1):
        equal = (number ^ number >> 8 * width * period).to_bytes(len(data), "little")
        least = (COPIES - 1) * period
        for first, last in _zeros(equal, least * width):
            start = -(-first // width)
            copies = (last // width - start) // period + 1
            end = start + copies * period
            if copies >= COPIES and not any(taken[start:end]):
                taken[start:end] = b"\1" * (end - start)
                yield Repeat(start, end, period)


def _zeros(data: bytes, least: int) -> Iterator[tuple[int, int]]:
    """Yield where at least so many bytes in a row are zero; several times as fast as a regular expression."""
    wanted = bytes(least)
    start = data.find(wanted)
    while start >= 0:
        other = _NOT_ZERO.search(data, start + least)
        end = other.start() if other else len(data)
        yield start, end
        start = data.find(wanted, end)
