"""Measures of an explained token that have no layers, each with its benign interval."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go
import polars as pl

from stickytoken.reports.figures._shown_measures import measures_table, shown_measures
from stickytoken.reports.figures.figure import DataTable
from stickytoken.reports.figures.style import CONTROL, STICKY, empty_figure, label, legend_label, new_figure

_NEEDED = ("value", "benign_low", "benign_high")
_COLUMNS = ("value", "low", "high", "benign_mean", "benign_low", "benign_high", "deviations", "outside")


def interval_rows(measures: pl.DataFrame, names: Mapping[str, str], token: str) -> go.Figure:
    """Draw the token's value over the benign interval, one line per measure.

    Args:
        measures: of one token, as `measures.parquet` has them.
        names: what a measure is called; measures that are not there have no line.
        token: the vocabulary string.
    """
    rows = shown_measures(measures, names, _NEEDED)
    if not rows:
        return empty_figure("this model does not expose it")
    figure = new_figure(height=150 + 56 * len(rows))
    titles = [names[row["measure"]] for row in rows]
    figure.add_bar(
        y=titles,
        x=[row["benign_high"] - row["benign_low"] for row in rows],
        base=[row["benign_low"] for row in rows],
        orientation="h",
        width=0.42,
        marker={"color": CONTROL, "opacity": 0.35},
        name="benign interval",
        customdata=[[row["benign_low"], row["benign_high"]] for row in rows],
        hovertemplate="%{y}<br>benign %{customdata[0]:.4f} to %{customdata[1]:.4f}<extra></extra>",
    )
    figure.add_scatter(
        y=titles,
        x=[row["benign_mean"] for row in rows],
        mode="markers",
        marker={"symbol": "line-ns", "size": 18, "line": {"color": CONTROL, "width": 2.5}},
        name="benign mean",
        hovertemplate="%{y}<br>benign mean %{x:.4f}<extra></extra>",
    )
    figure.add_scatter(
        y=titles,
        x=[row["value"] for row in rows],
        error_x={
            "type": "data",
            "array": [None if row["high"] is None else row["high"] - row["value"] for row in rows],
        },
        mode="markers",
        marker={
            "color": STICKY,
            "size": 12,
            "symbol": ["diamond" if row["outside"] else "circle-open" for row in rows],
        },
        name=f"{legend_label(token)} (filled: outside)",
        hovertemplate=f"%{{y}}<br>{label(token)}: %{{x:.4f}}<extra></extra>",
    )
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_layout(hovermode="closest", legend={"y": -0.16, "yanchor": "top"})
    return figure


def describe_rows(measures: pl.DataFrame, names: Mapping[str, str], token: str) -> str:
    """Describe every measure."""
    rows = shown_measures(measures, names, _NEEDED)
    if not rows:
        return "This model does not expose it."
    parts = [
        f"{names[row['measure']]} {row['value']:.3f}, {'outside' if row['outside'] else 'within'} the benign "
        f"interval of {row['benign_low']:.3f} to {row['benign_high']:.3f}"
        for row in rows
    ]
    return f"{token}: {'; '.join(parts)}."


def rows_table(measures: pl.DataFrame, names: Mapping[str, str]) -> DataTable:
    """Return a table with one row per measure."""
    return measures_table(shown_measures(measures, names, _NEEDED), names, _COLUMNS)
