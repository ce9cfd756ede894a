"""The report of a comparison, as an HTML page or as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from stickytoken import comparisons
from stickytoken.comparisons import (
    Answer,
    ComparedRun,
    ComparedToken,
    Comparison,
    Quantiles,
    TokenInRun,
    WorstToken,
)
from stickytoken.methods import Column
from stickytoken.methods.measures import ERASED, MEASURES, PUSH, Measure
from stickytoken.reports import figures as fig
from stickytoken.reports.figures import DataTable, ReportFigure
from stickytoken.reports.page import render
from stickytoken.reports.templating import glossary, render_markdown
from stickytoken.validation import visible
from stickytoken.words import listed, quoted

# Warnings for the end of the headline, keyed by whether a measure can be compared. `finding` uses the first
# warning that applies, so the most serious warning comes first.
_WARNINGS = {
    Answer.NO: "Not all of their numbers can be compared.",
    Answer.CARE: "Compare their numbers with care.",
}
# Terms of the methods' glossaries that only the report of a single run uses, and a comparison does not.
_TERMS_OF_SINGLE_RUNS = ("u",)


@dataclass(frozen=True)
class RunHeadline:
    """The headline of one compared run."""

    name: str  # name of the run
    text: str
    tone: str  # severity of the run's worst token, or ``clean``


def comparison_parts(comparison: Comparison) -> dict[str, Any]:
    """Return the headlines, notes and tables of a comparison, keyed by template variable."""
    answers, reasons = comparison.comparability
    headlines = []
    for compared in comparison.runs:
        text = comparisons.short_headline(compared.run)
        headlines.append(RunHeadline(compared.name, text, comparisons.tone_of(compared.run.sticky)))
    return {
        "headlines": headlines,
        "notes": comparison.notes,
        "summary": DataTable(comparisons.HEADINGS, comparisons.shown_rows(comparison)),
        "answers": [f"{measure.value}: {answer.value}" for measure, answer in answers.items()],
        "comparability": DataTable(
            ("comparable?", "because"),
            [(reason.answer.value, comparisons.shown_reason(reason)) for reason in reasons],
        ),
        "agreements": DataTable.of(
            {
                "first": "run",
                "second": "and",
                "shared": "tokens in both",
                "sticky_in_both": "sticky in both",
                "jaccard": "Jaccard index of sticky",
                "spearman_erased": "Spearman of erased shares",
                "spearman_push": "Spearman of pushes",
                "spearman_score": "Spearman of sticky scores",
            },
            map(vars, comparison.agreements),
        ),
    }


def finding(comparison: Comparison) -> str:
    """Return a headline that says which runs found sticky tokens, and warns if numbers are not comparable."""
    with_sticky = [compared.name for compared in comparison.runs if not compared.run.sticky.is_empty()]
    without = [compared.name for compared in comparison.runs if compared.run.sticky.is_empty()]
    if not with_sticky:
        answer_line = "No run found a sticky token."
    elif not without:
        answer_line = "Every run found sticky tokens."
    else:
        finders = listed(with_sticky)
        answer_line = f"{finders} found sticky tokens; {listed(without)} found none."
    answers = set(comparison.comparability.answers.values())
    for answer, warning in _WARNINGS.items():
        if answer in answers:
            return f"{answer_line} {warning}"
    return answer_line


def _merge_glossaries(comparison: Comparison) -> dict[str, str]:
    meanings = dict(comparisons.GLOSSARY)
    for compared in comparison.runs:
        for term, meaning in glossary(compared.run.method.TABLE).items():
            if term not in _TERMS_OF_SINGLE_RUNS:
                meanings.setdefault(term, meaning)
    return meanings


def comparison_page(comparison: Comparison) -> str:
    """Render a comparison as one self-contained HTML page."""
    tones = {comparisons.tone_of(compared.run.sticky) for compared in comparison.runs}
    worst_tone = next(tone for tone in ("severe", "serious", "mild", "clean") if tone in tones)
    return render(
        "comparison.html.j2",
        comparison_figures(comparison),
        title=", ".join(comparison.names),
        names=comparison.names,
        finding=finding(comparison),
        tone=worst_tone,
        glossary=_merge_glossaries(comparison),
        **comparison_parts(comparison),
    )


def comparison_markdown(comparison: Comparison) -> str:
    """Render a comparison as Markdown."""
    return render_markdown(
        "comparison.md.j2",
        finding=finding(comparison),
        figures=comparison_figures(comparison),
        glossary=_merge_glossaries(comparison),
        **comparison_parts(comparison),
    )


def comparison_figures(comparison: Comparison) -> list[ReportFigure]:
    """Return one or two figures that compare runs.

    The first figure shows the worst tokens of every run. The second figure shows the tokens that any run
    calls sticky; it is left out if there are no such tokens.
    """
    figures = [worst_by_run(comparison)]
    if comparison.tokens:
        figures.append(tokens_by_run(comparison))
    return figures


# Maximum length of a row label on a narrow screen, in characters.
_NARROW_CHARACTERS = 18
# The legend shows this many characters from the beginning and from the end of a long run name.
_NAME_BEGIN = 12
_NAME_END = 18
# Maximum number of tokens in the sticky-token figure, because more rows would be unreadable. Its table
# lists all tokens.
_MOST_TOKENS = 30
# Shapes of the runs' marks. If there are more runs than shapes, the shapes repeat.
_SHAPES = ("diamond", "circle", "square", "triangle-up", "x", "star", "cross", "triangle-down")


_READ_WORST = (
    "One row per run, in the order the runs were passed. A mark is the run's worst token, filled if "
    "the run calls it sticky; the line through a mark is its interval. The bar extends from the median of "
    "all tokens to their 99th percentile: one token in a hundred lies beyond it. Dotted: the threshold of "
    "the rule."
)
_READ_TOKENS = (
    "One row per token that any run calls sticky; one mark per run, filled if that run calls the token "
    "sticky. Both measures are relative to each model's own ordinary tokens and similarities, so models can "
    "be compared. Runs of a method without these measures appear in the table only."
)
_WORST_HEADINGS = (
    "measure",
    "run",
    "token",
    "verdict",
    "value",
    "low",
    "high",
    "median token",
    "99th percentile",
)


@dataclass(frozen=True)
class _WorstOfRun:
    """The token with the largest value of a measure in a run.

    Attributes:
        name: Name of the run.
        worst: The token.
        quantiles: Quantiles of the measure over all tokens of the run.
        threshold: Smallest value that makes a token sticky; None if there is no threshold.
    """

    name: str
    worst: WorstToken
    quantiles: Quantiles
    threshold: float | None


def worst_by_run(comparison: Comparison) -> ReportFigure:
    """Draw each run's largest erased share and largest push, with their intervals."""
    worst_by_measure = {measure: _find_worst_of_runs(comparison, measure) for measure in MEASURES}
    names = [compared.name for compared in comparison.runs if _has_measures(compared)]
    left_out = [compared.name for compared in comparison.runs if not _has_measures(compared)]
    descriptions = []
    rows = []
    for measure, entries in worst_by_measure.items():
        for entry in entries:
            value = comparisons.shown_value(measure, entry.worst)
            descriptions.append(f"{entry.name}: {measure.title} {value} by {quoted(entry.worst.token)}")
            rows.append(_make_worst_row(measure, entry))
    if left_out:
        descriptions.append(f"not drawn, because the method does not measure it: {', '.join(left_out)}")
    narrow: dict[str, Any] = {}
    if names:
        figure = _draw_worst(names, worst_by_measure)
        narrow = _adapt_to_narrow_screen(figure, names)
    else:
        figure = fig.empty_figure("no run has erased shares or pushes")
    return ReportFigure(
        "worst-by-run",
        "The worst tokens of each run",
        figure,
        f"{'; '.join(descriptions)}.",
        _READ_WORST,
        DataTable(_WORST_HEADINGS, rows),
        narrow,
    )


