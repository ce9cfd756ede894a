"""Several runs in one figure: their worst tokens, and all tokens that they flag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from stickytoken.comparisons.compared_run import ComparedToken, WorstToken
from stickytoken.reports.figures.figure import (
    CONTROL,
    ORDINARY,
    SERIES,
    STICKY,
    TOPICAL,
    DataTable,
    empty_figure,
    label,
    legend_label,
    new_figure,
)
from stickytoken.validation import visible

# A narrow screen has room for so many letters beside the marks, and for so many of a run's name.
_NARROW_LETTERS = 18
_NAME_BEGIN, _NAME_END = 12, 18
_MOST_TOKENS = 30
_UNIT = "lift beyond an ordinary token's, in standard deviations of similarity"
_NARROW_UNIT = "lift beyond ordinary,<br>in SD of similarity"
_SHAPES = ("diamond", "circle", "square", "triangle-up", "x", "star", "cross", "triangle-down")


class WorstRow(NamedTuple):
    """The worst token of a run, and where the others lie.

    Attributes:
        name: of the run.
        worst: its worst token.
        quantiles: median and 99th percentile of all tokens, in the same unit.
        serious: from which value on a lift is serious.
    """

    name: str
    worst: WorstToken
    quantiles: tuple[float, float]
    serious: float


def compared_tokens(tokens: Sequence[ComparedToken], names: Sequence[str]) -> go.Figure:
    """Draw one row per token and one mark per run, filled if the run calls it sticky."""
    drawn = _drawn(tokens)
    if not drawn:
        return empty_figure("no run has a sticky token with a lift in standard deviations")
    figure = new_figure(height=150 + 24 * len(drawn))
    texts = [label(each.token) for each in drawn]
    for place, name in enumerate(names):
        shape = _SHAPES[place % len(_SHAPES)]
        rows = [(row, each) for row, each in enumerate(drawn) if each.standardized_lifts[place] is not None]
        if not rows:
            continue
        figure.add_scatter(
            x=[round(each.standardized_lifts[place] or 0.0, 4) for _, each in rows],
            y=[row for row, _ in rows],
            mode="markers",
            customdata=[[texts[row], label(each.verdicts[place] or "not judged")] for row, each in rows],
            hovertemplate="%{customdata[0]}: %{x:.2f} SD, "
            f"%{{customdata[1]}}<extra>{label(name)}</extra>",
            marker={
                "color": SERIES[place % len(SERIES)],
                "symbol": [
                    shape if each.verdicts[place] == "sticky" else f"{shape}-open" for _, each in rows
                ],
                "size": 10,
            },
            name=label(_short(name)),
        )
    figure.add_vline(x=0, line={"width": 1, "color": "#808080"})
    figure.update_yaxes(
        tickvals=list(range(len(drawn))), ticktext=texts, autorange="reversed", title_text=None
    )
    figure.update_xaxes(title_text=_UNIT)
    figure.update_layout(hovermode="closest")
    return figure


def worst_by_run(rows: Sequence[WorstRow]) -> go.Figure:
    """Draw one row per run: where its tokens lie, and its worst token with the interval."""
    if not rows:
        return empty_figure("no run has lifts in standard deviations")
    figure = new_figure(height=130 + 52 * len(rows))
    figure.add_bar(
        y=[label(row.name) for row in rows],
        x=[round(row.quantiles[1] - row.quantiles[0], 4) for row in rows],
        base=[round(row.quantiles[0], 4) for row in rows],
        orientation="h",
        width=0.34,
        marker={"color": ORDINARY, "opacity": 0.4},
        name="median to 99th percentile",
        customdata=[[*row.quantiles] for row in rows],
        hovertemplate="median %{customdata[0]:.2f}, 99th percentile %{customdata[1]:.2f}<extra>%{y}</extra>",
    )
    figure.add_scatter(
        y=[label(row.name) for row in rows],
        x=[_rounded(row.worst.deviations) for row in rows],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [_between(row.worst.deviations, row.worst.high) for row in rows],
            "arrayminus": [_between(row.worst.low, row.worst.deviations) for row in rows],
        },
        mode="markers+text",
        text=[legend_label(row.worst.token) for row in rows],
        textposition=_toward_the_middle(rows),
        cliponaxis=False,
        marker={
            "color": STICKY,
            "size": 11,
            "symbol": ["diamond" if row.worst.verdict == "sticky" else "diamond-open" for row in rows],
        },
        name="worst token (filled: sticky)",
        hovertemplate="%{text}: %{x:.2f} SD<extra>%{y}</extra>",
    )
    for serious in {row.serious for row in rows}:
        figure.add_vline(x=serious, line={"width": 1.5, "color": STICKY, "dash": "dot"})
    figure.add_vline(x=0, line={"width": 1, "color": "#808080"})
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(title_text=_UNIT)
    figure.update_layout(hovermode="closest")
    return figure


def _toward_the_middle(rows: Sequence[WorstRow]) -> list[str]:
    """Return the side of each mark on which its token has more room."""
    ends = [end for row in rows for end in (*row.quantiles, *row.worst[4:7], 0.0) if end is not None]
    middle = (min(ends) + max(ends)) / 2
    return ["top left" if (row.worst.deviations or 0.0) > middle else "top right" for row in rows]


def worst_table(rows: Sequence[WorstRow]) -> DataTable:
    """Return a table with one row per run."""
    return DataTable(
        ("run", "worst token", "verdict", "SD", "low", "high", "median token", "99th percentile"),
        [(row.name, row.worst.token, row.worst.verdict, *row.worst[4:7], *row.quantiles) for row in rows],
    )


def narrow_worst(rows: Sequence[WorstRow]) -> dict[str, Any]:
    """Return layout changes that make room for unit and names on a narrow screen."""
    return narrow_axis() | {
        "yaxis.tickvals": [label(row.name) for row in rows],
        "yaxis.ticktext": [label(_cut(visible(row.name))) for row in rows],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _between(low: float | None, high: float | None) -> float | None:
    return None if low is None or high is None else round(high - low, 4)


def narrow_axis() -> dict[str, Any]:
    """Return layout changes that make room for the unit on a narrow screen."""
    return {"xaxis.title.text": _NARROW_UNIT}


def narrow_tokens(tokens: Sequence[ComparedToken]) -> dict[str, Any]:
    """Return layout changes that make room for unit and tokens on a narrow screen."""
    return narrow_axis() | {"yaxis.ticktext": [label(_cut(visible(each.token))) for each in _drawn(tokens)]}


def _cut(text: str) -> str:
    return text if len(text) <= _NARROW_LETTERS else f"{text[: _NARROW_LETTERS - 1]}…"


def _short(name: str) -> str:
    """Shorten a run's name for a legend: its beginning, and its end, which holds the identity."""
    whole = visible(name)
    if len(whole) <= _NAME_BEGIN + _NAME_END + 1:
        return whole
    return f"{whole[:_NAME_BEGIN]}…{whole[-_NAME_END:]}"


