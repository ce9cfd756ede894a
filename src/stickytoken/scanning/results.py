"""Finished scans: their records and documents, opened for reading."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from stickytoken.cleaning.rules import format_known_line, read_list, text_digest
from stickytoken.cleaning.spans import SpanKind
from stickytoken.data.rows import Skipped
from stickytoken.errors import InputError, reading
from stickytoken.measurement import resume, store
from stickytoken.validation import file_path, shown

SCAN = "scan"
SCAN_SCHEMA_VERSION = 6
DOCUMENTS_FILE = "documents.parquet"
_SCAN_FILE = "scan.json"

# Columns of the document table; `Scan` explains them.
SCHEMA: dict[str, Any] = {
    "number": pl.Int64,
    "id": pl.String,
    "source": pl.String,
    "path": pl.String,
    "line": pl.Int64,
    "kinds": pl.List(pl.String),
    "words": pl.List(pl.Struct({"text": pl.String, "kind": pl.String, "copies": pl.Int64})),
    "spans": pl.Int64,
    "copies": pl.Int64,
    "longest_run": pl.Int64,
    "share": pl.Float64,
    "digest": pl.String,
    "excerpt": pl.List(pl.Struct({"text": pl.String, "found": pl.Boolean})),
}
# Columns that have no missing values.
_FILLED = ("number", "kinds", "words", "spans", "copies", "longest_run", "share", "digest", "excerpt")


class SourceRecord(resume.Record):
    """How many documents a source has."""

    source: str | None
    documents: int
    found: int


class ScanResultRecord(resume.Record):
    """The totals of a scan."""

    documents: int
    found: int = Field(description="documents with a finding other than suspected copies")
    suspected: int = Field(0, description="documents with suspected copies and no other finding")
    skipped: int
    skipped_first: list[Skipped]
    columns: list[str] = Field([], description="columns whose text was searched")
    unread_columns: list[str] = Field([], description="columns that contain text and were not searched")
    reading: str = Field("", description="what was read, in words")
    kinds: dict[str, int] = Field(description="documents by kind of finding")
    sources: list[SourceRecord] = Field(
        description="the sources with the most findings; empty without sources"
    )
    seconds: float


class ScanRecord(resume.MeasurementRecord):
    """scan.json."""

    model: str
    run: str = Field(description="the run folder or the rules file, as named")
    documents: str = Field(description="name of the collection")
    rules: dict[str, Any]
    started: str
    versions: dict[str, str]
    result: ScanResultRecord | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Scan:
    """A finished scan.

    Attributes:
        record: what was searched, and how.
        result: the totals.
        documents: one row per document with findings, in the order of the collection.
        path: folder of the scan; None if nothing was written.

    ``documents`` has the following columns.

    - ``number``, ``id``, ``source``, ``path``, ``line``: The 0-based position of the document in the
      collection, and where the document comes from.
    - ``kinds``: The kinds of the findings: flagged, special, repetition or suspected. ``clean`` removes
      flagged tokens in a row and special tokens; the rest only with ``--unsafe-fixes``.
    - ``words``: The words that were found, each with the kind of its finding and the number of its copies.
    - ``spans``: The number of findings.
    - ``copies``: The number of copies in all findings.
    - ``longest_run``: The largest number of copies in a single finding.
    - ``share``: The share of the document's characters that are part of a finding.
    - ``digest``: The name of the document's text in a file of known documents.
    - ``excerpt``: The text around the first findings.
    """

    record: ScanRecord
    result: ScanResultRecord
    documents: pl.DataFrame
    path: Path | None

    def __repr__(self) -> str:
        place = "" if self.path is None else f", in {self.path}"
        counts = f"{self.result.found:,} of {self.result.documents:,} documents"
        return f"<Scan: {counts} of {self.record.documents}{place}>"

    @property
    def worst(self) -> pl.DataFrame:
        """The documents in descending order of the share of copies, those with only suspected copies last."""
        order = [is_only_suspected(), pl.col("share"), pl.col("number")]
        return self.documents.sort(order, descending=[False, True, False])

    def summary(self) -> dict[str, Any]:
        """Return the scan as JSON values, without its documents."""
        return {
            "scan": None if self.path is None else str(self.path),
            "run": self.record.run,
            "model": self.record.model,
            "collection": self.record.documents,
            **self.result.model_dump(),
        }


def is_only_suspected() -> pl.Expr:
    """Return an expression that is true for documents with suspected copies and no other finding."""
    kinds = pl.col("kinds")
    return (kinds.list.len() == 1) & kinds.list.contains(SpanKind.SUSPECTED.value)


def open_scan(path: str | Path) -> Scan:
    """Open the folder of a finished scan.

    Args:
        path: folder of the scan.

    Raises:
        RunError: there is no scan, or it is damaged or not finished.

    Examples:
        >>> scan = stickytoken.scan(run, documents, out="scan")
        >>> stickytoken.open_scan("scan").result.found
        2
    """
    folder = store.ResultFolder(file_path("the scan", path))
    record = resume.read_present(folder, SCANS, "scan")
    result = resume.require_result(record.result, folder, "scan")
    documents = folder.read_table(DOCUMENTS_FILE, SCHEMA, _FILLED)
    return Scan(record, result, documents, folder.path)


# The documents may have changed since a scan. So no stored scan counts as finished until its documents have
# been read again.
SCANS: resume.MeasurementKind[ScanRecord] = resume.MeasurementKind(
    SCAN,
    _SCAN_FILE,
    lambda folder: folder.read_record(_SCAN_FILE, ScanRecord, SCAN_SCHEMA_VERSION, "scan"),
    lambda record, folder: False,
)


def scans_in(run: Path) -> tuple[tuple[Scan, ...], tuple[str, ...]]:
    """Open the scans in a run folder.

    Returns:
        The scans, the newest first, and a sentence on each scan that cannot be read.
    """
    pattern = f"{SCAN}-*/{_SCAN_FILE}"
    return resume.measurements_in(run, pattern, open_scan, "A scan", lambda scan: scan.record.started)


def filter_by_kind(scan: Scan, kinds: Collection[str]) -> pl.DataFrame:
    """Return the documents that have a finding of one of these kinds."""
    return scan.documents.filter(pl.col("kinds").list.set_intersection(list(kinds)).list.len() > 0)


def count_by_kind(documents: pl.DataFrame, kinds: Collection[str]) -> dict[str, int]:
    """Return how many documents have findings of each kind."""
    counts: Counter[str] = Counter()
    for kinds_of_document in documents["kinds"].to_list():
        counts.update(kinds_of_document)
    return {kind: counts[kind] for kind in SpanKind if kind in kinds and counts[kind]}


# What each line of a file of known documents begins with, unless it is blank or a comment.
_DIGEST = re.compile(f"[0-9a-f]{{{len(text_digest(''))}}}")


def read_known(path: Path) -> list[str]:
    """Return the lines of a file of known documents; none if there is no file.

    Raises:
        InputError: The file cannot be read, or has a line that names no document: it is another file.
    """
    if not path.is_file():
        return []
    for entry in read_list(path, "the known documents"):
        if not _DIGEST.fullmatch(entry):
            raise InputError(
                f"{path} is no file of known documents, because it contains {shown(entry)}: pass a new file, "
                "or a file that scan wrote"
            )
    with reading(path):
        return path.read_text("utf-8-sig").splitlines()


def add_known(scan: Scan, path: Path) -> int:
    """Add the documents with findings to a file of known documents, and return how many were new.

    Raises:
        InputError: The file is no file of known documents.
        RunError: The file cannot be written.
    """
    lines = read_known(path)
    known_digests = {line.split(" ", 1)[0] for line in lines}  # each line begins with a digest
    new_lines = []
    for row in scan.documents.iter_rows(named=True):
        if row["digest"] not in known_digests:
            known_digests.add(row["digest"])  # another document may have the same text
            words = [word["text"] for word in row["words"]]
            new_lines.append(format_known_line(row["digest"], row["id"], words))
    store.write_atomically(path, "".join(f"{line}\n" for line in [*lines, *new_lines]).encode())
    return len(new_lines)
