"""stickytoken compare: finished runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stickytoken.cli._command import command
from stickytoken.cli.options.output import TableFormat, VerbosityOptions
from stickytoken.cli.options.panels import output_option
from stickytoken.cli.output.comparison import print_comparison
from stickytoken.cli.output.console import inform, print_json, status
from stickytoken.cli.output.spreadsheet import print_csv


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
        print_comparison(found)
    if out is not None:
        inform(f"page: {out}")
    if figures is not None:
        inform(f"figures: {figures}")
