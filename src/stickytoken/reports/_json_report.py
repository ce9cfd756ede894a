"""A report as one JSON document, with everything that the page shows."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from stickytoken.reports import facts
from stickytoken.reports._glossary import glossary
from stickytoken.reports._scan_section import shown_scans
from stickytoken.reports.cards import cards
from stickytoken.reports.content import RunContent
from stickytoken.reports.explanation_section import ExplainedToken, explained_tokens
from stickytoken.reports.figure_set import curves_of, report_figures
from stickytoken.reports.figures.figure import ReportFigure
from stickytoken.reports.token_table import flagged_rows


def run_document(content: RunContent) -> dict[str, Any]:
    """Return the report of one run as JSON values; what is missing is null or an empty list."""
    curves, ordinary = curves_of(content)
    return {
        "run": str(content.path),
        "model": content.record.model.name,
        "method": content.record.method,
        "finished": content.run is not None,
        "headline": facts.headline(content),
        "meaning": facts.meaning(content),
        "next_steps": [step._asdict() for step in facts.steps(content)],
        "tone": facts.tone(content),
        "notes": facts.notes(content),
        "worst": [card.row | {"pairs": [asdict(pair) for pair in card.pairs]} for card in cards(content)],
        "flagged": flagged_rows(content),
        "curves": [asdict(curve) for curve in curves],
        "ordinary_curves": [asdict(curve) for curve in ordinary],
        "figures": [_figure(figure) for figure in report_figures(content)],
        "explanations": [_explained(each) for each in explained_tokens(content)],
        "scans": [asdict(each) for each in shown_scans(content)],
        "how": facts.method_description(content),
        "computed": facts.run_details(content),
        "glossary": glossary(content.method),
    }


def _figure(figure: ReportFigure) -> dict[str, Any]:
    return {
        "name": figure.name,
        "title": figure.title,
        "alt": figure.alt,
        "reading": figure.reading,
        "columns": list(figure.table.columns),
        "rows": [list(row) for row in figure.table.rows],
    }


def _explained(found: ExplainedToken) -> dict[str, Any]:
    return {
        "token_id": found.token_id,
        "token": found.token,
        "run_verdict": found.run_verdict,
        "verdict": found.verdict,
        "findings": list(found.findings),
        "basis": found.basis,
        "notes": list(found.notes),
        "figures": [_figure(figure) for figure in found.figures],
    }
