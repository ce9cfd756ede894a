"""Scan documents for copies of a run's flagged tokens, and describe a finished scan."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
from pydantic import Field

import stickytoken.measurement as store
from stickytoken import wall_time
from stickytoken.cleaning import Cleaner, document_counts, names_rules_file, open_cleaner
from stickytoken.cleaning.rules import CleaningRules, format_known_line, rules_of_run
from stickytoken.cleaning.spans import SpanKind
from stickytoken.data import SentenceSource, load_sentences
from stickytoken.data.documents import (
    STDIN_COLLECTION,
    Documents,
    DocumentSource,
    NamedColumns,
    open_documents,
)
from stickytoken.data.rows import Skipped
from stickytoken.detection.run import Run, encoder_for, open_run
from stickytoken.encoders.protocol import IdReader, confirm_answers, similarity_of
from stickytoken.encoders.roles import prompts_of
from stickytoken.encoders.text_encoder import as_id_reader
from stickytoken.errors import InputError, RunError
from stickytoken.findings import STDIN_NAME, Finding, Level, Rule, place_of
from stickytoken.loading import AnyModel
from stickytoken.machine import available_cores, digest
from stickytoken.measurement import resume
from stickytoken.measurement.engine import ProgressCallback, ignore_progress
from stickytoken.methods.measures import Severity
from stickytoken.methods.profile.estimates import read_effects
from stickytoken.methods.statistics import TokenEffects
from stickytoken.scanning import _passes
from stickytoken.scanning._passes import Effect, EffectPass, Keeper, Tally
from stickytoken.scanning._workers import KEPT_TEXT
from stickytoken.scanning.vectors import StoredVectors, VectorSource, open_vectors
from stickytoken.settings import field_type
from stickytoken.settings.reading import ColumnChoice
from stickytoken.unit_vectors import Similarity
from stickytoken.validation import file_path, require_callable, whole_number
from stickytoken.words import counted

SCAN = "scan"
SCAN_SCHEMA_VERSION = 4
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
    "shift": pl.Float64,
    "rise": pl.Float64,
    "moves_up": pl.Float64,
    "predicted": pl.Float64,
    "effect": pl.Float64,
    "severity": pl.String,
    "matters": pl.Boolean,
}
# Columns that have no missing values.
_FILLED = ("number", "kinds", "words", "spans", "copies", "longest_run", "share", "digest", "excerpt")


class SourceRecord(resume.Record):
    """How many documents a source has."""

    source: str | None
    documents: int
    found: int
    matter: int | None = Field(description="null without effects")


class EffectRecord(resume.Record):
    """How the effects of copies were determined."""

    kind: str = Field(description="measured or predicted")
    queries: int
    queries_from: str
    reference: int = Field(description="clean documents from which ranks and spread are computed")
    spread: float = Field(description="standard deviation of the similarities of queries and clean documents")
    agreement: float | None = Field(description="Spearman correlation of predicted and measured shifts")
    compared: int = Field(description="documents with a predicted and a measured shift")
    nothing_left: int = Field(description="documents without an effect, because they consist only of copies")
    unread: int = Field(
        description="documents without an effect, because the model reads more of them than a scan keeps"
    )
    prompts: dict[str, str] | None = Field(None, description="what is put before documents and queries")


class ScanResultRecord(resume.Record):
    """The totals of a scan."""

    documents: int
    found: int = Field(description="documents with a finding other than suspected copies")
    suspected: int = Field(0, description="documents with suspected copies and no other finding")
    matter: int | None = Field(
        description="documents whose effect is at least half a standard deviation; null without effects"
    )
    skipped: int
    skipped_first: list[Skipped]
    columns: list[str] = Field([], description="columns whose text was searched")
    unread_columns: list[str] = Field([], description="columns that contain text and were not searched")
    reading: str = Field("", description="what was read, in words")
    kinds: dict[str, int] = Field(description="documents by kind of finding")
    sources: list[SourceRecord] = Field(
        description="the sources with the most findings; empty without sources"
    )
    effect: EffectRecord | None
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

    ``documents`` has one row per document with findings, in the order of the collection, and the following
    columns. All columns from ``shift`` on are null if effects were not determined.

    - ``number``, ``id``, ``source``, ``path``, ``line``: The 0-based position of the document in the
      collection, and where the document comes from.
    - ``kinds``: The kinds of the findings: flagged, special, repetition or suspected. ``clean`` changes a
      document that has findings of any kind other than suspected.
    - ``words``: The words that were found, each with the kind of its finding and the number of its copies.
    - ``spans``: The number of findings.
    - ``copies``: The number of copies in all findings.
    - ``longest_run``: The largest number of copies in a single finding.
    - ``share``: The share of the document's characters that are part of a finding.
    - ``digest``: The name of the document's text in a file of known documents.
    - ``excerpt``: The text around the first findings.
    - ``shift``: The mean change that copies cause in the document's cosine similarity to the queries.
    - ``rise``: The share of clean documents that the document overtakes because of its copies, averaged over
      the queries.
    - ``moves_up``: The share of queries for which the document overtakes at least a tenth of the clean
      documents.
    - ``predicted``: The value of ``shift`` that is predicted from the run.
    - ``effect``: The shift divided by the standard deviation of the similarities between queries and clean
      documents.
    - ``severity``: The grade of the effect: mild, serious or severe; null for a smaller effect.
    - ``matters``: Whether the effect is at least 0.5.
    """

    record: ScanRecord
    result: ScanResultRecord
    documents: pl.DataFrame
    path: Path | None  # Folder of the scan; None if nothing was written.
    notes: tuple[str, ...] = ()  # Remarks on the current call, which are not stored in the folder.

    def __repr__(self) -> str:
        place = "" if self.path is None else f", in {self.path}"
        counts = f"{self.result.found:,} of {self.result.documents:,} documents"
        return f"<Scan: {counts} of {self.record.documents}{place}>"

    @property
    def worst(self) -> pl.DataFrame:
        """The documents in descending order of the effect of their copies.

        Documents whose effect is unknown follow, in descending order of the share of copies; among these
        documents, the ones with only suspected copies come last.
        """
        order = [pl.col("effect"), ~is_only_suspected(), pl.col("share"), pl.col("number")]
        return self.documents.sort(order, descending=[True, True, True, False], nulls_last=True)

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

    Raises:
        RunError: there is no scan, or it is damaged or not finished.
    """
    folder = store.ResultFolder(file_path("the scan", path))
    record = _read_record(folder) if folder.exists() else None
    if record is None:
        raise RunError(f"there is no scan in {str(folder.path)!r}: it has no {_SCAN_FILE}")
    if record.result is None:
        raise RunError(
            f"the scan in {folder.path} is not finished: run the same command again to continue it"
        )
    documents = folder.read_table(DOCUMENTS_FILE, SCHEMA, _FILLED)
    return Scan(record, record.result, documents, folder.path)


def _read_record(folder: store.ResultFolder) -> ScanRecord | None:
    return folder.read_record(_SCAN_FILE, ScanRecord, SCAN_SCHEMA_VERSION, "scan")


# The documents may have changed since a scan. So no stored scan counts as finished until its documents have
# been read again.
SCANS: resume.MeasurementKind[ScanRecord] = resume.MeasurementKind(
    "scan", _SCAN_FILE, _read_record, lambda record, folder: False
)


def scans_in(run: Path) -> tuple[tuple[Scan, ...], tuple[str, ...]]:
    """Open the scans in a run folder.

    Returns:
        The scans, the newest first, and a sentence on each scan that cannot be read.
    """
    pattern = f"{SCAN}-*/{_SCAN_FILE}"
    return resume.measurements_in(run, pattern, open_scan, "A scan", lambda scan: scan.record.started)


# Maximum number of a user's queries to use. If there are more queries, a random sample of
# this size is used.
_QUERIES_KEPT = 500
# Seed for drawing the queries.
_QUERIES_SEED = 42

# Part of a scan's identity. Increase this number when a change to the code alters or renames findings.
_IDENTITY_VERSION = 4


@dataclass(frozen=True, slots=True)
class ScanOptions(NamedColumns):
    """The columns of the documents to read, and the options of a scan."""

    effect: Effect | None = None
    # Queries to measure effects with; if None, the first words of clean documents are used.
    queries: SentenceSource | None = None
    vectors: VectorSource | StoredVectors | None = None  # Vectors of the documents that an index has already.
    workers: int | None = None  # Number of processes; if None, one per core.

    def __post_init__(self) -> None:
        if self.effect is not None:
            object.__setattr__(self, "effect", field_type(Effect).checked("effect", self.effect))
        for name in ("queries", "vectors"):
            if self.effect is None and getattr(self, name) is not None:
                raise InputError(
                    f"{name} are given, but effect is not set, so they would not be used: set effect too, or "
                    f"leave {name} out"
                )
        workers = available_cores() if self.workers is None else whole_number("workers", self.workers, 1)
        object.__setattr__(self, "workers", workers)


def scan(  # noqa: PLR0913 - all of them keyword-only, one decision each
    run: Run | Cleaner | str | Path,
    documents: DocumentSource,
    *,
    column: ColumnChoice = None,
    id_column: str | None = None,
    source_column: str | None = None,
    allow: str | Path | None = None,
    known: str | Path | None = None,
    effect: Effect | str | None = None,
    queries: SentenceSource | None = None,
    vectors: VectorSource | StoredVectors | None = None,
    workers: int | None = None,
    encoder: AnyModel | None = None,
    out: str | Path | None = None,
    progress: ProgressCallback = ignore_progress,
) -> pl.DataFrame:
    """Find the documents that contain copies of flagged tokens, special tokens as text, or repetitions.

    Args:
        run: a finished run, or its folder; or a rules file that ``clean --rules-out`` or `Cleaner.save`
            wrote, or a cleaner. With rules, neither the run nor the model is needed, but effects cannot be
            determined.
        documents: texts or rows of a table, a file or folder, ``hub:REPOSITORY``, or ``-`` for stdin.
        column: column with the text, several columns, or `Columns`. If None, a column with a common name for
            texts is used.
        id_column: column with the id of a document. If None, a column with a common name for ids is used, if
            there is one.
        source_column: column with the source of a document. If None, a column with a common name for sources
            is used, if there is one.
        allow: file of words and special tokens that are no finding, one on each line.
        known: file of documents that are no finding, as ``scan --set write-known=FILE`` writes it.
        effect: how the effects of copies are determined. ``measured`` encodes each document with findings
            twice, with and without the copies. ``predicted`` encodes each document with findings once,
            unchanged, and computes the effect of its copies from the run. If None, effects are not
            determined.
        queries: queries on which effects are determined. If None, the first words of clean documents are
            used.
        vectors: the vectors of the documents, if an index has them already, as in `stickytoken.audit`; for
            effects.
        workers: number of processes; if None, one per core.
        encoder: the model of the run, needed only for effects. If None, the model that the run names is
            loaded.
        out: folder for the scan. If the folder contains an interrupted scan, that scan is continued. If
            ``out`` is None, nothing is written.
        progress: called after every step.

    Returns:
        One row per document with findings; see `Scan.documents`.

    Raises:
        InputError: the documents cannot be read, or an option cannot be used.
        ModelError: the model cannot be found or used.
        RunError: the run is damaged or not finished, or the folder contains something else.

    Examples:
        >>> stickytoken.scan(run, documents).select("id", "kinds").rows()
        [('1', ['repetition']), ('2', ['special'])]
    """
    finished = scan_documents(
        run,
        documents,
        column=column,
        id_column=id_column,
        source_column=source_column,
        allow=allow,
        known=known,
        effect=effect,
        queries=queries,
        vectors=vectors,
        workers=workers,
        encoder=encoder,
        out=out,
        progress=progress,
    )
    return finished.documents


def scan_documents(  # noqa: PLR0913 - as `scan`
    run: Run | Cleaner | str | Path,
    documents: DocumentSource,
    *,
    column: ColumnChoice = None,
    id_column: str | None = None,
    source_column: str | None = None,
    effect: Effect | str | None = None,
    queries: SentenceSource | None = None,
    vectors: VectorSource | StoredVectors | None = None,
    words: Sequence[str] = (),
    allow: str | Path | None = None,
    known: str | Path | None = None,
    workers: int | None = None,
    encoder: AnyModel | None = None,
    out: str | Path | None = None,
    progress: ProgressCallback = ignore_progress,
) -> Scan:
    """Find documents as `scan` does, and return them with the totals of the scan.

    ``words`` are further words whose copies count as findings. All other arguments are the same as in `scan`.
    """
    began = wall_time.beginning()
    require_callable("progress", progress)
    options = ScanOptions(
        column=column,
        id_column=id_column,
        source_column=source_column,
        effect=effect,  # type: ignore[arg-type]  # a text becomes a member
        queries=queries,
        vectors=vectors,
        workers=workers,
    )
    origin = rules_origin(run)
    if origin.run is None and options.effect is not None:
        raise InputError(
            f"effect is {options.effect.value!r}, but {origin.name} has only rules, and effects need a run: "
            "pass the run, or leave effect out"
        )
    collection = open_documents(documents, options)
    rules = origin.rules.extended(words, allow, known)
    identity_parts = _identity(origin, rules, collection, options)
    record = ScanRecord(
        schema_version=SCAN_SCHEMA_VERSION,
        identity=digest(identity_parts),
        identity_parts=identity_parts,
        model=origin.model or "",
        run=origin.name,
        documents=collection.name,
        rules=rules.to_json(),
        started=resume.now(),
        versions=resume.package_versions(),
    )
    # Load the model and the queries before the scan, so that an error in them is raised early.
    request = None
    if options.effect is not None and origin.run is not None:
        request = _effect_request(origin.run, options, options.effect, encoder)
    job = _ScanJob(record, collection, rules, options.workers or 1, request, progress, began)
    if out is None:
        return job.run(Keeper(), None)
    folder = store.ResultFolder(file_path("out", out), began)
    with resume.resumed(folder, SCANS, record) as held:
        # Write the record only with the first batch, so that unreadable documents leave no folder behind.
        keeper = Keeper(folder, lambda: held.begin(record))
        finished = job.run(keeper, folder)
        folder.write_table(DOCUMENTS_FILE, finished.documents)
        held.finish(finished.record)
        return finished


class RulesOrigin(NamedTuple):
    """The rules of a scan, and where they come from."""

    rules: CleaningRules
    run: Run | None  # None if the rules come from a file or a cleaner
    name: str  # the run folder or the rules file
    model: str | None  # name of the model; None if the rules do not name it
    run_identity: str | None  # identity of the run that the rules were made from; None if unknown


def rules_origin(source: Run | Cleaner | str | Path) -> RulesOrigin:
    """Return the rules of a run or of a rules file.

    Args:
        source: a finished run or its folder; or a rules file, or a cleaner.

    Raises:
        InputError: the file is not a rules file.
        RunError: the run is damaged or not finished.
    """
    if not isinstance(source, Cleaner) and not names_rules_file(source):
        run = open_run(source)
        return RulesOrigin(rules_of_run(run), run, str(run.path), run.model_name, run.record.identity)
    cleaner = open_cleaner(source)
    model = cleaner.source.get("model")
    run_identity = cleaner.source.get("identity")
    return RulesOrigin(
        rules=cleaner.rules,
        run=None,
        name="the cleaner" if isinstance(source, Cleaner) else str(source),
        model=model if isinstance(model, str) else None,
        run_identity=run_identity if isinstance(run_identity, str) else None,
    )


class _EffectRequest(NamedTuple):
    """Everything needed to determine the effects of copies."""

    kind: Effect
    encoder: IdReader
    token_effects: TokenEffects | None
    queries: tuple[str, ...] | None  # the user's queries; if None, first words of clean documents
    queries_from: str  # source of the user's queries
    run_identity: str
    vectors: StoredVectors | None  # the vectors of the documents, if an index has them already
    note: str | None  # remark on a declared similarity other than the cosine; None for the cosine


def _effect_request(run: Run, options: ScanOptions, kind: Effect, encoder: AnyModel | None) -> _EffectRequest:
    """Load the model and the queries, and return everything needed to determine effects.

    Raises:
        InputError: the run lacks the measurements that a prediction needs.
    """
    token_effects = read_effects(run.path) if run.is_profile else None
    if token_effects is None and kind is Effect.PREDICTED:
        raise InputError(
            f"{run.path} is a run of the method {run.record.method}, which does not measure what a "
            "prediction needs: detect with --method profile, or measure the effects"
        )
    queries: tuple[str, ...] | None = None
    queries_from = ""
    if options.queries is not None:
        sentences = load_sentences(options.queries)
        queries = sentences.sample(min(len(sentences), _QUERIES_KEPT), _QUERIES_SEED)
        queries_from = sentences.source
    loaded = encoder_for(encoder, run, "scan")
    similarity = similarity_of(loaded)
    note = None
    if similarity is not Similarity.COSINE:
        note = f"effects are changes of the cosine similarity; the model declares {similarity.value}"
    return _EffectRequest(
        kind=kind,
        encoder=as_id_reader(loaded, "an effect"),
        token_effects=token_effects,
        queries=queries,
        queries_from=queries_from,
        run_identity=run.record.identity,
        vectors=None if options.vectors is None else open_vectors(options.vectors),
        note=note,
    )


@dataclass(frozen=True)
class _ScanJob:
    """A scan of a collection in progress."""

    record: ScanRecord
    collection: Documents
    rules: CleaningRules
    workers: int
    effects: _EffectRequest | None
    progress: ProgressCallback
    began: float

    def run(self, keeper: Keeper, folder: store.ResultFolder | None) -> Scan:
        """Search all documents, and determine the effects of copies if they were requested.

        Args:
            keeper: stores the findings of each batch.
            folder: folder of the scan; None if nothing is written.

        Returns:
            The finished scan, whose record and table the caller writes to the folder.

        Raises:
            InputError: there is no readable document.
        """
        tally = _passes.search(
            self.collection,
            self.rules,
            keeper,
            workers=self.workers,
            sampled=0 if self.effects is None else _passes.QUERIES + _passes.REFERENCE,
            progress=self.progress,
        )
        if not tally.documents:
            raise self._no_documents(tally)
        effect_pass = None
        unread = 0
        notes: tuple[str, ...] = ()
        if self.effects is not None and tally.rows:
            effect_pass = self._effect_pass(self.effects, tally, keeper)
            unread = effect_pass.run(tally, self.progress)
            confirm_answers(self.effects.encoder)
            notes = () if self.effects.note is None else (self.effects.note,)
        documents = _documents(keeper, tally, effect_pass)
        seconds = time.perf_counter() - self.began if folder is None else folder.seconds
        result = _totals(tally, documents, effect_pass, unread, round(seconds, 1))
        path = None if folder is None else folder.path
        return Scan(self.record.model_copy(update={"result": result}), result, documents, path, notes)

    def _effect_pass(self, request: _EffectRequest, tally: Tally, keeper: Keeper) -> EffectPass:
        sample = list(tally.sample.values())
        if request.vectors is not None:
            request.vectors.require_rows(tally.documents + tally.skipped)
            request.vectors.of(sample)  # also of documents whose words are queries, which need none
        texts = _passes.panel_texts(sample, request.queries, request.queries_from, self.collection.name)
        return EffectPass(
            kind=request.kind,
            encoder=request.encoder,
            effects=request.token_effects,
            panel_texts=texts,
            identity=request.run_identity,
            keeper=keeper,
            vectors=request.vectors,
        )

    def _no_documents(self, tally: Tally) -> InputError:
        if not tally.skipped_first:
            return InputError(f"{self.collection.name} is empty: pass documents")
        first = tally.skipped_first[0]
        return InputError(
            f"{self.collection.name} has no readable document: {skipped_records(tally.skipped)}, the first "
            f"of them {first.place} ({first.reason})"
        )


def default_out(
    origin: RulesOrigin, documents: DocumentSource, options: ScanOptions, rules: CleaningRules
) -> Path | None:
    """Return the path at which a scan is stored in the run folder by default; None without a run."""
    if origin.run is None:
        return None
    collection = open_documents(documents, options)
    identity = digest(_identity(origin, rules, collection, options))
    return origin.run.path / store.folder_name(SCAN, identity)


def _identity(
    origin: RulesOrigin, rules: CleaningRules, collection: Documents, options: ScanOptions
) -> dict[str, object]:
    return {
        "version": _IDENTITY_VERSION,
        "run": origin.run_identity,
        "rules": digest(rules.to_json()),
        "documents": collection.key,
        "columns": [*astuple(options.text), options.id_column, options.source_column],
    }


def _documents(keeper: Keeper, tally: Tally, effects: EffectPass | None) -> pl.DataFrame:
    """Return the table of documents with findings from all batches, with effects if there are any."""
    rows = []
    for index, batch in enumerate(tally.digests):
        effect_columns = None if effects is None else effects.columns(index, batch)
        for index_in_batch, finding in enumerate(keeper.findings(index, batch)):
            row = dict(finding)
            row["words"] = [
                {"text": text, "kind": kind, "copies": copies} for text, kind, copies in finding["words"]
            ]
            row["excerpt"] = [{"text": text, "found": marked} for text, marked in finding["excerpt"]]
            if effect_columns is not None:
                row |= {name: effect_columns[name][index_in_batch] for name in _passes.COLUMNS}
            rows.append({name: row.get(name) for name in SCHEMA})
    table = pl.DataFrame(rows, schema=SCHEMA)
    if effects is None:
        return table
    shift = table["shift" if effects.kind is Effect.MEASURED else "predicted"]
    effect = shift / effects.panel.spread
    severity = pl.Series([_grade_of(value) for value in effect.to_list()], dtype=pl.String)
    return table.with_columns(effect=effect, severity=severity, matters=effect >= _SERIOUS_SHIFT)


# Minimum shifts of a severe, a serious and a mild effect, in standard deviations of the similarities: a
# large, a medium and half a medium effect (Cohen 1988).
_SEVERE_SHIFT = 0.8
_SERIOUS_SHIFT = 0.5
_MILD_SHIFT = 0.25
# Which effects the `matters` column counts, in words.
SERIOUS_EFFECT = f"{_SERIOUS_SHIFT:g} SD or more"


def _grade_of(shift: float | None) -> Severity | None:
    if shift is None or math.isnan(shift) or shift < _MILD_SHIFT:
        return None
    if shift < _SERIOUS_SHIFT:
        return Severity.MILD
    return Severity.SERIOUS if shift < _SEVERE_SHIFT else Severity.SEVERE


# Minimum number of documents for a rank correlation between predicted and measured shifts.
_FEWEST_RANKED = 10
# Maximum number of sources that the result lists.
_LISTED_SOURCES = 100


def _totals(
    tally: Tally, documents: pl.DataFrame, effects: EffectPass | None, unread: int, seconds: float
) -> ScanResultRecord:
    return ScanResultRecord(
        documents=tally.documents,
        found=tally.found,
        suspected=tally.suspected,
        matter=None if effects is None else int(documents["matters"].sum()),
        skipped=tally.skipped,
        skipped_first=tally.skipped_first,
        columns=tally.meter.columns,
        unread_columns=tally.meter.unread,
        reading=tally.meter.summary(),
        kinds=dict(tally.kinds.most_common()),
        sources=_sources(tally, documents, has_effects=effects is not None),
        effect=None if effects is None else _effect_record(documents, effects, unread),
        seconds=seconds,
    )


def _effect_record(documents: pl.DataFrame, effects: EffectPass, unread: int) -> EffectRecord:
    """Return a record that describes how the effects were determined."""
    with_both_shifts = documents.select("shift", "predicted").drop_nulls()
    is_measured = effects.kind is Effect.MEASURED
    agreement = None
    if is_measured and len(with_both_shifts) >= _FEWEST_RANKED:
        correlation = pl.corr("shift", "predicted", method="spearman").fill_nan(None)
        agreement = with_both_shifts.select(correlation).item()
    # An effect is unknown for one of two reasons: the model reads more of the document than was kept, or
    # nothing is left of it without its copies.
    unknown_effects = documents["effect"].null_count()
    return EffectRecord(
        kind=effects.kind.value,
        queries=len(effects.panel_texts.queries),
        queries_from=effects.panel_texts.queries_from,
        reference=len(effects.panel_texts.reference),
        spread=effects.panel.spread,
        agreement=agreement,
        compared=len(with_both_shifts) if is_measured else 0,
        nothing_left=unknown_effects - unread,
        unread=unread,
        prompts=prompts_of(effects.encoder),
    )


def _sources(tally: Tally, documents: pl.DataFrame, *, has_effects: bool) -> list[SourceRecord]:
    """Return the document counts of each source, starting with the source with the most findings.

    The list is empty if no document has a source, or if there were too many sources to count.
    """
    if tally.sources is None or set(tally.sources) <= {None}:
        return []
    found = Counter(documents.filter(~is_only_suspected())["source"])
    matter = Counter(documents.filter("matters")["source"])
    sources = [
        SourceRecord(
            source=source,
            documents=count,
            found=found[source],
            matter=matter[source] if has_effects else None,
        )
        for source, count in tally.sources.items()
    ]
    sources.sort(key=lambda row: (-row.found, -row.documents, row.source or ""))
    return sources[:_LISTED_SOURCES]


def basis(scan: Scan) -> str | None:
    """Return sentences that explain the effect columns; None if effects were not determined."""
    effect = scan.result.effect
    if effect is None:
        return None
    sentences = (
        f"The effect is the {effect.kind} mean change that copies cause in a document's cosine similarity to "
        f"{effect.queries} queries ({effect.queries_from}). 1 SD is the standard deviation of the "
        f"similarities between these queries and documents without findings ({effect.spread:.4f})."
    )
    if effect.kind == Effect.MEASURED:
        sentences += (
            " A document moves up for a query if its copies lift it past at least a tenth of the documents "
            "without findings; the table gives the share of such queries."
        )
    if effect.unread:
        documents = counted(effect.unread, "document", "documents")
        sentences += (
            f" The effect on {documents} was not measured: a scan keeps {KEPT_TEXT:,} characters, and the "
            "model reads more."
        )
    return (
        f"{sentences} A mean over all queries does not say whether a document enters their first results: "
        "`stickytoken audit` finds that out."
    )


def headline(scan: Scan) -> str:
    """Return a sentence that says how many documents have findings of which kinds.

    If effects were determined, the sentence also counts the documents with a serious or severe effect.
    """
    result = scan.result
    found, causes = document_counts(result.found, result.documents, certain_kinds(result.kinds))
    verb = "has" if result.found <= 1 else "have"
    sentence = f"{found} {verb} findings{causes if result.found else ''}"
    if result.suspected:
        more = " more" if result.found else ""
        verb = "is" if result.suspected == 1 else "are"
        sentence += f"; {result.suspected:,}{more} {verb} only suspected"
    if result.matter is None or result.effect is None:
        return sentence
    verb = "raise" if result.effect.kind == Effect.MEASURED else "are predicted to raise"
    shift = f"the mean similarity to the queries by {SERIOUS_EFFECT}"
    return f"{sentence}; in {result.matter:,} of these, copies {verb} {shift}"


def certain_kinds(kinds: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of documents by kind of finding, without suspected copies."""
    return {kind: count for kind, count in kinds.items() if kind != SpanKind.SUSPECTED}


