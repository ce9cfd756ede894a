"""Figures from Chen et al. (2025), drawn from a run of any method.

`stickytoken report --figures` saves these figures, but the page does not show them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl

from stickytoken.methods.symptoms import SIMILARITY_EDGES
from stickytoken.reports import figures as fig
from stickytoken.reports.figures import DataTable, ReportFigure
from stickytoken.reports.figures.run import (
    SIDES,
    Breakdown,
    Curve,
    average_lines,
    break_down_by,
    draw_breakdowns,
)
from stickytoken.reports.templating import minus
from stickytoken.vocabulary import Category, Kind
from stickytoken.words import counted

_WITHOUT_PAIRS = (
    "this run does not contain the similarities of pairs: run the detection again, into another folder"
)
_WITHOUT_CURVES = (
    "this run was made without symptom curves: run the same stickytoken detect command again to add them"
)


def pair_similarities(
    token: str, copies: int, before: Sequence[int], after: Sequence[int] | None, u: float
) -> ReportFigure:
    """Draw the similarities of text pairs before and after a token is inserted.

    Args:
        token: Token whose copies are inserted.
        copies: Number of copies that are inserted.
        before: Number of pairs in each bin of `SIMILARITY_EDGES` before insertion; empty if unknown.
        after: Number of pairs in each bin after insertion; None if unknown.
        u: The model's mean similarity.
    """
    name = "pair-similarities"
    title = "Similarities of pairs before and after insertion"
    reading = (
        "Each pair consists of a text with copies and a text without. The dotted line is u, the model's mean "
        "similarity. Copies of a sticky token make the similarities of all pairs nearly equal."
    )
    if not before or after is None:
        return fig.figure_of_nothing(name, title, reading, _WITHOUT_PAIRS)
    first, last = _find_nonempty_bins(before, after)
    edges = SIMILARITY_EDGES[first : last + 1]
    figure = fig.new_figure()
    _draw_counts(figure, edges, before[first:last], "without copies", fig.ORDINARY)
    inserted = f"with {copies} × {fig.label(token)}"
    _draw_counts(figure, edges, after[first:last], inserted, fig.STICKY)
    figure.add_vline(x=u, line=fig.DOTTED_LINE, annotation={"text": "u", "showarrow": False})
    figure.update_xaxes(title_text="cosine similarity")
    figure.update_yaxes(title_text="pairs of texts")
    figure.update_layout(barmode="overlay", bargap=0, hovermode="closest")
    means = [_average_counts(before), _average_counts(after)]
    alt = minus(
        f"Similarities of {sum(before):,} pairs of texts: {means[0]:.3f} on average without copies, and "
        f"{means[1]:.3f} with {copies} copies of {token} in one of the texts; u is {u:.3f}."
    )
    rows = [
        (minus(f"{start:.2f}"), minus(f"{end:.2f}"), count_before, count_after)
        for (start, end), count_before, count_after in zip(
            pairwise(edges), before[first:last], after[first:last], strict=True
        )
    ]
    return ReportFigure(name, title, figure, alt, reading, DataTable(("from", "to", "before", "after"), rows))


def _find_nonempty_bins(before: Sequence[int], after: Sequence[int]) -> tuple[int, int]:
    occupied = np.flatnonzero(np.array(before) + np.array(after))
    return int(occupied[0]), int(occupied[-1]) + 1


def _average_counts(counts: Sequence[int]) -> float:
    middles = (np.array(SIMILARITY_EDGES[1:]) + np.array(SIMILARITY_EDGES[:-1])) / 2
    return float(np.average(middles, weights=counts))


def _draw_counts(
    figure: go.Figure, edges: Sequence[float], counts: Sequence[int], name: str, color: str
) -> None:
    """Draw a translucent histogram, so that a second one stays visible behind or in front of it."""
    middles = [round((start + end) / 2, 4) for start, end in pairwise(edges)]
    figure.add_bar(
        x=middles,
        y=list(counts),
        name=name,
        marker={"color": color, "opacity": 0.55, "line": {"width": 0}},
        hovertemplate=f"{name}<br>%{{x:.2f}}: %{{y:,}} pairs<extra></extra>",
    )


def mean_shift(curves: list[Curve], controls: list[Curve], who: str) -> ReportFigure:
    """Plot the change in similarity, averaged over pairs and tokens, against the number of copies.

    Args:
        curves: The symptom curve of each token to show, which gives the mean similarity of text pairs for
            each number of copies of the token; see `Curve`.
        controls: The symptom curves of ordinary tokens, for comparison.
        who: What the figure calls the tokens to show, such as ``sticky tokens``.
    """
    name = "mean-shift"
    title = "Mean shift by number of copies"
    reading = (
        "The change in cosine similarity compared with no copies, averaged over pairs of texts and tokens. "
        "Left: pairs below the model's mean similarity u. Right: pairs above u. Copies of a sticky token "
        "raise the similarity of pairs below u more than copies of ordinary tokens do, and lower the "
        "similarity of pairs above u."
    )
    groups = {who: curves, "ordinary tokens": controls}
    shifts_by_group = {group: _compute_shifts(members) for group, members in groups.items() if members}
    if not curves:
        return fig.figure_of_nothing(name, title, reading, _WITHOUT_CURVES)
    copies = curves[0]["copies"]
    figure = fig.new_panels(("pairs below u", "pairs above u"), height=400, spacing=0.04, same_scale=True)
    looks = {who: (fig.STICKY, "solid"), "ordinary tokens": (fig.CONTROL, "dash")}
    rows = []
    sentences = []
    for group, shifts in shifts_by_group.items():
        color, dash = looks[group]
        for panel, side in enumerate(SIDES, start=1):
            if side not in shifts:
                continue
            line: dict[str, Any] = {
                "type": "scatter",
                "x": fig.axis_positions(copies),
                "y": shifts[side],
                "customdata": copies,
                "mode": "lines+markers",
                "line": {"color": color, "dash": dash, "width": 2.5},
                "name": group,
                "legendgroup": group,
                "showlegend": panel == 1,
                "hovertemplate": f"{group}<br>%{{customdata}} copies: %{{y:.3f}}<extra></extra>",
            }
            figure.add_trace(line, row=1, col=panel)
            rows.append((group, side, *shifts[side]))
            sentences.append(_describe_shift(group, side, copies, shifts[side]))
    figure.add_hline(y=0, line=fig.THIN_LINE)
    figure.update_xaxes(title_text="copies", **fig.copies_axis(copies), zeroline=False)
    figure.update_yaxes(title_text="mean change of the cosine", col=1)
    figure.update_layout(legend={"y": -0.2, "yanchor": "top"}, hovermode="closest")
    headings = ("tokens", "pairs", *(f"{count} copies" for count in copies))
    table = DataTable(headings, rows)
    narrow = fig.stack_panels(figure, panels=len(SIDES), height=780)
    return ReportFigure(name, title, figure, " ".join(sentences), reading, table, narrow)


def _compute_shifts(curves: list[Curve]) -> dict[str, list[float | None]]:
    shifts: dict[str, list[float | None]] = {}
    for side in SIDES:
        lines = [curve[side] for curve in curves if curve[side]]
        if lines:
            shifts[side] = average_lines([_subtract_first(line) for line in lines])
    return shifts


def _subtract_first(line: Sequence[float | None]) -> list[float | None]:
    start = line[0]
    return [None if value is None or start is None else value - start for value in line]


def _describe_shift(group: str, side: str, copies: Sequence[int], shifts: Sequence[float | None]) -> str:
    measured = [position for position, shift in enumerate(shifts) if shift is not None]
    last = measured[-1]
    text = f"{copies[last]} copies of {group} change pairs {side} u by {shifts[last]:+.3f} on average."
    return minus(text)


def flagged_categories(tokens: pl.DataFrame) -> ReportFigure:
    """Draw the shares of categories and entry kinds among sticky tokens and among all examined tokens.

    Args:
        tokens: The run's tokens, with the columns `verdict`, `category` and `entry`.
    """
    name = "flagged-categories"
    title = "Categories of flagged tokens"
    reading = (
        "Grey: all tokens that the run examined. Orange: the sticky tokens. OK_SPECIAL: a special token "
        "that can appear in text."
    )
    sticky = tokens.filter(verdict="sticky")
    if sticky.is_empty():
        return fig.figure_of_nothing(name, title, reading, "this run has no sticky token")
    categories = [category.value for category in Category if (tokens["category"] == category.value).any()]
    kinds = [kind.value for kind in Kind if (tokens["entry"] == kind.value).any()]
    breakdowns = [
        break_down_by(tokens, "category", "category", categories),
        break_down_by(tokens, "entry", "kind of entry", kinds),
    ]
    rows: list[tuple[Any, ...]] = []
    for breakdown in breakdowns:
        rows += _make_share_rows(breakdown)
    plot = draw_breakdowns(breakdowns)
    alt = f"{counted(len(sticky), 'sticky token')} of {len(tokens):,}. {_describe_shares(breakdowns)}"
    headings = ("property", "group", "tokens", "sticky", "share of the sticky tokens")
    narrow = fig.stack_panels(plot, panels=len(breakdowns), height=700)
    return ReportFigure(name, title, plot, alt, reading, DataTable(headings, rows), narrow)


def _make_share_rows(breakdown: Breakdown) -> list[tuple[Any, ...]]:
    total = sum(breakdown.sticky)  # not 0: the caller draws nothing if no token is sticky
    return [
        (breakdown.title, group, examined, sticky, f"{sticky / total:.1%}")
        for group, examined, sticky in zip(
            breakdown.groups, breakdown.examined, breakdown.sticky, strict=True
        )
    ]


def _describe_shares(breakdowns: Sequence[Breakdown]) -> str:
    sentences = []
    for breakdown in breakdowns:
        total = sum(breakdown.sticky)
        sticky_counts = zip(breakdown.groups, breakdown.sticky, strict=True)
        described = [f"{count / total:.0%} {group}" for group, count in sticky_counts if count]
        sentences.append(f"By {breakdown.title}: {', '.join(described)}.")
    return " ".join(sentences)
