"""Scan documents for copies of a run's tokens, and say in words what a finished scan found."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

import stickytoken.measurement as store
from stickytoken.cleaning import document_counts
from stickytoken.cleaning.rules import CleaningRules, rules_of_run
from stickytoken.cleaning.spans import EARLIER_NAMES, SpanKind, kind_of
from stickytoken.data import SentenceSource, load_sentences
from stickytoken.data.documents import (
    STDIN_COLLECTION,
    Collection as Documents,
    DocumentSource,
    NamedColumns,
    Skipped,
    open_documents,
)
from stickytoken.detection.run import Run, encoder_for, open_run
from stickytoken.encoders.loading import AnyModel
from stickytoken.encoders.text_encoder import as_id_reader
from stickytoken.errors import InputError, RunError
from stickytoken.findings import STDIN_NAME, Finding, Level, Rule, place_of
from stickytoken.machine import available_cores, digest
from stickytoken.measurement import resume
from stickytoken.measurement.engine import ProgressCallback, ignore_progress
from stickytoken.methods import Severity, wording
from stickytoken.scanning import _passes
from stickytoken.scanning._passes import Effect, EffectPass, Keeper, Tally
from stickytoken.validation import file_path, require_callable, set_choices, whole_number

SCAN = "scan"
SCAN_SCHEMA_VERSION = 2
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


class SourceRecord(resume.Record):
    source: str | None
    documents: int
    found: int
    matter: int | None = Field(description="null without effects")


class EffectRecord(resume.Record):
    kind: str = Field(description="measured or predicted")
    queries: int
    queries_from: str
    reference: int = Field(description="clean documents that ranks and spread rest on")
    spread: float = Field(description="standard deviation of the similarities of queries and clean documents")
    agreement: float | None = Field(description="Spearman correlation of predicted and measured shifts")
    compared: int = Field(description="documents that have both")
    nothing_left: int = Field(description="documents that consist of copies only, and have no effect")


class ScanResultRecord(resume.Record):
    documents: int
    found: int = Field(description="documents with findings, which clean changes")
    suspected: int = Field(0, description="documents with suspected copies and no other finding")
    matter: int | None = Field(
        description="documents that copies lift by half a spread or more; null without effects"
    )
    skipped: int
    skipped_first: list[Skipped]
    kinds: dict[str, int] = Field(description="documents by kind of finding")
    sources: list[SourceRecord] = Field(description="those with the most findings; empty without sources")
    effect: EffectRecord | None
    seconds: float


class ScanRecord(resume.MeasurementRecord):
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
    the collection, from 0), id, source, path, line, kinds (of findings: flagged, special, repetition or
    suspected; ``clean`` changes those with another kind than the last), words (what was found, with copies),
    spans, copies, longest_run, share (of its characters), excerpt. With effects: shift (mean change of its
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
        """The documents by effect; those without one by their share of copies, suspected copies last."""
        order = [pl.col("effect"), ~is_only_suspected(), pl.col("share"), pl.col("number")]
        return self.documents.sort(order, descending=[True, True, True, False], nulls_last=True)

    def summary(self) -> dict[str, Any]:
        return {
            "scan": None if self.path is None else str(self.path),
            "run": self.record.run,
            "model": self.record.model,
            "collection": self.record.documents,
            **self.result.model_dump(),
        }


def is_only_suspected() -> pl.Expr:
    """Return which documents have suspected copies and no other finding."""
    kinds = pl.col("kinds")
    return (kinds.list.len() == 1) & kinds.list.contains(SpanKind.SUSPECTED.value)


def open_scan(path: str | Path) -> Scan:
    folder = store.ResultFolder(file_path("the scan", path))
    record = _read_record(folder) if folder.exists() else None
    if record is None:
        raise RunError(f"there is no scan in {str(folder.path)!r}: it has no {_SCAN_FILE}")
    if record.result is None:
        raise RunError(
            f"the scan in {folder.path} is not finished: run the same command again to continue it"
        )
    documents = folder.read_table(DOCUMENTS_FILE, SCHEMA, _FILLED)
    result = record.result
    if record.schema_version == 1:
        documents, result = _upgraded(documents, result)
    return Scan(record, result, documents, folder.path)


def _upgraded(documents: pl.DataFrame, result: ScanResultRecord) -> tuple[pl.DataFrame, ScanResultRecord]:
    """Give kinds of findings of the first version today's names, and count what is only suspected apart."""
    documents = documents.with_columns(
        pl.col("kinds").list.eval(
            pl.element().replace({old: kind.value for old, kind in EARLIER_NAMES.items()})
        )
    )
    suspected = documents.filter(is_only_suspected()).height
    kinds = {kind_of(name).value: count for name, count in result.kinds.items()}
    update = {"found": result.found - suspected, "suspected": suspected, "kinds": kinds}
    return documents, result.model_copy(update=update)


