"""Scan documents for copies of a run's tokens."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from stickytoken.cleaning.rules import CleaningRules, rules_of_run
from stickytoken.corpora import load_sentences
from stickytoken.corpora.choice import SentenceSource
from stickytoken.detection.model_files import encoder_for
from stickytoken.detection.run import Run, open_run
from stickytoken.encoders.loading.load import AnyModel
from stickytoken.encoders.protocol import IdReader
from stickytoken.encoders.text_encoder import as_id_reader
from stickytoken.errors import InputError
from stickytoken.machine import available_cores, digest
from stickytoken.measurement.atomic import folder_name
from stickytoken.measurement.resume import now, package_versions, resumed
from stickytoken.measurement.stage import ProgressCallback, ignore_progress
from stickytoken.measurement.store import ResultFolder
from stickytoken.methods.statistics import TokenEffects
from stickytoken.scanning._effect_pass import (
    MOST_QUERIES,
    QUERIES,
    REFERENCE,
    Effect,
    EffectPass,
    Panel,
    panel_texts,
)
from stickytoken.scanning._tables import SCAN_SCHEMA_VERSION, ScanRecord, documents_table, totals
from stickytoken.scanning._token_pass import FolderKeeper, Keeper, MemoryKeeper, Tally, TokenPass
from stickytoken.scanning.documents import Collection, Wanted
from stickytoken.scanning.formats import DocumentSource, open_documents
from stickytoken.scanning.results import DOCUMENTS_FILE, SCAN, SCANS, Scan, skipped_records
from stickytoken.validation import file_path, require_callable, shown, whole_number

_IDENTITY_VERSION = 1
_SEED = 42


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """How documents are scanned.

    Attributes:
        column: The column with the text; None finds it by name.
        id_column: The column with the id.
        source_column: The column with the source.
        effect: ``measured``, ``predicted`` or None.
        queries: What effects are compared with; None takes the first words of clean documents.
        workers: Number of processes; None takes one per core.
    """

    column: str | None = None
    id_column: str | None = None
    source_column: str | None = None
    effect: Effect | None = None
    queries: SentenceSource | None = None
    workers: int | None = None

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
        """The columns."""
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
    """Scan documents for copies of flagged tokens, text of special tokens, and runs of anything.

    Documents are read as a stream. No model is needed, unless effects are asked for: they are computed only
    for documents with findings.
    """
    require_callable("progress", progress)
    try:
        chosen = ScanOptions(**options)  # type: ignore[arg-type]
    except TypeError as error:
        raise InputError(f"{str(error).removeprefix('ScanOptions.__init__() ')}: see ScanOptions") from None
    opened = open_run(run)
    collection = open_documents(documents, chosen.wanted)
    work = _Work.of(opened, collection, chosen, encoder, progress)
    record = work.record()
    if out is None:
        return work.compute(MemoryKeeper(), record, None)
    folder = ResultFolder(file_path("out", out))
    with resumed(folder, SCANS, record) as held:
        # Documents that cannot be read must not claim the folder.
        keeper = FolderKeeper(folder, lambda: held.begin(record))
        found = work.compute(keeper, record, folder.path)
        folder.write_table(DOCUMENTS_FILE, found.documents)
        held.finish(found.record)
        return found


def default_out(run: Run, documents: DocumentSource, options: ScanOptions) -> Path:
    """Return ``scan-<identity>`` in the run folder."""
    collection = open_documents(documents, options.wanted)
    return run.path / folder_name(SCAN, digest(_identity(run, rules_of_run(run), collection, options)))


@dataclass(frozen=True)
class _Work:
    """A scan that was asked for."""

    run: Run
    rules: CleaningRules
    collection: Collection
    options: ScanOptions
    encoder: IdReader | None
    effects: TokenEffects | None
    own: tuple[tuple[str, ...] | None, str]
    progress: ProgressCallback

    @classmethod
    def of(
        cls,
        run: Run,
        collection: Collection,
        options: ScanOptions,
        encoder: AnyModel | None,
        progress: ProgressCallback,
    ) -> _Work:
        """Load what effects need, before anything is scanned."""
        rules = rules_of_run(run)
        if options.effect is None:
            return cls(run, rules, collection, options, None, None, (None, ""), progress)
        effects = run.method.token_effects(run)
        if effects is None and options.effect is Effect.PREDICTED:
            raise InputError(
                f"{run.path} is a run of the method {run.record.method}, which does not measure what a "
                "prediction needs: detect with --method profile, or measure the effects"
            )
        own: tuple[tuple[str, ...] | None, str] = (None, "")
        if options.queries is not None:
            queries = load_sentences(options.queries)
            own = queries.sample(min(len(queries), MOST_QUERIES), _SEED), queries.source
        reading = as_id_reader(encoder_for(encoder, run, "scan"), "an effect")
        return cls(run, rules, collection, options, reading, effects, own, progress)

    def record(self) -> ScanRecord:
        """Return the record without results."""
        parts = _identity(self.run, self.rules, self.collection, self.options)
        return ScanRecord(
            schema_version=SCAN_SCHEMA_VERSION,
            identity=digest(parts),
            identity_parts=parts,
            model=self.run.model_name,
            run=str(self.run.path),
            documents=self.collection.name,
            rules=self.rules.to_json(),
            started=now(),
            versions=package_versions(),
        )

    def compute(self, keeper: Keeper, record: ScanRecord, path: Path | None) -> Scan:
        """Run both passes."""
        started = time.perf_counter()
        sampled = 0 if self.encoder is None else QUERIES + REFERENCE
        workers = self.options.workers or 1
        tally = TokenPass(self.rules, keeper, workers, sampled, self.progress).run(self.collection)
        self._require_documents(tally)
        effects, panel = self._effects(keeper, tally)
        spread = None if panel is None else panel.spread
        documents = documents_table(keeper, tally, effects, spread)
        seconds = round(time.perf_counter() - started, 1)
        result = totals(tally, documents, effects, spread, seconds)
        return Scan(record.model_copy(update={"result": result}), result, documents, path)

    def _effects(self, keeper: Keeper, tally: Tally) -> tuple[EffectPass | None, Panel | None]:
        if self.encoder is None or self.options.effect is None or not tally.found:
            return None, None
        texts = panel_texts(tally.sample, *self.own, self.collection.name)
        effects = EffectPass(
            self.options.effect,
            self.encoder,
            self.effects,
            texts,
            self.run.record.identity,
            keeper,
            self.progress,
        )
        return effects, effects.run(tally)

    def _require_documents(self, tally: Tally) -> None:
        if tally.documents:
            return
        name = self.collection.name
        if tally.skipped_first:
            place, reason = tally.skipped_first[0]
            raise InputError(
                f"{name} has no readable document: {skipped_records(tally.skipped)}, the first of them "
                f"{place} ({reason})"
            )
        raise InputError(f"{name} is empty: pass documents")


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
