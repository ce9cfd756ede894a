"""Figures that show how copies change task scores, and what repairs change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
import polars as pl

from stickytoken.impacts import wording as impact_wording
from stickytoken.impacts.results import NAMED, Impact, measured_kind
from stickytoken.methods import Column
from stickytoken.methods.measures import MEASURES
from stickytoken.reports import figures as fig
from stickytoken.reports.figures import DataTable, ReportFigure
from stickytoken.settings.impact import Edits
from stickytoken.words import counted

# Maximum number of tokens in a panel, because more rows would be unreadable. The table lists all tokens.
_MOST_TOKENS = 30


@dataclass(frozen=True)
class _Style:
    """The colour, symbol, line and position that a figure uses for a group of tokens."""

    color: str
    symbol: str
    dash: str
    # Distance of the marks from the middle of their row, in row heights, so that the intervals of the two
    # groups do not overlap.
    offset: float


_STYLE_OF_GROUP: Mapping[str, _Style] = {
    "sticky": _Style(color=fig.STICKY, symbol="diamond", dash="solid", offset=-0.12),
    "benign": _Style(color=fig.CONTROL, symbol="circle-open", dash="dash", offset=0.12),
}
# Kinds of measured tokens: sticky tokens of a run, or tokens that a user named, which may or may not be
# sticky. Measured tokens of both kinds are compared with benign tokens.
_MEASURED = ("sticky", NAMED)

Rows = Sequence[Mapping[str, Any]]


def impact_figures(impact: Impact) -> list[ReportFigure]:
    """Return the figures of a finished impact measurement.

    They show the costs by task and, if tokens were measured one by one, by token. The list is empty if no
    task has been measured.
    """
    effects = impact.effects.to_dicts()
    if not effects:
        return []
    measured = measured_kind(impact.record)
    settings = impact.record.measured_with()
    figures = [costs(effects, measured, f"{impact_wording.settings_line(settings)}. ")]
    tokens_one_by_one = settings.edits is Edits.COPIES
    if tokens_one_by_one:
        main_metrics = impact.effects.filter("main").select("task", "metric")  # one metric for each task
        conditions = impact.conditions.join(main_metrics, on=["task", "metric"], maintain_order="left")
        edited = conditions.filter(pl.col("kind") != "clean")
        figures.append(token_costs(edited.to_dicts(), measured))
    return figures


def _name_group(group: str, measured: str) -> str:
    # Tokens that a user named are drawn like sticky tokens, but are called "named".
    return measured if group == "sticky" else group


def costs(effects: Rows, measured: str = "sticky", settings: str = "") -> ReportFigure:
    """Draw the mean score loss caused by copies of measured and benign tokens, with one row per metric.

    Args:
        effects: Rows of effects.parquet, one per task and metric.
        measured: Kind of the measured tokens, ``sticky`` or ``named``.
        settings: A sentence that states the settings of the measurement, followed by a space.
    """
    # The column `drop_sticky` has the losses of the measured tokens, also if their kind is ``named``.
    if all(row["drop_sticky"] is None for row in effects):
        figure = fig.empty_figure("no metric of these tasks is defined")
    else:
        figure = _draw_costs(effects, measured)
    sentences = [impact_wording.cost_sentence(row, measured) for row in effects]
    return ReportFigure(
        "impact-costs",
        "What copies cost",
        figure,
        " ".join(sentences) or "No task was measured.",
        f"{settings}The further right, the more of the score is lost. Copies of any token cost something; "
        "what counts is how much more the measured tokens cost than the benign ones. The p-value compares "
        "the measured tokens with the benign tokens that match them: if it is small, other tokens of both "
        "kinds would probably differ, too.",
        DataTable(*impact_wording.headed(impact_wording.EFFECTS, effects, measured)),
        {"xaxis.title.text": "score lost<br>(clean minus edited)"},
        in_markdown=True,
    )


def _draw_costs(effects: Rows, measured: str) -> go.Figure:
    """Draw one row per task and metric, with a mark for the measured and a mark for the benign tokens."""
    figure = fig.new_figure(height=150 + 54 * len(effects))
    tasks = [f"{fig.label(row['task'])}<br>{fig.label(row['metric'])}" for row in effects]
    for group, style in _STYLE_OF_GROUP.items():
        loss_column = f"drop_{group}"
        name = _name_group(group, measured)
        # The loss is None if the metric is undefined.
        drawn_positions = [position for position, row in enumerate(effects) if row[loss_column] is not None]
        rows = [effects[position] for position in drawn_positions]
        marks: dict[str, Any] = {
            "type": "scatter",
            "x": [round(row[loss_column], 5) for row in rows],
            "y": [position + style.offset for position in drawn_positions],
            "customdata": [tasks[position] for position in drawn_positions],
            "error_x": _make_error_bars(rows, loss_column),
            "mode": "markers",
            "marker": {"color": style.color, "symbol": style.symbol, "size": 12},
            "name": f"{name} tokens, mean",
            "hovertemplate": f"%{{customdata}}<br>{name}: %{{x:.4f}} lost<extra></extra>",
        }
        figure.add_trace(marks)
    _add_zero_line_and_legend(figure)
    figure.update_xaxes(title_text="how much of the score is lost (clean minus edited)")
    figure.update_yaxes(tickvals=list(range(len(effects))), ticktext=tasks, autorange="reversed")
    return figure


def _make_error_bars(rows: Rows, column: str) -> dict[str, Any]:
    values = [row[column] for row in rows]
    lows = [row[f"{column}_low"] for row in rows]
    highs = [row[f"{column}_high"] for row in rows]
    return fig.error_bars(values, lows, highs) | {"thickness": 1.5}


def _add_zero_line_and_legend(figure: go.Figure) -> None:
    figure.add_vline(x=0, line=fig.THIN_LINE)
    # The legend is 70 pixels below the plot. Its position is a share of the plot's height: the height of the
    # figure minus about 110 pixels for titles and legend.
    legend = {"y": -70 / (figure.layout.height - 110), "yanchor": "top"}
    figure.update_layout(hovermode="closest", legend=legend)


def token_costs(conditions: Rows, measured: str = "sticky") -> ReportFigure:
    """Draw the score loss caused by copies of each token, with one panel per task.

    Args:
        conditions: Rows of conditions.parquet for the main metric of each task, except rows of clean texts.
        measured: Kind of the measured tokens, ``sticky`` or ``named``.
    """
    panels = list(dict.fromkeys((row["task"], row["metric"]) for row in conditions))  # in order, each once
    sentences = [_describe_token_costs(conditions, task, metric, measured) for task, metric in panels]
    measured_first = sorted(conditions, key=lambda row: not _is_measured(row))
    names = list(dict.fromkeys(_name_condition(row) for row in measured_first))[:_MOST_TOKENS]
    rows = [row for row in measured_first if _name_condition(row) in names and row["drop"] is not None]
    if rows:
        plot = _draw_token_costs(rows, panels, names, measured)
    else:
        plot = fig.empty_figure("no metric of these tasks is defined")
    narrow: dict[str, Any] = {}
    if len(panels) > 1:
        narrow = fig.stack_panels(plot, panels=len(panels), height=len(panels) * plot.layout.height)
    return ReportFigure(
        "impact-tokens",
        "What copies of each token cost",
        plot,
        " ".join(sentences),
        "The main metric of each task. The benign tokens match the measured ones in category, length and "
        "position in the vocabulary, and are not flagged. A mixture divides the copies among all tokens of "
        "its kind.",
        DataTable(*impact_wording.headed(impact_wording.CONDITIONS, conditions)),
        narrow,
        in_markdown=True,
    )


def _draw_token_costs(
    rows: Rows, panels: Sequence[tuple[str, str]], names: Sequence[str], measured: str
) -> go.Figure:
    """Draw one panel per task and metric, with one row per token."""
    titles = [fig.label(f"{task}, {metric}") for task, metric in panels]
    plot = fig.new_panels(titles, height=170 + 22 * len(names), spacing=0.03, same_scale=True)
    for column, panel in enumerate(panels, start=1):
        in_panel = [row for row in rows if (row["task"], row["metric"]) == panel]
        for group, style in _STYLE_OF_GROUP.items():
            in_group = [row for row in in_panel if _is_measured(row) == (group == "sticky")]
            marks: dict[str, Any] = {
                "type": "scatter",
                "x": [round(row["drop"], 5) for row in in_group],
                "y": [_name_condition(row) for row in in_group],
                "error_x": _make_error_bars(in_group, "drop"),
                "mode": "markers",
                "marker": {"color": style.color, "symbol": style.symbol, "size": 9},
                "name": f"{_name_group(group, measured)} tokens",
                "legendgroup": group,
                "showlegend": column == 1,
                "hovertemplate": "%{y}: %{x:.4f} lost<extra></extra>",
            }
            plot.add_trace(marks, row=1, col=column)
    _add_zero_line_and_legend(plot)
    plot.update_xaxes(title_text="score lost")
    # Plotly draws the first category at the bottom.
    plot.update_yaxes(categoryorder="array", categoryarray=names[::-1], dtick=1)
    return plot


def _describe_token_costs(conditions: Rows, task: str, metric: str, measured: str) -> str:
    """Return a sentence on the loss of score in a task.

    The sentence names the measured token whose copies cost most, and states the range of the benign tokens.
    If the loss is unknown for all measured tokens or for all benign tokens, the sentence says only this.
    """
    measured_rows = []
    benign_drops = []
    for row in conditions:
        is_of_task = (row["task"], row["metric"]) == (task, metric)
        is_mixture = row["token_id"] is None
        if not is_of_task or is_mixture or row["drop"] is None:
            continue
        if _is_measured(row):
            measured_rows.append(row)
        else:
            benign_drops.append(row["drop"])
    if not measured_rows or not benign_drops:
        return f"{task}: {metric} is not defined for all tokens."
    worst = max(measured_rows, key=lambda row: float(row["drop"]))
    return (
        f"{task}: of all {measured} tokens, copies of {worst['token']} lower {metric} most, by "
        f"{worst['drop']:.4f}; benign tokens lower it by {min(benign_drops):.4f} to {max(benign_drops):.4f}."
    )


def _name_condition(row: Mapping[str, Any]) -> str:
    is_mixture = row["token_id"] is None  # copies of several tokens, whose kind is "sticky mixture" then
    return fig.label(row["kind"] if is_mixture else f"{row['token']} ({row['kind']})")


def _is_measured(row: Mapping[str, Any]) -> bool:
    kind = row["kind"].split()[0]  # "sticky" for both "sticky" and "sticky mixture"
    return kind in _MEASURED


@dataclass(frozen=True)
class _SideStyle:
    """The colour and symbol of tokens before a repair, or after it."""

    color: str
    symbol: str


_STYLE_OF_SIDE = {"before": _SideStyle(fig.STICKY, "diamond"), "after": _SideStyle(fig.AFTER, "circle")}
_REPAIRED = (
    Column("token", "token"),
    Column("strategy", "strategy"),
    *(
        Column(f"{measure.key}_{side}", f"{measure.title} {side}", measure.digits, measure.unit)
        for measure in MEASURES
        for side in _STYLE_OF_SIDE
    ),
    Column("found_before", "found before", 0, "%"),
    Column("found_after", "found after", 0, "%"),
    Column("verdict_after", "verdict after"),
    Column("reason", "why"),
)


def repaired_tokens(rows: Rows, state: str, findings: str) -> ReportFigure:
    """Draw the erased share and the push of every repaired token before and after the repair.

    Args:
        rows: One row per repaired token, from `stickytoken.repairs.records.token_rows`.
        state: A sentence that says whether the repair is verified.
        findings: Sentences that say what the checks of the repair found.
    """
    measured = [row for row in rows if row["push_after"] is not None]
    narrow: dict[str, Any] = {}
    if measured:
        summary = _describe_repaired(measured)
        plot = _draw_repaired_tokens(measured[:_MOST_TOKENS])
        narrow = fig.stack_panels(plot, panels=len(MEASURES), height=2 * plot.layout.height)
    else:
        summary = "Nothing was measured after the repair."
        plot = fig.empty_figure("the repair was not verified: nothing was measured")
    cells = [[column.text(row[column.key]) or None for column in _REPAIRED] for row in rows]
    return ReportFigure(
        "repair",
        "What a repair changed",
        plot,
        f"{state} {summary}",
        f"Each repaired token, measured in other texts than those of this run, with another seed. {findings}",
        DataTable([column.title for column in _REPAIRED], cells),
        narrow,
        in_markdown=True,
    )


def _describe_repaired(measured: Rows) -> str:
    """Return a sentence with the largest value of each measure before the repair, and after it."""
    clauses = []
    for measure in MEASURES:
        largest = []
        for side in _STYLE_OF_SIDE:
            values = [row[f"{measure.key}_{side}"] for row in measured]
            measured_values = [value for value in values if value is not None]
            if measured_values:
                largest.append(f"{measure.text(max(measured_values))} {side}")
        if largest:
            clauses.append(f"largest {measure.noun} {', '.join(largest)}")
    return f"Of {counted(len(measured), 'repaired token')}: {'; '.join(clauses)}."


def _draw_repaired_tokens(rows: Rows) -> go.Figure:
    from_below = list(reversed(rows))  # Plotly draws position 0 at the bottom
    titles = [fig.axis_title(measure) for measure in MEASURES]
    plot = fig.new_panels(titles, height=150 + 26 * len(rows), spacing=0.06, same_scale=True)
    for panel, measure in enumerate(MEASURES, start=1):
        _draw_before_and_after(plot, from_below, measure, panel)
    names = [fig.label(row["token"]) for row in from_below]
    plot.update_yaxes(
        tickvals=list(range(len(rows))), ticktext=names, range=[-0.7, len(rows) - 0.3], zeroline=False
    )
    plot.update_layout(legend={"y": -0.2, "yanchor": "top"})
    return plot


def _draw_before_and_after(plot: go.Figure, rows: Rows, measure: Column, panel: int) -> None:
    """Draw two marks per token, the measure before and after the repair, joined by a line."""
    cell = {"row": 1, "col": panel}
    for position, row in enumerate(rows):
        line: dict[str, Any] = {
            "type": "scatter",
            "x": [row[f"{measure.key}_before"], row[f"{measure.key}_after"]],
            "y": [position, position],
            "mode": "lines",
            "line": {"color": fig.ORDINARY, "width": 1.5},
            "hoverinfo": "skip",
            "showlegend": False,
        }
        plot.add_trace(line, **cell)
    for side, style in _STYLE_OF_SIDE.items():
        marks: dict[str, Any] = {
            "type": "scatter",
            "x": [row[f"{measure.key}_{side}"] for row in rows],
            "y": list(range(len(rows))),
            "customdata": [fig.label(row["token"]) for row in rows],
            "mode": "markers",
            "marker": {"color": style.color, "symbol": style.symbol, "size": 9},
            "name": side,
            "legendgroup": side,
            "showlegend": panel == 1,
            "hovertemplate": f"%{{customdata}}<br>{side}: %{{x:{fig.number_format(measure)}}}<extra></extra>",
        }
        plot.add_trace(marks, **cell)
    plot.update_xaxes(tickformat=fig.tick_format(measure), rangemode="tozero", zeroline=True, col=panel)
