"""Write the report of a run, or a comparison of several."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path

from stickytoken.comparisons import Comparison
from stickytoken.detection import Run
from stickytoken.errors import InputError, RunError
from stickytoken.measurement.atomic import write_atomically
from stickytoken.reports._comparison_report import comparison_markdown, comparison_page
from stickytoken.reports._json_report import run_document
from stickytoken.reports._markdown_report import run_markdown
from stickytoken.reports._page import run_page
from stickytoken.reports._pictures import save_figures
from stickytoken.reports.comparison import comparison_figures
from stickytoken.reports.content import RunContent, read_content
from stickytoken.reports.explanation_section import explained_tokens
from stickytoken.reports.figure_set import report_figures
from stickytoken.reports.figures.figure import ReportFigure
from stickytoken.validation import file_path, shown

REPORT_FILE = "report.html"


class Format(StrEnum):
    """What a report is written as."""

    HTML = "html"
    MD = "md"
    JSON = "json"


def report(
    *what: Run | str | Path | Comparison,
    format: str | None = None,  # noqa: A002 - the name of the option
    out: str | Path | None = None,
    figures: str | Path | None = None,
    explanations: str | Path | None = None,
) -> str:
    """Report a run, or a comparison made by `stickytoken.compare`. No model is needed.

    Args:
        what: a run or its folder, or a comparison; the report of an unfinished run says what is missing.
        format: ``html``, one self-contained file; ``md``; ``json``. Default: by the ending of ``out``, else
            ``html``.
        out: write it to this file too; its folder must exist.
        figures: save the figures as PNG and SVG into this folder; needs the extra ``figures`` and Chrome or
            Chromium.
        explanations: a folder that `explain` wrote to; those in the run folder are shown without it.

    Returns:
        The report.

    Raises:
        InputError: no run or several, an unknown format, no browser for the figures, a folder without
            explanations, or explanations of a comparison.
        MissingExtraError: figures without the extra.
        RunError: a folder that is no run or is damaged, or a file that cannot be written.
    """
    if format is not None and str(format) not in tuple(Format):
        raise InputError(f"format {shown(format)} is unknown: use one of {', '.join(Format)}")
    if not what:
        raise InputError("there is no run to report: pass a run folder")
    if len(what) > 1:
        raise InputError(
            f"a report is about one run, but {len(what)} were passed: put them side by side with "
            "`stickytoken compare`"
        )
    target = None if out is None else file_path("out", out)
    pictures = None if figures is None else file_path("figures", figures)
    why = None if explanations is None else file_path("explanations", explanations)
    subject = _subject(what[0], why)
    text = _written(subject, format_of(target) if format is None else Format(str(format)))
    if target is not None:
        write_report(text, target)
    if pictures is not None:
        save_figures(_figures(subject), pictures)
    return text


def _subject(what: Run | str | Path | Comparison, explanations: Path | None) -> RunContent | Comparison:
    if isinstance(what, Comparison):
        if explanations is not None:
            raise InputError("explanations belong to one run: leave them out of a comparison")
        return what
    return read_content(what.path if isinstance(what, Run) else file_path("the run", what), explanations)


def format_of(path: Path | None) -> Format:
    """Return the format that the ending of a file names; HTML for any other ending, and for no file."""
    suffix = "" if path is None else path.suffix.lower().removeprefix(".")
    return Format(suffix) if suffix in tuple(Format) else Format.HTML


def write_report(text: str, path: Path) -> None:
    """Write a report, whole or not at all.

    Raises:
        RunError: the folder does not exist or cannot be written, or the disk is full.
    """
    try:
        folder = path.parent.is_dir() and not path.is_dir()
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from error
    if not folder:
        reason = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise RunError(f"{path} cannot be written: {reason}")
    write_atomically(path, text.encode("utf-8", "backslashreplace"))


def _written(subject: RunContent | Comparison, format_: Format) -> str:
    if isinstance(subject, Comparison):
        if format_ is Format.HTML:
            return comparison_page(subject)
        return comparison_markdown(subject) if format_ is Format.MD else _json(subject.summary())
    if format_ is Format.HTML:
        return run_page(subject)
    return run_markdown(subject) if format_ is Format.MD else _json(run_document(subject))


def _json(document: object) -> str:
    return json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def _figures(subject: RunContent | Comparison) -> list[ReportFigure]:
    if isinstance(subject, Comparison):
        return comparison_figures(subject)
    of_tokens = [figure for each in explained_tokens(subject) for figure in each.figures]
    return [*report_figures(subject), *of_tokens]
