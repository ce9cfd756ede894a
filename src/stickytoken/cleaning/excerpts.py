"""Show the parts of a text around findings and changes, on one line each."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stickytoken.cleaning import Cleaned, Edit, Removal
from stickytoken.cleaning.spans import SpanKind

ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


class Piece(NamedTuple):
    """A part of an excerpt."""

    text: str
    is_marked: bool


def excerpt(text: str, ranges: Iterable[tuple[int, int]], start: int, end: int) -> list[Piece]:
    """Return part of a text as pieces, with the given ranges marked.

    An unmarked word at either end of the excerpt is left out if it would be incomplete, but a text without
    spaces is cut within a word. The excerpt begins or ends with an ellipsis if the text continues there.

    Args:
        text: The text.
        ranges: Start and end (exclusive) of the parts to mark, in order and without overlaps. A part that
            begins after the excerpt is left out, and a part that extends past the end of the excerpt is cut.
        start: Where the excerpt begins; at most the start of the first range.
        end: Where the excerpt ends (exclusive).
    """
    end = min(end, len(text))
    shown_ranges = []
    for first, last in ranges:
        # A range that marks an insertion is empty, and it is shown even if it lies at the end of the excerpt.
        is_insertion_at_end = first == last == end
        if first < end or is_insertion_at_end:
            shown_ranges.append((first, min(last, end)))
    # Leave out incomplete words only before the first marked range and after the last one.
    first_marked = shown_ranges[0][0] if shown_ranges else end
    last_marked = shown_ranges[-1][1] if shown_ranges else start
    start = _start_at_word(text, start, first_marked)
    end = _end_at_word(text, last_marked, end)
    pieces = [Piece(ELLIPSIS, False)] if start else []
    written_to = start
    for first, last in shown_ranges:
        if first > written_to:
            pieces.append(Piece(text[written_to:first], False))
        pieces.append(Piece(text[first:last], True))
        written_to = last
    if written_to < end:
        pieces.append(Piece(text[written_to:end], False))
    if end < len(text):
        pieces.append(Piece(ELLIPSIS, False))
    return pieces


def _start_at_word(text: str, start: int, end: int) -> int:
    """Return where an excerpt from ``start`` on must begin so that its first word is complete.

    If ``start`` lies within a word, the result is the offset after the first whitespace character between
    ``start`` and ``end``. If there is no whitespace, or ``start`` does not lie within a word, the result is
    ``start``.
    """
    if start == 0 or text[start - 1].isspace():
        return start
    for offset in range(start, end):
        if text[offset].isspace():
            return offset + 1
    return start


def _end_at_word(text: str, start: int, end: int) -> int:
    """Return where an excerpt up to ``end`` must end so that its last word is complete.

    If ``end`` lies within a word, the result is the offset of the last whitespace character between ``start``
    and ``end``. If there is no whitespace, or ``end`` does not lie within a word, the result is ``end``.
    """
    if end == len(text) or text[end].isspace():
        return end
    for offset in range(end - 1, start - 1, -1):
        if text[offset].isspace():
            return offset
    return end


# Number of characters to show on each side of a change, about eight words.
_CONTEXT = 50
# A removed part that is longer than this many characters is shown with only its beginning and its end.
_LONGEST_REMOVED = 120
_SHOWN_AT_START = 60
_SHOWN_AT_END = 30
_BLANKS = re.compile(r"[ \t\n\v\f\r]+")


def word_diff(text: str, cleaned: Cleaned) -> list[str]:
    """Return lines that show what cleaning changed in a text.

    Each line begins with the cause of its changes, such as "flagged token". As in ``git diff --word-diff``,
    removed text is written ``[-so-]`` and added text ``{+so+}``. Changes with the same cause that are close
    to each other share a line. Whitespace is shown as single spaces. Control characters are kept, so escape
    the lines before you print them.

    Args:
        text: The original text.
        cleaned: What `Cleaner.clean` returned for the original text.
    """
    groups = _grouped(_changes(cleaned))
    lines = []
    for number, changes in enumerate(groups):
        edits = [change.edit for change in changes]
        previous_end = groups[number - 1][-1].edit.end if number > 0 else 0
        next_start = groups[number + 1][0].edit.start if number + 1 < len(groups) else len(text)
        start = max(previous_end, edits[0].start - _CONTEXT)
        end = min(next_start, edits[-1].end + _CONTEXT)
        lines.append(f"{changes[0].cause}: {_marked(text, edits, start, end)}")
    return lines


class _Change(NamedTuple):
    """An edit of a text, with a phrase that names the kinds of findings that caused it."""

    edit: Edit
    cause: str


def _changes(cleaned: Cleaned) -> list[_Change]:
    """Return the edits of a cleaned text with their causes, in order.

    The cause of an edit names the kinds of all removals that led to the edit.
    """
    changes = []
    for edit in cleaned.edits:
        # If no removal is found for the edit, name all kinds of findings that led to changes in the text.
        kinds = _kinds_behind(edit, cleaned.removals) or cleaned.causes
        cause = ", ".join(kind.cause for kind in SpanKind if kind in kinds)
        changes.append(_Change(edit, cause))
    return changes


def _kinds_behind(edit: Edit, removals: Sequence[Removal]) -> set[SpanKind]:
    """Return the kinds of the removals that led to an edit.

    A removal led to an edit if they overlap. The removal of an escaped special token is empty and lies where
    a space was inserted, so it need only touch the edit.

    Args:
        edit: The edit.
        removals: The removals of the text, in order. None of them contains another.
    """
    # Both the starts and the ends of the removals are in ascending order.
    first_touching = bisect_left(removals, edit.start, key=lambda removal: removal.end)
    after_last_touching = bisect_right(removals, edit.end, key=lambda removal: removal.start)
    kinds = set()
    for removal in removals[first_touching:after_last_touching]:
        is_escape = removal.start == removal.end
        overlaps = removal.start < edit.end and removal.end > edit.start
        if is_escape or overlaps:
            kinds.add(removal.kind)
    return kinds


def _grouped(changes: Sequence[_Change]) -> list[list[_Change]]:
    """Group successive changes that have the same cause, and that are so close that their contexts meet."""
    groups: list[list[_Change]] = []
    for change in changes:
        previous = groups[-1][-1] if groups else None
        if (
            previous is not None
            and change.cause == previous.cause
            and change.edit.start - previous.edit.end <= 2 * _CONTEXT
        ):
            groups[-1].append(change)
        else:
            groups.append([change])
    return groups


def _marked(text: str, edits: Sequence[Edit], start: int, end: int) -> str:
    """Return the part of a text around edits, with removed and added text marked as in a word diff."""
    additions = iter([edit.text for edit in edits])
    ranges = [(edit.start, edit.end) for edit in edits]
    written = ""
    for piece in excerpt(text, ranges, start, end):
        shown = _BLANKS.sub(" ", piece.text)
        if not piece.is_marked:
            written += shown
            continue
        added = next(additions)
        written += _removed(shown)
        if added:
            written += f"{{+{added}+}}"
    return _BLANKS.sub(" ", written).strip(" ")


def _removed(text: str) -> str:
    """Return removed text marked as in a word diff: ``[-text-]``.

    Spaces at either end of the text are put outside the marks, and the middle of a long text is left out. The
    result is empty if the text is empty.
    """
    words = text.strip(" ")
    if not words:
        return f"[-{text}-]" if text else ""
    before, after = text.split(words, maxsplit=1)
    if len(words) > _LONGEST_REMOVED:
        hidden = len(words) - _SHOWN_AT_START - _SHOWN_AT_END
        words = (
            f"{words[:_SHOWN_AT_START]}{ELLIPSIS} {hidden:,} more characters {ELLIPSIS}"
            f"{words[-_SHOWN_AT_END:]}"
        )
    return f"{before}[-{words}-]{after}"
