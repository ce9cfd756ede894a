"""All measures of an explanation on one scale. Pure."""

from __future__ import annotations

from typing import Any

import polars as pl

from stickytoken.explanation.tables import furthest
from stickytoken.reports.figures.figure import DataTable, ReportFigure
from stickytoken.reports.figures.style import ORDINARY, STICKY, new_figure

_MEASURES = ("measure", "layer", "value", "low", "high", "benign_low", "benign_high", "deviations", "outside")


def deviation_figure(measures: pl.DataFrame, token: str) -> ReportFigure:
    """Draw all measures on one scale: standard deviations of the benign tokens."""
    rows = [row for row in furthest(measures) if row["deviations"] is not None]
    rows.sort(key=lambda row: abs(row["deviations"]))
    figure = new_figure(height=110 + 24 * max(1, len(rows)))
    marks = ((True, "diamond", "outside the benign interval"), (False, "circle-open", "inside"))
    for outside, symbol, name in marks:
        chosen = [row for row in rows if bool(row["outside"]) is outside]
        if chosen:
            figure.add_scatter(
                x=[round(row["deviations"], 3) for row in chosen],
                y=[_measure_name(row) for row in chosen],
                mode="markers",
                marker={"color": STICKY if outside else ORDINARY, "symbol": symbol, "size": 10},
                name=name,
                hovertemplate="%{y}: %{x:.1f} SD<extra></extra>",
            )
    figure.add_vline(x=0, line={"color": ORDINARY, "width": 1})
    figure.update_xaxes(title_text="standard deviations of the benign tokens", zeroline=False)
    figure.update_yaxes(categoryorder="array", categoryarray=[_measure_name(row) for row in rows])
    figure.update_layout(hovermode="closest")
    count = sum(bool(row["outside"]) for row in rows)
    return ReportFigure(
        "deviations",
        "All measures",
        figure,
        f"{count} of {len(rows)} measures of {token} lie outside the interval of the benign tokens."
        + (
            f" The largest deviation: {_measure_name(rows[-1])}, {rows[-1]['deviations']:+.1f} SD."
            if rows
            else ""
        ),
        "Each measure at the layer where it differs most. One measure just outside the interval means "
        "little; several far outside, together with rising similarities, mean a lot.",
        measures_table(measures),
        # The names of the measures leave little room.
        {"xaxis.title.text": "SD of the<br>benign tokens", "xaxis.nticks": 4, "xaxis.tickangle": 0},
    )


def measures_table(measures: pl.DataFrame) -> DataTable:
    """Return one row per measure, at the layer where it is furthest from the benign tokens."""
    rows = [
        tuple(layer_name(row[name]) if name == "layer" else row[name] for name in _MEASURES)
        for row in furthest(measures)
    ]
    return DataTable([name.replace("_", " ") for name in _MEASURES], rows)


def layer_name(layer: int | None) -> str | None:
    """Return a layer number as text, so that it is shown as a label."""
    return None if layer is None else str(layer)


def _measure_name(row: dict[str, Any]) -> str:
    layer = "" if row["layer"] is None else f", layer {row['layer']}"
    return f"{row['measure'].replace('_', ' ')}{layer}"
