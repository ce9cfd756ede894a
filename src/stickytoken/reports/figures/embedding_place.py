"""The position of an explained token's row among all rows of the embedding matrix."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go
import polars as pl

from stickytoken.reports.figures._shown_measures import measures_table, shown_measures
from stickytoken.reports.figures.figure import DataTable
from stickytoken.reports.figures.style import ORDINARY, STICKY, empty_figure, legend_label, new_figure

_NEEDED = ("value", "share_below")


def embedding_place(measures: pl.DataFrame, names: Mapping[str, str], token: str) -> go.Figure:
    """Draw the share of the vocabulary below the token, one line per measure.

    Args:
        measures: of one token, as `measures.parquet` has them.
        names: what a measure is called; measures that are not there have no line.
        token: the vocabulary string.
    """
    rows = shown_measures(measures, names, _NEEDED)
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
        hovertemplate="%{y}: %{customdata[0]:.4f}, benign %{customdata[1]:.4f}<br>%{x:.1f} % of the "
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
    rows = shown_measures(measures, names, _NEEDED)
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
    return measures_table(shown_measures(measures, names, _NEEDED), names, columns)
