"""Report a comparison: its figures, tables and words, as a page and as Markdown."""

from __future__ import annotations

from typing import Any

from stickytoken.comparisons.compared_run import short_headline
from stickytoken.comparisons.result import HEADINGS, READING, Comparison, listed, shown_reason, shown_rows
from stickytoken.reports.figures.comparison import WorstRow, tokens_by_run, worst_by_run
from stickytoken.reports.figures.figure import DataTable, ReportFigure
from stickytoken.reports.page import render
from stickytoken.reports.templating import bullets, glossary
from stickytoken.validation import markdown

# By the answer to whether measures can be compared, the gravest first.
_WARNINGS = {
    "not comparable": "Not all of their numbers can be compared.",
    "with care": "Compare their numbers with care.",
}
_TONES = ("severe", "serious", "mild", "clean")


def comparison_figures(comparison: Comparison) -> list[ReportFigure]:
    """Return the figures: the worst token of each run, and the sticky tokens of all if there are any."""
    rows = [
        WorstRow(each.name, each.worst, each.quantiles, each.scale.serious)
        for each in comparison.runs
        if each.worst is not None and each.quantiles is not None and each.scale is not None
    ]
    drawn = {row.name for row in rows}
    found = [worst_by_run(rows, [name for name in comparison.names if name not in drawn])]
    if comparison.tokens:
        found.append(tokens_by_run(comparison.tokens, comparison.names))
    return found


def comparison_parts(comparison: Comparison) -> dict[str, Any]:
    """Return what every form of a report says beside the figures, by name."""
    answers, reasons = comparison.comparability
    agreements = [
        (each.first, each.second, each.shared, each.sticky_in_both, each.jaccard, each.spearman)
        for each in comparison.agreements
    ]
    return {
        "headlines": [(each.name, short_headline(each.run), each.tone) for each in comparison.runs],
        "notes": comparison.notes,
        "summary": DataTable(HEADINGS, shown_rows(comparison)),
        "answers": [f"{measure.value}: {answer.value}" for measure, answer in answers.items()],
        "comparability": DataTable(
            ("comparable?", "because"), [(each.answer.value, shown_reason(each)) for each in reasons]
        ),
        "agreements": DataTable(
            (
                "run",
                "and",
                "tokens in both",
                "sticky in both",
                "Jaccard index of sticky",
                "Spearman of lifts",
            ),
            agreements,
        ),
    }


def finding(comparison: Comparison) -> str:
    """Say which runs found sticky tokens, and whether their numbers can be compared."""
    found = [each.name for each in comparison.runs if len(each.run.sticky)]
    none = [each.name for each in comparison.runs if not len(each.run.sticky)]
    if not found:
        said = "No run found a sticky token."
    elif not none:
        said = "Every run found sticky tokens."
    else:
        said = f"{listed(found)} found sticky tokens; {listed(none)} found none."
    answered = {answer.value for answer in comparison.comparability.answers.values()}
    warning = next((text for answer, text in _WARNINGS.items() if answer in answered), "")
    return f"{said} {warning}".strip()


def _glossary(comparison: Comparison) -> dict[str, str]:
    words = dict(READING)
    for each in comparison.runs:
        words |= {word: text for word, text in glossary(each.run.method).items() if word not in words}
    return words


def comparison_page(comparison: Comparison) -> str:
    tones = {each.tone for each in comparison.runs}
    return render(
        "comparison.html.j2",
        comparison_figures(comparison),
        title=", ".join(comparison.names),
        names=comparison.names,
        finding=finding(comparison),
        tone=next((each for each in _TONES if each in tones), "unknown"),
        glossary=_glossary(comparison),
        **comparison_parts(comparison),
    )


def comparison_markdown(comparison: Comparison) -> str:
    shown = comparison_parts(comparison)
    parts = [
        "# Sticky tokens compared",
        markdown(finding(comparison)),
        bullets(f"**{markdown(name)}**: {markdown(line)}" for name, line, _ in shown["headlines"]),
        bullets(f"Note: {markdown(note)}" for note in shown["notes"]),
        "## The runs",
        shown["summary"].markdown(missing=""),
        "## What can be compared",
        bullets(map(markdown, shown["answers"])),
        shown["comparability"].markdown(missing=""),
        "## Agreement",
        shown["agreements"].markdown(missing=""),
    ]
    for figure in comparison_figures(comparison):
        parts += [f"## {markdown(figure.title)}", markdown(figure.alt), figure.table.markdown(missing="")]
    words = _glossary(comparison).items()
    parts += [
        "## How to read the numbers",
        bullets(f"**{markdown(word)}**: {markdown(text)}" for word, text in words),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
