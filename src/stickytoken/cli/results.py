"""How a finished run is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stickytoken.cli.options import Format
from stickytoken.cli.output import print_json, print_table, say, tell

if TYPE_CHECKING:
    import polars as pl

    from stickytoken.detection import Run

_WHO = {"token_id": "id", "token": "token", "category": "category"}


def print_rows(title: str, run: Run, rows: pl.DataFrame) -> None:
    """Print rows of tokens.parquet: of its columns, those that people read first."""
    headings = _WHO | {column.key: column.title for column in run.method.listed} | {"verdict": "verdict"}
    print_table(title, list(headings.values()), rows.select(headings.keys()).iter_rows())


def show_run(run: Run, output_format: Format) -> None:
    """Write a run to stdout, as a document or for people."""
    if output_format is Format.JSON:
        print_json(run.summary())
    else:
        _print_run(run)


def _print_run(run: Run) -> None:
    """Print what was found, on what it rests, and where the run lies."""
    first, *others = run.method.lines(run)
    say(first)
    if not run.sticky.is_empty():
        print_rows(f"Sticky tokens of {run.record.model.name}", run, run.sticky)
    for line in others:
        say(line)
    say(f"{run.result.sequences:,} texts in {run.result.seconds:,.0f} s; run: {run.path}")
    for note in run.method.notes(run):
        tell(f"note: {note}")
