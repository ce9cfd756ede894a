"""Plotly figures for reports, each with a description in words and a table of the numbers that it shows.

The modules in this folder draw figures from tables, and need no model. This module contains what all figure
modules use: colours, axes, labels, and the layout on a narrow screen.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from stickytoken.methods import Column
from stickytoken.reports.templating import number
from stickytoken.validation import markdown, markdown_table, visible


@dataclass(frozen=True)
class DataTable:
    """The headings and rows of a table in a report."""

    columns: Sequence[str] = ()  # headings
    rows: Sequence[Sequence[Any]] = ()  # each row has one value per column; None for a missing value

    @classmethod
    def of(cls, columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> DataTable:
        """Make a table from mappings. `columns` maps the key of each column to its heading, in order."""
        return cls(tuple(columns.values()), [tuple(row[key] for key in columns) for row in rows])

    def markdown(self, missing: str | None = None) -> str:
        """Return the table as Markdown, or an empty string if it has no rows.

        Args:
            missing: Text to show for missing values. If ``missing`` is None, a dash is shown.
        """
        if not self.rows:
            return ""
        headings = [markdown(column) for column in self.columns]
        return markdown_table(headings, [_markdown_cells(row, missing) for row in self.rows])


def _markdown_cells(row: Sequence[Any], missing: str | None) -> list[str]:
    # `number` shows None as a dash.
    values = [missing if value is None else value for value in row]
    return [markdown(number(value)) for value in values]


@dataclass(frozen=True)
class ReportFigure:
    """A figure, with a description and a table of its numbers for readers who cannot see it."""

    name: str  # name of the image file without suffix, and HTML id of the figure
    title: str
    plot: go.Figure
    alt: str  # what the figure shows, in words and numbers
    reading: str  # how to read the figure
    table: DataTable = DataTable()  # the numbers in the figure
    # New values of layout options on a narrow screen, keyed by a path such as ``xaxis.title.text``
    narrow: dict[str, Any] = field(default_factory=dict)
    in_markdown: bool = False  # whether Markdown reports include the table


# Colours from Okabe and Ito (2008). Their contrast with the backgrounds of both themes is at least 3 to 1.
STICKY = "#D55E00"
AFTER = "#0072B2"
CONTROL = "#009E73"
ORDINARY = "#808080"
CONTROL_BAND = "rgba(0,158,115,0.15)"
# Colour scale of heat maps. Its middle is light in both themes, because the text in the cells is dark.
_DIVERGING = [[0, AFTER], [0.5, "#f7f7f7"], [1, STICKY]]
# Colours for the tokens in a figure. None of these is green, because green stands for ordinary tokens.
SERIES = ("#D55E00", "#0072B2", "#7B5EA7", "#CC79A7", "#8A7A00", "#56789A", "#A0522D", "#C8446A")

THIN_LINE = {"width": 1, "color": ORDINARY}
DOTTED_LINE = {"color": ORDINARY, "width": 1.5, "dash": "dot"}

# Maximum number of characters per line on a narrow screen.
_NARROW_CHARACTERS = 44
# Maximum number of characters to show of a token in a legend. Longer tokens would make the legend cover the
# figure on a phone.
_LEGEND_CHARACTERS = 20

Theme = Literal["light", "dark"]
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"


@dataclass(frozen=True)
class _Inks:
    """The colours of a theme."""

    text: str
    grid: str
    ground: str  # background colour


_INKS = {
    "light": _Inks(text="#1d2430", grid="#e3e6eb", ground="#ffffff"),
    "dark": _Inks(text="#e6e9ee", grid="#333b47", ground="#161b22"),
}


def template(theme: Theme) -> dict[str, Any]:
    """Return the Plotly template of a theme: its colours, fonts and margins."""
    inks = _INKS[theme]
    axis = {
        "gridcolor": inks.grid,
        "linecolor": inks.grid,
        "zerolinecolor": inks.grid,
        "automargin": True,
        "title": {"standoff": 8},
        "fixedrange": False,
    }
    return {
        "layout": {
            "font": {"family": _FONT, "size": 13, "color": inks.text},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "xaxis": axis,
            "yaxis": axis,
            "colorway": list(SERIES),
            "hoverlabel": {
                "bgcolor": inks.ground,
                "bordercolor": inks.text,
                "font": {"color": inks.text, "family": _FONT},
                "align": "left",
            },
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 12}},
            "margin": {"l": 8, "r": 12, "t": 36, "b": 8},
            "annotationdefaults": {"font": {"size": 12, "color": inks.text}},
        }
    }


def new_figure(height: int = 380) -> go.Figure:
    """Return an empty figure in the light theme, with the given height in pixels."""
    figure = go.Figure()
    figure.update_layout(template=go.layout.Template(template("light")), height=height, dragmode=False)
    return figure


def new_panels(titles: Sequence[str], *, height: int, spacing: float, same_scale: bool = False) -> go.Figure:
    """Return an empty figure in the light theme, with panels side by side.

    Args:
        titles: Titles of the panels, from left to right.
        height: Height of the figure in pixels.
        spacing: Gap between neighbouring panels, as a share of the figure's width.
        same_scale: Whether all panels use the same scale on the vertical axis.
    """
    return make_subplots(
        rows=1,
        cols=len(titles),
        shared_yaxes=same_scale,
        horizontal_spacing=spacing,
        subplot_titles=titles,
        figure=new_figure(height),
    )


def make_diverging_scale(strongest: float, title: str) -> dict[str, Any]:
    """Return Plotly options that give a heat map a diverging colour scale centred on 0.

    Args:
        strongest: Absolute value at which the colours are deepest.
        title: Title of the colour bar.
    """
    return {
        "colorscale": _DIVERGING,
        "zmid": 0,
        "zmin": -strongest,
        "zmax": strongest,
        "xgap": 1,
        "ygap": 1,
        "colorbar": {"title": {"text": title, "side": "right"}, "thickness": 14},
    }


def axis_title(column: Column) -> str:
    """Return the axis title of a measure. It contains the unit, unless this is %, which tick labels show."""
    return f"{column.title} ({column.unit})" if column.unit not in ("", "%") else column.title


def tick_format(column: Column) -> str | None:
    """Return the format of a measure's ticks in Plotly's notation, or None for Plotly's default."""
    return ".0%" if column.unit == "%" else None


