"""Figures of a report: each is a Plotly figure with a description in words and a table of its numbers.

The modules of this folder compute figures from tables alone. What all of them share is here: colours, axes,
labels, and the layout on a narrow screen.
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
    """A table of numbers and text, as a report shows it."""

    columns: Sequence[str] = ()  # headings
    rows: Sequence[Sequence[Any]] = ()  # one value per column; None is missing

    @classmethod
    def of(cls, columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> DataTable:
        """Make a table of rows that are mappings; `columns` maps their keys to headings."""
        return cls(tuple(columns.values()), [tuple(row[key] for key in columns) for row in rows])

    def markdown(self, missing: str | None = None) -> str:
        """Return the table as Markdown, or an empty text if it has no rows.

        Args:
            missing: replaces missing values; None writes a dash.
        """
        if not self.rows:
            return ""
        headings = [markdown(column) for column in self.columns]
        return markdown_table(headings, [_markdown_cells(row, missing) for row in self.rows])


def _markdown_cells(row: Sequence[Any], missing: str | None) -> list[str]:
    values = [missing if value is None else value for value in row]
    return [markdown(number(value)) for value in values]


@dataclass(frozen=True)
class ReportFigure:
    """A figure with everything that a reader needs who cannot see it."""

    name: str  # of its file, and its id in the page
    title: str
    plot: go.Figure
    alt: str  # what the figure shows, in words and numbers
    reading: str  # how to read the figure
    table: DataTable = DataTable()  # the numbers in the figure
    # Changes of the layout on a narrow screen, by path, such as ``xaxis.title.text``
    narrow: dict[str, Any] = field(default_factory=dict)
    in_markdown: bool = False  # whether a Markdown report includes the table


# Colours of Okabe and Ito (2008) that have a contrast of at least 3 to 1 with the grounds of both themes.
STICKY = "#D55E00"
TOPICAL = "#0072B2"
CONTROL = "#009E73"
ORDINARY = "#808080"
CONTROL_BAND = "rgba(0,158,115,0.15)"
# The middle is light in both themes, so that dark text on it stays readable.
_DIVERGING = [[0, TOPICAL], [0.5, "#f7f7f7"], [1, STICKY]]
COLORS = {"sticky": STICKY, "topical": TOPICAL, "benign": ORDINARY}
# Shapes repeat what colours say, for readers who cannot tell the colours apart.
SYMBOLS = {"sticky": "diamond", "topical": "square-open", "benign": "circle-open"}
# No colour is green, because green stands for ordinary tokens.
SERIES = ("#D55E00", "#0072B2", "#7B5EA7", "#CC79A7", "#8A7A00", "#56789A", "#A0522D", "#C8446A")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "5px,2px", "1px,3px")

THIN_LINE = {"width": 1, "color": ORDINARY}
DOTTED_LINE = {"color": ORDINARY, "width": 1.5, "dash": "dot"}

# Characters that fit in a line on a narrow screen.
_NARROW_CHARACTERS = 44
# Characters of a token in a legend: a longer one would push the legend over the figure on a phone.
_LEGEND_CHARACTERS = 20

Theme = Literal["light", "dark"]
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"


@dataclass(frozen=True)
class _Inks:
    """The colours of a theme."""

    text: str
    grid: str
    ground: str


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
    """Return an empty figure of a height in pixels, in the light theme."""
    figure = go.Figure()
    figure.update_layout(template=go.layout.Template(template("light")), height=height, dragmode=False)
    return figure


def new_panels(titles: Sequence[str], height: int, spacing: float, *, same_scale: bool = False) -> go.Figure:
    """Return an empty figure with panels side by side.

    Args:
        titles: of the panels, from left to right.
        height: of the figure, in pixels.
        spacing: between two panels, as a share of the width.
        same_scale: whether the panels share the vertical axis.
    """
    return make_subplots(
        rows=1,
        cols=len(titles),
        shared_yaxes=same_scale,
        horizontal_spacing=spacing,
        subplot_titles=titles,
        figure=new_figure(height),
    )


def diverging(strongest: float, title: str) -> dict[str, Any]:
    """Return the options of a heat map whose colours diverge from 0 up to `strongest` on both sides."""
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
    """Return the title of the axis of a measure, with its unit; a percentage has its unit at its ticks."""
    return f"{column.title} ({column.unit})" if column.unit not in ("", "%") else column.title


def tick_format(column: Column) -> str | None:
    """Return Plotly's format of the ticks of a measure; None leaves the format to Plotly."""
    return ".0%" if column.unit == "%" else None


