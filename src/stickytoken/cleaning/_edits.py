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
        if isinstance(self.origins, range):  # no edit has been applied yet
            return ()
        origins = self.origins[:-1]
        end_of_original = self.origins[-1]
        edits = []
        done = 0  # offset in the original up to which edits have been determined
        replacement: list[str] = []  # inserted characters since the last character of the original
        for character, origin, is_written in zip(self.text, origins, self._written, strict=True):
            if is_written:
                replacement.append(character)
                continue
            if origin > done or replacement:
                edits.append(Edit(done, origin, "".join(replacement)))
                replacement.clear()
            done = origin + 1
        if end_of_original > done or replacement:
            edits.append(Edit(done, end_of_original, "".join(replacement)))
        return tuple(edits)


# Punctuation that may separate copies from each other, as in "able, able".
_SEPARATING_PUNCTUATION = ",;:.!?…/|_~·-–—"
_SEPARATORS = re.compile(f"[{re.escape(_SEPARATING_PUNCTUATION)}]+")
_INVISIBLE = re.compile(f"[{INVISIBLE}]")


def tidied(text: str, edit: Edit) -> Edit:
    """Extend an edit so that the removed copies leave no stray characters behind.

    The extended edit also covers invisible characters next to the copies, and the punctuation after the last
    copy if the same punctuation separates the copies from each other. If nothing is inserted, so that two
    spaces would be left next to each other, the extended edit also covers one of these spaces. Example: in
    "so able, able, able, flow", the removal of "able, able, able" is extended to "able, able, able, ".
    """
    start, end, replacement = edit
    # The punctuation marks between the copies.
    marks = set("".join(_SEPARATORS.findall(text[start:end])))
    # If different marks separate the copies, the last copy may be followed by yet another mark.
    if len(marks) > 1:
        marks.update(_SEPARATING_PUNCTUATION)
    while end < len(text) and (text[end] in marks or _INVISIBLE.match(text[end])):
        end += 1
    if marks:
        end = _end_of_spaced_marks(text, end, marks)
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


def _end_of_spaced_marks(text: str, start: int, marks: set[str]) -> int:
    """Return where the punctuation after the last copy ends. Spaces may stand before the punctuation.

    Spaces after the punctuation are not included. For example, with the mark "-", "able" is the last copy in
    "able - flow": the copy ends at offset 4, and the punctuation after it at offset 6.

    Args:
        text: The text.
        start: The offset after the last copy.
        marks: The punctuation marks that separate the copies.

    Returns:
        The offset; ``start`` if there is no such punctuation, or if the punctuation is attached to the next
        word, as in "able -flow", because it then belongs to this word.
    """
    end = start
    while end < len(text) and (text[end] in marks or text[end] == " "):
        end += 1
    is_attached = end < len(text) and not text[end].isspace() and not text[end - 1].isspace()
    return start if is_attached else start + len(text[start:end].rstrip())


def edits_of_parts(edits: Sequence[Edit], lengths: Sequence[int]) -> list[list[Edit]]:
    """Return the edits of each text, given the edits of the document that consists of the joined texts.

    The texts are joined with single spaces.

    An edit that spans two texts is split at the space between the texts, which stays. The replacement goes to
    the text where the edit begins; an edit that begins at a space between texts belongs to the text before
    the space.

    Args:
        edits: The edits of the document, with offsets in the document.
        lengths: The length of each text, in characters.

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