def skipped_records(count: int) -> str:
    """Return a phrase with the number of skipped records, such as "3 records were skipped"."""
    return counted(count, "record was skipped", "records were skipped")


_COPIES = "document-copies"
_SPECIAL = "document-special-token"
_REPEATED = "document-repetition"
_SUSPECTED = "document-suspected"

RULES = (
    Rule(
        _COPIES,
        "No document repeats a sticky token",
        "Copies of a sticky token change the similarities of a document, whatever its content. Remove the "
        "copies with `stickytoken clean`, or leave the document out of the index.",
        Level.ERROR,
    ),
    Rule(
        _SPECIAL,
        "No document contains the text of a special token",
        "A tokenizer may read this text as a control token, and some servers fail on it. Remove it with "
        "`stickytoken clean`.",
        Level.WARNING,
    ),
    Rule(
        _REPEATED,
        "No document repeats a word or phrase beyond what ordinary text does",
        "Many copies of any word move a document toward it. Check whether the repetition belongs there.",
        Level.WARNING,
    ),
    Rule(
        _SUSPECTED,
        "No document seems to have copies of a word among other words",
        "Copies seem to have been inserted into this text, but ordinary text may look like this too. Check "
        "the document; `stickytoken clean --unsafe-fixes` removes the copies.",
        Level.NOTE,
    ),
)
_RULE_OF = {
    SpanKind.FLAGGED: _COPIES,
    SpanKind.SPECIAL: _SPECIAL,
    SpanKind.REPETITION: _REPEATED,
    SpanKind.SUSPECTED: _SUSPECTED,
}
_KIND_OF = {rule: kind for kind, rule in _RULE_OF.items()}
_LEVELS = {rule.id: rule.level for rule in RULES}
_PROPERTIES = ("number", "source", "copies", "share", "effect", "severity")


