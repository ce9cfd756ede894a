"""stickytoken report: what a run found, as a document."""

from __future__ import annotations

import webbrowser
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from stickytoken.cli._loading import command
from stickytoken.cli.options.output import VerbosityOptions, output_option, texts_option
from stickytoken.cli.output.console import inform, print_document, print_line, status
from stickytoken.errors import InputError


class ReportFormat(StrEnum):
    """Formats of a report."""

    HTML = "html"
    MD = "md"
    JSON = "json"


@command
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folder.", metavar="RUN")],
    output_format: Annotated[
        ReportFormat | None,
        output_option(
            "--format",
            "-f",
            help="html writes a file; md and json go to stdout unless --out names a file. "
            "Default: by the ending of --out, else html.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        output_option(help="File to write. Default for html: report.html in the run folder."),
    ] = None,
    figures: Annotated[
        Path | None, output_option(help="Folder for the figures as PNG and SVG; needs Chrome or Chromium.")
    ] = None,
    explanations: Annotated[
        Path | None,
        texts_option(help="Folder that `explain --out` wrote to. Default: explain in the run folder."),
    ] = None,
    open_it: Annotated[bool, output_option("--open", help="Open the HTML file in a browser.")] = False,
    *,
    verbosity: VerbosityOptions,
) -> None:
    """Report a run as HTML, Markdown or JSON. Needs no model; `stickytoken compare` compares runs.

    Example: stickytoken report runs/all-MiniLM-L6-v2-profile-0123456789ab --open
    """
    from stickytoken.reports import report as make_report
    from stickytoken.reports.report import REPORT_FILE, format_of

    written = format_of(out).value if output_format is None else output_format.value
    html = written == ReportFormat.HTML
    if open_it and not html:
        raise InputError(f"--open needs an HTML file, and the format is {written}: leave one of them out")
    if html and out is None:
        out = runs[0].expanduser() / REPORT_FILE
    with status("writing the report"):
        text = make_report(*runs, format=written, out=out, figures=figures, explanations=explanations)
    if out is None:
        print_document(text)
    else:
        print_line(f"report: {out}")
    if figures is not None:
        inform(f"figures: {figures}")
    if open_it and out is not None and not webbrowser.open(out.resolve().as_uri()):
        raise InputError(f"no browser could be started: open {out} yourself")