def number_format(column: Column) -> str:
    """Return the format of a measure's values in hover texts, in Plotly's notation.

    Values have one more digit than in tables, or four digits if the measure has no unit.
    """
    if column.digits is None or not column.unit:
        return ".4f"
    return f".{column.digits + 1}{'%' if column.unit == '%' else 'f'}"


def label(text: str) -> str:
    """Escape token text for Plotly, which interprets HTML, and isolate it from the text around it.

    Without isolation, right-to-left text would change the order of the text around it.
    """
    escaped = visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"\u2068{escaped}\u2069"


def legend_label(text: str) -> str:
    """Shorten token text so that it fits into a legend, and prepare it as `label` does."""
    return label(shorten(visible(text), _LEGEND_CHARACTERS))


def shorten(text: str, characters: int) -> str:
    """Shorten a text to at most this many characters. A shortened text ends in an ellipsis."""
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


def error_bars(
    values: Iterable[float], lows: Iterable[float | None], highs: Iterable[float | None]
) -> dict[str, Any]:
    """Return Plotly options for error bars. An end that is None gets no bar."""
    # Plotly draws bars from the value upwards and downwards, and needs their lengths.
    above: list[float | None] = []
    below: list[float | None] = []
    for value, low, high in zip(values, lows, highs, strict=True):
        above.append(None if high is None else round(high - value, 5))
        below.append(None if low is None else round(value - low, 5))
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below}


