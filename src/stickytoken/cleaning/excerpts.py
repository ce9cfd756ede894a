"""Show the parts of a text around findings and changes, on one line each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stickytoken.cleaning import Removal

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
    shown_ranges = [(mark_start, min(mark_end, end)) for mark_start, mark_end in ranges if mark_start < end]
    # Leave out incomplete words only before the first marked range and after the last one.
    first_mark_start = shown_ranges[0][0] if shown_ranges else end
    last_mark_end = shown_ranges[-1][1] if shown_ranges else start
    start = _start_at_word(text, start, first_mark_start)
    end = _end_at_word(text, last_mark_end, end)
    pieces = []
    if start > 0:
        pieces.append(Piece(ELLIPSIS, is_marked=False))
    written_to = start
    for mark_start, mark_end in shown_ranges:
        if mark_start > written_to:
            pieces.append(Piece(text[written_to:mark_start], is_marked=False))
        pieces.append(Piece(text[mark_start:mark_end], is_marked=True))
        written_to = mark_end
    if written_to < end:
        pieces.append(Piece(text[written_to:end], is_marked=False))
    if end < len(text):
        pieces.append(Piece(ELLIPSIS, is_marked=False))
    return pieces


def _start_at_word(text: str, start: int, end: int) -> int:
    if start == 0 or text[start - 1].isspace():
        return start
    for offset in range(start, end):
        if text[offset].isspace():
            return offset + 1
    return start


def _end_at_word(text: str, start: int, end: int) -> int:
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


def word_diff(text: str, removals: Sequence[Removal]) -> list[str]:
    """Return lines that show what cleaning removed from a text.

    Each line begins with the cause, such as "flagged token". As in ``git diff --word-diff``, removed text is
    written ``[-so-]``. Removals with the same cause that are close to each other share a line. Whitespace is
    shown as single spaces. Control characters are kept, so escape the lines before you print them.

    Args:
        text: The original text.
        removals: What `Cleaner.clean` removed from it.
    """
    groups = _group_by_line(removals)
    # Where each group ends, after the beginning of the text, and where each begins, before the end of the
    # text.
    group_ends = [0, *(group[-1].end for group in groups)]
    group_starts = [*(group[0].start for group in groups), len(text)]
    lines = []
    for number, group in enumerate(groups):
        previous_end = group_ends[number]
        next_start = group_starts[number + 1]
        start = max(previous_end, group[0].start - _CONTEXT)
        end = min(next_start, group[-1].end + _CONTEXT)
        ranges = [(removal.start, removal.end) for removal in group]
        lines.append(f"{group[0].kind.cause}: {_show_removed(text, ranges, start, end)}")
    return lines


def _group_by_line(removals: Sequence[Removal]) -> list[list[Removal]]:
    groups: list[list[Removal]] = []
    for removal in removals:
        previous = groups[-1][-1] if groups else None
        # Each removal is shown with `_CONTEXT` characters on both sides. If the context of two removals would
        # touch, they share a line.
        is_close = previous is not None and removal.start - previous.end <= 2 * _CONTEXT
        if previous is not None and is_close and removal.kind is previous.kind:
            groups[-1].append(removal)
        else:
            groups.append([removal])
    return groups


def _show_removed(text: str, removed_ranges: Sequence[tuple[int, int]], start: int, end: int) -> str:
    line = ""
    for piece in excerpt(text, removed_ranges, start, end):
        piece_text = _BLANKS.sub(" ", piece.text)
        line += _bracket_removed(piece_text) if piece.is_marked else piece_text
    # A piece may end with a blank, and the next piece begin with one.
    return _BLANKS.sub(" ", line).strip(" ")


def _bracket_removed(text: str) -> str:
    stripped = text.strip(" ")
    if not stripped:
        return f"[-{text}-]" if text else ""
    spaces_before, spaces_after = text.split(stripped, maxsplit=1)
    shown = stripped
    if len(stripped) > _LONGEST_REMOVED:
        hidden_count = len(stripped) - _SHOWN_AT_START - _SHOWN_AT_END
        shown = (
            f"{stripped[:_SHOWN_AT_START]}{ELLIPSIS} {hidden_count:,} more characters {ELLIPSIS}"
            f"{stripped[-_SHOWN_AT_END:]}"
        )
    return f"{spaces_before}[-{shown}-]{spaces_after}"
