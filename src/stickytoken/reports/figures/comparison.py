"""Several runs in one figure: the tokens they flag, and how far these lift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from stickytoken.reports.figures.figure import DataTable
from stickytoken.reports.figures.style import DASHES, SERIES, empty_figure, label, new_figure
from stickytoken.visible_text import visible

# A narrow screen has room for so many letters beside the marks, and for so many of a run's name.
_NARROW_LETTERS = 18
_NAME_BEGIN, _NAME_END = 12, 18
_MOST_TOKENS = 30
_UNIT = "lift beyond an ordinary token's, in standard deviations of similarity"
_NARROW_UNIT = "lift beyond ordinary,<br>in SD of similarity"
_SHAPES = ("diamond", "circle", "square", "triangle-up", "x", "star", "cross", "triangle-down")


@dataclass(frozen=True)
class ComparedToken:
    """A token that at least one run calls sticky.

    Attributes:
        token: its text.
        standardized_lifts: by run, how far it moves unrelated texts beyond an ordinary token, in standard
            deviations of the model's similarities; None where the run does not say.
        verdicts: by run; None where the run did not judge it.
    """

    token: str
    standardized_lifts: Sequence[float | None]
    verdicts: Sequence[str | None]


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


def compared_distributions(samples: Sequence[Sequence[float]], names: Sequence[str]) -> go.Figure:
    """Draw the share of tokens beyond a value, one line per run.

    Args:
        samples: lifts by run, in standard deviations.
        names: of the runs.
    """
    if not any(samples):
        return empty_figure("no run has a lift for all of its tokens")
    figure = new_figure(height=380)
    for place, (values, name) in enumerate(zip(samples, names, strict=True)):
        if not values:
            continue
        ranked = sorted(values, reverse=True)
        # Every rank in the tail, fewer of them further in.
        ranks = sorted({min(len(ranked), round(1.12**k)) for k in range(200)})
        figure.add_scatter(
            x=[round(ranked[rank - 1], 4) for rank in ranks],
            y=[round(100 * rank / len(ranked), 5) for rank in ranks],
            mode="lines",
            line={"color": SERIES[place % len(SERIES)], "dash": DASHES[place % len(DASHES)], "width": 2.5},
            name=label(_short(name)),
            hovertemplate=f"%{{y:.3g}} % of tokens beyond %{{x:.2f}}<extra>{label(name)}</extra>",
        )
    figure.update_xaxes(title_text=_UNIT)
    figure.update_yaxes(title_text="% of tokens beyond", type="log", dtick=1)
    figure.update_layout(hovermode="closest")
    return figure


def narrow_axis() -> dict[str, Any]:
    """Return layout changes that make room for the unit on a narrow screen."""
    return {"xaxis.title.text": _NARROW_UNIT}


def narrow_tokens(tokens: Sequence[ComparedToken]) -> dict[str, Any]:
    """Return layout changes that make room for unit and tokens on a narrow screen."""
    texts = [visible(each.token) for each in _drawn(tokens)]
    short = [text if len(text) <= _NARROW_LETTERS else f"{text[: _NARROW_LETTERS - 1]}…" for text in texts]
    return narrow_axis() | {"yaxis.ticktext": [label(text) for text in short]}


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