def empty_figure(message: str) -> go.Figure:
    """Return a figure that consists of a message."""
    figure = new_figure(height=120)
    figure.update_layout(xaxis={"visible": False}, yaxis={"visible": False})
    wrapped = "<br>".join(label(line) for line in textwrap.wrap(message, _NARROW_CHARACTERS))
    # In the middle of the figure: with xref and yref "paper", positions are shares of the figure's size.
    figure.add_annotation(text=wrapped, showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper")
    return figure


def figure_of_nothing(
    name: str, title: str, reading: str, message: str, columns: Sequence[str] = (), **options: Any
) -> ReportFigure:
    """Return a report figure without data, which says why there is nothing to draw.

    Args:
        name: Name of the figure.
        title: Title of the figure.
        reading: How to read the figure when it has data.
        message: Why there is nothing to draw: a phrase that begins in lower case and has no full stop.
        columns: Headings of the empty table.
        options: Further fields of `ReportFigure`.
    """
    sentence = f"{message[0].upper()}{message[1:]}."
    return ReportFigure(name, title, empty_figure(message), sentence, reading, DataTable(columns), **options)


@dataclass(frozen=True)
class Band:
    """The mean of several lines at each point, and the ends of a range around the mean."""

    low: Sequence[float]
    mean: Sequence[float]
    high: Sequence[float]

    @classmethod
    def of(cls, lines: NDArray[np.float64]) -> Band:
        """Return the band from the minimum to the maximum of lines of shape (lines, points)."""
        return cls(
            lines.min(axis=0).round(5).tolist(),
            lines.mean(axis=0).round(5).tolist(),
            lines.max(axis=0).round(5).tolist(),
        )


def draw_ordinary(
    figure: go.Figure,
    positions: Sequence[float],
    band: Band,
    column: int | None = None,
    **options: Any,
) -> None:
    """Draw the range of ordinary tokens as an area, and their mean as a dashed line.

    Args:
        figure: Figure to draw in.
        positions: Horizontal position of each point on the band.
        band: Range and mean of the ordinary tokens.
        column: 1-based number of the panel; None if the figure has no panels.
        options: Plotly options of the mean line, such as its name in the legend.
    """
    row = None if column is None else 1  # panels stand side by side, in the only row
    # The outline of the area: along the upper ends to the right, and back along the lower ends.
    area: dict[str, Any] = {
        "type": "scatter",
        "x": [*positions, *reversed(positions)],
        "y": [*band.high, *reversed(band.low)],
        "mode": "lines",
        "fill": "toself",
        "fillcolor": CONTROL_BAND,
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    figure.add_trace(area, row=row, col=column)
    mean_line: dict[str, Any] = {
        "type": "scatter",
        "x": positions,
        "y": band.mean,
        "mode": "lines",
        "line": {"color": CONTROL, "width": 2.5, "dash": "dash"},
        **options,
    }
    figure.add_trace(mean_line, row=row, col=column)


def stack_panels(figure: go.Figure, *, panels: int, height: int) -> dict[str, Any]:
    """Return the layout changes that stack the panels of a figure on a narrow screen.

    The changes are meant for `ReportFigure.narrow`. The figure itself is not changed.

    Args:
        figure: A figure with panels side by side.
        panels: Number of panels.
        height: Height of the stacked figure in pixels.
    """
    # `gap` and `panel_height` are shares of the figure's height.
    gap = 0.4 / panels
    panel_height = (1 - gap * (panels - 1)) / panels
    changes: dict[str, Any] = {"height": height}
    for panel in range(panels):
        axis = "" if panel == 0 else str(panel + 1)  # Plotly's axes are called x, x2, x3 ...
        top = 1 - panel * (panel_height + gap)
        changes[f"xaxis{axis}.domain"] = [0, 1]
        changes[f"yaxis{axis}.domain"] = [max(0.0, top - panel_height), top]
        changes[f"yaxis{axis}.showticklabels"] = True
        # The title of the panel, which `new_panels` adds as an annotation.
        changes[f"annotations[{panel}].x"] = 0.5
        changes[f"annotations[{panel}].y"] = top
    legend_is_below = figure.layout.legend.y is not None and figure.layout.legend.y < 0
    if legend_is_below:
        # The legend stays 70 pixels below the panels. Its position is a share of the height, which has
        # changed.
        changes["legend.y"] = -70 / height
    return changes