def cause_of(finding: Finding) -> str:
    """Return the cause of a finding in a document, in words, such as ``flagged token``."""
    return _KIND_OF[finding.rule].cause


def with_kinds(scan: Scan, kinds: Collection[str]) -> pl.DataFrame:
    """Return the documents that have a finding of one of these kinds."""
    return scan.documents.filter(pl.col("kinds").list.set_intersection(list(kinds)).list.len() > 0)


def counts_by_kind(documents: pl.DataFrame, kinds: Collection[str]) -> dict[str, int]:
    """Return how many documents have findings of each kind."""
    counts = Counter(kind for row in documents["kinds"].to_list() for kind in row)
    return {kind: counts[kind] for kind in SpanKind if kind in kinds and counts[kind]}


def add_known(scan: Scan, path: Path) -> int:
    """Add the documents with findings to a file of known documents, and return how many were new.

    Raises:
        RunError: The file cannot be written.
    """
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    digests = {line.split(" ", 1)[0] for line in lines}
    new_lines = []
    for row in scan.documents.iter_rows(named=True):
        if row["digest"] not in digests:
            digests.add(row["digest"])
            new_lines.append(
                format_known_line(row["digest"], row["id"], [word["text"] for word in row["words"]])
            )
    store.write_atomically(path, "".join(f"{line}\n" for line in [*lines, *new_lines]).encode())
    return len(new_lines)


