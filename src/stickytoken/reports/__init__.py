"""Reports of runs: one HTML file, Markdown, JSON, and figures for a paper."""

# ruff: noqa: E402 (the imports below need the packages that are checked first)
from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory

from stickytoken.errors import InputError, MissingExtraError, RunError, require_package

require_package("plotly", "a report", "report")
require_package("jinja2", "a report", "report")

from stickytoken.detection import Run
from stickytoken.measurement.store import require_file_place, write_atomically
from stickytoken.reports.content import RunContent, read_content
from stickytoken.reports.facts import explained_tokens, report_figures
from stickytoken.reports.figures import ReportFigure
from stickytoken.reports.figures.run import flagged_categories
from stickytoken.reports.page import run_document, run_markdown, run_page
from stickytoken.validation import as_json, file_path, shown

__all__ = ["Format", "report"]

REPORT_FILE = "report.html"


class Format(StrEnum):
    """The format of a report.

    Examples:
        >>> from stickytoken.reports import Format
        >>> list(map(str, Format))
        ['html', 'md', 'json']
    """

    HTML = "html"
    MD = "md"
    JSON = "json"


def report(
    run: Run | str | Path,
    *,
    format: str | None = None,  # noqa: A002 - the name of the option
    out: str | Path | None = None,
    figures: str | Path | None = None,
    explanations: str | Path | None = None,
) -> str:
    """Report on a run. No model is needed.

    Args:
        run: a finished run, or its folder.
        format: ``html`` for one self-contained file, ``md`` or ``json``. By default, the suffix of ``out``
            decides; without ``out``, or with another suffix, the format is ``html``.
        out: File that the report is also written to, in an existing folder.
        figures: Folder to save the figures in, as PNG, SVG and PDF. They include one from Chen et al. (2025)
            that the page does not show: the categories of flagged tokens. Saving figures requires the
            ``figures`` extra and either Chrome or Chromium.
        explanations: Output folder of `explain`. Default: the folder ``explain`` in the run folder.

    Returns:
        The report as text in the chosen format.

    Raises:
        InputError: The format is unknown, ``out`` is a folder or a table or record of a run, or its
            folder does not exist, the figures cannot be saved because no browser can draw them, or the folder
            ``explanations`` contains no explanation.
        MissingExtraError: ``figures`` was passed, but the ``figures`` extra is not installed.
        RunError: The path is not a run folder, the run folder is damaged, the explanations belong to
            another model, or a file cannot be written.

    Examples:
        >>> stickytoken.report(run, out="report.md").splitlines()[0]
        '# Sticky tokens of all-MiniLM-L6-v2'
    """
    if format is not None and str(format) not in tuple(Format):
        raise InputError(f"format {shown(format)} is unknown: use one of {', '.join(Format)}")
    report_path = None if out is None else file_path("out", out)
    if report_path is not None:
        require_file_place(report_path)
    figures_folder = None if figures is None else file_path("figures", figures)
    explanations_folder = None if explanations is None else file_path("explanations", explanations)
    run_folder = run.path if isinstance(run, Run) else file_path("the run", run)
    content = read_content(run_folder, explanations_folder)
    text = _render(content, format_of(report_path) if format is None else Format(str(format)))
    if report_path is not None:
        write_atomically(report_path, text.encode("utf-8", "backslashreplace"))
    if figures_folder is not None:
        save_figures(_collect_figures(content), figures_folder)
    return text


def _render(content: RunContent, report_format: Format) -> str:
    if report_format is Format.JSON:
        return as_json(run_document(content))
    return run_page(content) if report_format is Format.HTML else run_markdown(content)


def _collect_figures(content: RunContent) -> list[ReportFigure]:
    figures = report_figures(content)
    figures.append(flagged_categories(content.tokens))  # a figure that the page does not show
    for token in explained_tokens(content):
        figures += token.figures
    return figures


def format_of(path: Path | None) -> Format:
    """Return the format named by the suffix of a path; HTML if there is no path or no such format."""
    suffix = "" if path is None else path.suffix.lower().removeprefix(".")
    return Format(suffix) if suffix in tuple(Format) else Format.HTML


# Width of a saved figure, in CSS pixels.
_WIDTH = 900
# PNG pixels per CSS pixel, enough for a sharp print in one column of a paper.
_SCALE = 3
_FORMATS = ("png", "svg", "pdf")


def save_figures(figures: Sequence[ReportFigure], folder: Path) -> list[Path]:
    """Save every figure as PNG, SVG and PDF. Existing files are replaced only after all figures are drawn.

    Returns:
        The paths of the written files, three per figure.

    Raises:
        InputError: No browser can be started.
        MissingExtraError: The ``figures`` extra is not installed.
        RunError: The folder or a file in it cannot be written.
    """
    if importlib.util.find_spec("kaleido") is None:
        raise MissingExtraError("saving figures", "figures")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be created: {error.strerror or error}") from error
    with TemporaryDirectory() as temporary:
        drawn_paths = _draw(figures, Path(temporary))
        for path in drawn_paths:
            # The file is copied, because the folder may be on a different disk from the temporary folder, and
            # a file cannot be moved to another disk by renaming it.
            write_atomically(folder / path.name, path.read_bytes())
    return [folder / path.name for path in drawn_paths]


def _draw(figures: Sequence[ReportFigure], folder: Path) -> list[Path]:
    """Let a browser draw each figure in every format in a folder, and return the paths of the drawn files."""
    from choreographer.browsers.chromium import ChromeNotFoundError
    from choreographer.errors import BrowserClosedError, BrowserFailedError
    from plotly.graph_objects import Figure
    from plotly.io import write_images

    # Figures are transparent on the page, but get a white background in files.
    white = {"paper_bgcolor": "white", "plot_bgcolor": "white"}
    plots = []
    paths = []
    for figure in figures:
        for file_format in _FORMATS:
            plots.append(Figure(figure.plot).update_layout(white))
            paths.append(folder / f"{figure.name}.{file_format}")
    heights = [plot.layout.height for plot in plots]
    try:
        write_images(plots, paths, width=_WIDTH, height=heights, scale=_SCALE)
    except (ChromeNotFoundError, BrowserFailedError, BrowserClosedError, RuntimeError) as error:
        message = str(error).strip() or type(error).__name__
        reason = message.splitlines()[0]  # further lines would not fit into a message of one line
        raise InputError(
            f"figures are drawn by Chrome or Chromium, but neither could be started ({reason}): install "
            "either of them, or set BROWSER_PATH to its executable; the HTML report itself needs no browser"
        ) from error
    except OSError as error:
        raise RunError(f"figures cannot be drawn in {folder}: {error.strerror or error}") from error
    # Files can be missing without an error, for example if the browser was killed.
    for path in paths:
        if not path.is_file() or path.stat().st_size == 0:
            raise RunError(f"the browser did not draw {path.name}: run the same command again")
    return paths
