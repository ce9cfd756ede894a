"""Edits of a text that knows where each of its characters comes from, and what goes with a removal."""

from __future__ import annotations

import re
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


_SIGNS = ",;:.!?…/|_~·-–—"
_JOINING = re.compile(f"[{re.escape(_SIGNS)}]+")
_INVISIBLE = "\u00ad\u034f\u200b\u200c\u200d\u2060\ufeff"


def tidied(text: str, edit: Edit) -> Edit:
    """Widen a removal so that the rest reads as if nothing had been there."""
    start, end, replacement = edit
    joints = set("".join(_JOINING.findall(text[start:end])))
    if len(joints) > 1:
        joints.update(_SIGNS)
    while end < len(text) and (text[end] in joints or text[end] in _INVISIBLE):
        end += 1
    end = _behind_loose_joint(text, end, joints)
    while start > 0 and text[start - 1] in _INVISIBLE:
        start -= 1
    if replacement:
        return Edit(start, end, replacement)
    open_before = start == 0 or text[start - 1].isspace()
    open_behind = end == len(text) or text[end].isspace()
    if open_before and open_behind:
        if end < len(text):
            end += 1
        elif start > 0:
            start -= 1
    return Edit(start, end, replacement)


def _behind_loose_joint(text: str, end: int, joints: set[str]) -> int:
    """Return the end of a removal with the joint behind it that a space separates from the last copy."""
    if not joints:
        return end
    last = end
    while last < len(text) and (text[last] in joints or text[last] == " "):
        last += 1
    stands_alone = last == len(text) or text[last].isspace() or text[last - 1].isspace()
    return end + len(text[end:last].rstrip()) if stands_alone else end
