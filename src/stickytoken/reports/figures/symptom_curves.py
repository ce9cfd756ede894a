"""Similarity of unrelated and of related texts over the number of copies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from stickytoken.reports.figures.figure import (
    CONTROL,
    DASHES,
    ORDINARY,
    SERIES,
    DataTable,
    draw_band,
    empty_figure,
    label,
    new_figure,
)

_DRAWN = 6
SIDES = ("below", "above")


@dataclass(frozen=True)
class Curve:
    """The mean similarity of pairs by number of copies.

    Attributes:
        token: the vocabulary string.
        verdict: of the token.
        copies: numbers of copies, 0 first.
        below: values of pairs below the mean similarity; empty if there are none.
        above: values of pairs above it.
    """

    token: str
    verdict: str | None
    copies: list[int]
    below: list[float]
    above: list[float]


def draw(curves: list[Curve], controls: list[Curve], mean_similarity: float) -> go.Figure:
    """Draw two panels: pairs below the mean similarity, and pairs above it."""
    if not curves and not controls:
        return empty_figure("this run has no symptom curves")
    base = new_figure(height=430)
    figure = make_subplots(
        rows=1,
        cols=2,
        shared_yaxes=True,
        horizontal_spacing=0.04,
        subplot_titles=("unrelated pairs (below u)", "related pairs (above u)"),
        figure=base,
    )
    for column, side in enumerate(SIDES, start=1):
        _draw_controls(figure, controls, side, column)
        for place, curve in enumerate(curves[:_DRAWN]):
            _draw(figure, curve, side, column, place)
        figure.add_hline(y=mean_similarity, line={"color": ORDINARY, "width": 1.5, "dash": "dot"}, col=column)
    ticks = (curves or controls)[0].copies
    figure.update_xaxes(
        title_text="copies", tickvals=spread_out(ticks), ticktext=[str(n) for n in ticks], zeroline=False
    )
    figure.update_yaxes(title_text="mean cosine similarity", col=1)
    figure.add_annotation(
        x=0, y=mean_similarity, xref="x domain", yref="y", text="u", showarrow=False, xshift=6, yshift=9
    )
    figure.update_layout(
        legend={"y": -0.2, "yanchor": "top"}, margin={"t": 34}, hovermode="closest", height=460
    )
    return figure


def spread_out(copies: list[int]) -> list[float]:
    """Place numbers of copies so that doublings are equal steps, with room for 0."""
    return [float(value) for value in np.log2(np.array(copies) + 1.0)]


def _draw(figure: go.Figure, curve: Curve, side: str, column: int, place: int) -> None:
    values = getattr(curve, side)
    if not values:
        return
    figure.add_scatter(
        x=spread_out(curve.copies),
        y=[round(value, 5) for value in values],
        customdata=curve.copies,
        mode="lines+markers",
        line={"color": SERIES[place % len(SERIES)], "width": 2.5, "dash": DASHES[place % len(DASHES)]},
        marker={"size": 7},
        name=_named(curve),
        legendgroup=str(place),
        showlegend=column == 1 or not curve.below,
        hovertemplate=f"{label(curve.token)}<br>%{{customdata}} copies: %{{y:.3f}}<extra></extra>",
        row=1,
        col=column,
    )


def _named(curve: Curve) -> str:
    shown = label(curve.token)
    return shown if curve.verdict in (None, "sticky") else f"{shown} ({curve.verdict})"


def _draw_controls(figure: go.Figure, controls: list[Curve], side: str, column: int) -> None:
    rows = [getattr(curve, side) for curve in controls if getattr(curve, side)]
    if not rows:
        return
    places, values = spread_out(controls[0].copies), np.array(rows)
    lows, highs = values.min(axis=0).round(5).tolist(), values.max(axis=0).round(5).tolist()
    draw_band(figure, places, lows, highs, column)
    figure.add_scatter(
        x=places,
        y=values.mean(axis=0).round(5).tolist(),
        customdata=controls[0].copies,
        mode="lines",
        line={"color": CONTROL, "width": 2.5, "dash": "dash"},
        name=f"{len(rows)} ordinary tokens: mean and range",
        legendgroup="controls",
        showlegend=column == 1,
        hovertemplate="ordinary tokens<br>%{customdata} copies: %{y:.3f}<extra></extra>",
        row=1,
        col=column,
    )


def describe(curves: list[Curve], controls: list[Curve], mean_similarity: float) -> str:
    """Describe where the curves start and end."""
    if not curves:
        return "There are no symptom curves."
    text = f"Mean similarity of pairs by number of copies; the mean similarity u is {mean_similarity:.3f}."
    for curve in curves[:_DRAWN]:
        parts = [
            f"{side} u from {values[0]:.3f} to {values[-1]:.3f}"
            for side in SIDES
            if (values := getattr(curve, side))
        ]
        text += f" {curve.copies[-1]} copies of {curve.token} move pairs {' and '.join(parts)}."
    ends = [
        f"{side} u from {np.mean([row[0] for row in rows]):.3f} to {np.mean([row[-1] for row in rows]):.3f}"
        for side in SIDES
        if (rows := [getattr(curve, side) for curve in controls if getattr(curve, side)])
    ]
    return text + (f" Ordinary tokens move them {' and '.join(ends)}." if ends else "")


def table(curves: list[Curve], controls: list[Curve]) -> DataTable:
    """Return a table with one row per token and side, and one column per number of copies."""
    if not curves and not controls:
        return DataTable((), ())
    copies = (curves or controls)[0].copies
    rows = [
        (curve.token, side, *getattr(curve, side))
        for curve in curves
        for side in SIDES
        if getattr(curve, side)
    ]
    for side in SIDES:
        values = [getattr(curve, side) for curve in controls if getattr(curve, side)]
        if values:
            rows.append(("(mean of ordinary tokens)", side, *np.mean(values, axis=0).tolist()))
    return DataTable(("token", "pairs", *(f"{n} copies" for n in copies)), rows)
