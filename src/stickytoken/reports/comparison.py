"""Report a comparison: its figures, tables and words, as a page and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from stickytoken import comparisons
from stickytoken.comparisons import Comparison, WorstToken
from stickytoken.reports import figures as fig
from stickytoken.reports.figures import DataTable, ReportFigure
from stickytoken.reports.page import render
from stickytoken.reports.templating import glossary, render_markdown
from stickytoken.validation import visible

# By the answer to whether measures can be compared, the gravest first.
_WARNINGS = {
    "not comparable": "Not all of their numbers can be compared.",
    "with care": "Compare their numbers with care.",
}


def comparison_parts(comparison: Comparison) -> dict[str, Any]:
    answers, reasons = comparison.comparability
    return {
        "headlines": [
            (each.name, comparisons.short_headline(each.run), comparisons.tone_of(each.run.sticky))
            for each in comparison.runs
        ],
        "notes": comparison.notes,
        "summary": DataTable(comparisons.HEADINGS, comparisons.shown_rows(comparison)),
        "answers": [f"{measure.value}: {answer.value}" for measure, answer in answers.items()],
        "comparability": DataTable(
            ("comparable?", "because"),
            [(each.answer.value, comparisons.shown_reason(each)) for each in reasons],
        ),
        "agreements": DataTable.of(
            {
                "first": "run",
                "second": "and",
                "shared": "tokens in both",
                "sticky_in_both": "sticky in both",
                "jaccard": "Jaccard index of sticky",
                "spearman": "Spearman of lifts",
            },
            map(vars, comparison.agreements),
        ),
    }


def finding(comparison: Comparison) -> str:
    found = [each.name for each in comparison.runs if len(each.run.sticky)]
    none = [each.name for each in comparison.runs if not len(each.run.sticky)]
    if not found:
        said = "No run found a sticky token."
    elif not none:
        said = "Every run found sticky tokens."
    else:
        said = f"{comparisons.listed(found)} found sticky tokens; {comparisons.listed(none)} found none."
    answered = {answer.value for answer in comparison.comparability.answers.values()}
    warning = next((text for answer, text in _WARNINGS.items() if answer in answered), "")
    return f"{said} {warning}".strip()


def _glossary(comparison: Comparison) -> dict[str, str]:
    words = dict(comparisons.READING)
    for each in comparison.runs:
        words |= {word: text for word, text in glossary(each.run.method).items() if word not in words}
    return words


def comparison_page(comparison: Comparison) -> str:
    tones = {comparisons.tone_of(each.run.sticky) for each in comparison.runs}
    return render(
        "comparison.html.j2",
        comparison_figures(comparison),
        title=", ".join(comparison.names),
        names=comparison.names,
        finding=finding(comparison),
        tone=next((each for each in ("severe", "serious", "mild", "clean") if each in tones), "unknown"),
        glossary=_glossary(comparison),
        **comparison_parts(comparison),
    )


def comparison_markdown(comparison: Comparison) -> str:
    return render_markdown(
        "comparison.md.j2",
        finding=finding(comparison),
        figures=comparison_figures(comparison),
        glossary=_glossary(comparison),
        **comparison_parts(comparison),
    )


def comparison_figures(comparison: Comparison) -> list[ReportFigure]:
    tokens = [tokens_by_run(comparison)] if comparison.tokens else []
    return [worst_by_run(comparison), *tokens]


# A narrow screen has room for so many letters beside the marks, and for so many of a run's name.
_NARROW_LETTERS = 18
_NAME_BEGIN, _NAME_END = 12, 18
_MOST_TOKENS = 30
_UNIT = "lift beyond an ordinary token's, in standard deviations of similarity"
_NARROW_UNIT = {"xaxis.title.text": "lift beyond ordinary,<br>in SD of similarity"}
_SHAPES = ("diamond", "circle", "square", "triangle-up", "x", "star", "cross", "triangle-down")


def worst_by_run(comparison: Comparison) -> ReportFigure:
    rows, parts, left_out, serious = [], [], [], set()
    for each in comparison.runs:
        if each.worst is None or each.quantiles is None or each.scale is None:
            left_out.append(each.name)
            continue
        worst = each.worst
        rows.append((each.name, worst, each.quantiles))
        serious.add(each.scale.serious)
        interval = "" if worst.low is None else f", interval {worst.low:.2f} to {worst.high:.2f}"
        parts.append(f"{each.name}: {worst.token!r} at {worst.deviations:.2f} SD{interval}")
    if left_out:
        parts.append(f"not drawn, without a scale that models share: {', '.join(left_out)}")
    return ReportFigure(
        "worst-by-run",
        "The worst token of each run",
        _worst(rows, serious) if rows else fig.empty_figure("no run has lifts in standard deviations"),
        f"{'; '.join(parts)}.",
        "One row per run, in the order that they were passed in. Marks are filled if the run calls the token "
        "sticky; the line through a mark is its interval. The bar goes from the median token to the 99th "
        "percentile: one token in a hundred lifts more. A lift is serious from the dotted line on.",
        DataTable(
            ("run", "worst token", "verdict", "SD", "low", "high", "median token", "99th percentile"),
            [(name, worst.token, worst.verdict, *worst[4:7], *quantiles) for name, worst, quantiles in rows],
        ),
        _NARROW_UNIT
        | {
            "yaxis.tickvals": [fig.label(name) for name, *_ in rows],
            "yaxis.ticktext": [fig.label(_cut(visible(name))) for name, *_ in rows],
        },
    )


def _worst(rows: Sequence[tuple[str, WorstToken, tuple[float, float]]], serious: set[float]) -> go.Figure:
    names, worst = [fig.label(name) for name, *_ in rows], [token for _, token, _ in rows]
    figure = fig.new_figure(height=130 + 52 * len(rows))
    figure.add_bar(
        y=names,
        x=[round(high - low, 4) for *_, (low, high) in rows],
        base=[round(low, 4) for *_, (low, _) in rows],
        orientation="h",
        width=0.34,
        marker={"color": fig.ORDINARY, "opacity": 0.4},
        name="median to 99th percentile",
        customdata=[[low, high] for *_, (low, high) in rows],
        hovertemplate="median %{customdata[0]:.2f}, 99th percentile %{customdata[1]:.2f}<extra>%{y}</extra>",
    )
    # A token is written on the side of its mark that has more room.
    ends = [end for _, token, shares in rows for end in (*shares, *token[4:7], 0.0) if end is not None]
    middle = (min(ends) + max(ends)) / 2

    def between(low: float | None, high: float | None) -> float | None:
        return None if low is None or high is None else round(high - low, 4)

    figure.add_scatter(
        y=names,
        x=[between(0, token.deviations) for token in worst],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [between(token.deviations, token.high) for token in worst],
            "arrayminus": [between(token.low, token.deviations) for token in worst],
        },
        mode="markers+text",
        text=[fig.legend_label(token.token) for token in worst],
        textposition=["top left" if (token.deviations or 0.0) > middle else "top right" for token in worst],
        cliponaxis=False,
        marker={
            "color": fig.STICKY,
            "size": 11,
            "symbol": ["diamond" if token.verdict == "sticky" else "diamond-open" for token in worst],
        },
        name="worst token (filled: sticky)",
        hovertemplate="%{text}: %{x:.2f} SD<extra>%{y}</extra>",
    )
    for level in serious:
        figure.add_vline(x=level, line={"width": 1.5, "color": fig.STICKY, "dash": "dot"})
    figure.add_vline(x=0, line=fig.THIN_LINE)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(title_text=_UNIT)
    figure.update_layout(hovermode="closest")
    return figure


def tokens_by_run(comparison: Comparison) -> ReportFigure:
    tokens, names = comparison.tokens, comparison.names
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
    figure = fig.new_figure(height=150 + 24 * len(drawn))
    texts = [fig.label(each.token) for each in drawn]
    for place, name in enumerate(names):
        marks = [
            (row, lift, each.verdicts[place])
            for row, each in enumerate(drawn)
            if (lift := each.standardized_lifts[place]) is not None
        ]
        if not marks:
            continue
        shape, whole = _SHAPES[place % len(_SHAPES)], visible(name)
        if len(whole) > _NAME_BEGIN + _NAME_END + 1:  # the end of a run's name holds its identity
            whole = f"{whole[:_NAME_BEGIN]}…{whole[-_NAME_END:]}"
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
            name=fig.label(whole),
        )
    figure.add_vline(x=0, line=fig.THIN_LINE)
    figure.update_yaxes(
        tickvals=list(range(len(drawn))), ticktext=texts, autorange="reversed", title_text=None
    )
    figure.update_xaxes(title_text=_UNIT)
    figure.update_layout(hovermode="closest")
    if not drawn:
        figure = fig.empty_figure("no run has a sticky token with a lift in standard deviations")
    return ReportFigure(
        "sticky-tokens-by-run",
        "Sticky tokens, run by run",
        figure,
        f"{len(tokens)} tokens are sticky in at least one run; {shared} in all of them.",
        "One row per token that any run calls sticky; one mark per run, filled if that run calls the "
        "token sticky. The scale is in standard deviations of each model's own similarities, so "
        "models can be compared. Runs of a method without such a scale appear in the table only.",
        DataTable(columns, rows),
        _NARROW_UNIT | {"yaxis.ticktext": [fig.label(_cut(visible(each.token))) for each in drawn]},
    )


def _cut(text: str) -> str:
    return text if len(text) <= _NARROW_LETTERS else f"{text[: _NARROW_LETTERS - 1]}…"
