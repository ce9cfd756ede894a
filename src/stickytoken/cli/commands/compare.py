"""stickytoken compare: finished runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stickytoken.cli._loading import command
from stickytoken.cli.options.output import TableFormat, VerbosityOptions, output_option
from stickytoken.cli.output.console import inform, print_csv, print_json, print_line, print_table, status

if TYPE_CHECKING:
    from stickytoken.comparisons import Comparison


@command
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, two or more.", metavar="RUN")],
    output_format: Annotated[
        TableFormat,
        output_option("--format", "-f", help="Print tables, one JSON document, or CSV with one row per run."),
    ] = TableFormat.TABLE,
    out: Annotated[
        Path | None,
        output_option(help="Also write a page to this file: HTML, or Markdown for a name that ends in .md."),
    ] = None,
    figures: Annotated[
        Path | None, output_option(help="Folder for the figures as PNG and SVG; needs Chrome or Chromium.")
    ] = None,
    *,
    verbosity: VerbosityOptions,
) -> None:
    """Put the runs of several models side by side, and say what can be compared. Needs no model.

    Example: stickytoken compare runs/first-model runs/second-model --out comparison.html
    """
    from stickytoken.comparisons import compare as compare_runs

    with status("comparing the runs"):
        found = compare_runs(runs)
        if out is not None or figures is not None:
            from stickytoken.reports import report

            report(found, out=out, figures=figures)
    if output_format is TableFormat.JSON:
        print_json(found.summary())
    elif output_format is TableFormat.CSV:
        print_csv(found.table)
    else:
        _print_comparison(found)
    if out is not None:
        inform(f"page: {out}")
    if figures is not None:
        inform(f"figures: {figures}")


def _print_comparison(found: Comparison) -> None:
    """Print one row per run, what can be compared, and how to read it."""
    from stickytoken.comparisons.result import HEADINGS, shown_reason, shown_rows

    print_table("The runs, in the order given", HEADINGS, shown_rows(found))
    answers, reasons = found.comparability
    print_line("; ".join(f"{measure.value}: {answer.value}" for measure, answer in answers.items()))
    for reason in reasons:
        print_line(f"  {reason.answer.value}: {shown_reason(reason)}")
    print_line(found.basis)
    for note in found.notes:
        inform(f"note: {note}")
