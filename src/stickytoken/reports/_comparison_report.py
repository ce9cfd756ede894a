"""A comparison as a page, as Markdown and as JSON."""

from __future__ import annotations

from stickytoken.comparisons.result import READING, Comparison
from stickytoken.reports._escaping import number
from stickytoken.reports._glossary import glossary
from stickytoken.reports._markdown_report import table
from stickytoken.reports._page import render
from stickytoken.reports.comparison import (
    agreement_table,
    answers,
    comparability_table,
    comparison_figures,
    finding,
    headlines,
    summary_table,
    tone,
)
from stickytoken.reports.figures.figure import DataTable
from stickytoken.visible_text import markdown


def comparison_page(comparison: Comparison) -> str:
    """Return the comparison as one HTML page."""
    return render(
        "comparison.html.j2",
        comparison_figures(comparison),
        title=", ".join(comparison.names),
        comparison=comparison,
        finding=finding(comparison),
        tone=tone(comparison),
        summary=summary_table(comparison),
        answers=answers(comparison),
        comparability=comparability_table(comparison),
        agreements=agreement_table(comparison),
        glossary=_glossary(comparison),
    )


def comparison_markdown(comparison: Comparison) -> str:
    """Return the comparison as Markdown."""
    parts = [
        "# Sticky tokens compared",
        markdown(finding(comparison)),
        "\n".join(f"- **{markdown(name)}**: {markdown(line)}" for name, line, _ in headlines(comparison)),
        "\n".join(f"- Note: {markdown(note)}" for note in comparison.notes),
        "## The runs",
        _markdown_table(summary_table(comparison)),
        "## What can be compared",
        "\n".join(f"- {markdown(line)}" for line in answers(comparison)),
        _markdown_table(comparability_table(comparison)),
        "## Agreement",
        _markdown_table(agreement_table(comparison)),
    ]
    for figure in comparison_figures(comparison):
        parts += [f"## {markdown(figure.title)}", markdown(figure.alt), _markdown_table(figure.table)]
    parts += [
        "## How to read the numbers",
        "\n".join(
            f"- **{markdown(word)}**: {markdown(text)}" for word, text in _glossary(comparison).items()
        ),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _glossary(comparison: Comparison) -> dict[str, str]:
    words = dict(READING)
    for each in comparison.runs:
        words |= {word: text for word, text in glossary(each.run.method).items() if word not in words}
    return words


def _markdown_table(found: DataTable) -> str:
    rows = [["" if value is None else number(value) for value in row] for row in found.rows]
    return table(list(found.columns), rows) if rows else ""
