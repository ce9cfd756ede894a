"""Finished audits: their records and tables, opened for reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from stickytoken.measurement import resume
from stickytoken.measurement.store import ResultFolder
from stickytoken.methods import Verdict
from stickytoken.scanning.results import SCHEMA
from stickytoken.settings.reading import Columns
from stickytoken.validation import file_path

AUDIT = "audit"
"""What the names of audit folders begin with."""
AUDIT_FILE = "audit.json"
AUDIT_SCHEMA_VERSION = 8
RELEVANCE_JUDGEMENTS = "relevance judgements"
"""What `IndexRecord.answers_from` says of documents that were judged to answer queries."""
TIMES_FURTHER = 4
"""In how many times as many documents the tokens that may push are measured."""
MOST_RANKED = 500
"""Maximum number of documents with copies that are ranked: those with the largest share of copies. It limits
the cost, because each document is encoded twice."""

# The groups of measured tokens; see `choose_tokens`.
NAMED = "named"
FLAGGED = "flagged"
SPECIAL = "special"
UNUSUAL = "unusual vector"
FOUND = "in documents"
STRONGEST = "strongest"
ORDINARY = "random"

# How copies change a document's rank for a query.
_CHANGE = pl.Struct({"query": pl.String, "rank": pl.Int64, "rank_without": pl.Int64})
TABLES: dict[str, dict[str, Any]] = {
    # One row per measured token, worst first.
    "tokens.parquet": {
        "token_id": pl.Int64,
        "token": pl.String,
        "text": pl.String,
        "group": pl.String,
        "predicted": pl.Float64,
        "queries": pl.Int64,
        "documents": pl.Int64,  # how many received copies, to measure the push
        "push": pl.Float64,
        "push_low": pl.Float64,
        "push_high": pl.Float64,
        "times_ordinary": pl.Float64,
        "found": pl.Float64,
        "found_low": pl.Float64,
        "found_high": pl.Float64,
        "erased": pl.Float64,
        "erased_low": pl.Float64,
        "erased_high": pl.Float64,
        "vector_deviation": pl.Float64,
        "confirmed": pl.Boolean,
        "verdict": pl.String,
        "severity": pl.String,
        "reason": pl.String,
        "undecided": pl.Boolean,
    },
    # One row per document that already contains copies.
    "documents.parquet": {
        "number": pl.Int64,
        "id": pl.String,
        "causes": pl.String,
        "found": pl.String,  # what the copies in it are, such as "ذ ×8"
        "excerpt": SCHEMA["excerpt"],  # the text around the first copies
        "suspected_only": pl.Boolean,
        "copies_read": pl.Boolean,
        "hits": pl.Int64,
        "hits_without": pl.Int64,
        "change": pl.Int64,
        "mean_rank": pl.Float64,
        "mean_rank_without": pl.Float64,
        "better": pl.Int64,
        "worse": pl.Int64,
        # The queries whose top 10 contains it only because of its copies, and those whose top 10 it has left
        # because of them, each in descending order of the change of rank.
        "entered": pl.List(_CHANGE),
        "left": pl.List(_CHANGE),
        "source": pl.String,
    },
}
# Columns that have no missing values.
_FILLED = ("token_id", "token", "text", "group", "push", "verdict", "number", "id", "causes")


class IndexRecord(resume.Record):
    """Describes the index that was searched.

    Attributes:
        read: number of documents in the collection.
        documents: number of documents in the index.
        cut: number of indexed documents that exceed the model's input limit and are therefore truncated.
        blank: number of documents without text.
        skipped: number of records that could not be read.
        skipped_first: reason why the first skipped record could not be read; None if no record was skipped.
        text_columns: columns with the text of a document.
        unread_columns: columns that contain text and were not read.
        queries: number of queries that are searched.
        queries_from: where they come from, in words.
        answers_from: where it comes from which documents answer which queries, in words.
        vectors: the file with vectors of the documents; None if they were encoded.
    """

    name: str
    read: int
    documents: int
    cut: int
    blank: int
    skipped: int
    skipped_first: str | None
    text_columns: tuple[str, ...] = ()
    unread_columns: tuple[str, ...] = ()
    queries: int
    queries_from: str
    answers_from: str
    vectors: str | None = None
    fingerprint: str


class AuditResultRecord(resume.Record):
    """The totals of an audit.

    Attributes:
        depth: number of results of a query that count as its first ones.
        results_without: mean number of wrong first results that a document is without copies.
        ordinary_push: median push of random tokens in the documents of ``stuffed_ids``; None if none was
            measured.
        answers: number of pairs of a query and a document that answers it, among the documents with copies.
        found_without: share of these pairs in which the query finds the document without copies.
        ordinary_found: the same with copies of a random token.
        stuffed_ids: ids of the documents that received copies, one document at a time.
        further_tokens: number of tokens whose push reached its threshold in these documents, so that it was
            measured in more.
        further_ids: ids of the documents that received copies of these tokens, which include
            ``stuffed_ids``; empty if there are no such tokens.
        predicted: number of tokens whose push was predicted from the run; 0 if the run allows no prediction.
        sticky: number of measured tokens that are sticky among these documents.
        with_copies: number of documents in the collection that already contain copies.
        suspected: number of documents with only suspected copies.
        causes: number of documents for each cause.
        searched: number of documents that were searched for copies.
        ranked: number of documents with copies whose ranks were measured.
        sequences: number of texts encoded for the index and of documents encoded with inserted copies.
        seconds: wall time.
    """

    depth: int
    results_without: float
    ordinary_push: float | None
    answers: int
    found_without: float | None
    ordinary_found: float | None
    stuffed_ids: list[str]
    further_tokens: int
    further_ids: list[str]
    predicted: int
    sticky: int
    with_copies: int
    suspected: int
    causes: dict[str, int]
    searched: int
    ranked: int
    sequences: int
    seconds: float


class RuleRecord(resume.Record):
    """The `RuleSettings` of the run, without defaults: a record that lacks one of them is damaged."""

    smallest_erased: float
    smallest_push: float
    unusual: float
    confidence: float


class AuditRecord(resume.MeasurementRecord):
    """The contents of audit.json.

    Attributes:
        run: the run folder, as the user named it.
        repairable: whether the model of the run can be repaired, for the suggested commands.
        documents: the documents as the user named them, for the suggested commands.
        column: the columns that the user named, for the suggested commands.
        allow: the file of accepted words, for the suggested commands.
        known: the file of accepted documents, for the suggested commands.
    """

    schema_version: int = AUDIT_SCHEMA_VERSION
    run: str
    run_identity: str
    repairable: bool
    model: str
    device: str
    settings: dict[str, Any]
    rule: RuleRecord
    index: IndexRecord
    documents: str
    column: Columns | str | None = None
    allow: str | None = None
    known: str | None = None
    notes: list[str]
    versions: dict[str, str]
    hardware: dict[str, str]
    started: str
    result: AuditResultRecord | None = None


class Audit:
    """A finished audit.

    Args:
        path: folder of the audit.

    Attributes:
        path: folder of the audit.
        record: what was measured, and how.
        result: the totals.
        tokens: one row per measured token, worst first, with the verdict on these documents.
        documents: one row per document that already contains copies, with its top-10 hits and mean rank, both
            with and without these copies. Those whose copies change most come first.

    Raises:
        RunError: the folder holds no audit, is damaged or is not finished.

    Examples:
        >>> settings = stickytoken.AuditSettings(tokens=2, stuffed=5)
        >>> audit = stickytoken.audit(run, documents, encoder=model, settings=settings, out="audit")
        >>> audit.words  # the texts of the tokens that are sticky among these documents, here of none
        ()
    """

    def __init__(self, path: Path) -> None:
        folder = ResultFolder(path)
        self.path = path
        self.record = resume.read_present(folder, AUDITS, "audit")
        self.result = resume.require_result(self.record.result, folder, "audit")
        self.tokens = folder.read_table("tokens.parquet", TABLES["tokens.parquet"], _FILLED)
        self.documents = folder.read_table("documents.parquet", TABLES["documents.parquet"], _FILLED)

    def __repr__(self) -> str:
        counts = f"{self.result.sticky} of {len(self.tokens)} tokens sticky"
        return f"<Audit: {self.record.model} on {self.record.index.name}, {counts}, in {self.path}>"

    @property
    def sticky(self) -> pl.DataFrame:
        """The tokens that are sticky among these documents, worst first."""
        return self.tokens.filter(verdict=Verdict.STICKY.value)

    @property
    def words(self) -> tuple[str, ...]:
        """The texts of the sticky tokens, as input to `scan`, `clean` and `check`."""
        texts = [text.strip() for text in self.sticky["text"].to_list()]
        return tuple(dict.fromkeys(text for text in texts if text))

    def summary(self) -> dict[str, Any]:
        """Return the audit as JSON values."""
        from stickytoken.audits import wording

        return {
            "audit": str(self.path),
            "run": self.record.run,
            "model": self.record.model,
            "conclusions": wording.conclusions(self),
            "index": self.record.index.model_dump(),
            "settings": self.record.settings,
            "prompts": self.record.prompts,
            **self.result.model_dump(),
            "tokens": self.tokens.to_dicts(),
            "documents_with_copies": self.documents.to_dicts(),
            "next": [step._asdict() for step in wording.next_steps(self)],
            "notes": self.record.notes,
        }


def open_audit(path: str | Path) -> Audit:
    """Open a finished audit.

    Raises:
        RunError: the folder holds no audit, is damaged or is not finished.

    Examples:
        >>> settings = stickytoken.AuditSettings(tokens=2, stuffed=5)
        >>> audit = stickytoken.audit(run, documents, encoder=model, settings=settings, out="audit")
        >>> stickytoken.open_audit("audit").result.searched
        33
    """
    return Audit(file_path("the audit", path))


def _is_finished(record: AuditRecord, folder: ResultFolder) -> bool:
    return record.result is not None and all((folder.path / name).is_file() for name in TABLES)


AUDITS = resume.MeasurementKind(
    AUDIT,
    AUDIT_FILE,
    lambda folder: folder.read_record(AUDIT_FILE, AuditRecord, AUDIT_SCHEMA_VERSION, "audit"),
    _is_finished,
)


def audits_in(run: Path) -> tuple[tuple[Audit, ...], tuple[str, ...]]:
    """Open the audits in a run folder.

    Returns:
        The audits, the newest first, and a sentence on each audit that cannot be read.

    Examples:
        >>> from stickytoken.audits import audits_in
        >>> audits_in(run.path)
        ((), ())
    """

    def open_here(path: Path) -> Audit:
        audit = open_audit(path)
        # The run folder may have been moved.
        audit.record = audit.record.model_copy(update={"run": str(run)})
        return audit

    pattern = f"{AUDIT}-*/{AUDIT_FILE}"
    return resume.measurements_in(run, pattern, open_here, "An audit", lambda audit: audit.record.started)
