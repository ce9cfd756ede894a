"""Apply edits to a text in rounds, and extend edits to surrounding spaces and punctuation."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from stickytoken.cleaning._characters import INVISIBLE


class Edit(NamedTuple):
    """A part of a text and its replacement.

    Attributes:
        start: Offset of the part's first character.
        end: Offset after the part's last character.
        text: The replacement.
    """

    start: int
    end: int
    text: str


class Draft:
    """A text that is edited in rounds, together with each character's offset in the original text.

    Attributes:
        text: The text with all edits so far.
        origins: For each character, and for the end of the text, its offset in the original text. A character
            that an edit inserted has the offset of the first character that the edit replaced.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.origins: Sequence[int] = range(len(text) + 1)
        self._written: bytes | bytearray = bytes(len(text))  # 1 for a character that an edit inserted

    def apply(self, edits: Sequence[Edit]) -> None:
        """Apply edits to the text. The edits are in order and do not overlap."""
        pieces: list[str] = []
        origins = array("q")  # an array, because a list would take five times the memory
        written = bytearray()
        done = 0
        for start, end, replacement in edits:
            pieces += [self.text[done:start], replacement]
            origins.extend(self.origins[done:start])
            origins.extend([self.origins[start]] * len(replacement))
            written += self._written[done:start]
            written += b"\1" * len(replacement)
            done = end
        pieces.append(self.text[done:])
        origins.extend(self.origins[done:])
        written += self._written[done:]
        self.text = "".join(pieces)
        self.origins = origins
        self._written = written

    def edits(self) -> tuple[Edit, ...]:
        """Return the edits that turn the original into the current text, in order."""
        if isinstance(self.origins, range):
            return ()
        edits = []
        done = 0  # offset in the original up to which edits have been determined
        replacement: list[str] = []
        for character, origin, is_written in zip(self.text, self.origins, self._written, strict=False):
            if is_written:
                replacement.append(character)
                continue
            if origin > done or replacement:
                edits.append(Edit(done, origin, "".join(replacement)))
                replacement.clear()
            done = origin + 1
        if self.origins[-1] > done or replacement:
            edits.append(Edit(done, self.origins[-1], "".join(replacement)))
        return tuple(edits)


# Punctuation that may join copies.
_JOINTS = ",;:.!?…/|_~·-–—"
_JOINING = re.compile(f"[{re.escape(_JOINTS)}]+")
_INVISIBLE = re.compile(f"[{INVISIBLE}]")


def tidied(text: str, edit: Edit) -> Edit:
    """Extend an edit so that the removed copies leave no stray characters behind.

    It then also covers adjoining punctuation of the kind that separates the copies, adjoining invisible
    characters, and one of the two spaces that would be left next to each other.
    """
    start, end, replacement = edit
    joints = set("".join(_JOINING.findall(text[start:end])))
    if len(joints) > 1:
        joints.update(_JOINTS)
    while end < len(text) and (text[end] in joints or _INVISIBLE.match(text[end])):
        end += 1
    if joints:  # a space may separate the last copy from the punctuation after it
        last = end
        while last < len(text) and (text[last] in joints or text[last] == " "):
            last += 1
        if last == len(text) or text[last].isspace() or text[last - 1].isspace():
            end += len(text[end:last].rstrip())
    while start > 0 and _INVISIBLE.match(text[start - 1]):
        start -= 1
    if replacement:
        return Edit(start, end, replacement)
    has_space_before = start == 0 or text[start - 1].isspace()
    has_space_after = end == len(text) or text[end].isspace()
    if has_space_before and has_space_after:
        if end < len(text):
            end += 1
        elif start > 0:
            start -= 1
    return Edit(start, end, replacement)


def edits_of_parts(edits: Sequence[Edit], lengths: Sequence[int]) -> list[list[Edit]]:
    """Divide the edits of a document among the texts that form it, joined by single spaces.

    An edit that spans two texts is split at the space between them, which stays. The replacement goes to the
    text where the edit begins; an edit that begins at the space belongs to the text before it.

    Returns:
        The edits of each text, with offsets in that text.
    """
    divided = []
    first = 0
    for length in lengths:
        last = first + length
        edits_of_part = []
        for start, end, replacement in edits:
            if end < first or start > last:
                continue
            begins_here = first <= start <= last
            clipped = Edit(
                max(start, first) - first, min(end, last) - first, replacement if begins_here else ""
            )
            if clipped.start < clipped.end or clipped.text:
                edits_of_part.append(clipped)
        divided.append(edits_of_part)
        first = last + 1
    return divided
