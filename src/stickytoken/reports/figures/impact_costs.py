"""The cost of copies of sticky and of benign tokens on a task, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from stickytoken.impacts.conclusion import CONDITIONS, EFFECTS, cost_sentence, headed
from stickytoken.reports.figures.figure import DataTable
from stickytoken.reports.figures.style import CONTROL, ORDINARY, STICKY, empty_figure, label, new_figure

# More tokens make a panel that nobody reads; the table has all of them.
_MOST_TOKENS = 30
_LOOKS: Mapping[str, tuple[str, str]] = {"sticky": (STICKY, "diamond"), "benign": (CONTROL, "circle-open")}
# What tables call the tokens that are measured: named, where no run says that they are sticky.
MEASURED = ("sticky", "named")
# So that the intervals of both kinds are seen.
_APART = {"sticky": -0.12, "benign": 0.12}


def costs(effects: Sequence[Mapping[str, Any]], measured: str = "sticky") -> go.Figure:
    """Draw two marks per task and metric: the mean drop under sticky and under benign copies.

    Args:
        effects: rows of `effects.parquet`.
        measured: what the measured tokens are called.
    """
    if not _defined(effects, "drop_sticky"):
        return empty_figure("no metric of these tasks is defined")
    figure = new_figure(height=150 + 54 * len(effects))
    for kind, (color, symbol) in _LOOKS.items():
        places = [place for place, row in enumerate(effects) if row[f"drop_{kind}"] is not None]
        rows = [effects[place] for place in places]
        figure.add_scatter(
            x=[round(row[f"drop_{kind}"], 5) for row in rows],
            y=[place + _APART[kind] for place in places],
            customdata=[_task(row) for row in rows],
            error_x=_errors(rows, f"drop_{kind}"),
            mode="markers",
            marker={"color": color, "symbol": symbol, "size": 12},
            name=f"{_called(kind, measured)} tokens, mean",
            hovertemplate="%{customdata}<br>" + _called(kind, measured) + ": %{x:.4f} lost<extra></extra>",
        )
    _finish(figure)
    figure.update_xaxes(title_text="how much of the score is lost (clean minus edited)")
    figure.update_yaxes(
        tickvals=list(range(len(effects))), ticktext=[_task(row) for row in effects], autorange="reversed"
    )
    return figure


def describe_costs(effects: Sequence[Mapping[str, Any]], measured: str = "sticky") -> str:
    """Describe every task and metric in one sentence; that of a main metric ends with a conclusion."""
    if not effects:
        return "No task was measured."
    return " ".join(cost_sentence(row, measured) for row in effects)


def costs_table(effects: Sequence[Mapping[str, Any]], measured: str = "sticky") -> DataTable:
    """Return a table with one row per task and metric."""
    return DataTable(*headed(EFFECTS, effects, measured))


def token_costs(conditions: Sequence[Mapping[str, Any]], measured: str = "sticky") -> go.Figure:
    """Draw one panel per task and one mark per token: the drop of the main metric.

    Args:
        measured: what the measured tokens are called.
        conditions: rows of `conditions.parquet`, one metric a task.
    """
    tasks = list(dict.fromkeys(_measure(row) for row in conditions))
    shown = _shown(conditions)
    if not _defined(shown, "drop"):
        return empty_figure("no metric of these tasks is defined")
    names = list(dict.fromkeys(_condition(row) for row in shown))
    figure = make_subplots(
        rows=1,
        cols=len(tasks),
        shared_yaxes=True,
        horizontal_spacing=0.03,
        subplot_titles=[label(f"{task}, {metric}") for task, metric in tasks],
        figure=new_figure(height=170 + 22 * len(names)),
    )
    for column, task in enumerate(tasks, start=1):
        for kind, (color, symbol) in _LOOKS.items():
            rows = [
                row
                for row in shown
                if _measure(row) == task and _look(row) == kind and row["drop"] is not None
            ]
            figure.add_scatter(
                x=[round(row["drop"], 5) for row in rows],
                y=[_condition(row) for row in rows],
                error_x=_errors(rows, "drop"),
                mode="markers",
                marker={"color": color, "symbol": symbol, "size": 9},
                name=f"{_called(kind, measured)} tokens",
                legendgroup=kind,
                showlegend=column == 1,
                hovertemplate="%{y}: %{x:.4f} lost<extra></extra>",
                row=1,
                col=column,
            )
    _finish(figure)
    figure.update_xaxes(title_text="score lost")
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1], dtick=1)
    return figure


def describe_token_costs(conditions: Sequence[Mapping[str, Any]], measured: str = "sticky") -> str:
    """Name the token that costs most and the range of the benign ones, one sentence per task."""
    parts = []
    for task, metric in dict.fromkeys(_measure(row) for row in conditions):
        rows = [
            row
            for row in conditions
            if _measure(row) == (task, metric) and row["token_id"] is not None and row["drop"] is not None
        ]
        sticky, benign = ([row for row in rows if _look(row) == kind] for kind in ("sticky", "benign"))
        if not sticky or not benign:
            parts.append(f"{task}: {metric} is not defined for all tokens.")
            continue
        worst = max(sticky, key=lambda row: row["drop"])
        drops = [row["drop"] for row in benign]
        parts.append(
            f"{task}: of all {measured} tokens, copies of {worst['token']} cost {metric} most, "
            f"{worst['drop']:.4f}; benign tokens cost {min(drops):.4f} to {max(drops):.4f}."
        )
    return " ".join(parts)


def token_costs_table(conditions: Sequence[Mapping[str, Any]]) -> DataTable:
    """Return a table with one row per task and condition."""
    return DataTable(*headed(CONDITIONS, conditions))


def _shown(conditions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows with copies, sticky tokens first."""
    edited = [row for row in conditions if row["kind"] != "clean"]
    ranked = sorted(edited, key=lambda row: _look(row) != "sticky")
    names = list(dict.fromkeys(_condition(row) for row in ranked))[:_MOST_TOKENS]
    return [row for row in ranked if _condition(row) in names]


def _called(kind: str, measured: str) -> str:
    return measured if kind == "sticky" else kind


def _look(row: Mapping[str, Any]) -> str:
    """The kind that decides how a row looks."""
    kind: str = row["kind"].split()[0]
    return "sticky" if kind in MEASURED else kind


def _condition(row: Mapping[str, Any]) -> str:
    return label(row["kind"] if row["token_id"] is None else f"{row['token']} ({row['kind']})")


def _measure(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["task"], row["metric"]


def _task(row: Mapping[str, Any]) -> str:
    return f"{label(row['task'])}<br>{label(row['metric'])}"


def _defined(rows: Sequence[Mapping[str, Any]], column: str) -> bool:
    return any(row[column] is not None for row in rows)


def _errors(rows: Sequence[Mapping[str, Any]], column: str) -> dict[str, Any]:
    """Return both arms of the intervals; empty if there are no intervals."""
    arms: dict[str, list[float | None]] = {"array": [], "arrayminus": []}
    for row in rows:
        low, high = row[f"{column}_low"], row[f"{column}_high"]
        arms["array"].append(None if high is None else round(high - row[column], 5))
        arms["arrayminus"].append(None if low is None else round(row[column] - low, 5))
    return {"type": "data", "symmetric": False, "thickness": 1.5, **arms}


def _finish(figure: go.Figure) -> None:
    figure.add_vline(x=0, line={"width": 1, "color": ORDINARY})
    figure.update_layout(
        hovermode="closest", legend={"y": -70 / (figure.layout.height - 110), "yanchor": "top"}
    )