def _read_record(folder: store.ResultFolder) -> ScanRecord | None:
    return folder.read_record(_SCAN_FILE, ScanRecord, SCAN_SCHEMA_VERSION)


# A collection may have changed since it was scanned: no scan is finished before its documents are read.
SCANS: resume.MeasurementKind[ScanRecord] = resume.MeasurementKind(
    "scan", _SCAN_FILE, _read_record, lambda record, folder: False
)


def scans_in(run: Path) -> tuple[tuple[Scan, ...], tuple[str, ...]]:
    pattern = f"{SCAN}-*/{_SCAN_FILE}"
    return resume.measurements_in(run, pattern, open_scan, "A scan", lambda scan: scan.record.started)


# Of a user's own queries so many are used, drawn with this seed.
_QUERIES_KEPT = 500
_QUERIES_SEED = 42

# It is raised when the same documents would be found otherwise, or findings are called otherwise.
_IDENTITY_VERSION = 2


@dataclass(frozen=True, slots=True)
class ScanOptions(NamedColumns):
    effect: Effect | None = None
    queries: SentenceSource | None = None  # for effects; None takes the first words of clean documents
    workers: int | None = None  # processes; None takes one per core

    def __post_init__(self) -> None:
        if self.effect is not None:
            set_choices(self, {"effect": Effect})
        elif self.queries is not None:
            raise InputError("queries are given, but no effect that is compared with them: set effect too")
        workers = available_cores() if self.workers is None else whole_number("workers", self.workers, 1)
        object.__setattr__(self, "workers", workers)


def scan(  # noqa: PLR0913 - all of them keyword-only, one decision each
    run: Run | str | Path,
    documents: DocumentSource,
    *,
    column: str | None = None,
    id_column: str | None = None,
    source_column: str | None = None,
    effect: Effect | str | None = None,
    queries: SentenceSource | None = None,
    workers: int | None = None,
    encoder: AnyModel | None = None,
    out: str | Path | None = None,
    progress: ProgressCallback = ignore_progress,
) -> pl.DataFrame:
    """Find the documents that have copies of flagged tokens, text of special tokens, or repetitions.

    Args:
        run: A finished run, or its folder.
        documents: Texts or rows of a table, a file or folder, ``hub:REPOSITORY``, or ``-`` for stdin.
        column: Column with the text. None finds it by name, and so the others.
        id_column: Column with the id.
        source_column: Column with the source of a document.
        effect: ``measured`` encodes each document with findings with the copies and without; ``predicted``
            encodes it as it is and computes the rest from the run. None measures no effects.
        queries: Texts that effects are measured on. None takes the first words of clean documents.
        workers: Number of processes. None takes one per core.
        encoder: The model of the run, for effects. None loads it.
        out: Folder for the scan, in which an interrupted one continues. None writes nothing.
        progress: Told of every step.

    Returns:
        One row per document with findings; see `Scan.documents`.

    Raises:
        InputError: The documents cannot be read, or an option cannot be used.
        ModelError: The model cannot be found or used.
        RunError: The run is damaged or not finished, or the folder contains something else.
    """
    found = scan_documents(
        run,
        documents,
        column=column,
        id_column=id_column,
        source_column=source_column,
        effect=effect,
        queries=queries,
        workers=workers,
        encoder=encoder,
        out=out,
        progress=progress,
    )
    return found.documents


