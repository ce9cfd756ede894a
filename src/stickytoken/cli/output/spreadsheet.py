"""Tables for a spreadsheet, whose text it displays but does not evaluate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stickytoken.cli.output.console import print_document
from stickytoken.visible_text import visible

if TYPE_CHECKING:
    import polars as pl

_FORMULAS = ("=", "+", "-", "@")


def harmless(text: str) -> str:
    """Make text visible, and keep a spreadsheet from reading it as a formula."""
    shown = visible(text)
    return f"'{shown}" if shown.startswith(_FORMULAS) else shown


def print_csv(rows: pl.DataFrame) -> None:
    """Write a table as CSV on stdout; texts are escaped."""
    import polars as pl

    texts = pl.col(pl.String).map_elements(harmless, return_dtype=pl.String)
    print_document(rows.with_columns(texts).write_csv())
