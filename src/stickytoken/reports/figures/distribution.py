"""The distribution of a statistic over the vocabulary, with the flagged tokens."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import polars as pl
from numpy.typing import NDArray

from stickytoken.reports.figures.figure import DataTable
from stickytoken.reports.figures.style import COLORS, ORDINARY, SYMBOLS, empty_figure, label, new_figure

_FEWEST_BINS, _MOST_BINS = 5, 120
_NO_SPAN = 1e-9
_NAMED = 5


def bins(values: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return counts and edges: bins of the width of Freedman and Diaconis, in limited number.

    Args:
        values: finite, at least one.
    """
    low, high = float(values.min()), float(values.max())
    if high - low < _NO_SPAN:
        return np.array([len(values)]), np.array([low - 0.5e-3, high + 0.5e-3])
    width = 2 * float(np.subtract(*np.quantile(values, [0.75, 0.25]))) / len(values) ** (1 / 3)
    wanted = (high - low) / width if width > 0 else _MOST_BINS
    counts, edges = np.histogram(values, bins=int(np.clip(np.ceil(wanted), _FEWEST_BINS, _MOST_BINS)))
    return counts, edges


def draw(tokens: pl.DataFrame, column: str, name: str, lines: dict[str, float] | None = None) -> go.Figure:
    """Draw a histogram with a mark for every flagged token.

    Args:
        tokens: with the column, token and verdict.
        column: the statistic; null where it was not measured.
        name: of the statistic, on the axis.
        lines: values to mark by a vertical line, by name.
    """
    measured = tokens.filter(pl.col(column).is_not_null())
    if measured.is_empty():
        return empty_figure(f"no token has a {name}")
    counts, edges = bins(measured[column].to_numpy())
    figure = new_figure()
    centers = (edges[:-1] + edges[1:]) / 2
    figure.add_bar(
        x=centers.round(6).tolist(),
        y=[int(count) or None for count in counts],
        width=float(edges[1] - edges[0]) * 0.96,
        marker={"color": ORDINARY, "line": {"width": 0}, "opacity": 0.65},
        customdata=np.column_stack([edges[:-1], edges[1:]]).round(5).tolist(),
        hovertemplate="%{y:,} tokens from %{customdata[0]:.4f} to %{customdata[1]:.4f}<extra></extra>",
        name="tokens",
    )
    for verdict in ("topical", "sticky"):
        _mark(figure, measured.filter(verdict=verdict).sort(column, descending=True), column, verdict)
    for place, (text, value) in enumerate((lines or {}).items()):
        figure.add_vline(x=value, line={"color": ORDINARY, "width": 1.5, "dash": "dot"})
        figure.add_annotation(
            x=value,
            y=1 - 0.08 * place,
            yref="paper",
            text=text,
            showarrow=False,
            xanchor="left",
            xshift=4,
        )
    figure.update_xaxes(title_text=name)
    figure.update_yaxes(title_text="tokens (log scale)", type="log", dtick=1, rangemode="tozero")
    top = float(np.log10(max(int(counts.max()), 2))) + 0.35
    figure.update_yaxes(range=[-0.3, top], tickformat=",d")
    figure.update_layout(bargap=0, hovermode="closest")
    return figure


def _mark(figure: go.Figure, flagged: pl.DataFrame, column: str, verdict: str) -> None:
    if flagged.is_empty():
        return
    names = [label(token) for token in flagged["token"]]
    named = verdict == "sticky" and len(names) <= _NAMED
    figure.add_scatter(
        x=flagged[column].round(6).to_list(),
        y=[0.72] * len(names),
        mode="markers+text" if named else "markers",
        text=names if named else None,
        textposition="top center",
        customdata=names,
        hovertemplate=f"%{{customdata}}: %{{x:.4f}}<extra>{verdict}</extra>",
        marker={"color": COLORS[verdict], "symbol": SYMBOLS[verdict], "size": 11},
        cliponaxis=False,
        name=f"{verdict} ({len(names)})",
    )


def describe(tokens: pl.DataFrame, column: str, name: str) -> str:
    """Describe the distribution."""
    measured = tokens.filter(pl.col(column).is_not_null())
    if measured.is_empty():
        return f"No token has a {name}."
    low, middle, high = (
        float(np.quantile(measured[column].to_numpy(), level)) for level in (0.05, 0.5, 0.95)
    )
    text = (
        f"Histogram of the {name} of {len(measured):,} tokens: median {middle:.4f}, 90% of them between "
        f"{low:.4f} and {high:.4f}."
    )
    for verdict in ("sticky", "topical"):
        flagged = measured.filter(verdict=verdict)
        if len(flagged):
            span = sorted(flagged[column].to_list())
            where = f"at {span[0]:.4f}" if len(span) == 1 else f"between {span[0]:.4f} and {span[-1]:.4f}"
            text += f" {len(flagged)} {verdict} {where}."
    return text


def table(tokens: pl.DataFrame, column: str) -> DataTable:
    """Return the histogram in at most twelve rows, with the flagged tokens."""
    measured = tokens.filter(pl.col(column).is_not_null())
    if measured.is_empty():
        return DataTable((), ())
    values = measured[column].to_numpy()
    edges = np.linspace(values.min(), values.max(), 13) if np.ptp(values) >= _NO_SPAN else bins(values)[1]
    sticky = measured.filter(verdict="sticky")[column].to_numpy()
    counts, marked = np.histogram(values, edges)[0], np.histogram(sticky, edges)[0]
    rows = [
        (float(low), float(high), int(count), int(mark))
        for low, high, count, mark in zip(edges[:-1], edges[1:], counts, marked, strict=True)
        if count
    ]
    return DataTable(("from", "to", "tokens", "of them sticky"), rows)