def scan_findings(scan: Scan, failing_kinds: Collection[str] = (SpanKind.FLAGGED,)) -> Iterator[Finding]:
    """Yield one finding per document, the worst document first.

    A document with findings of several kinds is reported under a single kind. In the order of `SpanKind`,
    this is the first kind that is in ``failing_kinds``; if none of the document's kinds is in
    ``failing_kinds``, the document is reported under the first of its kinds.

    Args:
        scan: a finished scan.
        failing_kinds: kinds of findings that are reported as errors, unless the effect of the copies is known
            to be small.
    """
    for row in scan.worst.iter_rows(named=True):
        kinds = [kind for kind in SpanKind if kind in row["kinds"]]
        failing = [kind for kind in kinds if kind in failing_kinds]
        rule = _RULE_OF[failing[0] if failing else kinds[0]]
        level = Level.ERROR if failing else _LEVELS[rule]
        # `matters` is None if the effect is unknown.
        is_effect_small = row["matters"] is False
        # A document in a file has either a path in the repository or a place outside the repository.
        path = outside = None
        if row["path"] is not None:
            path, outside = place_of(Path(row["path"]))
        elif scan.record.documents == STDIN_COLLECTION:
            outside = STDIN_NAME
        yield Finding(
            rule=rule,
            level=Level.NOTE if is_effect_small else level,
            message=f"document {row['id']}: {described(row, _KIND_OF[rule])}",
            path=path,
            outside=outside,
            line=row["line"],
            identity=(scan.record.model, row["id"], *(word["text"] for word in row["words"])),
            properties={name: row[name] for name in _PROPERTIES if row[name] is not None},
        )


# Maximum number of words that the description of a document names.
_NAMED_WORDS = 3


def described(row: Mapping[str, Any], kind: SpanKind) -> str:
    """Describe the findings of a document: words with numbers of copies, share of the text, and effect.

    Args:
        row: A row of `Scan.documents`.
        kind: The kind of the findings whose words are named.
    """
    words = [word for word in row["words"] if word["kind"] == kind] or row["words"]
    description = ", ".join(
        f"{word['text']!r} \N{MULTIPLICATION SIGN} {word['copies']}" for word in words[:_NAMED_WORDS]
    )
    if len(words) > _NAMED_WORDS:
        description += f" and {len(words) - _NAMED_WORDS} more"
    description += f" ({row['share']:.0%} of the text)"
    if row["effect"] is not None:
        description += f"; effect {row['effect']:+.2f} SD"
    if row["severity"] is not None:
        description += f", {row['severity']}"
    return description


def incomplete(scan: Scan) -> list[str]:
    """Return the reasons why a scan may have missed documents; empty if it read all of them."""
    if not scan.result.skipped:
        return []
    first = scan.result.skipped_first[0]
    return [f"{skipped_records(scan.result.skipped)}, the first of them {first.place}: {first.reason}"]
