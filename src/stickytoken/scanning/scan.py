"""Scan documents for copies of a run's flagged tokens."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import NamedTuple

import polars as pl

import stickytoken.measurement as store
from stickytoken import wall_time
from stickytoken.cleaning import Cleaner, names_rules_file, open_cleaner
from stickytoken.cleaning.rules import CleaningRules, rules_of_run
from stickytoken.data import SentenceSource
from stickytoken.data.documents import Documents, DocumentSource, NamedColumns, open_documents
from stickytoken.detection.run import Run, open_run
from stickytoken.encoders.protocol import confirm_answers
from stickytoken.errors import InputError
from stickytoken.loading import AnyModel
from stickytoken.machine import available_cores, digest
from stickytoken.measurement import resume
from stickytoken.measurement.engine import ProgressCallback, ignore_progress
from stickytoken.scanning import _effects
from stickytoken.scanning._effects import EffectPass
from stickytoken.scanning._search import Keeper, Tally, search
from stickytoken.scanning.results import (
    DOCUMENTS_FILE,
    SCAN,
    SCAN_SCHEMA_VERSION,
    SCANS,
    SCHEMA,
    Scan,
    ScanRecord,
    ScanResultRecord,
    SourceRecord,
    is_only_suspected,
)
from stickytoken.scanning.vectors import StoredVectors, VectorSource
from stickytoken.scanning.wording import count_skipped
from stickytoken.settings.reading import ColumnChoice
from stickytoken.validation import file_path, require_callable, require_switch, whole_number

# Part of a scan's identity. Increase this number when a change to the code alters or renames findings.
_IDENTITY_VERSION = 4
# Maximum number of sources that the result lists.
_LISTED_SOURCES = 100


def scan(  # noqa: PLR0913 - all of them keyword-only, one decision each
    run: Run | Cleaner | str | Path,
    documents: DocumentSource,
    *,
    column: ColumnChoice = None,
    id_column: str | None = None,
    source_column: str | None = None,
    words: Sequence[str] = (),
    allow: str | Path | None = None,
    known: str | Path | None = None,
    effect: bool = False,
    queries: SentenceSource | None = None,
    vectors: VectorSource | StoredVectors | None = None,
    workers: int | None = None,
    encoder: AnyModel | None = None,
    out: str | Path | None = None,
    in_run_folder: bool = False,
    progress: ProgressCallback = ignore_progress,
) -> Scan:
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
        words: further words whose copies are findings, such as `Audit.words`.
        allow: file of words and special tokens that are no finding, one on each line.
        known: file of documents that are no finding, as ``scan --set write-known=FILE`` writes it.
        effect: whether the effects of copies are measured. Each document with findings is then encoded twice,
            with and without the copies.
        queries: queries on which effects are measured. If None, the first words of clean documents are
            used.
        vectors: the vectors of the documents, if an index has them already, as in `stickytoken.audit`; for
            effects.
        workers: number of processes; if None, one per core.
        encoder: the model of the run, needed only for effects. If None, the model that the run names is
            loaded.
        out: folder for the scan. If the folder contains an interrupted scan, that scan is continued. If
            ``out`` is None, nothing is written.
        in_run_folder: whether the scan is written into the run folder instead, as ``scan-<identity>``, where
            `report` finds it. With rules, or if ``out`` is passed, this changes nothing.
        progress: called after every step.

    Returns:
        The scan: its totals, and one row per document with findings.

    Raises:
        InputError: the documents cannot be read, or an option cannot be used.
        ModelError: the model cannot be found or used.
        RunError: the run is damaged or not finished, or the folder contains something else.

    Examples:
        >>> scan = stickytoken.scan(run, documents)
        >>> scan.result.found
        2
        >>> scan.documents.select("id", "kinds").rows()
        [('1', ['repetition']), ('2', ['special'])]
    """
    began = wall_time.beginning()
    require_callable("progress", progress)
    require_switch("effect", effect)
    for name, value in (("queries", queries), ("vectors", vectors)):
        if not effect and value is not None:
            raise InputError(
                f"{name} are given, but effect is not set, so they would not be used: set effect too, or "
                f"leave {name} out"
            )
    processes = available_cores() if workers is None else whole_number("workers", workers, 1)
    origin = read_rules(run)
    if origin.run is None and effect:
        raise InputError(
            f"effect is set, but {origin.name} has only rules, and effects need a run: "
            "pass the run, or leave effect out"
        )
    columns = NamedColumns(column, id_column, source_column)
    collection = open_documents(documents, columns)
    rules = origin.rules.extended(words, allow, known)
    identity_parts = {
        "version": _IDENTITY_VERSION,
        "run": origin.run_identity,
        "rules": digest(rules.to_json()),
        "documents": collection.key,
        "columns": [*astuple(columns.text), columns.id_column, columns.source_column],
    }
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
    path = None if out is None else file_path("out", out)
    if path is None and in_run_folder and origin.run is not None:
        path = origin.run.path / store.folder_name(SCAN, record.identity)
    folder = None
    if path is not None:
        resume.require_place(path, SCANS)
        folder = store.ResultFolder(path, began)
    # Load the model and the queries before the search, so that an error in them is raised early.
    request = None
    if origin.run is not None and effect:
        request = _effects.request_effects(origin.run, encoder, queries, vectors)
    keeper = Keeper()
    held = None
    with ExitStack() as stack:
        if folder is not None:
            held = stack.enter_context(resume.resumed(folder, SCANS, record))
            # Write the record only with the first batch, so that unreadable documents leave no folder behind.
            keeper = Keeper(folder, partial(held.begin, record))
        sampled = 0 if request is None else _effects.QUERIES + _effects.REFERENCE
        tally = search(collection, rules, keeper, workers=processes, sampled=sampled, progress=progress)
        if not tally.documents:
            raise _no_documents(collection, tally)
        effects = None
        if request is not None and tally.with_findings:
            effects = EffectPass(request, _effects.choose_panel(request, tally, collection.name), keeper)
            effects.run(tally, progress)
            confirm_answers(request.encoder)
        table = _tabulate(keeper, tally, effects)
        seconds = time.perf_counter() - began if folder is None else folder.seconds
        result = _make_result(tally, table, effects, round(seconds, 1))
        finished_record = record.model_copy(update={"result": result})
        if held is not None:
            held.folder.write_table(DOCUMENTS_FILE, table)
            held.finish(finished_record)
    notes = () if effects is None else effects.request.notes
    return Scan(finished_record, result, table, path, notes)


