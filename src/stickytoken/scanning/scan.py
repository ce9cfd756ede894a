"""Scan documents for copies of a run's flagged tokens."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import astuple
from pathlib import Path
from typing import NamedTuple

import polars as pl

from stickytoken.cleaning import Cleaner, names_rules_file, open_cleaner
from stickytoken.cleaning.rules import CleaningRules, rules_of_run
from stickytoken.data.documents import Documents, DocumentSource, NamedColumns, open_documents
from stickytoken.detection.run import Run, open_run
from stickytoken.errors import InputError
from stickytoken.machine import available_cores, digest
from stickytoken.measurement import resume, store
from stickytoken.measurement.engine import ProgressCallback, ignore_progress
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
from stickytoken.scanning.wording import count_skipped
from stickytoken.settings.reading import ColumnChoice
from stickytoken.validation import file_path, require_callable, whole_number
from stickytoken.words import counted

# Part of a scan's identity. Increase this number when a change to the code alters or renames findings.
_IDENTITY_VERSION = 5
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
    workers: int | None = None,
    out: str | Path | None = None,
    in_run_folder: bool = False,
    progress: ProgressCallback = ignore_progress,
) -> Scan:
    """Find the documents that contain copies of flagged tokens, special tokens as text, or repetitions.

    Args:
        run: a finished run, or its folder; or a rules file that ``clean --rules-out`` or `Cleaner.save`
            wrote, or a cleaner. With rules, the run is not needed.
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
        workers: number of processes; if None, one per core.
        out: folder for the scan. If the folder contains an interrupted scan, that scan is continued. If
            ``out`` is None, nothing is written.
        in_run_folder: whether the scan is written into the run folder instead, as ``scan-<identity>``, where
            `report` finds it. With rules, or if ``out`` is passed, this changes nothing.
        progress: called after every step.

    Returns:
        The scan: its totals, and one row per document with findings.

    Raises:
        InputError: the documents cannot be read, or an option cannot be used.
        RunError: the run is damaged or not finished, or the folder contains something else.

    Examples:
        >>> scan = stickytoken.scan(run, documents)
        >>> scan.result.found
        2
        >>> scan.documents.select("id", "kinds").rows()
        [('1', ['repetition']), ('2', ['special'])]
    """
    began = time.perf_counter()
    require_callable("progress", progress)
    processes = available_cores() if workers is None else whole_number("workers", workers, 1)
    origin = read_rules(run)
    columns = NamedColumns(column, id_column, source_column)
    collection = open_documents(documents, columns)
    rules = origin.rules.extended(words, allow, known)
    identity_parts = {
        "version": _IDENTITY_VERSION,
        "run": origin.run_identity,
        "rules": digest(rules.to_json()),
        "documents": collection.identity,
        "columns": [*astuple(columns.text_columns), columns.id_column, columns.source_column],
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
    held = None
    with ExitStack() as stack:
        if folder is not None:
            held = stack.enter_context(resume.resumed(folder, SCANS, record))
            # Documents that an earlier scan has searched are not searched again.
            record = record.model_copy(update={"versions": held.record.versions})
            # It is written only with the first batch, so that unreadable documents leave no folder behind.
            held.prepare(record)
        tally = search(collection, rules, Keeper(folder), workers=processes, progress=progress)
        # A collection of blank texts is another column than the one that is meant.
        if tally.blank == tally.documents:
            raise _no_documents(collection, tally)
        table = pl.DataFrame(tally.rows, SCHEMA)
        seconds = time.perf_counter() - began if folder is None else folder.seconds
        result = _make_result(tally, table, round(seconds, 1))
        finished_record = record.model_copy(update={"result": result})
        if held is not None:
            held.folder.write_table(DOCUMENTS_FILE, table)
            held.finish(finished_record)
    return Scan(finished_record, result, table, path)


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
    reasons = []
    if tally.skipped_first:
        first = tally.skipped_first[0]
        skipped = count_skipped(tally.skipped)
        reasons.append(f"{skipped}, the first of them {first.place} ({first.reason})")
    if tally.blank:
        advice = "name the columns with the text" if tally.meter.columns else "pass documents with text"
        reasons.append(f"{_count_blank(tally)} ({tally.meter.summary()}): {advice}")
    if not reasons:
        return InputError(f"{collection.name} is empty: pass documents")
    return InputError(f"{collection.name} has no readable document: {', and '.join(reasons)}")


def _count_blank(tally: Tally) -> str:
    return counted(tally.blank, "document is blank", "documents are blank")


def _make_result(tally: Tally, documents: pl.DataFrame, seconds: float) -> ScanResultRecord:
    reading = tally.meter.summary()
    if tally.blank:
        reading += f"; {_count_blank(tally)}"
    return ScanResultRecord(
        documents=tally.documents,
        found=tally.found,
        suspected=tally.suspected,
        skipped=tally.skipped,
        skipped_first=tally.skipped_first,
        columns=tally.meter.columns,
        unread_columns=tally.meter.unread,
        reading=reading,
        kinds=dict(tally.kinds.most_common()),
        sources=_count_by_source(tally, documents),
        seconds=seconds,
    )


def _count_by_source(tally: Tally, documents: pl.DataFrame) -> list[SourceRecord]:
    """Return the document counts of each source, starting with the source with the most findings.

    The list is empty if no document has a source, or if there were too many sources to count.
    """
    if tally.sources is None or all(source is None for source in tally.sources):
        return []
    found_by_source = Counter(documents.filter(~is_only_suspected())["source"])
    records = [
        SourceRecord(source=source, documents=count, found=found_by_source[source])
        for source, count in tally.sources.items()
    ]
    # The source of a document without one is None, which cannot be compared with texts.
    records.sort(key=lambda record: (-record.found, -record.documents, record.source or ""))
    return records[:_LISTED_SOURCES]