def scan_documents(  # noqa: PLR0913 - as `scan`
    run: Run | str | Path,
    documents: DocumentSource,
    *,
    column: str | None = None,
    id_column: str | None = None,
    source_column: str | None = None,
    effect: Effect | str | None = None,
    queries: SentenceSource | None = None,
    workers: int | None = None,
    encoder: AnyModel | None = None,
    out: str | Path | None = None,
    progress: ProgressCallback = ignore_progress,
) -> Scan:
    """Find documents as `scan` does, and return them with the totals."""
    require_callable("progress", progress)
    chosen = ScanOptions(
        column=column,
        id_column=id_column,
        source_column=source_column,
        effect=effect,  # type: ignore[arg-type]  # a text becomes a member
        queries=queries,
        workers=workers,
    )
    opened = open_run(run)
    collection = open_documents(documents, chosen)
    rules = rules_of_run(opened)
    parts = _identity(opened, rules, collection, chosen)
    record = ScanRecord(
        schema_version=SCAN_SCHEMA_VERSION,
        identity=digest(parts),
        identity_parts=parts,
        model=opened.model_name,
        run=str(opened.path),
        documents=collection.name,
        rules=rules.to_json(),
        started=resume.now(),
        versions=resume.package_versions(),
    )
    encoding = None
    own_queries: tuple[str, ...] | None = None
    queries_from = ""
    effects = opened.method.token_effects(opened) if chosen.effect is not None else None
    # What effects need is loaded before anything is scanned.
    if chosen.effect is not None:
        if effects is None and chosen.effect is Effect.PREDICTED:
            raise InputError(
                f"{opened.path} is a run of the method {opened.record.method}, which does not measure what a "
                "prediction needs: detect with --method profile, or measure the effects"
            )
        if chosen.queries is not None:
            own = load_sentences(chosen.queries)
            own_queries = own.sample(min(len(own), _QUERIES_KEPT), _QUERIES_SEED)
            queries_from = own.source
        encoding = as_id_reader(encoder_for(encoder, opened, "scan"), "an effect")

    def compute(keeper: Keeper, path: Path | None) -> Scan:
        started = time.perf_counter()
        tally = _passes.search(
            collection,
            rules,
            keeper,
            workers=chosen.workers or 1,
            sampled=0 if encoding is None else _passes.QUERIES + _passes.REFERENCE,
            progress=progress,
        )
        if not tally.documents and tally.skipped_first:
            first = tally.skipped_first[0]
            raise InputError(
                f"{collection.name} has no readable document: {skipped_records(tally.skipped)}, the "
                f"first of them {first.place} ({first.reason})"
            )
        if not tally.documents:
            raise InputError(f"{collection.name} is empty: pass documents")
        work = None
        if chosen.effect is not None and encoding is not None and tally.rows:
            drawn = list(tally.drawn.values())
            texts = _passes.panel_texts(drawn, own_queries, queries_from, collection.name)
            work = EffectPass(chosen.effect, encoding, effects, *texts, opened.record.identity, keeper)
            work.run(tally, progress)
        found = _documents(keeper, tally, work)
        result = _totals(tally, found, work, round(time.perf_counter() - started, 1))
        return Scan(record.model_copy(update={"result": result}), result, found, path)

    if out is None:
        return compute(Keeper(), None)
    folder = store.ResultFolder(file_path("out", out))
    with resume.resumed(folder, SCANS, record) as held:
        # Documents that cannot be read must not claim the folder.
        found = compute(Keeper(folder, lambda: held.begin(record)), folder.path)
        folder.write_table(DOCUMENTS_FILE, found.documents)
        held.finish(found.record)
        return found


def default_out(run: Run, documents: DocumentSource, options: ScanOptions) -> Path:
    collection = open_documents(documents, options)
    return run.path / store.folder_name(SCAN, digest(_identity(run, rules_of_run(run), collection, options)))


