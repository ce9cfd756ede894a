"""Print a finished run, and write its report."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from stickytoken.cli._options import Format
from stickytoken.cli.console import inform, print_columns, print_json, print_line, status
from stickytoken.errors import MissingExtraError
from stickytoken.methods.entry import Column

if TYPE_CHECKING:
    import polars as pl

    from stickytoken.detection import Run


_COLUMNS = (
    Column("layer", "layer"),
    Column("dimension", "dimension"),
    Column("sticky", "sticky"),
    Column("topical", "topical"),
    Column("severe", "severe"),
    Column("serious", "serious"),
    Column("mild", "mild"),
    Column("largest_sd", "largest lift, SD", 2),
    Column("ordinary_sd", "ordinary spread, SD", 2),
    Column("similarity_spread", "SD", 4),
)


def print_dimensions(model: str, table: pl.DataFrame) -> None:
    import polars as pl

    whole = table["layer"].null_count() == len(table)
    columns = [
        column for column in _COLUMNS if column.key in table.columns and not (column.key == "layer" and whole)
    ]
    print_columns(
        f"{model} by dimension" if whole else f"{model} by layer and dimension",
        columns,
        table.with_columns(pl.col("layer").cast(pl.String).fill_null("all")),
    )
    print_line(
        "SD: standard deviation of the similarities of texts; lifts are above the ordinary token's, in these"
    )


# A selection of so many tokens is listed whole, and no more sticky tokens are listed below the answer.
_FEW = 20


def print_rows(title: str, run: Run, rows: pl.DataFrame) -> None:
    # The category is left out where every token has the usual one.
    special = not rows.is_empty() and not (rows["category"] == "OK").all()
    category = [Column("category", "category")] if special else []
    first = (Column("token_id", "id"), Column("token", "token"), *category)
    print_columns(title, (*first, *run.listed(rows), Column("verdict", "verdict")), rows)


def finish_run(run: Run, output_format: Format, write_report: bool) -> None:
    try:
        show_run(run, output_format)
    finally:  # also if stdout was closed early
        if write_report:
            try:
                from stickytoken.reports import report
                from stickytoken.reports.report import REPORT_FILE
            except MissingExtraError as error:
                inform(f"{error}; then: stickytoken report {run.path}")
            else:
                with status("writing the report"):
                    report(run, out=run.path / REPORT_FILE)
                inform(f"report: {run.path / REPORT_FILE}")


def show_run(run: Run, output_format: Format) -> None:
    if output_format is Format.JSON:
        print_json(run.summary())
        return
    from stickytoken.detection.run import next_steps

    first, *others = run.method.lines(run)
    print_line(first)
    model, sticky = run.record.model.name, run.sticky
    if len(run.tokens) <= min(_FEW, run.available - 1):
        order = [run.method.ranked_by.key, "token_id"]
        ranked = run.tokens.sort(order, descending=[True, False], nulls_last=True)
        print_rows(f"Tokens of {model} that were asked for", run, ranked)
    elif not sticky.is_empty():
        print_rows(f"Sticky tokens of {model}", run, sticky.head(_FEW))
        if (more := len(sticky) - _FEW) > 0:
            listing = f"stickytoken show {quote(str(run.path))} --verdict sticky --limit {len(sticky)}"
            print_line(f"and {more:,} more: {listing}")
    if run.dimensions:
        print_dimensions(model, run.by_dimension())
    for line in others:
        print_line(line)
    print_line(f"{run.result.sequences:,} texts in {run.result.seconds:,.0f} s; run: {run.path}")
    for note in run.method.notes(run):
        inform(f"note: {note}")
    step = next_steps(run)[0]
    inform(f"next, to {step.purpose}: {step.command}")
