"""Settings of an audit, and finished audits opened for reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from stickytoken.errors import RunError
from stickytoken.measurement import ResultFolder, resume
from stickytoken.settings.audit import AuditSettings
from stickytoken.settings.reading import Columns
from stickytoken.validation import file_path

AUDIT = "audit"
"""What the names of audit folders begin with."""
AUDIT_FILE = "audit.json"
AUDIT_SCHEMA_VERSION = 2

# The groups of measured tokens; see `Candidate.group`.
FLAGGED = "flagged"
FOUND = "in documents"
STRONGEST = "strongest"
ORDINARY = "ordinary"
"""The control group: random tokens, which show how much copies of any token change the ranks of documents."""

HELPS_FROM = 1.5
"""A word helps documents if its share of queries is at least this multiple of the share without copies.

The interval of the rise must also lie entirely above zero; otherwise the word only may help. Words of the
control group never count. In audits of Cranfield with all-MiniLM-L6-v2 (1,398 documents, 225 queries),
natural words reach at most 1.52 times the share, and three planted words reach 1.7 to 2.4 times.
"""

TABLES = resume.table_schemas(
    {
        # One row per measured token.
        "tokens.parquet": "token_id token text group predicted lift_sd severity queries helps may_help "
        "copies share rise rise_low rise_high",
        # One row per token and number of copies.
        "shares.parquet": "token_id token group copies share share_low share_high rise rise_low rise_high "
        "mean_rank",
        # One row per document that already contains copies.
        "documents.parquet": "number id causes found suspected_only copies_read hits hits_without mean_rank "
        "mean_rank_without better worse rises entered",
    },
    text="token text group severity id causes found",
    integers="token_id queries copies number hits hits_without better worse",
    switches="helps may_help suspected_only copies_read rises",
)
# The queries whose top 10 contains the document only because of its copies, in descending order of the change
# of rank.
TABLES["documents.parquet"]["entered"] = pl.List(
    pl.Struct({"query": pl.String, "rank": pl.Int64, "rank_without": pl.Int64})
)
_FILLED = (
    "token_id",
    "token",
    "text",
    "group",
    "helps",
    "may_help",
    "copies",
    "share",
    "number",
    "id",
    "causes",
    "found",
)


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
    fingerprint: str


class AuditResultRecord(resume.Record):
    """The totals of an audit.

    Attributes:
        share_without: share of queries that have a random document in their top 10, without copies.
        mean_rank_without: mean rank of the random documents, without copies.
        stuffed_ids: ids of the documents that received copies, one document at a time.
        second_round_tokens: ids of the tokens that were measured again in a second round, because they seemed
            to help documents in the first round.
        second_round_ids: ids of the documents that received copies in the second round.
        predicted: number of tokens whose share was predicted from the run; 0 if the run allows no prediction.
        helping: number of tokens whose copies get documents into wrong results.
        with_copies: number of documents in the collection that already contain copies.
        suspected: number of documents with only suspected copies.
        causes: number of documents for each cause.
        rising: number of documents that are in the top 10 of more queries with their copies than without.
        searched: number of documents that were searched for copies.
        ranked: number of documents with copies whose ranks were measured.
        sequences: number of texts encoded for the index and of documents encoded with inserted copies.
        seconds: wall time.
    """

    share_without: float
    mean_rank_without: float
    stuffed_ids: list[str]
    second_round_tokens: tuple[int, ...] = ()
    second_round_ids: tuple[str, ...] = ()
    predicted: int
    helping: int
    with_copies: int
    suspected: int
    causes: dict[str, int]
    rising: int
    searched: int
    ranked: int
    sequences: int
    seconds: float


class AuditRecord(resume.MeasurementRecord):
    """The contents of audit.json.

    Attributes:
        run: the run folder, as the user named it.
        documents: the documents as the user named them, for the suggested commands.
        column: the columns that the user named, for the suggested commands.
    """

    schema_version: int = AUDIT_SCHEMA_VERSION
    run: str
    run_identity: str
    model: str
    device: str
    settings: dict[str, Any]
    index: IndexRecord
    documents: str
    column: Columns | str | None = None
    notes: list[str]
    versions: dict[str, str]
    hardware: dict[str, str]
    started: str
    result: AuditResultRecord | None = None

    def measured_with(self) -> AuditSettings:
        """Return the settings of the audit."""
        field_names = AuditSettings.__dataclass_fields__
        values = {name: value for name, value in self.settings.items() if name in field_names}
        return AuditSettings(**values)


class Audit:
    """A finished audit.

    Args:
        path: folder of the audit.

    Attributes:
        path: folder of the audit.
        record: what was measured, and how.
        result: the totals.
        tokens: one row per measured token; the tokens that help documents come first.
        shares: one row per token and number of copies, with the share of queries that have a document with
            copies in their top 10, the rise over the share without copies, and the mean rank.
        documents: one row per document that already contains copies, with its top-10 hits and mean rank, both
            with and without these copies.

    Raises:
        RunError: the folder holds no audit, is damaged or is not finished.
    """

    def __init__(self, path: Path) -> None:
        folder = ResultFolder(path)
        record = AUDITS.read(folder) if folder.exists() else None
        if record is None:
            raise RunError(f"there is no audit in {str(path)!r}: it has no {AUDIT_FILE}")
        if record.result is None:
            raise RunError(f"the audit in {path} is not finished: run the same command again to continue it")
        self.path = path
        self.record = record
        self.result = record.result
        self.tokens = folder.read_table("tokens.parquet", TABLES["tokens.parquet"], _FILLED)
        self.shares = folder.read_table("shares.parquet", TABLES["shares.parquet"], _FILLED)
        self.documents = folder.read_table("documents.parquet", TABLES["documents.parquet"], _FILLED)

    def __repr__(self) -> str:
        counts = f"{self.result.helping} of {len(self.tokens)} tokens help documents"
        return f"<Audit: {self.record.model} on {self.record.index.name}, {counts}, in {self.path}>"

    @property
    def helping(self) -> pl.DataFrame:
        """The tokens whose copies get documents into results where they don't belong."""
        return self.tokens.filter("helps")

    @property
    def undecided(self) -> pl.DataFrame:
        """The tokens whose copies raise the share of queries enough, but with an interval that includes 0."""
        return self.tokens.filter("may_help")

    @property
    def words(self) -> tuple[str, ...]:
        """The texts of the tokens whose copies help documents, as input to `scan`, `clean` and `check`."""
        texts = [text.strip() for text in self.helping["text"].to_list()]
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
            **self.result.model_dump(),
            "tokens": self.tokens.to_dicts(),
            "shares": self.shares.to_dicts(),
            "documents_with_copies": self.documents.to_dicts(),
            "next": [step._asdict() for step in wording.next_steps(self)],
            "notes": self.record.notes,
        }


def open_audit(path: str | Path) -> Audit:
    """Open a finished audit.

    Raises:
        RunError: the folder holds no audit, is damaged or is not finished.
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
    """
    pattern = f"{AUDIT}-*/{AUDIT_FILE}"
    return resume.measurements_in(run, pattern, open_audit, "An audit", lambda audit: audit.record.started)
