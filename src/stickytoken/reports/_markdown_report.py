"""A report as Markdown: for a ticket, a pull request, a wiki."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stickytoken.reports import facts
from stickytoken.reports._escaping import number, plain, spaced
from stickytoken.reports._glossary import glossary
from stickytoken.reports._scan_section import ShownScan, shown_scans
from stickytoken.reports.cards import Card, cards
from stickytoken.reports.content import RunContent
from stickytoken.reports.explanation_section import ExplainedToken, explained_tokens
from stickytoken.reports.figure_set import report_figures
from stickytoken.reports.token_table import columns, flagged_rows
from stickytoken.visible_text import markdown, markdown_table


def run_markdown(content: RunContent) -> str:
    """Return the report of one run as Markdown."""
    record = content.record
    parts = [
        f"# Sticky tokens of {markdown(record.model.name)}",
        f"**{markdown(facts.headline(content))}**",
        markdown(facts.meaning(content) or ""),
        _bullets(f"To {markdown(step.purpose)}: {markdown(step.command)}" for step in facts.steps(content)),
        _bullets(f"{markdown(fact.value)} {markdown(fact.meaning)}" for fact in facts.key_facts(content)),
        _bullets(f"Note: {markdown(note)}" for note in facts.notes(content)),
    ]
    if content.run is not None:
        title = "The worst tokens" if len(content.sticky) else "No token is sticky: the highest, for scale"
        parts += [f"## {title}", *(_card(card) for card in cards(content))]
        for figure in report_figures(content):
            parts += [f"## {markdown(figure.title)}", markdown(figure.alt), markdown(figure.reading)]
            if figure.in_markdown:
                rows = [[number(value) for value in row] for row in figure.table.rows]
                parts.append(table(figure.table.columns, rows))
        if tokens := explained_tokens(content):
            parts += ["## Why tokens stick", *(part for each in tokens for part in _explained(each))]
        if scans := shown_scans(content):
            parts += ["## Documents with copies", *(part for each in scans for part in _scan(each))]
        heads = columns(content)
        rows = [[number(row[each.key], each.digits) for each in heads] for row in flagged_rows(content)]
        parts += ["## All flagged tokens", table([each.title for each in heads], rows) if rows else "None."]
    parts += ["## What was computed", markdown(facts.method_description(content))]
    for name, values in facts.run_details(content).items():
        shown = [[spaced(key), plain(value)] for key, value in values.items()]
        parts += [f"### {markdown(name)}", table(["what", "value"], shown)]
    meanings = glossary(content.method)
    parts += [
        "## How to read the numbers",
        _bullets(f"**{markdown(word)}**: {markdown(text)}" for word, text in meanings.items()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with its text escaped."""
    return markdown_table([*map(markdown, columns)], ([*map(markdown, row)] for row in rows))


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _explained(found: ExplainedToken) -> list[str]:
    parts = [
        f"### {markdown(found.token)}",
        markdown(found.verdict),
        _bullets(markdown(line) for line in found.findings),
        markdown(found.basis),
        _bullets(f"Note: {markdown(note)}" for note in found.notes),
    ]
    for figure in found.figures:
        parts += [f"#### {markdown(figure.title)}", markdown(figure.alt), markdown(figure.reading)]
    return parts


def _scan(found: ShownScan) -> list[str]:
    rows = [[number(value) for value in row] for row in found.sources.rows]
    described = [
        (each.id, "; ".join(filter(None, (each.found, each.severity, each.effect))))
        for each in found.documents
    ]
    documents = [f"**{markdown(name)}**: {markdown(text)}" for name, text in described]
    more = f"{found.more} more in the folder of the scan." if found.more else ""
    return [
        f"### {markdown(found.name)}",
        markdown(found.headline) + ".",
        markdown(found.basis or ""),
        table(found.sources.columns, rows) if rows else "",
        _bullets(documents),
        more,
    ]


def _card(card: Card) -> str:
    row: dict[str, Any] = card.row
    grade = row.get("severity") if row["verdict"] == "sticky" else None
    lift = f"lift {number(row['lift'], 4)}" if row["lift"] is not None else ""
    if row.get("lift_low") is not None:
        lift += f" (interval {number(row['lift_low'], 4)} to {number(row['lift_high'], 4)})"
    if row.get("validation_rate") is not None:
        lift += f", validation rate {number(row['validation_rate'], 3)}"
    grade = grade or row["verdict"] or "not judged"
    if row.get("kind"):
        grade += f", lifts most: {row['kind']}"
    lines = [f"- **{markdown(row['token'])}** ({markdown(grade)}): {markdown(lift)}"]
    for pair in card.pairs:
        which = "typical" if pair.which == "typical" else "rises most"
        lines.append(
            f"  - {which}: “{markdown(pair.anchor)}” and “{markdown(pair.carrier)}” with {pair.copies} "
            f"copies: similarity {markdown(number(pair.before, 3))} becomes {markdown(number(pair.after, 3))}"
        )
    return "\n".join(lines)
