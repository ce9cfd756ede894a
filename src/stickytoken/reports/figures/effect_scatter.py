"""Two statistics of every token against each other, with the flagged tokens marked."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import polars as pl

from stickytoken.detection.flagged import is_flagged
from stickytoken.reports.figures.figure import DataTable
from stickytoken.reports.figures.style import COLORS, ORDINARY, SYMBOLS, empty_figure, label, new_figure

# Of the others so many are drawn: enough to see the cloud, few enough for a phone.
DRAWN_POINTS = 2500
_THIN = 5
_NAMED = 5


def thinned(tokens: pl.DataFrame, limit: int = DRAWN_POINTS) -> pl.DataFrame:
    """Choose all flagged tokens and a random part of the others, the same on every call."""
    others = tokens.filter(~is_flagged())
    if len(others) > limit:
        kept = np.random.default_rng([len(others), _THIN]).choice(len(others), size=limit, replace=False)
        others = others[np.sort(kept)]
    return pl.concat([others, tokens.filter(is_flagged())])


def draw(tokens: pl.DataFrame, x: str, y: str, names: tuple[str, str]) -> go.Figure:
    """Draw a cloud of ordinary tokens, and the flagged ones by colour and shape."""
    measured = tokens.filter(pl.col(x).is_not_null() & pl.col(y).is_not_null())
    if measured.is_empty():
        return empty_figure(f"no token has a {names[0]} and a {names[1]}")
    figure = new_figure(height=430)
    drawn = thinned(measured)
    others = drawn.filter(~is_flagged())
    in_all = len(measured.filter(~is_flagged()))
    _points(figure, others, x, y, f"other tokens ({len(others):,} of {in_all:,} drawn)")
    for verdict in ("topical", "sticky"):
        _flagged(figure, drawn.filter(verdict=verdict), x, y, verdict)
    figure.update_xaxes(title_text=names[0])
    figure.update_yaxes(title_text=names[1])
    figure.update_layout(hovermode="closest")
    return figure


def _points(figure: go.Figure, rows: pl.DataFrame, x: str, y: str, name: str) -> None:
    figure.add_scatter(
        x=rows[x].round(4).to_list(),
        y=rows[y].round(4).to_list(),
        customdata=[label(token) for token in rows["token"]],
        mode="markers",
        marker={"color": ORDINARY, "size": 4, "opacity": 0.45},
        hovertemplate="%{customdata}<br>%{x:.4f}, %{y:.4f}<extra></extra>",
        name=name,
    )


def _flagged(figure: go.Figure, rows: pl.DataFrame, x: str, y: str, verdict: str) -> None:
    if rows.is_empty():
        return
    names = [label(token) for token in rows["token"]]
    named = verdict == "sticky" and len(names) <= _NAMED
    figure.add_scatter(
        x=rows[x].round(4).to_list(),
        y=rows[y].round(4).to_list(),
        customdata=names,
        text=names if named else None,
        textposition="top center",
        mode="markers+text" if named else "markers",
        marker={"color": COLORS[verdict], "symbol": SYMBOLS[verdict], "size": 11},
        hovertemplate=f"%{{customdata}}<br>%{{x:.4f}}, %{{y:.4f}}<extra>{verdict}</extra>",
        cliponaxis=False,
        name=f"{verdict} ({len(names)})",
    )


def describe(tokens: pl.DataFrame, x: str, y: str, names: tuple[str, str]) -> str:
    """Describe the cloud and the flagged tokens."""
    measured = tokens.filter(pl.col(x).is_not_null() & pl.col(y).is_not_null())
    if measured.is_empty():
        return f"No token has a {names[0]} and a {names[1]}."
    text = f"{names[0].capitalize()} against {names[1]} of {len(measured):,} tokens."
    for verdict, rows in (("sticky", measured.filter(verdict="sticky")), ("all", measured)):
        if len(rows):
            who = "All tokens" if verdict == "all" else f"{len(rows)} sticky"
            medians = (float(rows[x].median()), float(rows[y].median()))  # type: ignore[arg-type]
            text += f" {who}: medians {medians[0]:.4f} and {medians[1]:.4f}."
    return text


def table(tokens: pl.DataFrame, x: str, y: str, names: tuple[str, str]) -> DataTable:
    """Return the flagged tokens, and the quartiles of all tokens."""
    measured = tokens.filter(pl.col(x).is_not_null() & pl.col(y).is_not_null())
    if measured.is_empty():
        return DataTable((), ())
    flagged = measured.filter(is_flagged()).sort(x, descending=True)
    rows = list(flagged.select("token", "verdict", x, y).head(20).iter_rows())
    for name, level in (("lower quartile", 0.25), ("median", 0.5), ("upper quartile", 0.75)):
        rows.append((f"({name} of all)", None, measured[x].quantile(level), measured[y].quantile(level)))
    return DataTable(("token", "verdict", *names), rows)