def _has_measures(compared: ComparedRun) -> bool:
    return any(compared.largest(measure) is not None for measure in MEASURES)


def _find_worst_of_runs(comparison: Comparison, measure: Measure) -> list[_WorstOfRun]:
    entries = []
    for compared in comparison.runs:
        worst = compared.largest(measure)
        quantiles = compared.quantiles(measure)
        if worst is None or quantiles is None:  # the method does not measure it
            continue
        threshold = compared.run.thresholds().get(measure.key)
        entries.append(_WorstOfRun(compared.name, worst, quantiles, threshold))
    return entries


def _make_worst_row(measure: Column, entry: _WorstOfRun) -> tuple[str | None, ...]:
    worst = entry.worst
    values = (worst.value, worst.low, worst.high, *entry.quantiles)
    cells = [None if value is None else measure.text(value) for value in values]
    # In the order of `_WORST_HEADINGS`.
    return (measure.title, entry.name, worst.token, worst.verdict, *cells)


def _adapt_to_narrow_screen(figure: go.Figure, row_names: Sequence[str]) -> dict[str, Any]:
    """Return the layout changes that stack the two panels, each with its own row names, shortened."""
    changes = fig.stack_panels(figure, panels=len(MEASURES), height=2 * figure.layout.height)
    labels = [fig.label(fig.shorten(visible(name), _NARROW_CHARACTERS)) for name in row_names]
    changes["yaxis.ticktext"] = labels
    changes["yaxis2.ticktext"] = labels
    return changes


