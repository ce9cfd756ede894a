"""Measures of an explained token by layer, with the benign interval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from stickytoken.reports.figures.figure import DataTable
from stickytoken.reports.figures.panels import draw_band
from stickytoken.reports.figures.style import CONTROL, STICKY, empty_figure, label, legend_label, new_figure

_COLUMNS = ("layer", "value", "low", "high", "benign_mean", "benign_low", "benign_high", "deviations")


def draw(measures: pl.DataFrame, panels: Mapping[str, str], token: str) -> go.Figure:
    """Draw one panel per measure: the token with its interval, and the benign interval.

    Args:
        measures: of one token, as `measures.parquet` has them.
        panels: titles by measure; measures that are not there get no panel.
        token: the vocabulary string.
    """
    found = _rows_by_measure(measures, panels)
    if not found:
        return empty_figure("this model does not expose it")
    figure = make_subplots(
        rows=1,
        cols=len(found),
        horizontal_spacing=0.1,
        subplot_titles=[panels[name] for name in found],
        figure=new_figure(),
    )
    for column, rows in enumerate(found.values(), start=1):
        _draw_benign(figure, rows, column)
        _draw_token(figure, rows, column, token)
    figure.update_xaxes(
        title_text="layer", dtick=max(1, len(next(iter(found.values()))) // 8), zeroline=False
    )
    figure.update_layout(legend={"y": -0.24, "yanchor": "top"}, hovermode="closest")
    return figure


def describe(measures: pl.DataFrame, panels: Mapping[str, str], token: str) -> str:
    """Describe where each measure leaves the benign interval, and where it is furthest from it."""
    found = _rows_by_measure(measures, panels)
    if not found:
        return "This model does not expose it."
    return " ".join(
        _said(rows, f"{panels[name][:1].upper()}{panels[name][1:]}", token) for name, rows in found.items()
    )


def table(measures: pl.DataFrame, panels: Mapping[str, str]) -> DataTable:
    """Return a table with one row per measure and layer."""
    columns = ("measure", *(column.replace("_", " ") for column in _COLUMNS), "outside")
    return DataTable(
        columns,
        [
            (panels[name], *(row[column] for column in _COLUMNS), row["outside"])
            for name, rows in _rows_by_measure(measures, panels).items()
            for row in rows
        ],
    )


def _rows_by_measure(measures: pl.DataFrame, panels: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    found = {
        name: measures.filter(pl.col("measure") == name).drop_nulls(["layer", "value"]).sort("layer")
        for name in panels
    }
    return {name: rows.to_dicts() for name, rows in found.items() if len(rows)}


def _draw_benign(figure: go.Figure, rows: list[dict[str, Any]], column: int) -> None:
    layers = [row["layer"] for row in rows]
    lows, highs = [row["benign_low"] for row in rows], [row["benign_high"] for row in rows]
    draw_band(figure, layers, lows, highs, column)
    figure.add_scatter(
        x=layers,
        y=[row["benign_mean"] for row in rows],
        mode="lines",
        line={"color": CONTROL, "width": 2.5, "dash": "dash"},
        name="benign tokens: mean and interval",
        legendgroup="benign",
        showlegend=column == 1,
        hovertemplate="benign tokens<br>layer %{x}: %{y:.4f}<extra></extra>",
        row=1,
        col=column,
    )


def _draw_token(figure: go.Figure, rows: list[dict[str, Any]], column: int, token: str) -> None:
    known = all(row["low"] is not None for row in rows)
    figure.add_scatter(
        x=[row["layer"] for row in rows],
        y=[row["value"] for row in rows],
        error_y={
            "type": "data",
            "array": [row["high"] - row["value"] for row in rows],
            "thickness": 1.2,
            "width": 3,
        }
        if known
        else None,
        customdata=["outside" if row["outside"] else "inside" for row in rows],
        mode="lines+markers",
        line={"color": STICKY, "width": 2.5},
        marker={
            "size": 9,
            "symbol": ["diamond" if row["outside"] else "circle-open" for row in rows],
        },
        name=f"{legend_label(token)} (filled: outside)",
        legendgroup="token",
        showlegend=column == 1,
        hovertemplate=f"{label(token)}<br>layer %{{x}}: %{{y:.4f}}, %{{customdata}}<extra></extra>",
        row=1,
        col=column,
    )


def _said(rows: list[dict[str, Any]], title: str, token: str) -> str:
    outside = [row["layer"] for row in rows if row["outside"]]
    if not outside:
        return f"{title}: {token} stays within the benign interval in all layers."
    far = max((row for row in rows if row["outside"]), key=lambda row: abs(row["deviations"] or 0.0))
    return (
        f"{title}: {token} leaves the benign interval in layer {outside[0]} and is furthest from it in layer "
        f"{far['layer']}, at {far['value']:.3f} where benign tokens have {far['benign_mean']:.3f}."
    )
