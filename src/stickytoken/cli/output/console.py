"""Print results on stdout, everything else on stderr, token text made harmless."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from stickytoken.cli.output.verbosity import Verbosity, current_verbosity
from stickytoken.visible_text import visible

if TYPE_CHECKING:
    import polars as pl

    from stickytoken.methods.descriptions import Column

_SHORT = 8
"""Columns of text up to this width are not broken over lines."""


def as_json(document: Any) -> str:
    """Return one JSON document, in ASCII so that no token text reaches the terminal raw."""
    return json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def print_json(document: Any) -> None:
    """Write one JSON document."""
    print_document(as_json(document))


def print_document(text: str) -> None:
    """Write a document whose text is already harmless."""
    sys.stdout.write(text)


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    digits: Sequence[int | None] | None = None,
) -> None:
    """Print a table: numbers on the right, text escaped and never read as markup.

    Args:
        title: above the table.
        columns: headings.
        rows: one value per column.
        digits: digits after the decimal point of each column; None leaves them to the size of the number.
    """
    body = [list(row) for row in rows]
    places = [None] * len(columns) if digits is None else digits
    cells = [[_cell(value, digit) for value, digit in zip(row, places, strict=True)] for row in body]
    widths = [max(cell_len(text) for text in column) for column in zip(columns, *cells, strict=True)]
    # Where a table is too wide for the terminal, numbers stay on one line, the words of their headings stand
    # below each other, and only text is broken.
    console = _stdout()
    wide = sum(widths) + 2 * (len(columns) - 1) > console.width
    padding = (0, 0 if wide else 1, 0, 0)
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=padding, pad_edge=False, show_edge=False)
    for place, column in enumerate(columns):
        numeric = all(isinstance(row[place], (int, float)) or row[place] is None for row in body)
        table.add_column(
            Text(column.replace(" ", "\n") if wide and numeric else column),
            justify="right" if numeric else "left",
            overflow="fold",
            no_wrap=wide and (numeric or widths[place] <= _SHORT),
        )
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(Text(visible(title), style="italic"), soft_wrap=True)
    console.print(table)
    console.print()


def print_columns(title: str, columns: Sequence[Column], rows: pl.DataFrame) -> None:
    """Print some columns of a frame."""
    print_table(
        title,
        [column.title for column in columns],
        rows.select(column.key for column in columns).iter_rows(),
        [column.digits for column in columns],
    )


def print_line(message: str) -> None:
    """Print one line of results on stdout, without wrapping it."""
    _stdout().print(Text(visible(message)), soft_wrap=True)


def print_renderable(shown: RenderableType) -> None:
    """Print something of Rich's on stdout; whoever made it has escaped its text."""
    _stdout().print(shown)


def width() -> int:
    """Return the number of columns that results may take."""
    return _stdout().width


def print_error(message: str) -> None:
    """Print one line on stderr, also with `--quiet`."""
    _Console(stderr=True).print(Text(visible(" ".join(message.split()))), soft_wrap=True)


def inform(message: str) -> None:
    """Print one line on stderr, unless the user asked for quiet."""
    if current_verbosity() is not Verbosity.QUIET:
        _Console(stderr=True).print(Text(visible(message)), soft_wrap=True)


@contextmanager
def status(message: str) -> Iterator[None]:
    """Show a spinner on stderr while something takes time, unless the user asked for quiet."""
    if current_verbosity() is Verbosity.QUIET:
        yield
        return
    with _Console(stderr=True).status(Text(visible(message))):
        yield


class _Console(Console):
    """A console that leaves a closed pipe to the command's own handling."""

    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704 - called while the BrokenPipeError is being handled


def _stdout() -> Console:
    """A console on the present stdout; wide enough for tables when it is not a terminal."""
    console = _Console()
    return console if console.is_terminal else _Console(width=160)


def _cell(value: Any, digits: int | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        if digits is not None:
            return f"{value:,.{digits}f}"
        return f"{value:.4f}" if abs(value) < 10 else f"{value:,.2f}"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 100_000 else str(value)
    return visible(str(value))