def _draw_worst(names: Sequence[str], worst: Mapping[Measure, Sequence[_WorstOfRun]]) -> go.Figure:
    """Draw one panel per measure, with one row per run.

    In each row, a bar extends from the median to the 99th percentile, and a mark shows the worst token.
    """
    titles = [fig.axis_title(measure) for measure in worst]
    figure = fig.new_panels(titles, height=150 + 52 * len(names), spacing=0.08, same_scale=True)
    for panel, (measure, entries) in enumerate(worst.items(), start=1):
        _draw_bulk(figure, entries, panel)
        _draw_marks(figure, entries, measure, panel)
        # Runs usually have the same threshold, which is drawn once.
        for threshold in {entry.threshold for entry in entries if entry.threshold is not None}:
            figure.add_vline(x=threshold, line={"width": 1.5, "color": fig.STICKY, "dash": "dot"}, col=panel)
        figure.add_vline(x=0, line=fig.THIN_LINE, col=panel)
        figure.update_xaxes(tickformat=fig.tick_format(measure), col=panel)
    labels = [fig.label(name) for name in names]
    figure.update_yaxes(
        type="category",
        categoryorder="array",
        categoryarray=labels[::-1],  # Plotly draws the first category at the bottom
        tickvals=labels,
        ticktext=labels,
        showgrid=False,
    )
    figure.update_layout(hovermode="closest", legend={"y": -0.2, "yanchor": "top"})
    return figure


def _draw_bulk(figure: go.Figure, entries: Sequence[_WorstOfRun], panel: int) -> None:
    """Draw one bar per run, from the median to the 99th percentile of the measure over all tokens."""
    bars: dict[str, Any] = {
        "type": "bar",
        "y": [fig.label(entry.name) for entry in entries],
        # A bar begins at its base, and is as long as its x.
        "x": [round(entry.quantiles.high - entry.quantiles.median, 4) for entry in entries],
        "base": [round(entry.quantiles.median, 4) for entry in entries],
        "orientation": "h",
        "width": 0.34,
        "marker": {"color": fig.ORDINARY, "opacity": 0.4},
        "name": "median to 99th percentile",
        "legendgroup": "bulk",
        "showlegend": panel == 1,
        "customdata": [list(entry.quantiles) for entry in entries],
        "hovertemplate": "median %{customdata[0]:.2f}, 99th percentile %{customdata[1]:.2f}"
        "<extra>%{y}</extra>",
    }
    figure.add_trace(bars, row=1, col=panel)


def _draw_marks(figure: go.Figure, entries: Sequence[_WorstOfRun], measure: Column, panel: int) -> None:
    """Draw a mark with an error bar and a name for the worst token of each run."""
    worst = [entry.worst for entry in entries]
    largest = max((abs(token.value) for token in worst), default=0.0)  # there may be no run with it
    symbols = ["diamond" if token.verdict == "sticky" else "diamond-open" for token in worst]
    # A token's name is written on the side of its mark that has more room.
    sides = ["top left" if token.value > largest / 2 else "top right" for token in worst]
    marks: dict[str, Any] = {
        "type": "scatter",
        "y": [fig.label(entry.name) for entry in entries],
        "x": [round(token.value, 4) for token in worst],
        "error_x": fig.error_bars(
            [token.value for token in worst],
            [token.low for token in worst],
            [token.high for token in worst],
        ),
        "mode": "markers+text",
        "text": [fig.legend_label(token.token) for token in worst],
        "textposition": sides,
        "cliponaxis": False,
        "marker": {"color": fig.STICKY, "size": 11, "symbol": symbols},
        "name": "worst token (filled: sticky)",
        "legendgroup": "worst",
        "showlegend": panel == 1,
        "hovertemplate": f"%{{text}}: %{{x:{fig.number_format(measure)}}}<extra>%{{y}}</extra>",
    }
    figure.add_trace(marks, row=1, col=panel)


