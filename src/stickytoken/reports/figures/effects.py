"""Figures of what copies cost on tasks and in searches, and of what a repair changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl

from stickytoken.impacts import statistics
from stickytoken.impacts.results import Impact, measured_kind
from stickytoken.methods import Column, wording
from stickytoken.reports import figures as fig
from stickytoken.reports.figures import DataTable, ReportFigure
from stickytoken.reports.templating import minus

# More tokens make a panel that nobody reads; the table has all of them.
_MOST_TOKENS = 30
_LOOKS: Mapping[str, tuple[str, str]] = {
    "sticky": (fig.STICKY, "diamond"),
    "benign": (fig.CONTROL, "circle-open"),
}
# What tables call the tokens that are measured: named, where no run says that they are sticky.
_MEASURED = ("sticky", "named")
# So that the intervals of both kinds are seen.
_APART = {"sticky": -0.12, "benign": 0.12}

Rows = Sequence[Mapping[str, Any]]


def impact_figures(impact: Impact, suffix: str = "") -> list[ReportFigure]:
    found, kind = [], measured_kind(impact.record)
    if effects := impact.effects.to_dicts():
        main = impact.effects.filter("main").select("task", "metric")
        conditions = impact.conditions.join(main, on=["task", "metric"], maintain_order="left")
        rows = conditions.filter(pl.col("kind") != "clean").to_dicts()
        found += [
            costs(effects, kind, suffix, f"{statistics.settings_line(impact.record.measured_with())}. "),
            token_costs(rows, kind, suffix),
        ]
    if summary := impact.intrusion.to_dicts():
        found.append(intrusion(summary, impact.intrusion_curves.to_dicts(), kind, suffix))
    return found


def costs(effects: Rows, measured: str = "sticky", suffix: str = "", settings: str = "") -> ReportFigure:
    figure = fig.new_figure(height=150 + 54 * len(effects))
    tasks = [f"{fig.label(row['task'])}<br>{fig.label(row['metric'])}" for row in effects]
    for kind, (color, symbol) in _LOOKS.items():
        drop, name = f"drop_{kind}", measured if kind == "sticky" else kind
        places = [place for place, row in enumerate(effects) if row[drop] is not None]
        rows = [effects[place] for place in places]
        figure.add_scatter(
            x=[round(row[drop], 5) for row in rows],
            y=[place + _APART[kind] for place in places],
            customdata=[tasks[place] for place in places],
            error_x=_arms(rows, drop),
            mode="markers",
            marker={"color": color, "symbol": symbol, "size": 12},
            name=f"{name} tokens, mean",
            hovertemplate=f"%{{customdata}}<br>{name}: %{{x:.4f}} lost<extra></extra>",
        )
    _finish(figure)
    figure.update_xaxes(title_text="how much of the score is lost (clean minus edited)")
    figure.update_yaxes(tickvals=list(range(len(effects))), ticktext=tasks, autorange="reversed")
    if all(row["drop_sticky"] is None for row in effects):
        figure = fig.empty_figure("no metric of these tasks is defined")
    return ReportFigure(
        f"impact-costs{suffix}",
        "What copies cost",
        figure,
        " ".join(statistics.cost_sentence(row, measured) for row in effects) or "No task was measured.",
        f"{settings}The further right, the more of the score is lost. "
        "Copies of any token cost something; what counts is how much more the measured ones cost than "
        "the benign. Whether other tokens of either kind would differ, only the p value says: it "
        "compares tokens with their matches.",
        DataTable(*statistics.headed(statistics.EFFECTS, effects, measured)),
        {"xaxis.title.text": "score lost<br>(clean minus edited)"},
        in_markdown=True,
    )


def _arms(rows: Rows, column: str) -> dict[str, Any]:
    arms: dict[str, list[float | None]] = {"array": [], "arrayminus": []}
    for row in rows:
        low, high = row[f"{column}_low"], row[f"{column}_high"]
        arms["array"].append(None if high is None else round(high - row[column], 5))
        arms["arrayminus"].append(None if low is None else round(row[column] - low, 5))
    return {"type": "data", "symmetric": False, "thickness": 1.5, **arms}


def _finish(figure: go.Figure) -> None:
    figure.add_vline(x=0, line=fig.THIN_LINE)
    legend = {"y": -70 / (figure.layout.height - 110), "yanchor": "top"}
    figure.update_layout(hovermode="closest", legend=legend)


def token_costs(conditions: Rows, measured: str = "sticky", suffix: str = "") -> ReportFigure:
    panels = list(dict.fromkeys((row["task"], row["metric"]) for row in conditions))
    words = []
    for task, metric in panels:
        drops: dict[str, list[tuple[float, str]]] = {"sticky": [], "benign": []}
        for row in conditions:
            known = row["token_id"] is not None and row["drop"] is not None
            if known and (row["task"], row["metric"]) == (task, metric):
                drops.setdefault(_look(row), []).append((row["drop"], row["token"]))
        if not drops["sticky"] or not drops["benign"]:
            words.append(f"{task}: {metric} is not defined for all tokens.")
            continue
        most, worst = max(drops["sticky"], key=lambda each: each[0])
        benign = [drop for drop, _ in drops["benign"]]
        words.append(
            f"{task}: of all {measured} tokens, copies of {worst} cost {metric} most, {most:.4f}; benign "
            f"tokens cost {min(benign):.4f} to {max(benign):.4f}."
        )

    def named(row: Mapping[str, Any]) -> str:
        return fig.label(row["kind"] if row["token_id"] is None else f"{row['token']} ({row['kind']})")

    ranked = sorted(conditions, key=lambda row: _look(row) != "sticky")
    names = list(dict.fromkeys(named(row) for row in ranked))[:_MOST_TOKENS]
    shown = [row for row in ranked if named(row) in names and row["drop"] is not None]
    count = len(panels)
    plot = fig.empty_figure("no metric of these tasks is defined")
    if shown:
        titles = [fig.label(f"{task}, {metric}") for task, metric in panels]
        plot = fig.new_panels(titles, 170 + 22 * len(names), 0.03, same_scale=True)
        for column, panel in enumerate(panels, start=1):
            for kind, (color, symbol) in _LOOKS.items():
                rows = [row for row in shown if (row["task"], row["metric"]) == panel and _look(row) == kind]
                plot.add_scatter(
                    x=[round(row["drop"], 5) for row in rows],
                    y=[named(row) for row in rows],
                    error_x=_arms(rows, "drop"),
                    mode="markers",
                    marker={"color": color, "symbol": symbol, "size": 9},
                    name=f"{measured if kind == 'sticky' else kind} tokens",
                    legendgroup=kind,
                    showlegend=column == 1,
                    hovertemplate="%{y}: %{x:.4f} lost<extra></extra>",
                    row=1,
                    col=column,
                )
        _finish(plot)
        plot.update_xaxes(title_text="score lost")
        plot.update_yaxes(categoryorder="array", categoryarray=names[::-1], dtick=1)
    return ReportFigure(
        f"impact-tokens{suffix}",
        "What copies of each token cost",
        plot,
        " ".join(words),
        "The main metric of each task. The benign tokens match the measured ones in category, length and "
        "position in the vocabulary, and are not flagged. A mixture "
        "divides the copies among all tokens of its kind.",
        DataTable(*statistics.headed(statistics.CONDITIONS, conditions)),
        fig.stacked(plot, count, count * plot.layout.height) if count > 1 else {},
        in_markdown=True,
    )


def _look(row: Mapping[str, Any]) -> str:
    kind: str = row["kind"].split()[0]
    return "sticky" if kind in _MEASURED else kind


def intrusion(summary: Rows, curves: Rows, measured: str = "sticky", suffix: str = "") -> ReportFigure:
    figure = fig.new_figure(height=400)
    lines = []
    by_token = {row["token"]: None for row in curves if row["kind"] in _MEASURED}
    for place, token in enumerate(by_token):
        look = {
            "mode": "lines",
            "name": f"each {measured} token",
            "legendgroup": "each",
            "showlegend": place == 0,
            "opacity": 0.6,
            "line": {"color": fig.STICKY, "width": 1.2},
        }
        rows = [row for row in curves if row["token"] == token and row["kind"] in _MEASURED]
        lines.append((rows, "hits", fig.label(token), look))
    for kind, (color, symbol) in _LOOKS.items():
        look = {
            "mode": "lines+markers",
            "name": f"{measured if kind == 'sticky' else kind} tokens, mean",
            "line": {"color": color, "width": 3, "dash": "solid" if kind == "sticky" else "dash"},
            "marker": {"symbol": symbol, "size": 9},
        }
        lines.append((list(summary), f"hits_{kind}", kind, look))
    for rows, column, who, look in lines:
        copies = [row["copies"] for row in rows]
        figure.add_scatter(
            x=fig.spread_out(copies),
            y=[round(row[column], 4) for row in rows],
            customdata=copies,
            hovertemplate=f"{who}<br>%{{customdata}} copies: %{{y:.2f}}<extra></extra>",
            **look,
        )
    figure.add_hline(y=summary[0]["hits_sticky"], line=fig.DOTTED_LINE)
    figure.update_xaxes(title_text="copies", **fig.copies_axis([row["copies"] for row in summary]))
    figure.update_yaxes(title_text="queries with the document in their top 10", rangemode="tozero")
    figure.update_layout(hovermode="closest", legend={"y": -0.2, "yanchor": "top"})

    def counted(copies: int) -> str:
        return "1 copy" if copies == 1 else f"{copies} copies"

    first, last = summary[0], summary[-1]
    said = (
        f"Without copies, a random document of {first['corpus']} is in the top 10 of "
        f"{first['hits_sticky']:.2f} queries."
    )
    for kind in _LOOKS:
        best = max(summary[1:], key=lambda row: row[f"hits_{kind}"])
        said += (
            f" Copies of {measured if kind == 'sticky' else kind} tokens bring it to at most "
            f"{best[f'hits_{kind}']:.2f} ({counted(best['copies'])}), {counted(last['copies'])} to "
            f"{last[f'hits_{kind}']:.2f}; its median rank goes from {first[f'rank_{kind}']:.0f} to "
            f"{last[f'rank_{kind}']:.0f}."
        )
    return ReportFigure(
        f"intrusion{suffix}",
        "Documents pushed into search results",
        figure,
        said,
        f"Copies went into {summary[0]['documents']} random documents; the curves count the queries that "
        "have such a document among their first 10 results. Dotted: without copies. Below that line, "
        "copies push documents out of results. The ratio compares measured with benign copies, so it can "
        "rise while both fall.",
        DataTable(*statistics.headed(statistics.INTRUSION, summary, measured)),
        in_markdown=True,
    )


_SIDES = {"before": (fig.STICKY, "diamond"), "after": (fig.TOPICAL, "circle")}
_REPAIRED = (
    Column("token", "token"),
    Column("strategy", "strategy"),
    wording.ERASED._replace(key="erased_before", title="erased before"),
    wording.ERASED._replace(key="erased_after", title="erased after"),
    wording.LIFT._replace(key="lift_sd_before", title="lift before"),
    wording.LIFT._replace(key="lift_sd_after", title="lift after"),
    Column("verdict_after", "verdict after"),
    Column("reason", "why"),
)


def repaired_tokens(rows: Rows, state: str, findings: str, suffix: str = "") -> ReportFigure:
    """Draw both measures of every repaired token before and after the repair."""
    measured = [row for row in rows if row["lift_sd_after"] is not None]
    narrow: dict[str, Any] = {}
    if measured:
        said = _repaired_in_words(measured)
        shown = measured[:_MOST_TOKENS][::-1]  # the first token on top
        titles = [fig.axis_title(measure) for measure in wording.MEASURES]
        plot = fig.new_panels(titles, 150 + 26 * len(shown), 0.06, same_scale=True)
        for panel, measure in enumerate(wording.MEASURES, start=1):
            _draw_repaired(plot, shown, measure, panel)
        names = [fig.label(row["token"]) for row in shown]
        places = list(range(len(shown)))
        plot.update_yaxes(tickvals=places, ticktext=names, range=[-0.7, len(shown) - 0.3], zeroline=False)
        plot.update_layout(legend={"y": -0.2, "yanchor": "top"})
        narrow = fig.stacked(plot, len(wording.MEASURES), 2 * plot.layout.height)
    else:
        said = "Nothing was measured after the repair."
        plot = fig.empty_figure("the repair was not verified: nothing was measured")
    return ReportFigure(
        f"repair{suffix}",
        "What a repair changed",
        plot,
        f"{state} {said}",
        f"Each repaired token, measured on texts that this run has not used, with another seed. {findings}",
        DataTable(
            [column.title for column in _REPAIRED],
            [[column.text(row[column.key]) or None for column in _REPAIRED] for row in rows],
        ),
        narrow,
        in_markdown=True,
    )


def _repaired_in_words(measured: Sequence[Mapping[str, Any]]) -> str:
    """Say what the largest erased share and the largest lift were before and after a repair."""
    sentences = []
    for measure, name in zip(wording.MEASURES, ("erased share", "lift"), strict=True):
        largest = []
        for side in _SIDES:
            values = [row[f"{measure.key}_{side}"] for row in measured]
            known = [value for value in values if value is not None]
            if known:
                largest.append(f"{measure.text(max(known))} {side}")
        if largest:
            sentences.append(f"largest {name} {', '.join(largest)}")
    said = "; ".join(sentences)
    return f"Of {wording.counted(len(measured), 'repaired token')}: {said}."


def _draw_repaired(plot: go.Figure, rows: Rows, measure: Column, panel: int) -> None:
    """Draw a measure of repaired tokens: a line from before to after, and a mark at both ends."""
    where = {"row": 1, "col": panel}
    for place, row in enumerate(rows):
        plot.add_scatter(
            x=[row[f"{measure.key}_before"], row[f"{measure.key}_after"]],
            y=[place, place],
            mode="lines",
            line={"color": fig.ORDINARY, "width": 1.5},
            hoverinfo="skip",
            showlegend=False,
            **where,
        )
    for side, (color, symbol) in _SIDES.items():
        plot.add_scatter(
            x=[row[f"{measure.key}_{side}"] for row in rows],
            y=list(range(len(rows))),
            customdata=[fig.label(row["token"]) for row in rows],
            mode="markers",
            marker={"color": color, "symbol": symbol, "size": 9},
            name=side,
            legendgroup=side,
            showlegend=panel == 1,
            hovertemplate=f"%{{customdata}}<br>{side}: %{{x:{fig.number_format(measure)}}}<extra></extra>",
            **where,
        )
    plot.update_xaxes(tickformat=fig.tick_format(measure), rangemode="tozero", zeroline=True, col=panel)


def repair_curves(
    name: str,
    title: str,
    reading: str,
    copies: Sequence[int],
    lines: Mapping[str, Sequence[float]],
    what: str = "Mean similarity of unrelated texts",
    axis: str = "mean cosine similarity",
) -> ReportFigure:
    figure = fig.new_figure(height=340)
    places = list(range(len(copies)))
    looks = [(fig.STICKY, "solid"), (fig.TOPICAL, "solid"), (fig.CONTROL, "dash")]
    for (tokens, line), (color, dash) in zip(lines.items(), looks, strict=True):
        figure.add_scatter(
            x=places,
            y=[round(value, 5) for value in line],
            customdata=list(copies),
            mode="lines+markers",
            line={"color": color, "dash": dash, "width": 2.5},
            name=tokens,
            hovertemplate=f"{tokens}<br>%{{customdata}} copies: %{{y:.3f}}<extra></extra>",
        )
    figure.update_xaxes(title_text="copies in a text", tickvals=places, ticktext=[str(n) for n in copies])
    figure.update_yaxes(title_text=axis, zeroline=False)
    ends = ", ".join(f"{tokens} {line[-1]:.3f}" for tokens, line in lines.items())
    said = minus(f"{what} with {copies[-1]} copies in one of them: {ends}.")
    columns = ("tokens", *(f"{n} copies" for n in copies))
    table = DataTable(columns, [(tokens, *line) for tokens, line in lines.items()])
    return ReportFigure(name, title, figure, said, reading, table)
