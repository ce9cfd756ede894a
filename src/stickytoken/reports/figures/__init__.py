"""Figures of a report, each with its words and numbers; the modules make them from tables alone."""

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
    columns: Sequence[str] = ()  # headings
    rows: Sequence[Sequence[Any]] = ()  # one value per column; None is missing

    @classmethod
    def of(cls, columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> DataTable:
        return cls(tuple(columns.values()), [tuple(row[key] for key in columns) for row in rows])

    def markdown(self, missing: str | None = None) -> str:
        """Return the table as Markdown, a dash or another text for what is missing; empty without rows."""
        cells = (
            [markdown(number(missing if value is None else value)) for value in row] for row in self.rows
        )
        return markdown_table([*map(markdown, self.columns)], cells) if self.rows else ""


@dataclass(frozen=True)
class ReportFigure:
    name: str  # of its file and its place in the page
    title: str  # what it is about
    plot: go.Figure  # the picture
    alt: str  # what it shows, in words and numbers
    reading: str  # how to read it
    table: DataTable = DataTable()  # its numbers
    narrow: dict[str, Any] = field(default_factory=dict)  # changes of the layout on a narrow screen, by path
    in_markdown: bool = False  # whether its table stands in Markdown too


# Of Okabe and Ito (2008), those with a contrast of 3 to 1 against white and against the dark ground.
STICKY = "#D55E00"
TOPICAL = "#0072B2"
CONTROL = "#009E73"
ORDINARY = "#808080"
CONTROL_BAND = "rgba(0,158,115,0.15)"
# From less to more than nothing; light in the middle in both themes, so that words on it stay readable.
_DIVERGING = [[0, TOPICAL], [0.5, "#f7f7f7"], [1, STICKY]]
COLORS = {"sticky": STICKY, "topical": TOPICAL, "benign": ORDINARY}
# Shapes say the same as colours.
SYMBOLS = {"sticky": "diamond", "topical": "square-open", "benign": "circle-open"}
# None is green: that is the colour of ordinary tokens.
SERIES = ("#D55E00", "#0072B2", "#7B5EA7", "#CC79A7", "#8A7A00", "#56789A", "#A0522D", "#C8446A")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "5px,2px", "1px,3px")

THIN_LINE = {"width": 1, "color": ORDINARY}
DOTTED_LINE = {"color": ORDINARY, "width": 1.5, "dash": "dot"}

# Letters of a line, and of a token in a legend, on a narrow screen.
_NARROW_LETTERS, _LEGEND_LETTERS = 44, 20

Theme = Literal["light", "dark"]
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"
_INKS = {"light": ("#1d2430", "#e3e6eb", "#ffffff"), "dark": ("#e6e9ee", "#333b47", "#161b22")}


def template(theme: Theme) -> dict[str, Any]:
    ink, grid, ground = _INKS[theme]
    axis = {
        "gridcolor": grid,
        "linecolor": grid,
        "zerolinecolor": grid,
        "automargin": True,
        "title": {"standoff": 8},
        "fixedrange": False,
    }
    return {
        "layout": {
            "font": {"family": _FONT, "size": 13, "color": ink},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "xaxis": axis,
            "yaxis": axis,
            "colorway": list(SERIES),
            "hoverlabel": {
                "bgcolor": ground,
                "bordercolor": ink,
                "font": {"color": ink, "family": _FONT},
                "align": "left",
            },
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 12}},
            "margin": {"l": 8, "r": 12, "t": 36, "b": 8},
            "annotationdefaults": {"font": {"size": 12, "color": ink}},
        }
    }


def new_figure(height: int = 380) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(template=go.layout.Template(template("light")), height=height, dragmode=False)
    return figure


def new_panels(titles: Sequence[str], height: int, spacing: float, *, same_scale: bool = False) -> go.Figure:
    return make_subplots(
        rows=1,
        cols=len(titles),
        shared_yaxes=same_scale,
        horizontal_spacing=spacing,
        subplot_titles=titles,
        figure=new_figure(height),
    )


def diverging(strongest: float, title: str) -> dict[str, Any]:
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
    """Return Plotly's format of the ticks of a measure; None is Plotly's own."""
    return ".0%" if column.unit == "%" else None


def number_format(column: Column) -> str:
    """Return Plotly's format of single values of a measure."""
    if column.digits is None or not column.unit:
        return ".4f"
    return f".{column.digits + 1}{'%' if column.unit == '%' else 'f'}"


def label(text: str) -> str:
    """Escape token text for Plotly, which reads HTML; isolate it, or right-to-left letters move others."""
    shown = visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"\u2068{shown}\u2069"


def legend_label(text: str) -> str:
    shown = visible(text)
    return label(shown if len(shown) <= _LEGEND_LETTERS else f"{shown[: _LEGEND_LETTERS - 1]}…")


def spread_out(copies: Sequence[int]) -> list[float]:
    return [float(value) for value in np.log2(np.array(copies) + 1.0)]  # doublings are equal steps


def copies_axis(copies: Sequence[int]) -> dict[str, Any]:
    return {"tickvals": spread_out(copies), "ticktext": [str(n) for n in copies]}


def empty_figure(message: str) -> go.Figure:
    figure = new_figure(height=120)
    figure.update_layout(xaxis={"visible": False}, yaxis={"visible": False})
    lines = "<br>".join(label(line) for line in textwrap.wrap(message, _NARROW_LETTERS))
    figure.add_annotation(text=lines, showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper")
    return figure


def figure_of_nothing(
    name: str, title: str, reading: str, message: str, columns: Sequence[str] = (), **options: Any
) -> ReportFigure:
    said = f"{message[0].upper()}{message[1:]}."
    return ReportFigure(name, title, empty_figure(message), said, reading, DataTable(columns), **options)


def band(values: NDArray[np.float64]) -> tuple[list[float], list[float], list[float]]:
    low, mean, high = values.min(axis=0), values.mean(axis=0), values.max(axis=0)
    return low.round(5).tolist(), mean.round(5).tolist(), high.round(5).tolist()


def draw_ordinary(
    figure: go.Figure,
    places: Sequence[float],
    lines: tuple[Sequence[float], Sequence[float], Sequence[float]],
    column: int | None = None,
    **options: Any,
) -> None:
    low, mean, high = lines
    row = None if column is None else 1
    figure.add_scatter(
        x=[*places, *reversed(places)],
        y=[*high, *reversed(low)],
        mode="lines",
        fill="toself",
        fillcolor=CONTROL_BAND,
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
        row=row,
        col=column,
    )
    figure.add_scatter(
        x=places,
        y=mean,
        mode="lines",
        line={"color": CONTROL, "width": 2.5, "dash": "dash"},
        row=row,
        col=column,
        **options,
    )


def stacked(figure: go.Figure, panels: int, height: int) -> dict[str, Any]:
    gap = 0.4 / panels
    size = (1 - gap * (panels - 1)) / panels
    changes: dict[str, Any] = {"height": height}
    for place in range(panels):
        axis = "" if place == 0 else str(place + 1)
        top = 1 - place * (size + gap)
        changes[f"xaxis{axis}.domain"] = [0, 1]
        changes[f"yaxis{axis}.domain"] = [max(0.0, top - size), top]
        changes[f"yaxis{axis}.showticklabels"] = True
        changes[f"annotations[{place}].x"] = 0.5
        changes[f"annotations[{place}].y"] = top
    if figure.layout.legend.y is not None and figure.layout.legend.y < 0:
        changes["legend.y"] = -70 / height
    return changes