def _identity(
    run: Run, rules: CleaningRules, collection: Documents, options: ScanOptions
) -> dict[str, object]:
    # The content of documents is no part of it: each batch has a digest of its own.
    return {
        "version": _IDENTITY_VERSION,
        "run": run.record.identity,
        "rules": digest(rules.to_json()),
        "documents": collection.key,
        "columns": [options.column, options.id_column, options.source_column],
    }


def _documents(keeper: Keeper, tally: Tally, effects: EffectPass | None) -> pl.DataFrame:
    rows = []
    for index, batch in enumerate(tally.digests):
        columns = None if effects is None else effects.columns(index, batch)
        for place, each in enumerate(keeper.found(index, batch)):
            lists = {
                "words": [{"text": text, "copies": copies} for text, copies in each["words"]],
                "excerpt": [{"text": text, "found": marked} for text, marked in each["excerpt"]],
            }
            known = {} if columns is None else {name: columns[name][place] for name in _passes.COLUMNS}
            row = {**each, **lists, **known}
            rows.append({name: row.get(name) for name in SCHEMA})
    table = pl.DataFrame(rows, schema=SCHEMA)
    if effects is None:
        return table
    effect = table["shift" if effects.kind is Effect.MEASURED else "predicted"] / effects.panel.spread
    severity = pl.Series([_grade_of(shift) for shift in effect.to_list()], dtype=pl.String)
    matters = effect >= _SERIOUS_SHIFT
    return table.with_columns(effect=effect, severity=severity, matters=matters)


# Shifts of a document, in standard deviations of the similarities, from which its copies matter. They are the
# smallest lift of a sticky token, and half of it.
_SERIOUS_SHIFT = 0.5
_MILD_SHIFT = 0.25


def _grade_of(shift: float | None) -> Severity | None:
    """Grade how far copies move a document; None if it is not known, or too little to matter."""
    if shift is None or not shift >= _MILD_SHIFT:  # NaN is not
        return None
    if shift < _SERIOUS_SHIFT:
        return Severity.MILD
    return Severity.SERIOUS if shift < wording.SEVERE_LIFT else Severity.SEVERE


def _totals(
    tally: Tally, documents: pl.DataFrame, effects: EffectPass | None, seconds: float
) -> ScanResultRecord:
    effect = None
    if effects is not None:
        both = documents.select("shift", "predicted").drop_nulls()
        measured = effects.kind is Effect.MEASURED
        agreement = None
        if measured and len(both) >= 10:
            agreement = both.select(pl.corr("shift", "predicted", method="spearman").fill_nan(None)).item()
        effect = EffectRecord(
            kind=effects.kind.value,
            queries=len(effects.queries),
            queries_from=effects.queries_from,
            reference=len(effects.reference),
            spread=effects.panel.spread,
            agreement=agreement,
            compared=len(both) if measured else 0,
            nothing_left=documents["effect"].null_count(),
        )
    # The sources with the most findings; none where no document names one.
    sources = []
    if tally.sources is not None and not set(tally.sources) <= {None}:
        found = Counter(documents.filter(~is_only_suspected())["source"])
        matter = Counter(documents.filter("matters")["source"])
        for source, count in tally.sources.items():
            shown = None if effect is None else matter[source]
            row = SourceRecord(source=source, documents=count, found=found[source], matter=shown)
            sources.append(row)
        sources.sort(key=lambda row: (-row.found, -row.documents, row.source or ""))
    return ScanResultRecord(
        documents=tally.documents,
        found=tally.found,
        suspected=tally.suspected,
        matter=None if effect is None else int(documents["matters"].sum()),
        skipped=tally.skipped,
        skipped_first=tally.skipped_first,
        kinds=dict(tally.kinds.most_common()),
        sources=sources[:100],
        effect=effect,
        seconds=seconds,
    )


