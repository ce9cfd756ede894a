"""The similarity of a pair as a matrix over pairs of tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl

from stickytoken.reports.figures.figure import DataTable
from stickytoken.reports.figures.style import ORDINARY, diverging, empty_figure, label, new_figure

SUM = "(sum of the row)"
_ROW_HEIGHT = 22
_NAMED = 10


def draw(cells: pl.DataFrame) -> go.Figure:
    """Draw one cell per pair of tokens, then the row and column of the reference, and the sums of the rows.

    Args:
        cells: of one pair, as `attribution.parquet` has them.
    """
    if cells.is_empty():
        return empty_figure("no similarity was attributed")
    rows, columns = _axis(cells, "row"), _axis(cells, "column")
    ordered = cells.sort("row", "column")
    values = ordered["value"].to_numpy().reshape(len(rows), len(columns))
    # The cell of both references is near 1 and tells nothing: colours are those of the tokens.
    strongest = float(np.abs(values[:-1, :-1]).max(initial=0)) or 1.0
    values = np.hstack([values, values.sum(axis=1, keepdims=True)])
    columns.append(SUM)
    figure = new_figure(height=220 + _ROW_HEIGHT * len(rows))
    figure.add_heatmap(
        x=list(range(len(columns))),
        y=list(range(len(rows))),
        z=values.round(6).tolist(),
        customdata=[[[left, right] for right in columns] for left in rows],
        hovertemplate="%{customdata[0]} and %{customdata[1]}: %{z:.4f}<extra></extra>",
        **diverging(strongest, "added to the similarity"),
    )
    figure.update_xaxes(
        title_text="anchor",
        tickvals=list(range(len(columns))),
        ticktext=columns,
        tickangle=-60,
        showgrid=False,
        zeroline=False,
    )
    figure.update_yaxes(
        title_text="carrier with copies",
        tickvals=list(range(len(rows))),
        ticktext=rows,
        autorange="reversed",
        showgrid=False,
        zeroline=False,
    )
    figure.add_vline(x=len(columns) - 1.5, line={"color": ORDINARY, "width": 1.5, "dash": "dot"})
    for place in _ends_of_copies(ordered):
        figure.add_hline(y=place, line={"color": ORDINARY, "width": 1.5, "dash": "dot"})
    return figure


def describe(cells: pl.DataFrame, pair: dict[str, Any] | None) -> str:
    """Describe what the copies, the carrier and the reference contribute.

    Args:
        cells: as above.
        pair: its row of `pairs.parquet`; None where there is none.
    """
    if pair is None or cells.is_empty():
        return "No similarity was attributed."
    between = cells.filter(pl.col("row") < pl.col("row").max(), pl.col("column") < pl.col("column").max())
    sums = {
        part: float(between.filter(pl.col("row_part") == part)["value"].sum())
        for part in ("copies", "carrier")
    }
    return (
        f"The similarity of “{pair['carrier']}” and “{pair['anchor']}” is {pair['similarity_before']:.3f} "
        f"without copies and {pair['similarity']:.3f} with them. Of that, the rows of the copies "
        f"contribute {pair['from_copies']:.3f}, those of the carrier {pair['from_carrier']:.3f} and that "
        f"of the reference {pair['from_reference']:.3f}; the sum is off by "
        f"{abs(pair['completeness_error']):.2g}. Without the reference, copies contribute "
        f"{sums['copies']:.3f} and the carrier {sums['carrier']:.3f}."
    )


def table(cells: pl.DataFrame) -> DataTable:
    """Return the sum of every row, and the pairs of tokens that add or subtract most."""
    if cells.is_empty():
        return DataTable((), ())
    by_row = (
        cells.group_by("row", maintain_order=True)
        .agg(pl.col("row_token").first(), pl.col("row_part").first(), pl.col("value").sum())
        .sort("row")
    )
    between = cells.filter(pl.col("row") < pl.col("row").max(), pl.col("column") < pl.col("column").max())
    largest = between.sort(pl.col("value").abs(), "row", "column", descending=[True, False, False])
    return DataTable(
        ("carrier with copies", "part", "anchor", "adds"),
        [
            *((row["row_token"], row["row_part"], "all", row["value"]) for row in by_row.to_dicts()),
            *(
                (row["row_token"], row["row_part"], row["column_token"], row["value"])
                for row in largest.head(_NAMED).to_dicts()
            ),
        ],
    )


def _axis(cells: pl.DataFrame, side: str) -> list[str]:
    found = cells.select(side, f"{side}_token").unique(side).sort(side)
    return [label(token) for token in found[f"{side}_token"]]


def _ends_of_copies(cells: pl.DataFrame) -> list[float]:
    """Return the places between rows where copies begin or end."""
    parts = cells.unique("row").sort("row")["row_part"].to_list()
    return [
        place - 0.5
        for place in range(1, len(parts))
        if (parts[place - 1] == "copies") != (parts[place] == "copies")
    ]
