"""The section of a report that shows which documents have copies of the run's tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stickytoken.reports._escaping import number
from stickytoken.reports.content import RunContent
from stickytoken.reports.figures.figure import DataTable
from stickytoken.scanning.results import Scan, basis, headline

# Only the latest scans are shown, and of each the worst documents.
_MOST_SCANS = 3
_MOST_DOCUMENTS = 20
_MOST_SOURCES = 20
_MOST_WORDS = 3


@dataclass(frozen=True)
class ShownDocument:
    """A document with findings.

    Attributes:
        id: Its id.
        place: File and line, where it is in a file.
        found: What was found, in words.
        severity: How much the copies do; None where that is not known.
        effect: The same in numbers; empty where it is not known.
        pieces: Text around the findings, each piece with whether it was found.
    """

    id: str
    place: str | None
    found: str
    severity: str | None
    effect: str
    pieces: tuple[tuple[str, bool], ...]


@dataclass(frozen=True)
class ShownScan:
    """A scan in a report.

    Attributes:
        name: Name of the collection.
        headline: How many documents have findings, and how many matter.
        basis: What effects were compared with.
        sources: Counts by source; no rows without sources.
        documents: The worst documents.
        more: Documents with findings that are not shown.
        skipped: How many records could not be read.
    """

    name: str
    headline: str
    basis: str | None
    sources: DataTable
    documents: tuple[ShownDocument, ...]
    more: int
    skipped: int


def shown_scans(content: RunContent) -> list[ShownScan]:
    """Return the latest scans of a run folder."""
    return [_shown(scan) for scan in content.scans[:_MOST_SCANS]]


def _shown(scan: Scan) -> ShownScan:
    worst = scan.worst.head(_MOST_DOCUMENTS)
    return ShownScan(
        name=scan.record.documents,
        headline=headline(scan),
        basis=basis(scan),
        sources=_sources(scan),
        documents=tuple(_document(row) for row in worst.iter_rows(named=True)),
        more=scan.result.found - len(worst),
        skipped=scan.result.skipped,
    )


def _document(row: Mapping[str, Any]) -> ShownDocument:
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
    return ShownDocument(
        id=row["id"],
        place=place,
        found=f"{', '.join(words)}; {row['share']:.0%} of the text",
        severity=row["severity"],
        effect=effect,
        pieces=tuple((each["text"], each["found"]) for each in row["excerpt"]),
    )


def _sources(scan: Scan) -> DataTable:
    rows = [each for each in scan.result.sources if each.found][:_MOST_SOURCES]
    graded = scan.result.matter is not None
    return DataTable(
        ("source", "documents", "with findings", *(("that matter",) if graded else ())),
        tuple(
            (each.source or "(none)", each.documents, each.found, *((each.matter,) if graded else ()))
            for each in rows
        ),
    )
