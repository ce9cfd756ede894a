"""The cost of copies of sticky and of benign tokens on a task, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from stickytoken.impacts.statistics import CONDITIONS, EFFECTS, INTRUSION, cost_sentence, headed
from stickytoken.reports.figures.figure import (
    CONTROL,
    ORDINARY,
    STICKY,
    TOPICAL,
    DataTable,
    empty_figure,
    label,
    new_figure,
)
from stickytoken.reports.figures.symptom_curves import spread_out

# More tokens make a panel that nobody reads; the table has all of them.
_MOST_TOKENS = 30
_LOOKS: Mapping[str, tuple[str, str]] = {"sticky": (STICKY, "diamond"), "benign": (CONTROL, "circle-open")}
# What tables call the tokens that are measured: named, where no run says that they are sticky.
MEASURED = ("sticky", "named")
# So that the intervals of both kinds are seen.
_APART = {"sticky": -0.12, "benign": 0.12}


def costs(effects: Sequence[Mapping[str, Any]], measured: str = "sticky") -> go.Figure:
    """Draw two marks per task and metric: the mean drop under sticky and under benign copies."""
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
    """Draw one panel per task and one mark per token: the drop of the main metric."""
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


def draw_intrusion_curves(
    summary: Sequence[Mapping[str, Any]], curves: Sequence[Mapping[str, Any]], measured: str = "sticky"
) -> go.Figure:
    """Draw top-10 appearances of a random document: means of both kinds, and a thin line per sticky token."""
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


def describe_intrusion_curves(summary: Sequence[Mapping[str, Any]], measured: str = "sticky") -> str:
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


def table_intrusion_curves(summary: Sequence[Mapping[str, Any]], measured: str = "sticky") -> DataTable:
    """Return a table with one row per number of copies."""
    return DataTable(*headed(INTRUSION, summary, measured))


def _line(figure: go.Figure, copies: list[int], values: list[float], **options: Any) -> None:
    figure.add_scatter(
        x=spread_out(copies),
        y=[round(value, 4) for value in values],
        customdata=copies,
        **{"mode": "lines", **options},
    )


# More tokens make a panel that nobody reads; the table has all of them.
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
    """Draw a line per token, from its lift before the repair to that after it."""
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
    """Draw similarities by number of copies."""
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
