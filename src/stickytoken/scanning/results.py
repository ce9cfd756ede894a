"""A finished scan, its record, scans in a run folder, and what they found in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from stickytoken.errors import RunError
from stickytoken.findings import Finding, Level, Rule, repository_path
from stickytoken.measurement.resume import MeasurementKind, MeasurementRecord, Record, measurements_in
from stickytoken.measurement.store import ResultFolder
from stickytoken.validation import file_path

SCAN = "scan"
SCAN_SCHEMA_VERSION = 1
DOCUMENTS_FILE = "documents.parquet"
_SCAN_FILE = "scan.json"

_TEXT, _WHOLE, _NUMBER = pl.String, pl.Int64, pl.Float64
SCHEMA: dict[str, Any] = {
    "number": _WHOLE,
    **dict.fromkeys(("id", "source", "path"), _TEXT),
    "line": _WHOLE,
    "kinds": pl.List(_TEXT),
    "words": pl.List(pl.Struct({"text": _TEXT, "copies": _WHOLE})),
    **dict.fromkeys(("spans", "copies", "longest_run"), _WHOLE),
    "share": _NUMBER,
    "excerpt": pl.List(pl.Struct({"text": _TEXT, "found": pl.Boolean})),
    **dict.fromkeys(("shift", "rise", "moves_up", "predicted", "effect"), _NUMBER),
    "severity": _TEXT,
    "matters": pl.Boolean,
}
_FILLED = ("number", "kinds", "words", "spans", "copies", "longest_run", "share", "excerpt")


class SkippedRecord(Record):
    place: str
    reason: str  # why it has no readable text


class SourceRecord(Record):
    source: str | None
    documents: int
    found: int
    matter: int | None = Field(description="null without effects")


class EffectRecord(Record):
    kind: str = Field(description="measured or predicted")
    queries: int
    queries_from: str
    reference: int = Field(description="clean documents that ranks and spread rest on")
    spread: float = Field(description="standard deviation of the similarities of queries and clean documents")
    agreement: float | None = Field(description="Spearman correlation of predicted and measured shifts")
    compared: int = Field(description="documents that have both")
    nothing_left: int = Field(description="documents that consist of copies only, and have no effect")


class ScanResultRecord(Record):
    documents: int
    found: int
    matter: int | None = Field(
        description="documents that copies lift by half a spread or more; null without effects"
    )
    skipped: int
    skipped_first: list[SkippedRecord]
    kinds: dict[str, int] = Field(description="documents by kind of finding")
    sources: list[SourceRecord] = Field(description="those with the most findings; empty without sources")
    effect: EffectRecord | None
    seconds: float


class ScanRecord(MeasurementRecord):
    """scan.json."""

    model: str
    run: str = Field(description="the run folder, as named")
    documents: str = Field(description="name of the collection")
    rules: dict[str, Any]
    started: str
    versions: dict[str, str]
    result: ScanResultRecord | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Scan:
    """What a scan found.

    ``documents`` has one row per document with findings, in the order of the collection: number (its place in
    the collection, from 0), id, source, path, line, kinds, words (what was found, with copies), spans,
    copies, longest_run, share (of its characters), excerpt. With effects: shift (mean change of its
    similarity to the queries that copies cause), rise (share of clean documents that it passes), moves_up
    (share of queries for which it passes a tenth of them), predicted (the shift as predicted), effect (in
    standard deviations of the similarities), severity and matters.
    """

    record: ScanRecord
    result: ScanResultRecord
    documents: pl.DataFrame
    path: Path | None  # the folder; None if nothing was written

    def __repr__(self) -> str:
        place = "" if self.path is None else f", in {self.path}"
        counts = f"{self.result.found:,} of {self.result.documents:,} documents"
        return f"<Scan: {counts} of {self.record.documents}{place}>"

    @property
    def worst(self) -> pl.DataFrame:
        return self.documents.sort(
            "effect", "share", "number", descending=[True, True, False], nulls_last=True
        )

    def summary(self) -> dict[str, Any]:
        return {
            "scan": None if self.path is None else str(self.path),
            "run": self.record.run,
            "model": self.record.model,
            "collection": self.record.documents,
            **self.result.model_dump(),
        }


def open_scan(path: str | Path) -> Scan:
    folder = ResultFolder(file_path("the scan", path))
    record = _read_record(folder) if folder.exists() else None
    if record is None:
        raise RunError(f"there is no scan in {str(folder.path)!r}: it has no {_SCAN_FILE}")
    if record.result is None:
        raise RunError(
            f"the scan in {folder.path} is not finished: run the same command again to continue it"
        )
    documents = folder.read_table(DOCUMENTS_FILE, SCHEMA, _FILLED)
    return Scan(record, record.result, documents, folder.path)


def _read_record(folder: ResultFolder) -> ScanRecord | None:
    return folder.read_record(_SCAN_FILE, ScanRecord, SCAN_SCHEMA_VERSION)


# A collection may have changed since it was scanned: no scan is finished before its documents are read.
SCANS: MeasurementKind[ScanRecord] = MeasurementKind(
    "scan", _SCAN_FILE, _read_record, lambda record, folder: False
)


def scans_in(run: Path) -> tuple[tuple[Scan, ...], tuple[str, ...]]:
    return measurements_in(
        run, f"{SCAN}-*/{_SCAN_FILE}", open_scan, "A scan", lambda scan: scan.record.started
    )


def basis(scan: Scan) -> str | None:
    """Explain the effects and their basis; None without effects."""
    effect = scan.result.effect
    if effect is None:
        return None
    return (
        f"effect: mean change of the similarity to {effect.queries} queries ({effect.queries_from}) that "
        f"copies cause, {effect.kind}; 1 is a standard deviation of the similarities ({effect.spread:.4f}). "
        "moves up: share of the queries for which the document passes a tenth of the clean ones"
    )


def headline(scan: Scan) -> str:
    result = scan.result
    if not result.found:
        return f"none of {result.documents:,} documents has copies of flagged tokens, special tokens or runs"
    have = "has" if result.found == 1 else "have"
    share = result.found / result.documents
    found = (
        f"{result.found:,} of {result.documents:,} documents {have} copies of flagged tokens, special tokens "
        f"or runs ({share:.2%})"
    )
    if result.matter is None or result.effect is None:
        return found
    how = "" if result.effect.kind == "measured" else ", as predicted"
    return f"{found}; {result.matter:,} of them {'matters' if result.matter == 1 else 'matter'}{how}"


def skipped_records(count: int) -> str:
    return "1 record was skipped" if count == 1 else f"{count:,} records were skipped"


_COPIES, _SPECIAL, _REPEATED = "document-copies", "document-special-token", "document-repetition"

RULES = (
    Rule(
        _COPIES,
        "No document repeats a sticky token",
        "Copies of a sticky token change what a document is similar to, whatever it says. Remove them with "
        "`stickytoken clean`, or leave the document out of the index.",
        Level.ERROR,
    ),
    Rule(
        _SPECIAL,
        "No document contains the text of a special token",
        "A tokenizer may read this text as a control token, and some servers fail on it. Take it out with "
        "`stickytoken clean`.",
        Level.WARNING,
    ),
    Rule(
        _REPEATED,
        "No document repeats a word or phrase beyond what ordinary text does",
        "Many copies of any word draw a document toward it. Look whether the repetition belongs there.",
        Level.WARNING,
    ),
)
_LEVELS = {rule.id: rule.level for rule in RULES}


def scan_findings(scan: Scan, root: Path) -> Iterator[Finding]:
    for row in scan.worst.iter_rows(named=True):
        kinds = row["kinds"]
        rule = _COPIES if "flagged" in kinds else _SPECIAL if "special" in kinds else _REPEATED
        path = None if row["path"] is None else repository_path(Path(row["path"]), root)
        yield Finding(
            rule=rule,
            level=Level.NOTE if row["matters"] is False else _LEVELS[rule],
            message=f"document {row['id']}: {described(row)}",
            path=path,
            line=row["line"],
            identity=(scan.record.model, row["id"], *(each["text"] for each in row["words"])),
            properties={
                name: row[name]
                for name in ("number", "source", "copies", "share", "effect", "severity")
                if row[name] is not None
            },
        )


def described(row: Mapping[str, Any]) -> str:
    """Say in a few words what was found in a document, and what it does if that is known."""
    words = ", ".join(
        f"{each['text']!r} \N{MULTIPLICATION SIGN} {each['copies']}" for each in row["words"][:3]
    )
    more = f" and {len(row['words']) - 3} more" if len(row["words"]) > 3 else ""
    effect = "" if row["effect"] is None else f"; effect {row['effect']:+.2f} SD, {row['severity']}"
    return f"{words}{more} ({row['share']:.0%} of the text){effect}"


def incomplete(scan: Scan) -> list[str]:
    if not scan.result.skipped:
        return []
    first = scan.result.skipped_first[0]
    return [f"{skipped_records(scan.result.skipped)}, the first of them {first.place}: {first.reason}"]
