"""Search documents for copies of the tokens that a run flags."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stickytoken.findings import Finding, Level, Rule
from stickytoken.findings.repository import repository_root
from stickytoken.gate._result import CheckedDocuments
from stickytoken.measurement.progress import ProgressCallback

if TYPE_CHECKING:
    from stickytoken.detection import Run
    from stickytoken.scanning.reading.opening import DocumentSource


class ScannedDocuments(NamedTuple):
    """Documents as findings.

    Attributes:
        rules: what was looked for.
        findings: one per document, the worst first.
        incomplete: why not all documents could be searched.
        checked: how many documents were searched, and how many close the gate.
    """

    rules: tuple[Rule, ...]
    findings: list[Finding]
    incomplete: list[str]
    checked: CheckedDocuments


def require_documents(documents: DocumentSource, column: str | None) -> None:
    """Refuse missing documents before a run is made."""
    from stickytoken.scanning.reading.columns import Wanted
    from stickytoken.scanning.reading.opening import open_documents

    if isinstance(documents, (str, Path)):
        open_documents(documents, Wanted(column, None, None))


def scan_for_check(
    run: Run, documents: DocumentSource, column: str | None, progress: ProgressCallback
) -> ScannedDocuments:
    """Search documents; without a model, because effects change nothing about what closes the gate."""
    from stickytoken.scanning.findings import RULES, incomplete, scan_findings
    from stickytoken.scanning.scan import scan_documents

    scan = scan_documents(run, documents, column=column, progress=progress)
    findings = list(scan_findings(scan, repository_root(Path.cwd())))
    closing = sum(finding.level is Level.ERROR for finding in findings)
    gaps = incomplete(scan)
    if not scan.result.documents:
        gaps.append(f"there are no documents in {scan.record.documents}: pass the documents to be indexed")
    checked = CheckedDocuments(scan.record.documents, scan.result.documents, closing)
    return ScannedDocuments(RULES, findings, gaps, checked)
