"""The comparison of several runs as a page, as Markdown and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from stickytoken.reports._escaping import number
from stickytoken.reports._glossary import glossary
from stickytoken.reports._json_report import run_document
from stickytoken.reports._markdown_report import table
from stickytoken.reports._page import render
from stickytoken.reports.comparison import (
    Comparison,
    agreement_table,
    comparison_figures,
    headlines,
    summary_table,
    tone_of,
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
        headlines=headlines(comparison),
        tone=tone_of(comparison),
        summary=summary_table(comparison),
        agreements=agreement_table(comparison),
        glossary=_glossary(comparison),
    )


def comparison_markdown(comparison: Comparison) -> str:
    """Return the comparison as Markdown."""
    parts = [
        "# Sticky tokens compared",
        "\n".join(f"- **{markdown(name)}**: {markdown(line)}" for name, line, _ in headlines(comparison)),
        "\n".join(f"- Note: {markdown(note)}" for note in comparison.notes),
        "## The runs",
        _markdown_table(summary_table(comparison)),
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


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as JSON values, with the report of every run."""
    return {
        "names": list(comparison.names),
        "notes": list(comparison.notes),
        "agreements": [asdict(each) for each in comparison.agreements],
        "tokens": [
            {"token": each.token, "sd": list(each.standardized_lifts), "verdicts": list(each.verdicts)}
            for each in comparison.tokens
        ],
        "runs": [run_document(content) for content in comparison.contents],
    }


def _glossary(comparison: Comparison) -> dict[str, str]:
    words: dict[str, str] = {}
    for content in comparison.contents:
        words |= {word: text for word, text in glossary(content.method).items() if word not in words}
    return words


def _markdown_table(found: DataTable) -> str:
    rows = [["" if value is None else number(value) for value in row] for row in found.rows]
    return table(list(found.columns), rows) if rows else ""
