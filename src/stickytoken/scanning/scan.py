"""Scan documents for copies of a run's tokens."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from stickytoken.cleaning.rules import CleaningRules, rules_of_run
from stickytoken.data import load_sentences
from stickytoken.data.corpora import SentenceSource
from stickytoken.data.documents import Collection, DocumentSource, Wanted, open_documents
from stickytoken.detection.run import Run, encoder_for, open_run
from stickytoken.encoders.loading.load import AnyModel
from stickytoken.encoders.text_encoder import as_id_reader
from stickytoken.errors import InputError
from stickytoken.machine import available_cores, digest
from stickytoken.measurement.engine import ProgressCallback, ignore_progress
from stickytoken.measurement.resume import now, package_versions, resumed
from stickytoken.measurement.store import ResultFolder, folder_name
from stickytoken.methods.entry import SEVERITY_BOUNDS, Severity, severity_of
from stickytoken.scanning import _passes, results
from stickytoken.scanning._passes import Effect, EffectPass, Keeper, Tally
from stickytoken.scanning.results import Scan, ScanRecord, ScanResultRecord
from stickytoken.validation import file_path, require_callable, shown, whole_number

_IDENTITY_VERSION = 1
_SEED = 42
_MOST_QUERIES = 500
_SOURCES = 100
_LEAST_COMPARED = 10


@dataclass(frozen=True, slots=True)
class ScanOptions:
    column: str | None = None  # with the text; None finds it by name
    id_column: str | None = None
    source_column: str | None = None
    effect: Effect | None = None
    queries: SentenceSource | None = None  # for effects; None takes the first words of clean documents
    workers: int | None = None  # processes; None takes one per core

    def __post_init__(self) -> None:
        if self.effect is not None:
            if self.effect not in tuple(Effect):
                raise InputError(f"effect is {shown(self.effect)}: use one of {', '.join(Effect)}, or None")
            object.__setattr__(self, "effect", Effect(self.effect))
        elif self.queries is not None:
            raise InputError("queries are given, but no effect that is compared with them: set effect too")
        workers = available_cores() if self.workers is None else whole_number("workers", self.workers, 1)
        object.__setattr__(self, "workers", workers)

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.column, self.id_column, self.source_column)


def scan(
    run: Run | str | Path,
    documents: DocumentSource,
    *,
    encoder: AnyModel | None = None,
    out: str | Path | None = None,
    progress: ProgressCallback = ignore_progress,
    **options: object,
) -> pl.DataFrame:
    """Find the documents that have copies of flagged tokens, text of special tokens, or runs.

    See `scan_documents`, which also returns the totals, for the arguments.

    Returns:
        One row per document with findings; see `Scan.documents`.
    """
    return scan_documents(run, documents, encoder=encoder, out=out, progress=progress, **options).documents


def scan_documents(
    run: Run | str | Path,
    documents: DocumentSource,
    *,
    encoder: AnyModel | None = None,
    out: str | Path | None = None,
    progress: ProgressCallback = ignore_progress,
    **options: object,
) -> Scan:
    require_callable("progress", progress)
    try:
        chosen = ScanOptions(**options)  # type: ignore[arg-type]
    except TypeError as error:
        raise InputError(f"{str(error).removeprefix('ScanOptions.__init__() ')}: see ScanOptions") from None
    opened = open_run(run)
    collection = open_documents(documents, chosen.wanted)
    rules = rules_of_run(opened)
    parts = _identity(opened, rules, collection, chosen)
    record = ScanRecord(
        schema_version=results.SCAN_SCHEMA_VERSION,
        identity=digest(parts),
        identity_parts=parts,
        model=opened.model_name,
        run=str(opened.path),
        documents=collection.name,
        rules=rules.to_json(),
        started=now(),
        versions=package_versions(),
    )
    encoding = None
    queries: tuple[tuple[str, ...] | None, str] = None, ""
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
            queries = own.sample(min(len(own), _MOST_QUERIES), _SEED), own.source
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
                f"{collection.name} has no readable document: {results.skipped_records(tally.skipped)}, the "
                f"first of them {first.place} ({first.reason})"
            )
        if not tally.documents:
            raise InputError(f"{collection.name} is empty: pass documents")
        work = spread = None
        if chosen.effect is not None and encoding is not None and tally.found:
            texts = _passes.panel_texts(tally.sample, *queries, collection.name)
            identity = opened.record.identity
            work = EffectPass(chosen.effect, encoding, effects, texts, identity, keeper, progress)
            spread = work.run(tally)
        found = _documents(keeper, tally, work, spread)
        result = _totals(tally, found, work, spread, round(time.perf_counter() - started, 1))
        return Scan(record.model_copy(update={"result": result}), result, found, path)

    if out is None:
        return compute(Keeper(), None)
    folder = ResultFolder(file_path("out", out))
    with resumed(folder, results.SCANS, record) as held:
        # Documents that cannot be read must not claim the folder.
        found = compute(Keeper(folder, lambda: held.begin(record)), folder.path)
        folder.write_table(results.DOCUMENTS_FILE, found.documents)
        held.finish(found.record)
        return found


def default_out(run: Run, documents: DocumentSource, options: ScanOptions) -> Path:
    collection = open_documents(documents, options.wanted)
    return run.path / folder_name(
        results.SCAN, digest(_identity(run, rules_of_run(run), collection, options))
    )


def _identity(
    run: Run, rules: CleaningRules, collection: Collection, options: ScanOptions
) -> dict[str, object]:
    """What tells scans apart, but for the documents themselves: each batch has a digest of its own."""
    return {
        "version": _IDENTITY_VERSION,
        "run": run.record.identity,
        "rules": digest(rules.to_json()),
        "documents": collection.key,
        "columns": [options.column, options.id_column, options.source_column],
    }


def _documents(
    keeper: Keeper, tally: Tally, effects: EffectPass | None, spread: float | None
) -> pl.DataFrame:
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
            rows.append({name: row.get(name) for name in results.SCHEMA})
    table = pl.DataFrame(rows, schema=results.SCHEMA)
    if effects is None or spread is None:
        return table
    shift = table["shift" if effects.kind is Effect.MEASURED else "predicted"]
    grades = [None if np.isnan(each) else severity_of(each) for each in (shift / spread).to_numpy()]
    return table.with_columns(
        effect=shift / spread, severity=pl.Series(grades, dtype=pl.String)
    ).with_columns(matters=pl.col("effect") >= SEVERITY_BOUNDS[Severity.SERIOUS])


def _totals(
    tally: Tally, documents: pl.DataFrame, effects: EffectPass | None, spread: float | None, seconds: float
) -> ScanResultRecord:
    effect = None
    if effects is not None and spread is not None:
        both = documents.select("shift", "predicted").drop_nulls()
        measured = effects.kind is Effect.MEASURED
        agreement = None
        if measured and len(both) >= _LEAST_COMPARED:
            agreement = both.select(pl.corr("shift", "predicted", method="spearman").fill_nan(None)).item()
        effect = results.EffectRecord(
            kind=effects.kind.value,
            queries=len(effects.texts.queries),
            queries_from=effects.texts.source,
            reference=len(effects.texts.reference),
            spread=spread,
            agreement=agreement,
            compared=len(both) if measured else 0,
            nothing_left=documents["effect"].null_count(),
        )
    skipped = [results.SkippedRecord(place=each.place, reason=each.reason) for each in tally.skipped_first]
    # The sources with the most findings; none where no document names one.
    sources = []
    if tally.sources is not None and not set(tally.sources) <= {None}:
        counted = documents.group_by("source").agg(pl.len(), pl.col("matters").sum())
        by_source = {source: (count, matter) for source, count, matter in counted.iter_rows()}
        for source, count in tally.sources.items():
            found, matter = by_source.get(source, (0, 0))
            shown = None if effect is None else matter
            sources.append(results.SourceRecord(source=source, documents=count, found=found, matter=shown))
        sources.sort(key=lambda row: (-row.found, -row.documents, row.source or ""))
    return ScanResultRecord(
        documents=tally.documents,
        found=tally.found,
        matter=None if effect is None else int(documents["matters"].sum()),
        skipped=tally.skipped,
        skipped_first=skipped,
        kinds=dict(tally.kinds.most_common()),
        sources=sources[:_SOURCES],
        effect=effect,
        seconds=seconds,
    )