def _drawn(tokens: Sequence[ComparedToken]) -> list[ComparedToken]:
    return [each for each in tokens if any(value is not None for value in each.standardized_lifts)][
        :_MOST_TOKENS
    ]


def compared_table(tokens: Sequence[ComparedToken], names: Sequence[str]) -> DataTable:
    """Return a table with one row per token and two columns per run."""
    columns = ["token"]
    for name in names:
        columns += [f"{name}: SD", f"{name}: verdict"]
    rows = []
    for each in tokens:
        row: list[str | float | None] = [each.token]
        for value, verdict in zip(each.standardized_lifts, each.verdicts, strict=True):
            row += [value, verdict]
        rows.append(row)
    return DataTable(columns, rows)


_GRADES = {"severe": STICKY, "serious": SERIES[4], "mild": TOPICAL, "negligible": ORDINARY}
_COLUMNS = {
    "layer": "layer",
    "dimension": "dimension",
    "sticky": "sticky",
    "topical": "topical",
    **{grade: grade for grade in _GRADES},
    "largest_sd": "largest lift (SD)",
    "ordinary_sd": "spread of ordinary lifts (SD)",
    "similarity_spread": "spread of similarities (1 SD)",
    "mean_similarity": "mean similarity u",
}


def draw_by_dimension(rows: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Draw the flagged tokens by severity, the largest lift, and the spread of similarities."""
    names = [_name(row) for row in rows]
    figure = make_subplots(
        cols=3,
        subplot_titles=("flagged tokens", "largest lift (SD)", "spread of similarities"),
        horizontal_spacing=0.09,
    )
    figure.update_layout(new_figure(height=360).layout)
    for grade, color in _GRADES.items():
        figure.add_bar(
            x=names,
            y=[row[grade] for row in rows],
            name=grade,
            marker={"color": color},
            hovertemplate=f"%{{x}}<br>{grade}: %{{y}}<extra></extra>",
            row=1,
            col=1,
        )
    for column, (key, color) in enumerate((("largest_sd", STICKY), ("similarity_spread", CONTROL)), start=2):
        figure.add_scatter(
            x=names,
            y=[row[key] for row in rows],
            mode="lines+markers",
            line={"color": color, "width": 2},
            marker={"size": 8},
            showlegend=False,
            hovertemplate="%{x}: %{y:.4f}<extra></extra>",
            row=1,
            col=column,
        )
    figure.update_layout(barmode="stack", legend={"y": -0.25, "yanchor": "top"})
    figure.update_xaxes(type="category")
    figure.update_yaxes(rangemode="tozero")
    return figure


def describe_by_dimension(rows: Sequence[Mapping[str, Any]]) -> str:
    """Sum up the table, one clause per row."""
    parts = [
        f"{_name(row)}: {row['sticky']} sticky, {row['topical']} topical"
        + ("" if row["largest_sd"] is None else f", largest lift {row['largest_sd']:.2f} SD")
        for row in rows
    ]
    return f"By dimension: {'; '.join(parts)}.".replace("-", "\N{MINUS SIGN}")


def table_by_dimension(rows: Sequence[Mapping[str, Any]]) -> DataTable:
    """Return one row per dimension and layer."""
    return DataTable(tuple(_COLUMNS.values()), [tuple(row[key] for key in _COLUMNS) for row in rows])


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['dimension']}" if row["layer"] is None else f"layer {row['layer']}, {row['dimension']}"
