"""Clean a stream of UTF-8 lines, as a filter does, without changing any other byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from stickytoken.cleaning.cleaner import Cleaned, Cleaner
from stickytoken.cleaning.spans import SpanKind
from stickytoken.errors import RefusedTextError

_REPLACED = "surrogateescape"


class CleanedLine(NamedTuple):
    """One line.

    Attributes:
        number: Which, from 1.
        before: The line as it was, without its end.
        cleaned: What became of it.
        content: The cleaned line with its end, as bytes.
    """

    number: int
    before: str
    cleaned: Cleaned
    content: bytes


@dataclass(slots=True)
class LineTotals:
    """What was counted over all lines so far.

    Attributes:
        lines: How many lines there were.
        changed: How many were changed.
        removed: How many parts were taken out, replaced or escaped, by kind.
        reported: How many findings were left, by kind.
        undecoded: How many lines are not UTF-8; such bytes are passed on as they are.
        first_undecoded: Line and byte of the first of those, both from 1.
    """

    lines: int = 0
    changed: int = 0
    removed: Counter[SpanKind] = field(default_factory=Counter)
    reported: Counter[SpanKind] = field(default_factory=Counter)
    undecoded: int = 0
    first_undecoded: tuple[int, int] | None = None


def clean_lines(lines: Iterable[bytes], cleaner: Cleaner, totals: LineTotals) -> Iterator[CleanedLine]:
    """Yield every line, cleaned; line endings and bytes that are not UTF-8 stay unchanged.

    Args:
        lines: The lines, each with its end.
        cleaner: Cleans them.
        totals: Counts are added to these.

    Raises:
        RefusedTextError: The cleaner refuses a line; the message says which.
    """
    for number, line in enumerate(lines, 1):
        content = line.rstrip(b"\r\n")
        ending = line[len(content) :]
        before = _decoded(content, number, totals)
        try:
            cleaned = cleaner.clean(before)
        except RefusedTextError as error:
            raise RefusedTextError(f"line {number:,}: {error}") from error
        totals.lines += 1
        totals.changed += cleaned.text != before
        totals.removed.update(removal.kind for removal in cleaned.removals)
        totals.reported.update(span.kind for span in cleaned.reported)
        yield CleanedLine(number, before, cleaned, cleaned.text.encode("utf-8", _REPLACED) + ending)


def _decoded(content: bytes, number: int, totals: LineTotals) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        totals.undecoded += 1
        totals.first_undecoded = totals.first_undecoded or (number, error.start + 1)
        return content.decode("utf-8", _REPLACED)
