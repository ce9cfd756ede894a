"""Sections of a report that all its formats show: figures, explained tokens, scanned documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stickytoken.methods.entry import Distribution, Scatter
from stickytoken.repairs.documents import mean_curves
from stickytoken.repairs.result import RepairRecord, token_rows
from stickytoken.reports.content import (
    MOST_CARDS,
    MOST_IMPACTS,
    MOST_REPAIRS,
    STATES,
    RunContent,
    repair_checks,
)
from stickytoken.reports.figures.effects import impact_figures, repair_curves, repaired_tokens
from stickytoken.reports.figures.explanation import explanation_figures
from stickytoken.reports.figures.figure import DataTable, ReportFigure
from stickytoken.reports.figures.run import (
    Curve,
    by_dimension,
    composition,
    distribution,
    scatter,
    symptom_curves,
)
from stickytoken.reports.templating import number, plain
from stickytoken.scanning.results import Scan, basis, headline


def report_figures(content: RunContent) -> list[ReportFigure]:
    """Return all figures that the run has data for; none for an unfinished run."""
    if content.run is None:
        return []
    described = content.method.figures(content.run)
    found = [distribution(content.tokens, each) for each in described if isinstance(each, Distribution)]
    found += curve_figures(content)
    found += [scatter(content.tokens, each) for each in described if isinstance(each, Scatter)]
    if rows := content.run.by_dimension().to_dicts():
        found.append(by_dimension(rows))
    if len(content.sticky) > MOST_CARDS:  # cards say it of fewer
        found.append(composition(content.tokens))
    for place, impact in enumerate(content.impacts[:MOST_IMPACTS]):
        found += impact_figures(impact, f"-{place + 1}" if place else "")
    for place, record in enumerate(content.repairs[:MOST_REPAIRS]):
        found += _repair_figures(record, f"-{place + 1}" if place else "")
    return found


def curves_of(content: RunContent) -> tuple[list[Curve], list[Curve]]:
    """Return the symptom curves of the tokens shown, worst first, and those of ordinary tokens."""
    if content.evidence is None:
        return [], []
    verdicts = content.tokens.select("token_id", "verdict")
    named = content.tokens if content.vocabulary is None else content.vocabulary
    names = named.select("token_id", "token").join(verdicts, on="token_id", how="left")
    rows = content.evidence.tokens.join(names, on="token_id", how="left", maintain_order="left").to_dicts()
    found: tuple[list[Curve], list[Curve]] = ([], [])
    for row in rows:
        name = row["token"] or f"id {row['token_id']}"
        curve = Curve(name, row["verdict"], row["copies"], row["below"], row["above"])
        found[row["ordinary"]].append(curve)
    return found


def curve_figures(content: RunContent) -> list[ReportFigure]:
    if content.evidence is None or content.run is None:
        return []
    return [symptom_curves(*curves_of(content), content.run.plan.mean_similarity)]


def _repair_figures(record: RepairRecord, suffix: str) -> list[ReportFigure]:
    def sentence(text: str) -> str:
        return f"{text[0].upper()}{text[1:]}."

    findings = " ".join(map(sentence, repair_checks(record).values()))
    found = [repaired_tokens(token_rows(record), sentence(STATES[record.verified]), findings, suffix)]
    if (curves := mean_curves(record)) is not None:
        found.append(
            repair_curves(
                f"repair-curves{suffix}",
                "Symptom curves before and after the repair",
                "Copies of a repaired token are added to one of two unrelated texts; the mean over all "
                "repaired tokens. After a repair, the curve should follow that of ordinary tokens.",
                curves.copies,
                curves.lines,
            )
        )
    return found


# Further tokens are described without figures: the page must open on a phone.
MOST_DRAWN = 4


@dataclass(frozen=True)
class ExplainedToken:
    token_id: int  # its id
    token: str  # the vocabulary string
    run_verdict: str | None  # of the run
    verdict: str  # of the explanation, in words
    findings: list[str]  # measures outside the benign interval, one line each
    basis: str  # what the verdict rests on, in words
    notes: list[str]  # what could not be measured
    figures: list[ReportFigure]  # empty for all but the first few tokens


def explained_tokens(content: RunContent) -> list[ExplainedToken]:
    """Return the explained tokens: first those that the run flags, worst first."""
    order = {}
    if content.run is not None:
        order = {token_id: place for place, token_id in enumerate(content.flagged["token_id"])}
    ranked = sorted(
        content.explanations,
        key=lambda each: (order.get(each.token.token_id, len(order)), each.token.token_id),
    )
    found = []
    for place, each in enumerate(ranked):
        lines = []
        for finding in each.token.findings:
            line = f"{finding.called}: {number(finding.value, 3)}, benign {number(finding.benign_mean, 3)}"
            if finding.deviations is not None:
                line += f", {number(finding.deviations, 1)} SD"
            lines.append(line if finding.begins is None else f"{line}, begins in layer {finding.begins}")
        record, token, settings = each.record, each.token, each.record.settings
        rests_on = (
            f"{plain(settings.get('copies'))} copies ({plain(settings.get('placement'))}) in "
            f"{record.carriers} texts of {record.source}, compared with {len(each.tables['benign'])} matched "
            f"benign tokens{'' if token.same_category else ' of other categories'}."
        )
        figures = explanation_figures(each) if place < MOST_DRAWN else []
        found.append(
            ExplainedToken(
                token.token_id,
                token.token,
                token.run_verdict,
                token.verdict,
                lines,
                rests_on,
                list(record.notes),
                figures,
            )
        )
    return found


# Only the latest scans are shown, and of each the worst documents.
_MOST_SCANS = 3
_MOST_DOCUMENTS = 20
_MOST_SOURCES = 20
_MOST_WORDS = 3


def shown_scans(content: RunContent) -> list[dict[str, Any]]:
    """Return the latest scans of a run folder as values of a page; `sources` is a table."""
    return [_scan(scan) for scan in content.scans[:_MOST_SCANS]]


def _scan(scan: Scan) -> dict[str, Any]:
    worst = scan.worst.head(_MOST_DOCUMENTS)
    columns = ["source", "documents", "with findings"]
    sources = [each for each in scan.result.sources if each.found][:_MOST_SOURCES]
    rows: list[list[Any]] = [[each.source or "(none)", each.documents, each.found] for each in sources]
    if scan.result.matter is not None:
        columns.append("that matter")
        rows = [[*row, each.matter] for row, each in zip(rows, sources, strict=True)]
    return {
        "name": scan.record.documents,
        "headline": headline(scan),
        "basis": basis(scan),
        "sources": DataTable(columns, rows),
        "documents": [_document(row) for row in worst.iter_rows(named=True)],
        "more": scan.result.found - len(worst),
        "skipped": scan.result.skipped,
    }


def _document(row: Mapping[str, Any]) -> dict[str, Any]:
    words = [
        f"{each['text']} \N{MULTIPLICATION SIGN} {each['copies']}" for each in row["words"][:_MOST_WORDS]
    ]
    if len(row["words"]) > _MOST_WORDS:
        words.append("\N{HORIZONTAL ELLIPSIS}")
    place = row["path"]
    if place is not None and row["line"] is not None:
        place = f"{place}, line {row['line']}"
    effect = ""
    if row["effect"] is not None:
        up = "" if row["moves_up"] is None else f", moves up for {row['moves_up']:.0%} of the queries"
        effect = f"effect {number(row['effect'], 2)} SD{up}"
    return {
        "id": row["id"],
        "place": place,
        "found": f"{', '.join(words)}; {row['share']:.0%} of the text",
        "severity": row["severity"],
        "effect": effect,
        "pieces": [(each["text"], each["found"]) for each in row["excerpt"]],
    }
