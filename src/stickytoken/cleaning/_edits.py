"""A text that is edited several times and knows where each of its characters comes from."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple


class Edit(NamedTuple):
    """One replacement.

    Attributes:
        start: Offset of the first character that is replaced.
        end: Offset behind the last one.
        text: What takes their place.
    """

    start: int
    end: int
    text: str


class EditedText:
    """A text and its edits.

    Args:
        text: The text as it was.

    Attributes:
        text: The text as it is now.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        # Pieces of the present text: where each begins, where in the original, and whether it is from there.
        self._starts = [0]
        self._origins = [0]
        self._copied = [True]

    def original(self, start: int, end: int) -> tuple[int, int]:
        """Return the part of the original that a part of the present text comes from."""
        return self._origin(start), (self._origin(end - 1) + 1 if end > start else self._origin(start))

    def apply(self, edits: Sequence[Edit]) -> None:
        """Make several edits, given in order, which do not overlap."""
        parts: list[str] = []
        starts: list[int] = []
        origins: list[int] = []
        copied: list[bool] = []
        length = done = 0

        def keep(start: int, end: int) -> None:
            nonlocal length
            number = bisect_right(self._starts, start) - 1
            while start < end:
                stop = self._starts[number + 1] if number + 1 < len(self._starts) else end
                stop = min(stop, end)
                starts.append(length)
                origins.append(self._origin(start))
                copied.append(self._copied[number])
                parts.append(self.text[start:stop])
                length += stop - start
                start = stop
                number += 1

        for start, end, replacement in edits:
            keep(done, start)
            if replacement:
                starts.append(length)
                origins.append(self._origin(start))
                copied.append(False)
                parts.append(replacement)
                length += len(replacement)
            done = end
        keep(done, len(self.text))
        self.text = "".join(parts)
        self._starts, self._origins, self._copied = starts or [0], origins or [0], copied or [True]

    def _origin(self, place: int) -> int:
        number = bisect_right(self._starts, place) - 1
        moved = place - self._starts[number] if self._copied[number] else 0
        return self._origins[number] + moved
