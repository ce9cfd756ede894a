"""What a repair changed: each token before and after, and the curves of both. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from stickytoken.reports.figures.figure import DataTable
from stickytoken.reports.figures.style import (
    CONTROL,
    ORDINARY,
    STICKY,
    TOPICAL,
    empty_figure,
    label,
    new_figure,
)

# More tokens make a panel that nobody reads; the table has all of them.
_MOST_TOKENS = 30
_SIDES = {"before": (STICKY, "diamond"), "after": (TOPICAL, "circle")}
_COLUMNS = {
    "token": "token",
    "strategy": "strategy",
    "deviations_before": "before (SD)",
    "deviations_after": "after (SD)",
    "contraction_before": "meaning lost before",
    "contraction_after": "meaning lost after",
    "verdict_after": "verdict after",
    "reason": "why",
}


def repaired_tokens(rows: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Draw a line per token, from its lift before the repair to that after it.

    Args:
        rows: rows of `Repair.tokens`.
    """
    shown = [row for row in rows if row["deviations_after"] is not None][:_MOST_TOKENS]
    if not shown:
        return empty_figure("the repair was not verified: nothing was measured")
    shown.reverse()  # the first token on top
    names = [label(row["token"]) for row in shown]
    places = list(range(len(shown)))
    figure = new_figure(height=130 + 26 * len(shown))
    for place, row in enumerate(shown):
        figure.add_scatter(
            x=[row["deviations_before"], row["deviations_after"]],
            y=[place, place],
            mode="lines",
            line={"color": ORDINARY, "width": 1.5},
            hoverinfo="skip",
            showlegend=False,
        )
    for side, (color, symbol) in _SIDES.items():
        figure.add_scatter(
            x=[row[f"deviations_{side}"] for row in shown],
            y=places,
            customdata=names,
            mode="markers",
            marker={"color": color, "symbol": symbol, "size": 9},
            name=side,
            hovertemplate=f"%{{customdata}}<br>{side}: %{{x:.2f}} SD<extra></extra>",
        )
    figure.update_yaxes(tickvals=places, ticktext=names, range=[-0.7, len(shown) - 0.3], zeroline=False)
    figure.update_xaxes(title_text="lift beyond an ordinary token's (SD)", rangemode="tozero", zeroline=True)
    return figure


def describe_repaired(rows: Sequence[Mapping[str, Any]]) -> str:
    """Sum up the lifts before and after in one sentence."""
    measured = [row for row in rows if row["deviations_after"] is not None]
    if not measured:
        return "Nothing was measured after the repair."
    before, after = (max(row[f"deviations_{side}"] for row in measured) for side in _SIDES)
    return (
        f"Largest lift of {len(measured)} repaired {'token' if len(measured) == 1 else 'tokens'} beyond an "
        f"ordinary token's: {before:.2f} SD before, {after:.2f} SD after."
    ).replace("-", "\N{MINUS SIGN}")


def repaired_table(rows: Sequence[Mapping[str, Any]]) -> DataTable:
    """Return one row per repaired token."""
    return DataTable(tuple(_COLUMNS.values()), [tuple(row[key] for key in _COLUMNS) for row in rows])


def repair_curves(
    copies: Sequence[int], lines: Mapping[str, Sequence[float]], what: str = "mean cosine similarity"
) -> go.Figure:
    """Draw similarities by number of copies.

    Args:
        copies: numbers of copies, 0 first.
        lines: similarities before and after the repair, and of ordinary tokens, by name.
        what: title of the axis of similarities.
    """
    looks = [(STICKY, "solid"), (TOPICAL, "solid"), (CONTROL, "dash")]
    figure = new_figure(height=340)
    places = list(range(len(copies)))
    for (name, line), (color, dash) in zip(lines.items(), looks, strict=True):
        figure.add_scatter(
            x=places,
            y=[round(value, 5) for value in line],
            customdata=list(copies),
            mode="lines+markers",
            line={"color": color, "dash": dash, "width": 2.5},
            name=name,
            hovertemplate=f"{name}<br>%{{customdata}} copies: %{{y:.3f}}<extra></extra>",
        )
    figure.update_xaxes(title_text="copies in a text", tickvals=places, ticktext=[str(n) for n in copies])
    figure.update_yaxes(title_text=what, zeroline=False)
    return figure


def describe_repair_curves(
    copies: Sequence[int],
    lines: Mapping[str, Sequence[float]],
    what: str = "Mean similarity of unrelated texts",
) -> str:
    """Say where the curves end."""
    ends = ", ".join(f"{name} {line[-1]:.3f}" for name, line in lines.items())
    text = f"{what} with {copies[-1]} copies in one of them: {ends}."
    return text.replace("-", "\N{MINUS SIGN}")


def repair_curves_table(copies: Sequence[int], lines: Mapping[str, Sequence[float]]) -> DataTable:
    """Return one row per curve."""
    return DataTable(
        ("tokens", *(f"{n} copies" for n in copies)), [(name, *line) for name, line in lines.items()]
    )
