"""Figures that show what repairs change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from stickytoken.methods import Column
from stickytoken.methods.measures import MEASURES
from stickytoken.reports import figures as fig
from stickytoken.reports.figures import DataTable, ReportFigure
from stickytoken.words import counted

# Maximum number of tokens in a panel, because more rows would be unreadable. The table lists all tokens.
_MOST_TOKENS = 30


Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class _SideStyle:
    """The colour and symbol of tokens before a repair, or after it."""

    color: str
    symbol: str


_STYLE_OF_SIDE = {"before": _SideStyle(fig.STICKY, "diamond"), "after": _SideStyle(fig.AFTER, "circle")}
_REPAIRED = (
    Column("token", "token"),
    Column("strategy", "strategy"),
    *(
        Column(f"{measure.key}_{side}", f"{measure.title} {side}", measure.digits, measure.unit)
        for measure in MEASURES
        for side in _STYLE_OF_SIDE
    ),
    Column("found_before", "found before", 0, "%"),
    Column("found_after", "found after", 0, "%"),
    Column("verdict_after", "verdict after"),
    Column("reason", "why"),
)


def repaired_tokens(rows: Rows, state: str, findings: str) -> ReportFigure:
    """Draw the erased share and the push of every repaired token before and after the repair.

    Args:
        rows: One row per repaired token, from `stickytoken.repairs.records.token_rows`.
        state: A sentence that says whether the repair is verified.
        findings: Sentences that say what the checks of the repair found.
    """
    measured = [row for row in rows if row["push_after"] is not None]
    narrow: dict[str, Any] = {}
    if measured:
        summary = _describe_repaired(measured)
        plot = _draw_repaired_tokens(measured[:_MOST_TOKENS])
        narrow = fig.stack_panels(plot, panels=len(MEASURES), height=2 * plot.layout.height)
    else:
        summary = "Nothing was measured after the repair."
        plot = fig.empty_figure("the repair was not verified: nothing was measured")
    cells = [[column.text(row[column.key]) or None for column in _REPAIRED] for row in rows]
    return ReportFigure(
        "repair",
        "What a repair changed",
        plot,
        f"{state} {summary}",
        f"Each repaired token, measured in other texts than those of this run, with another seed. {findings}",
        DataTable([column.title for column in _REPAIRED], cells),
        narrow,
        in_markdown=True,
    )


def _describe_repaired(measured: Rows) -> str:
    clauses = []
    for measure in MEASURES:
        largest = []
        for side in _STYLE_OF_SIDE:
            values = [row[f"{measure.key}_{side}"] for row in measured]
            measured_values = [value for value in values if value is not None]
            if measured_values:
                largest.append(f"{measure.text(max(measured_values))} {side}")
        if largest:
            clauses.append(f"largest {measure.noun} {', '.join(largest)}")
    return f"Of {counted(len(measured), 'repaired token')}: {'; '.join(clauses)}."


def _draw_repaired_tokens(rows: Rows) -> go.Figure:
    from_below = list(reversed(rows))  # Plotly draws position 0 at the bottom
    titles = [fig.axis_title(measure) for measure in MEASURES]
    plot = fig.new_panels(titles, height=150 + 26 * len(rows), spacing=0.06, same_scale=True)
    for panel, measure in enumerate(MEASURES, start=1):
        _draw_before_and_after(plot, from_below, measure, panel)
    names = [fig.label(row["token"]) for row in from_below]
    plot.update_yaxes(
        tickvals=list(range(len(rows))), ticktext=names, range=[-0.7, len(rows) - 0.3], zeroline=False
    )
    plot.update_layout(legend={"y": -0.2, "yanchor": "top"})
    return plot


def _draw_before_and_after(plot: go.Figure, rows: Rows, measure: Column, panel: int) -> None:
    """Draw two marks per token, the measure before and after the repair, joined by a line."""
    cell = {"row": 1, "col": panel}
    for position, row in enumerate(rows):
        line: dict[str, Any] = {
            "type": "scatter",
            "x": [row[f"{measure.key}_before"], row[f"{measure.key}_after"]],
            "y": [position, position],
            "mode": "lines",
            "line": {"color": fig.ORDINARY, "width": 1.5},
            "hoverinfo": "skip",
            "showlegend": False,
        }
        plot.add_trace(line, **cell)
    for side, style in _STYLE_OF_SIDE.items():
        marks: dict[str, Any] = {
            "type": "scatter",
            "x": [row[f"{measure.key}_{side}"] for row in rows],
            "y": list(range(len(rows))),
            "customdata": [fig.label(row["token"]) for row in rows],
            "mode": "markers",
            "marker": {"color": style.color, "symbol": style.symbol, "size": 9},
            "name": side,
            "legendgroup": side,
            "showlegend": panel == 1,
            "hovertemplate": f"%{{customdata}}<br>{side}: %{{x:{fig.number_format(measure)}}}<extra></extra>",
        }
        plot.add_trace(marks, **cell)
    plot.update_xaxes(tickformat=fig.tick_format(measure), rangemode="tozero", zeroline=True, col=panel)