def number_format(column: Column) -> str:
    """Return Plotly's format of single values of a measure."""
    if column.digits is None or not column.unit:
        return ".4f"
    return f".{column.digits + 1}{'%' if column.unit == '%' else 'f'}"


def label(text: str) -> str:
    """Escape token text for Plotly, which reads HTML; isolate it, or right-to-left letters move others."""
    escaped = visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"\u2068{escaped}\u2069"


def legend_label(text: str) -> str:
    """Escape token text as `label` does, shortened to what a legend has room for."""
    return label(shortened(visible(text), _LEGEND_CHARACTERS))


def shortened(text: str, characters: int) -> str:
    """Cut a text to a number of characters; the last one is then an ellipsis."""
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


def spread_out(copies: Sequence[int]) -> list[float]:
    """Return the positions of numbers of copies on an axis on which doublings are equal steps."""
    return [float(position) for position in np.log2(np.array(copies) + 1.0)]


def copies_axis(copies: Sequence[int]) -> dict[str, Any]:
    """Return the ticks of an axis of numbers of copies."""
    return {"tickvals": spread_out(copies), "ticktext": [str(count) for count in copies]}


def empty_figure(message: str) -> go.Figure:
    """Return a figure that shows nothing but a message."""
    figure = new_figure(height=120)
    figure.update_layout(xaxis={"visible": False}, yaxis={"visible": False})
    lines = "<br>".join(label(line) for line in textwrap.wrap(message, _NARROW_CHARACTERS))
    figure.add_annotation(text=lines, showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper")
    return figure


def figure_of_nothing(
    name: str, title: str, reading: str, message: str, columns: Sequence[str] = (), **options: Any
) -> ReportFigure:
    """Return a report figure that says why there is nothing to draw.

    Args:
        name: of the figure.
        title: of the figure.
        reading: how to read the figure if there were something.
        message: the reason, without a capital letter and a full stop.
        columns: headings of the table, which has no rows.
        options: further fields of `ReportFigure`.
    """
    sentence = f"{message[0].upper()}{message[1:]}."
    return ReportFigure(name, title, empty_figure(message), sentence, reading, DataTable(columns), **options)


@dataclass(frozen=True)
class Band:
    """A mean line with a range around it."""

    low: Sequence[float]
    mean: Sequence[float]
    high: Sequence[float]

    @classmethod
    def of(cls, lines: NDArray[np.float64]) -> Band:
        """Compute minimum, mean and maximum of several lines, point by point."""
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
    """Draw the band of ordinary tokens: their range as an area, their mean as a dashed line.

    Args:
        figure: gets the band.
        positions: of the points on the horizontal axis.
        band: of ordinary tokens.
        column: of the panel, from 1; None for a figure without panels.
        options: of the mean line, such as its name in the legend.
    """
    row = None if column is None else 1
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


def stacked(figure: go.Figure, panels: int, height: int) -> dict[str, Any]:
    """Return the changes of the layout that put the panels of a figure below each other.

    Args:
        figure: with panels side by side.
        panels: number of panels.
        height: of the figure on a narrow screen, in pixels.
    """
    gap = 0.4 / panels
    panel_height = (1 - gap * (panels - 1)) / panels
    changes: dict[str, Any] = {"height": height}
    for panel in range(panels):
        axis = "" if panel == 0 else str(panel + 1)
        top = 1 - panel * (panel_height + gap)
        changes[f"xaxis{axis}.domain"] = [0, 1]
        changes[f"yaxis{axis}.domain"] = [max(0.0, top - panel_height), top]
        changes[f"yaxis{axis}.showticklabels"] = True
        changes[f"annotations[{panel}].x"] = 0.5
        changes[f"annotations[{panel}].y"] = top
    legend_is_below = figure.layout.legend.y is not None and figure.layout.legend.y < 0
    if legend_is_below:
        changes["legend.y"] = -70 / height
    return changes
