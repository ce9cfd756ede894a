"""Reports of runs: one HTML file, Markdown, JSON, and figures for a paper."""

# ruff: noqa: E402 (what is imported below needs the packages that are checked for)
from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory

from stickytoken.errors import InputError, MissingExtraError, RunError, require_package

require_package("plotly", "a report", "report")
require_package("jinja2", "a report", "report")

from stickytoken.comparisons import Comparison
from stickytoken.detection import Run
from stickytoken.measurement import write_atomically
from stickytoken.reports import content as facts
from stickytoken.reports.comparison import comparison_figures, comparison_markdown, comparison_page
from stickytoken.reports.content import RunContent, read_content
from stickytoken.reports.figures import ReportFigure
from stickytoken.reports.page import run_document, run_markdown, run_page
from stickytoken.validation import file_path, shown

__all__ = ["Format", "report"]

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
    subject: RunContent | Comparison
    if isinstance(what[0], Comparison):
        if why is not None:
            raise InputError("explanations belong to one run: leave them out of a comparison")
        subject = what[0]
    else:
        place = what[0].path if isinstance(what[0], Run) else file_path("the run", what[0])
        subject = read_content(place, why)
    text = _written(subject, format_of(target) if format is None else Format(str(format)))
    if target is not None:
        write_report(text, target)
    if pictures is not None:
        if isinstance(subject, Comparison):
            drawn = comparison_figures(subject)
        else:
            drawn = facts.report_figures(subject)
            drawn += [figure for each in facts.explained_tokens(subject) for figure in each["figures"]]
        save_figures(drawn, pictures)
    return text


def _written(subject: RunContent | Comparison, format_: Format) -> str:
    if format_ is Format.JSON:
        document = subject.summary() if isinstance(subject, Comparison) else run_document(subject)
        return json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False) + "\n"
    if isinstance(subject, Comparison):
        return comparison_page(subject) if format_ is Format.HTML else comparison_markdown(subject)
    return run_page(subject) if format_ is Format.HTML else run_markdown(subject)


def format_of(path: Path | None) -> Format:
    suffix = "" if path is None else path.suffix.lower().removeprefix(".")
    return Format(suffix) if suffix in tuple(Format) else Format.HTML


def write_report(text: str, path: Path) -> None:
    try:
        folder = path.parent.is_dir() and not path.is_dir()
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from error
    if not folder:
        reason = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise RunError(f"{path} cannot be written: {reason}")
    write_atomically(path, text.encode("utf-8", "backslashreplace"))


_WIDTH = 900
# Dots of a PNG by dot of the screen: sharp at the width of a column in print.
_SCALE = 3
_FORMATS = ("png", "svg")


def save_figures(figures: Sequence[ReportFigure], folder: Path) -> list[Path]:
    """Draw every figure as PNG and SVG; no file is replaced before all are drawn."""
    if importlib.util.find_spec("kaleido") is None:
        raise MissingExtraError("saving figures", "figures")
    from choreographer.browsers.chromium import ChromeNotFoundError
    from choreographer.errors import BrowserClosedError, BrowserFailedError
    from plotly.graph_objects import Figure
    from plotly.io import write_images

    if not figures:
        raise InputError("there are no figures to save: none of the runs is finished")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be created: {error.strerror or error}") from error
    white = {"paper_bgcolor": "white", "plot_bgcolor": "white"}
    plots = [Figure(figure.plot).update_layout(white) for figure in figures for _ in _FORMATS]
    names = [f"{figure.name}.{kind}" for figure in figures for kind in _FORMATS]
    with TemporaryDirectory() as drawn:
        paths = [Path(drawn) / name for name in names]
        try:
            heights = [plot.layout.height for plot in plots]
            write_images(plots, paths, width=_WIDTH, height=heights, scale=_SCALE)
        except (ChromeNotFoundError, BrowserFailedError, BrowserClosedError, RuntimeError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(
                f"figures are drawn by Chrome or Chromium, and neither could be started ({reason}): install "
                "one, or set BROWSER_PATH to its program; the HTML report needs no browser to be written"
            ) from error
        except OSError as error:
            raise RunError(f"figures cannot be drawn in {drawn}: {error.strerror or error}") from error
        if missing := [path.name for path in paths if not path.is_file() or not path.stat().st_size]:
            raise RunError(f"the browser did not draw {missing[0]}: run the same command again")
        for name in names:
            write_atomically(folder / name, (Path(drawn) / name).read_bytes())  # it may be on another disk
    return [folder / name for name in names]
