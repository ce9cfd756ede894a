"""Flagged tokens, largest lift and spread of similarities by dimension and layer. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from stickytoken.reports.figures.figure import DataTable
from stickytoken.reports.figures.style import CONTROL, ORDINARY, SERIES, STICKY, TOPICAL, new_figure

_GRADES = {"severe": STICKY, "serious": SERIES[4], "mild": TOPICAL, "negligible": ORDINARY}
_COLUMNS = {
    "layer": "layer",
    "dimension": "dimension",
    "sticky": "sticky",
    "topical": "topical",
    **{grade: grade for grade in _GRADES},
    "largest_sd": "largest lift (SD)",
    "ordinary_sd": "spread of ordinary lifts (SD)",
    "similarity_spread": "spread of similarities (1 SD)",
    "mean_similarity": "mean similarity u",
}


def draw(rows: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Draw the flagged tokens by severity, and beside them the largest lift and the spread of similarities.

    Args:
        rows: rows of `Run.by_dimension`.
    """
    names = [_name(row) for row in rows]
    figure = make_subplots(
        cols=3,
        subplot_titles=("flagged tokens", "largest lift (SD)", "spread of similarities"),
        horizontal_spacing=0.09,
    )
    figure.update_layout(new_figure(height=360).layout)
    for grade, color in _GRADES.items():
        figure.add_bar(
            x=names,
            y=[row[grade] for row in rows],
            name=grade,
            marker={"color": color},
            hovertemplate=f"%{{x}}<br>{grade}: %{{y}}<extra></extra>",
            row=1,
            col=1,
        )
    for column, (key, color) in enumerate((("largest_sd", STICKY), ("similarity_spread", CONTROL)), start=2):
        figure.add_scatter(
            x=names,
            y=[row[key] for row in rows],
            mode="lines+markers",
            line={"color": color, "width": 2},
            marker={"size": 8},
            showlegend=False,
            hovertemplate="%{x}: %{y:.4f}<extra></extra>",
            row=1,
            col=column,
        )
    figure.update_layout(barmode="stack", legend={"y": -0.25, "yanchor": "top"})
    figure.update_xaxes(type="category")
    figure.update_yaxes(rangemode="tozero")
    return figure


def describe(rows: Sequence[Mapping[str, Any]]) -> str:
    """Sum up the table, one clause per row."""
    parts = [
        f"{_name(row)}: {row['sticky']} sticky, {row['topical']} topical"
        + ("" if row["largest_sd"] is None else f", largest lift {row['largest_sd']:.2f} SD")
        for row in rows
    ]
    return f"By dimension: {'; '.join(parts)}.".replace("-", "\N{MINUS SIGN}")


def table(rows: Sequence[Mapping[str, Any]]) -> DataTable:
    """Return one row per dimension and layer."""
    return DataTable(tuple(_COLUMNS.values()), [tuple(row[key] for key in _COLUMNS) for row in rows])


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['dimension']}" if row["layer"] is None else f"layer {row['layer']}, {row['dimension']}"
