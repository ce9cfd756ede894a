"""How often documents with copies appear in search results, by number of copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from stickytoken.impacts.conclusion import INTRUSION, headed
from stickytoken.reports.figures.figure import DataTable
from stickytoken.reports.figures.impact_costs import MEASURED
from stickytoken.reports.figures.style import CONTROL, ORDINARY, STICKY, empty_figure, label, new_figure
from stickytoken.reports.figures.symptom_curves import spread_out


def draw(
    summary: Sequence[Mapping[str, Any]], curves: Sequence[Mapping[str, Any]], measured: str = "sticky"
) -> go.Figure:
    """Draw top-10 appearances of a random document: means of both kinds, and a thin line per sticky token.

    Args:
        summary: rows of `intrusion.parquet`.
        curves: rows of `intrusion_curves.parquet`.
        measured: what the measured tokens are called.
    """
    if not summary:
        return empty_figure("no document was pushed into search results")
    figure = new_figure(height=400)
    by_token: dict[str, list[Mapping[str, Any]]] = {}
    for row in curves:
        if row["kind"] in MEASURED:
            by_token.setdefault(row["token"], []).append(row)
    for place, (token, rows) in enumerate(by_token.items()):
        _line(
            figure,
            [row["copies"] for row in rows],
            [row["hits"] for row in rows],
            name=f"each {measured} token",
            legendgroup="each",
            showlegend=place == 0,
            opacity=0.6,
            line={"color": STICKY, "width": 1.2},
            hovertemplate=f"{label(token)}<br>%{{customdata}} copies: %{{y:.2f}}<extra></extra>",
        )
    copies = [row["copies"] for row in summary]
    for kind, color, dash, symbol in (
        ("sticky", STICKY, "solid", "diamond"),
        ("benign", CONTROL, "dash", "circle-open"),
    ):
        _line(
            figure,
            copies,
            [row[f"hits_{kind}"] for row in summary],
            name=f"{measured if kind == 'sticky' else kind} tokens, mean",
            mode="lines+markers",
            line={"color": color, "width": 3, "dash": dash},
            marker={"symbol": symbol, "size": 9},
            hovertemplate=f"{kind}<br>%{{customdata}} copies: %{{y:.2f}}<extra></extra>",
        )
    if summary[0]["hits_sticky"] is not None:
        figure.add_hline(y=summary[0]["hits_sticky"], line={"color": ORDINARY, "width": 1.5, "dash": "dot"})
    figure.update_xaxes(title_text="copies", tickvals=spread_out(copies), ticktext=[str(n) for n in copies])
    figure.update_yaxes(title_text="queries with the document in their top 10", rangemode="tozero")
    figure.update_layout(hovermode="closest", legend={"y": -0.2, "yanchor": "top"})
    return figure


def describe(summary: Sequence[Mapping[str, Any]], measured: str = "sticky") -> str:
    """Describe where the curves begin and where each kind is highest."""
    if not summary:
        return "No document was pushed into search results."
    text = (
        f"Without copies, a random document of {summary[0]['corpus']} is in the top 10 of "
        f"{summary[0]['hits_sticky']:.2f} queries."
    )
    for kind in ("sticky", "benign"):
        best = max(summary[1:], key=lambda row: row[f"hits_{kind}"])
        last = summary[-1]
        text += (
            f" Copies of {measured if kind == 'sticky' else kind} tokens bring it to at most "
            f"{best[f'hits_{kind}']:.2f} ({_counted(best['copies'])}), {_counted(last['copies'])} to "
            f"{last[f'hits_{kind}']:.2f}; its "
            f"median rank goes from {summary[0][f'rank_{kind}']:.0f} to {last[f'rank_{kind}']:.0f}."
        )
    return text


def _counted(copies: int) -> str:
    return "1 copy" if copies == 1 else f"{copies} copies"


def table(summary: Sequence[Mapping[str, Any]], measured: str = "sticky") -> DataTable:
    """Return a table with one row per number of copies."""
    return DataTable(*headed(INTRUSION, summary, measured))


def _line(figure: go.Figure, copies: list[int], values: list[float], **options: Any) -> None:
    figure.add_scatter(
        x=spread_out(copies),
        y=[round(value, 4) for value in values],
        customdata=copies,
        **{"mode": "lines", **options},
    )
