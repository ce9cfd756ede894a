"""Figures of several panels, which are stacked on a narrow screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from stickytoken.reports.figures.style import CONTROL_BAND


def draw_band(
    figure: go.Figure, places: Sequence[float], low: Sequence[float], high: Sequence[float], column: int
) -> None:
    """Draw the range of ordinary tokens in a panel.

    Args:
        figure: from `make_subplots`.
        places: on the horizontal axis, in order.
        low: lower end at each.
        high: upper end at each.
        column: of the panel, from 1 on.
    """
    figure.add_scatter(
        x=[*places, *reversed(places)],
        y=[*high, *reversed(low)],
        mode="lines",
        fill="toself",
        fillcolor=CONTROL_BAND,
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
        row=1,
        col=column,
    )


def stacked(figure: go.Figure, panels: int, height: int) -> dict[str, Any]:
    """Return layout changes that stack the panels of a figure.

    Args:
        figure: from `make_subplots`, whose first annotations are the titles of the panels.
        panels: how many there are.
        height: of the changed figure, in pixels.

    Returns:
        New values by path, as `Plotly.relayout` takes them.
    """
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
