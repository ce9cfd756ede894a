"""Figures and tables of a comparison."""

from __future__ import annotations

from stickytoken.comparisons.compared_run import short_headline
from stickytoken.comparisons.result import HEADINGS, Comparison, shown_reason, shown_rows
from stickytoken.reports.figures.comparison import (
    WorstRow,
    compared_table,
    compared_tokens,
    narrow_tokens,
    narrow_worst,
    worst_by_run,
    worst_table,
)
from stickytoken.reports.figures.figure import DataTable, ReportFigure

# By the answer to whether measures can be compared, the gravest first.
_WARNINGS = {
    "not comparable": "Not all of their numbers can be compared.",
    "with care": "Compare their numbers with care.",
}
_TONES = ("severe", "serious", "mild", "clean")


def summary_table(comparison: Comparison) -> DataTable:
    """Return a table with one row per run."""
    return DataTable(HEADINGS, shown_rows(comparison))


def comparability_table(comparison: Comparison) -> DataTable:
    """Return a table that says what stands in the way of comparing the runs."""
    return DataTable(
        ("comparable?", "because"),
        [(each.answer.value, shown_reason(each)) for each in comparison.comparability.reasons],
    )


def agreement_table(comparison: Comparison) -> DataTable:
    """Return a table with one row per pair of runs."""
    return DataTable(
        ("run", "and", "tokens in both", "sticky in both", "Jaccard index of sticky", "Spearman of lifts"),
        [
            (each.first, each.second, each.shared, each.sticky_in_both, each.jaccard, each.spearman)
            for each in comparison.agreements
        ],
    )


def comparison_figures(comparison: Comparison) -> list[ReportFigure]:
    """Return the figures: the worst token of each run, and the sticky tokens of all if there are any."""
    names, tokens = comparison.names, comparison.tokens
    rows = [
        WorstRow(each.name, each.worst, each.quantiles, each.scale.serious)
        for each in comparison.runs
        if each.worst is not None and each.quantiles is not None and each.scale is not None
    ]
    left_out = [name for name in names if name not in {row.name for row in rows}]
    worst = ReportFigure(
        "worst-by-run",
        "The worst token of each run",
        worst_by_run(rows),
        _worst_in_words(rows, left_out),
        "One row per run, in the order that they were passed in. Marks are filled if the run calls the token "
        "sticky; the line through a mark is its interval. The bar goes from the median token to the 99th "
        "percentile: one token in a hundred lifts more. A lift is serious from the dotted line on.",
        worst_table(rows),
        narrow_worst(rows),
    )
    if not tokens:
        return [worst]
    flagged = ReportFigure(
        "sticky-tokens-by-run",
        "Sticky tokens, run by run",
        compared_tokens(tokens, names),
        _tokens_in_words(comparison),
        "One row per token that any run calls sticky; one mark per run, filled if that run calls the "
        "token sticky. The scale is in standard deviations of each model's own similarities, so "
        "models can be compared. Runs of a method without such a scale appear in the table only.",
        compared_table(tokens, names),
        narrow_tokens(tokens),
    )
    return [worst, flagged]


def answers(comparison: Comparison) -> list[str]:
    """Say for each measure whether it can be compared."""
    return [
        f"{measure.value}: {answer.value}" for measure, answer in comparison.comparability.answers.items()
    ]


def finding(comparison: Comparison) -> str:
    """Say which runs found sticky tokens, and whether their numbers can be compared."""
    found = [each.name for each in comparison.runs if len(each.run.sticky)]
    none = [each.name for each in comparison.runs if not len(each.run.sticky)]
    if not found:
        said = "No run found a sticky token."
    elif not none:
        said = "Every run found sticky tokens."
    else:
        said = f"{_named(found)} found sticky tokens; {_named(none)} found none."
    answered = {answer.value for answer in comparison.comparability.answers.values()}
    warning = next((text for answer, text in _WARNINGS.items() if answer in answered), "")
    return f"{said} {warning}".strip()


def tone(comparison: Comparison) -> str:
    """Return the tone of the worst run."""
    tones = {each.tone for each in comparison.runs}
    return next((each for each in _TONES if each in tones), "unknown")


def _named(names: list[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def headlines(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Return name, headline and tone of every run."""
    return [
        (
            each.name,
            short_headline(each.run),
            each.tone,
        )
        for each in comparison.runs
    ]


def _worst_in_words(rows: list[WorstRow], left_out: list[str]) -> str:
    parts = [
        f"{row.name}: {row.worst.token!r} at {row.worst.deviations:.2f} SD"
        + ("" if row.worst.low is None else f", interval {row.worst.low:.2f} to {row.worst.high:.2f}")
        for row in rows
    ]
    if left_out:
        parts.append(f"not drawn, without a scale that models share: {', '.join(left_out)}")
    return f"{'; '.join(parts)}."


def _tokens_in_words(comparison: Comparison) -> str:
    shared = sum(all(verdict == "sticky" for verdict in each.verdicts) for each in comparison.tokens)
    return f"{len(comparison.tokens)} tokens are sticky in at least one run; {shared} in all of them."
