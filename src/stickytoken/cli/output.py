"""What commands print: data on stdout, everything else on stderr, token text made harmless."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stickytoken.visible_text import visible


def print_json(document: Any) -> None:
    """Write one JSON document, ASCII only, so that no token text reaches the terminal raw."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False) + "\n")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table; numbers to the right, text escaped and never read as markup."""
    table = Table(title=Text(visible(title)), title_justify="left", header_style="bold")
    body = [list(row) for row in rows]
    for place, column in enumerate(columns):
        numeric = all(isinstance(row[place], (int, float)) or row[place] is None for row in body)
        table.add_column(Text(column), justify="right" if numeric else "left", overflow="fold")
    for row in body:
        table.add_row(*(Text(_cell(value)) for value in row))
    stdout().print(table)


def say(message: str) -> None:
    """Print a line on stdout, as it is."""
    stdout().print(Text(visible(message)), soft_wrap=True)


def tell(message: str) -> None:
    """Print a line on stderr, as it is."""
    Console(stderr=True).print(Text(visible(message)), soft_wrap=True)


def stdout() -> Console:
    """A console on the present stdout; wide enough for tables when it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


@contextmanager
def status(message: str) -> Iterator[None]:
    """Show on stderr that something is going on."""
    with Console(stderr=True).status(Text(visible(message))):
        yield


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 10 else f"{value:,.2f}"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 100_000 else str(value)
    return visible(str(value))