def basis(scan: Scan) -> str | None:
    effect = scan.result.effect
    if effect is None:
        return None
    return (
        f"effect: mean change of the similarity to {effect.queries} queries ({effect.queries_from}) that "
        f"copies cause, {effect.kind}; 1 is a standard deviation of the similarities ({effect.spread:.4f}). "
        "moves up: share of the queries for which the document passes a tenth of the clean ones"
    )


def headline(scan: Scan) -> str:
    """Say how many documents have findings, and of which causes."""
    result = scan.result
    counted, causes = document_counts(result.found, result.documents, certain_kinds(result.kinds))
    said = f"{counted} {'has' if result.found == 1 else 'have'} findings{causes}"
    if not result.found:
        said = f"{counted} has findings"
    if result.suspected:
        more = " more" if result.found else ""
        said += f"; {result.suspected:,}{more} {'is' if result.suspected == 1 else 'are'} only suspected"
    if result.matter is None or result.effect is None:
        return said
    how = "" if result.effect.kind == "measured" else ", as predicted"
    return f"{said}; {result.matter:,} of these {'matters' if result.matter == 1 else 'matter'}{how}"


def certain_kinds(kinds: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of documents by kind of finding without what is only suspected."""
    return {kind: count for kind, count in kinds.items() if kind != SpanKind.SUSPECTED}


def skipped_records(count: int) -> str:
    return "1 record was skipped" if count == 1 else f"{count:,} records were skipped"


_COPIES = "document-copies"
_SPECIAL = "document-special-token"
_REPEATED = "document-repetition"
_SUSPECTED = "document-suspected"

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
    Rule(
        _SUSPECTED,
        "No document seems to have copies of a word among other words",
        "Copies seem to have been put into this text, but ordinary text may look alike. Look at the "
        "document; `stickytoken clean --remove-suspected` takes the copies out.",
        Level.NOTE,
    ),
)
_RULE_OF = {
    SpanKind.FLAGGED: _COPIES,
    SpanKind.SPECIAL: _SPECIAL,
    SpanKind.REPETITION: _REPEATED,
    SpanKind.SUSPECTED: _SUSPECTED,
}
_LEVELS = {rule.id: rule.level for rule in RULES}
_PROPERTIES = ("number", "source", "copies", "share", "effect", "severity")


def with_kinds(scan: Scan, kinds: Collection[str]) -> pl.DataFrame:
    """Return the documents that have a finding of one of some kinds."""
    return scan.documents.filter(pl.col("kinds").list.set_intersection(list(kinds)).list.len() > 0)


def counts_by_kind(documents: pl.DataFrame, kinds: Collection[str]) -> dict[str, int]:
    """Return how many documents have findings of each kind."""
    counts = Counter(kind for row in documents["kinds"].to_list() for kind in row)
    return {kind: counts[kind] for kind in SpanKind if kind in kinds and counts[kind]}


def scan_findings(scan: Scan, closing: Collection[str] = (SpanKind.FLAGGED,)) -> Iterator[Finding]:
    """Yield one finding per document, the worst first.

    Args:
        scan: A finished scan.
        closing: The kinds that are errors. A document that has one is a finding of the first of them.
    """
    for row in scan.worst.iter_rows(named=True):
        kinds = [kind for kind in SpanKind if kind in row["kinds"]]
        errors = [kind for kind in kinds if kind in closing]
        rule = _RULE_OF[errors[0] if errors else kinds[0]]
        level = Level.ERROR if errors else _LEVELS[rule]
        path = outside = None
        if row["path"] is not None:
            path, outside = place_of(Path(row["path"]))
        elif scan.record.documents == STDIN_COLLECTION:
            outside = STDIN_NAME
        yield Finding(
            rule=rule,
            level=Level.NOTE if row["matters"] is False else level,
            message=f"document {row['id']}: {described(row)}",
            path=path,
            outside=outside,
            line=row["line"],
            identity=(scan.record.model, row["id"], *(each["text"] for each in row["words"])),
            properties={name: row[name] for name in _PROPERTIES if row[name] is not None},
        )


def described(row: Mapping[str, Any]) -> str:
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
