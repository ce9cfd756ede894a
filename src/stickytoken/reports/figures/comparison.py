"""Figures of a comparison: the worst token of each run, and all tokens that they flag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from stickytoken.comparisons.compared_run import ComparedToken, WorstToken
from stickytoken.reports.figures import figure as fig
from stickytoken.reports.figures.figure import DataTable, ReportFigure
from stickytoken.validation import visible

# A narrow screen has room for so many letters beside the marks, and for so many of a run's name.
_NARROW_LETTERS = 18
_NAME_BEGIN, _NAME_END = 12, 18
_MOST_TOKENS = 30
_UNIT = "lift beyond an ordinary token's, in standard deviations of similarity"
_NARROW_UNIT = {"xaxis.title.text": "lift beyond ordinary,<br>in SD of similarity"}
_SHAPES = ("diamond", "circle", "square", "triangle-up", "x", "star", "cross", "triangle-down")


class WorstRow(NamedTuple):
    name: str  # of the run
    worst: WorstToken  # its worst token
    quantiles: tuple[float, float]  # median and 99th percentile of all tokens, in the same unit
    serious: float  # from which value on a lift is serious


def worst_by_run(rows: Sequence[WorstRow], left_out: Sequence[str] = ()) -> ReportFigure:
    """Draw one row per run: where its tokens lie, and its worst token with the interval."""
    parts = [
        f"{row.name}: {row.worst.token!r} at {row.worst.deviations:.2f} SD"
        + ("" if row.worst.low is None else f", interval {row.worst.low:.2f} to {row.worst.high:.2f}")
        for row in rows
    ]
    if left_out:
        parts.append(f"not drawn, without a scale that models share: {', '.join(left_out)}")
    return ReportFigure(
        "worst-by-run",
        "The worst token of each run",
        _worst(rows) if rows else fig.empty_figure("no run has lifts in standard deviations"),
        f"{'; '.join(parts)}.",
        "One row per run, in the order that they were passed in. Marks are filled if the run calls the token "
        "sticky; the line through a mark is its interval. The bar goes from the median token to the 99th "
        "percentile: one token in a hundred lifts more. A lift is serious from the dotted line on.",
        DataTable(
            ("run", "worst token", "verdict", "SD", "low", "high", "median token", "99th percentile"),
            [(row.name, row.worst.token, row.worst.verdict, *row.worst[4:7], *row.quantiles) for row in rows],
        ),
        _NARROW_UNIT
        | {
            "yaxis.tickvals": [fig.label(row.name) for row in rows],
            "yaxis.ticktext": [fig.label(_cut(visible(row.name))) for row in rows],
        },
    )


def _worst(rows: Sequence[WorstRow]) -> go.Figure:
    names = [fig.label(row.name) for row in rows]
    figure = fig.new_figure(height=130 + 52 * len(rows))
    figure.add_bar(
        y=names,
        x=[round(row.quantiles[1] - row.quantiles[0], 4) for row in rows],
        base=[round(row.quantiles[0], 4) for row in rows],
        orientation="h",
        width=0.34,
        marker={"color": fig.ORDINARY, "opacity": 0.4},
        name="median to 99th percentile",
        customdata=[[*row.quantiles] for row in rows],
        hovertemplate="median %{customdata[0]:.2f}, 99th percentile %{customdata[1]:.2f}<extra>%{y}</extra>",
    )
    # A token is written on the side of its mark that has more room.
    ends = [end for row in rows for end in (*row.quantiles, *row.worst[4:7], 0.0) if end is not None]
    middle = (min(ends) + max(ends)) / 2

    def between(low: float | None, high: float | None) -> float | None:
        return None if low is None or high is None else round(high - low, 4)

    figure.add_scatter(
        y=names,
        x=[between(0, row.worst.deviations) for row in rows],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [between(row.worst.deviations, row.worst.high) for row in rows],
            "arrayminus": [between(row.worst.low, row.worst.deviations) for row in rows],
        },
        mode="markers+text",
        text=[fig.legend_label(row.worst.token) for row in rows],
        textposition=["top left" if (row.worst.deviations or 0.0) > middle else "top right" for row in rows],
        cliponaxis=False,
        marker={
            "color": fig.STICKY,
            "size": 11,
            "symbol": ["diamond" if row.worst.verdict == "sticky" else "diamond-open" for row in rows],
        },
        name="worst token (filled: sticky)",
        hovertemplate="%{text}: %{x:.2f} SD<extra>%{y}</extra>",
    )
    for serious in {row.serious for row in rows}:
        figure.add_vline(x=serious, line={"width": 1.5, "color": fig.STICKY, "dash": "dot"})
    figure.add_vline(x=0, line=fig.THIN_LINE)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(title_text=_UNIT)
    figure.update_layout(hovermode="closest")
    return figure


def tokens_by_run(tokens: Sequence[ComparedToken], names: Sequence[str]) -> ReportFigure:
    """Draw one row per token and one mark per run, filled if the run calls it sticky."""
    drawn = [each for each in tokens if any(value is not None for value in each.standardized_lifts)]
    drawn = drawn[:_MOST_TOKENS]
    shared = sum(all(verdict == "sticky" for verdict in each.verdicts) for each in tokens)
    columns = ["token", *(f"{name}: {what}" for name in names for what in ("SD", "verdict"))]
    rows = [
        [
            each.token,
            *(cell for pair in zip(each.standardized_lifts, each.verdicts, strict=True) for cell in pair),
        ]
        for each in tokens
    ]
    message = "no run has a sticky token with a lift in standard deviations"
    return ReportFigure(
        "sticky-tokens-by-run",
        "Sticky tokens, run by run",
        _tokens(drawn, names) if drawn else fig.empty_figure(message),
        f"{len(tokens)} tokens are sticky in at least one run; {shared} in all of them.",
        "One row per token that any run calls sticky; one mark per run, filled if that run calls the "
        "token sticky. The scale is in standard deviations of each model's own similarities, so "
        "models can be compared. Runs of a method without such a scale appear in the table only.",
        DataTable(columns, rows),
        _NARROW_UNIT | {"yaxis.ticktext": [fig.label(_cut(visible(each.token))) for each in drawn]},
    )


def _tokens(drawn: Sequence[ComparedToken], names: Sequence[str]) -> go.Figure:
    figure = fig.new_figure(height=150 + 24 * len(drawn))
    texts = [fig.label(each.token) for each in drawn]
    for place, name in enumerate(names):
        lifts = [
            (row, each.standardized_lifts[place], each.verdicts[place]) for row, each in enumerate(drawn)
        ]
        marks = [(row, lift, verdict) for row, lift, verdict in lifts if lift is not None]
        if not marks:
            continue
        shape = _SHAPES[place % len(_SHAPES)]
        figure.add_scatter(
            x=[round(lift, 4) for _, lift, _ in marks],
            y=[row for row, *_ in marks],
            mode="markers",
            customdata=[[texts[row], fig.label(verdict or "not judged")] for row, _, verdict in marks],
            hovertemplate="%{customdata[0]}: %{x:.2f} SD, "
            f"%{{customdata[1]}}<extra>{fig.label(name)}</extra>",
            marker={
                "color": fig.SERIES[place % len(fig.SERIES)],
                "symbol": [shape if verdict == "sticky" else f"{shape}-open" for *_, verdict in marks],
                "size": 10,
            },
            name=fig.label(_short(name)),
        )
    figure.add_vline(x=0, line=fig.THIN_LINE)
    figure.update_yaxes(
        tickvals=list(range(len(drawn))), ticktext=texts, autorange="reversed", title_text=None
    )
    figure.update_xaxes(title_text=_UNIT)
    figure.update_layout(hovermode="closest")
    return figure


def _cut(text: str) -> str:
    return text if len(text) <= _NARROW_LETTERS else f"{text[: _NARROW_LETTERS - 1]}…"


def _short(name: str) -> str:
    """Shorten a run's name for a legend: its beginning, and its end, which holds the identity."""
    whole = visible(name)
    if len(whole) <= _NAME_BEGIN + _NAME_END + 1:
        return whole
    return f"{whole[:_NAME_BEGIN]}…{whole[-_NAME_END:]}"
