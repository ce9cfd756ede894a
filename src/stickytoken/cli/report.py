"""stickytoken report: see what a run found, or compare runs."""

from __future__ import annotations

import sys
import webbrowser
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from stickytoken.cli.errors import reported
from stickytoken.cli.output import say, status, tell
from stickytoken.errors import InputError

_COMPARISON_FILE = "comparison.html"


class ReportFormat(StrEnum):
    """What a report is written as."""

    HTML = "html"
    MD = "md"
    JSON = "json"


@reported
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folder; several are compared.", show_default=False)],
    output_format: Annotated[
        ReportFormat,
        typer.Option("--format", "-f", help="html: a file. md, json: on stdout, unless --out names a file."),
    ] = ReportFormat.HTML,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write. Default of html: report.html in the run folder; comparison.html here.",
            show_default=False,
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            help="Save the figures as PNG and SVG into this folder; needs Chrome or Chromium.",
            show_default=False,
        ),
    ] = None,
    explanations: Annotated[
        Path | None,
        typer.Option(
            "--explain",
            help="Folder that explain --out wrote to. Default: explain in the run folder.",
            show_default=False,
        ),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open the HTML file in a browser.")] = False,
) -> None:
    """Write what a run found as one HTML file, as Markdown or as JSON. No model is needed.

    Example: stickytoken report runs/all-MiniLM-L6-v2-profile-0123456789ab --open
    """
    from stickytoken.reports import report as make_report
    from stickytoken.reports.report import REPORT_FILE

    html = output_format is ReportFormat.HTML
    if open_it and not html:
        raise InputError(f"--open shows the HTML file, and --format is {output_format.value}: leave one out")
    if html and out is None:
        out = runs[0].expanduser() / REPORT_FILE if len(runs) == 1 else Path(_COMPARISON_FILE)
    with status("writing the report"):
        text = make_report(
            *runs, format=output_format.value, out=out, figures=figures, explanations=explanations
        )
    if out is None:
        _write(text)
    else:
        say(f"report: {out}")
    if figures is not None:
        tell(f"figures: {figures}")
    if open_it and out is not None and not webbrowser.open(out.resolve().as_uri()):
        raise InputError(f"no browser could be started: open {out} yourself")


def _write(text: str) -> None:
    """Write to stdout as it is; characters that its encoding does not have are escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