class RulesOrigin(NamedTuple):
    """The rules of a scan, and where they come from."""

    rules: CleaningRules
    run: Run | None  # None if the rules come from a file or a cleaner
    name: str  # the run folder or the rules file
    model: str | None  # name of the model; None if the rules do not name it
    run_identity: str | None  # identity of the run that the rules were made from; None if unknown


def read_rules(source: Run | Cleaner | str | Path) -> RulesOrigin:
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


def _no_documents(collection: Documents, tally: Tally) -> InputError:
    if not tally.skipped_first:
        return InputError(f"{collection.name} is empty: pass documents")
    first = tally.skipped_first[0]
    return InputError(
        f"{collection.name} has no readable document: {count_skipped(tally.skipped)}, the first of them "
        f"{first.place} ({first.reason})"
    )


def _tabulate(keeper: Keeper, tally: Tally, effects: EffectPass | None) -> pl.DataFrame:
    """Return the table of documents with findings from all batches, with effects if there are any."""
    rows = []
    for index, batch in enumerate(tally.digests):
        effect_columns = None if effects is None else effects.columns(index, batch)
        for index_in_batch, finding in enumerate(keeper.findings(index, batch)):
            values = dict(finding)
            values["words"] = [
                {"text": text, "kind": kind, "copies": copies} for text, kind, copies in finding["words"]
            ]
            values["excerpt"] = [{"text": text, "found": is_marked} for text, is_marked in finding["excerpt"]]
            if effect_columns is not None:
                values |= {name: column[index_in_batch] for name, column in effect_columns.items()}
            # A finding also has the texts that effects are determined on, which are no columns of the table.
            rows.append({name: values.get(name) for name in SCHEMA})
    table = pl.DataFrame(rows, schema=SCHEMA)
    if effects is None:
        return table
    effect = table["shift"] / effects.panel.spread  # null where the effect is unknown
    severity = pl.Series([_effects.grade_effect(value) for value in effect.to_list()], dtype=pl.String)
    return table.with_columns(effect=effect, severity=severity, matters=effect >= _effects.SERIOUS_SHIFT)


def _make_result(
    tally: Tally, documents: pl.DataFrame, effects: EffectPass | None, seconds: float
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
        sources=_count_by_source(tally, documents, has_effects=effects is not None),
        effect=None if effects is None else _effects.describe_effects(effects, documents),
        seconds=seconds,
    )


def _count_by_source(tally: Tally, documents: pl.DataFrame, *, has_effects: bool) -> list[SourceRecord]:
    """Return the document counts of each source, starting with the source with the most findings.

    The list is empty if no document has a source, or if there were too many sources to count.
    """
    if tally.sources is None or all(source is None for source in tally.sources):
        return []
    # The number of documents of each source that have findings, and of those whose effect matters.
    found_by_source = Counter(documents.filter(~is_only_suspected())["source"])
    matter_by_source = Counter(documents.filter("matters")["source"])
    records = []
    for source, count in tally.sources.items():
        record = SourceRecord(
            source=source,
            documents=count,
            found=found_by_source[source],
            matter=matter_by_source[source] if has_effects else None,
        )
        records.append(record)
    # The source of a document without one is None, which cannot be compared with texts.
    records.sort(key=lambda record: (-record.found, -record.documents, record.source or ""))
    return records[:_LISTED_SOURCES]
