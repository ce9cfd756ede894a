"""Figures as PNG and SVG files for a paper."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stickytoken.errors import InputError, MissingExtraError, RunError
from stickytoken.measurement.atomic import write_atomically
from stickytoken.reports.figures.figure import ReportFigure

_WIDTH = 900
# Dots of a PNG by dot of the screen: sharp at the width of a column in print.
_SCALE = 3
_FORMATS = ("png", "svg")


def save_figures(figures: Sequence[ReportFigure], folder: Path) -> list[Path]:
    """Draw every figure as PNG and SVG on a white background.

    Kaleido draws them in a headless Chrome or Chromium. No file is replaced before all are drawn, and each
    is written whole or not at all.
    """
    if importlib.util.find_spec("kaleido") is None:
        raise MissingExtraError("saving figures", "figures")
    if not figures:
        raise InputError("there are no figures to save: none of the runs is finished")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be created: {error.strerror or error}") from error
    plots = [_on_white(figure) for figure in figures for _ in _FORMATS]
    names = [f"{figure.name}.{kind}" for figure in figures for kind in _FORMATS]
    with TemporaryDirectory() as drawn:
        _draw(plots, [Path(drawn) / name for name in names])
        for name in names:
            write_atomically(folder / name, (Path(drawn) / name).read_bytes())  # it may be on another disk
    return [folder / name for name in names]


def _on_white(figure: ReportFigure) -> Any:
    from plotly.graph_objects import Figure

    return Figure(figure.plot).update_layout(paper_bgcolor="white", plot_bgcolor="white")


def _draw(plots: list[Any], paths: list[Path]) -> None:
    from choreographer.browsers.chromium import ChromeNotFoundError
    from choreographer.errors import BrowserClosedError, BrowserFailedError
    from plotly.io import write_images

    heights = [plot.layout.height for plot in plots]
    try:
        write_images(plots, paths, width=_WIDTH, height=heights, scale=_SCALE)
    except (ChromeNotFoundError, BrowserFailedError, BrowserClosedError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"figures are drawn by Chrome or Chromium, and neither could be started ({reason}): install "
            "one, or set BROWSER_PATH to its program; the HTML report needs no browser to be written"
        ) from error
    except OSError as error:
        raise RunError(f"figures cannot be drawn in {paths[0].parent}: {error.strerror or error}") from error
    if missing := [path.name for path in paths if not path.is_file() or not path.stat().st_size]:
        raise RunError(f"the browser did not draw {missing[0]}: run the same command again")