def tokens_by_run(comparison: Comparison) -> ReportFigure:
    """Draw the erased share and the push of each token that any run calls sticky, with one mark per run."""
    tokens = comparison.tokens
    measured = [token for token in tokens if any(_is_measured(in_run) for in_run in token.in_runs)]
    drawn = measured[:_MOST_TOKENS]
    sticky_in_all = sum(all(in_run.verdict == "sticky" for in_run in token.in_runs) for token in tokens)
    narrow: dict[str, Any] = {}
    if drawn:
        figure = _draw_tokens(comparison.names, drawn)
        narrow = _adapt_to_narrow_screen(figure, [token.token for token in drawn])
    else:
        figure = fig.empty_figure("no run has a sticky token with an erased share or a push")
    return ReportFigure(
        "sticky-tokens-by-run",
        "Sticky tokens, run by run",
        figure,
        f"{len(tokens)} tokens are sticky in at least one run; {sticky_in_all} in all of them.",
        _READ_TOKENS,
        _make_table_of_tokens(comparison),
        narrow,
    )


def _is_measured(in_run: TokenInRun) -> bool:
    return in_run.erased is not None or in_run.push is not None


def _make_table_of_tokens(comparison: Comparison) -> DataTable:
    columns = ["token"]
    for name in comparison.names:
        columns += [f"{name}: erased", f"{name}: push", f"{name}: verdict"]
    rows = []
    for token in comparison.tokens:
        row: list[str | None] = [token.token]
        for in_run in token.in_runs:
            row.append(None if in_run.erased is None else ERASED.text(in_run.erased))
            row.append(None if in_run.push is None else PUSH.text(in_run.push))
            row.append(in_run.verdict)
        rows.append(row)
    return DataTable(columns, rows)


def _draw_tokens(names: Sequence[str], tokens: Sequence[ComparedToken]) -> go.Figure:
    """Draw one panel per measure, with one row per token and one mark per run."""
    titles = [fig.axis_title(measure) for measure in MEASURES]
    figure = fig.new_panels(titles, height=170 + 24 * len(tokens), spacing=0.08, same_scale=True)
    for run_index, name in enumerate(names):
        for panel, measure in enumerate(MEASURES, start=1):
            _draw_tokens_of_run(figure, tokens, run_index, name, panel, measure)
    for panel, measure in enumerate(MEASURES, start=1):
        figure.add_vline(x=0, line=fig.THIN_LINE, col=panel)
        figure.update_xaxes(tickformat=fig.tick_format(measure), col=panel)
    figure.update_yaxes(
        tickvals=list(range(len(tokens))),
        ticktext=[fig.label(token.token) for token in tokens],
        range=[len(tokens) - 0.4, -0.6],  # from bottom to top, so that the first token is at the top
        title_text=None,
    )
    figure.update_layout(hovermode="closest", legend={"y": -0.2, "yanchor": "top"})
    return figure


def _draw_tokens_of_run(
    figure: go.Figure, tokens: Sequence[ComparedToken], run_index: int, name: str, panel: int, measure: Column
) -> None:
    """Draw one run's marks in a measure's panel. A token without a value gets no mark."""
    vertical_positions = []
    values = []
    hover_texts = []
    symbols = []
    shape = _SHAPES[run_index % len(_SHAPES)]
    for position, token in enumerate(tokens):
        in_run = token.in_runs[run_index]
        value = in_run.erased if measure is ERASED else in_run.push
        if value is None:
            continue
        vertical_positions.append(position)
        values.append(round(value, 4))
        hover_texts.append([fig.label(token.token), fig.label(in_run.verdict or "not judged")])
        symbols.append(shape if in_run.verdict == "sticky" else f"{shape}-open")
    if not values:
        return
    marks: dict[str, Any] = {
        "type": "scatter",
        "x": values,
        "y": vertical_positions,
        "mode": "markers",
        "customdata": hover_texts,
        "hovertemplate": f"%{{customdata[0]}}: %{{x:{fig.number_format(measure)}}}, "
        f"%{{customdata[1]}}<extra>{fig.label(name)}</extra>",
        "marker": {"color": fig.SERIES[run_index % len(fig.SERIES)], "symbol": symbols, "size": 10},
        "name": fig.label(_cut_middle(visible(name))),
        "legendgroup": str(run_index),  # hides or shows the run in both panels
        "showlegend": panel == 1,
    }
    figure.add_trace(marks, row=1, col=panel)


def _cut_middle(name: str) -> str:
    longest = _NAME_BEGIN + 1 + _NAME_END  # 1 for the ellipsis
    if len(name) <= longest:
        return name
    return f"{name[:_NAME_BEGIN]}…{name[-_NAME_END:]}"
