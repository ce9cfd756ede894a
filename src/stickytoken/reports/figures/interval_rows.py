"""Measures of an explained token without layers: in the benign interval, and among all rows of the matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl

from stickytoken.reports.figures.figure import DataTable
from stickytoken.reports.figures.style import (
    CONTROL,
    ORDINARY,
    STICKY,
    empty_figure,
    label,
    legend_label,
    new_figure,
)


def shown_measures(
    measures: pl.DataFrame, names: Mapping[str, str], needed: Sequence[str]
) -> list[dict[str, Any]]:
    """Return one row per measure, in the order of the names.

    Args:
        measures: of one token, as `measures.parquet` has them, without layers.
        names: title of each measure, by its name.
        needed: columns that a measure must have; it is left out if one is null.
    """
    by_name = {row["measure"]: row for row in measures.drop_nulls(needed).to_dicts()}
    return [by_name[name] for name in names if name in by_name]


def measures_table(
    rows: Sequence[Mapping[str, Any]], names: Mapping[str, str], columns: Sequence[str]
) -> DataTable:
    """Return the numbers of the rows, with the titles of the measures in front."""
    return DataTable(
        ("measure", *(column.replace("_", " ") for column in columns)),
        [(names[row["measure"]], *(row[column] for column in columns)) for row in rows],
    )


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


_PLACED = ("value", "share_below")


def embedding_place(measures: pl.DataFrame, names: Mapping[str, str], token: str) -> go.Figure:
    """Draw the share of the vocabulary below the token, one line per measure.

    Args:
        measures: of one token, as `measures.parquet` has them.
        names: what a measure is called; measures that are not there have no line.
        token: the vocabulary string.
    """
    rows = shown_measures(measures, names, _PLACED)
    if not rows:
        return empty_figure("this model does not expose its embedding matrix")
    figure = new_figure(height=140 + 44 * len(rows))
    titles = [names[row["measure"]] for row in rows]
    figure.add_scatter(
        y=[title for title in titles for _ in range(3)],
        x=[place for _ in titles for place in (0, 100, None)],
        mode="lines",
        line={"color": ORDINARY, "width": 4},
        opacity=0.35,
        hoverinfo="skip",
        showlegend=False,
    )
    figure.add_scatter(
        y=titles,
        x=[100 * row["share_below"] for row in rows],
        customdata=[[row["value"], row["benign_mean"]] for row in rows],
        mode="markers",
        marker={
            "color": STICKY,
            "size": 13,
            "symbol": ["diamond" if row["outside"] else "circle-open" for row in rows],
        },
        name=f"{legend_label(token)}<br>(filled: outside the benign interval)",
        showlegend=True,
        cliponaxis=False,
        hovertemplate="%{y}: %{customdata[0]:.4f}, benign %{customdata[1]:.4f}<br>%{x:.1f}% of the "
        "vocabulary is below<extra></extra>",
    )
    figure.update_xaxes(title_text="% of the available tokens below", range=[-2, 102])
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_layout(hovermode="closest")
    return figure


def describe_place(
    measures: pl.DataFrame, neighbours: pl.DataFrame, names: Mapping[str, str], token: str
) -> str:
    """Describe the row and its nearest rows."""
    rows = shown_measures(measures, names, _PLACED)
    if not rows:
        return "This model does not expose its embedding matrix."
    parts = [
        f"{names[row['measure']]} {row['value']:.3f}, above {row['share_below']:.1%} of the vocabulary"
        for row in rows
    ]
    near = ", ".join(
        f"{row['neighbour']} ({row['cosine']:.2f})" for row in neighbours.sort("rank").to_dicts()
    )
    return f"{token}: {'; '.join(parts)}." + (f" Nearest rows by cosine: {near}." if near else "")


def place_table(measures: pl.DataFrame, names: Mapping[str, str]) -> DataTable:
    """Return a table with one row per measure."""
    columns = ("value", "share_below", "benign_mean", "benign_low", "benign_high", "deviations", "outside")
    return measures_table(shown_measures(measures, names, _PLACED), names, columns)
