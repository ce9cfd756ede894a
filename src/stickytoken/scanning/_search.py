"""The search of a scan: read the documents in batches, find what they contain, and count it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stickytoken.cleaning.rules import CleaningRules
from stickytoken.cleaning.spans import SpanKind
from stickytoken.data.documents import Document, Documents, Record
from stickytoken.data.rows import Meter, Skipped
from stickytoken.measurement.engine import Progress, ProgressCallback
from stickytoken.measurement.store import ResultFolder, ShardCost
from stickytoken.scanning._workers import examine_batches

# Name of the column that holds the number of a batch.
_BATCH = "batch"
# Maximum size of a batch, in documents and in characters, which limits the memory that a scan needs and the
# work that is lost when a scan is interrupted.
_DOCUMENTS = 1024
_CHARACTERS = 4_000_000
# Maximum number of unreadable records that the result names.
_NAMED_RECORDS = 100
# Maximum number of sources to count. A column with more distinct values probably does not name sources.
_MOST_SOURCES = 10_000
# Name of the stage that searches documents, which its shards have too, and the unit of its progress.
_SEARCH = "scan"
_SEARCH_UNIT = "documents"


class Keeper:
    """Stores the findings of each batch in the folder of a scan; without a folder, nothing is stored.

    Args:
        folder: folder of the scan. It begins with the first batch that is written to it.
    """

    def __init__(self, folder: ResultFolder | None) -> None:
        self._folder = folder

    def load(self, batch: Batch) -> list[dict[str, Any]] | None:
        """Return the stored rows of a batch; None if no rows are stored, or only rows of other documents."""
        if self._folder is None:
            return None
        # A shard of this folder is a table of one row, whose column `_BATCH` has the number of the batch.
        shard = self._folder.read_shard(_SEARCH, batch.number, [batch.number], _BATCH)
        if shard is None or shard["digest"].item() != batch.digest:
            return None
        return list(json.loads(shard["rows"].item()))

    def save(self, batch: Batch, rows: Sequence[Mapping[str, Any]]) -> None:
        """Store the rows of a batch."""
        if self._folder is None:
            return
        self._folder.begin()
        shard = {_BATCH: batch.number, "digest": batch.digest, "rows": json.dumps(rows)}
        self._folder.write_shard(_SEARCH, batch.number, [shard], ShardCost(seconds=0.0, sequences=0))


class Batch(NamedTuple):
    """Documents that are searched together."""

    # 0-based position of the batch in the collection.
    number: int
    documents: tuple[Document, ...]
    # Records that could not be read.
    skipped: tuple[Skipped, ...]
    # Hash of all records of the batch: their texts, and where they stand in the collection.
    digest: str


def make_batches(records: Iterable[Record]) -> Iterator[Batch]:
    """Divide the records of a collection into batches."""
    number = 0
    characters = 0
    pending: list[Record] = []
    for record in records:
        pending.append(record)
        if isinstance(record, Document):
            characters += len(record.text)
        if len(pending) >= _DOCUMENTS or characters >= _CHARACTERS:
            yield _make_batch(number, pending)
            number += 1
            characters = 0
            pending = []
    if pending:
        yield _make_batch(number, pending)


def _make_batch(number: int, records: list[Record]) -> Batch:
    documents = tuple(record for record in records if isinstance(record, Document))
    skipped = tuple(record for record in records if isinstance(record, Skipped))
    content = hashlib.sha256()
    for document in documents:
        origin = (document.number, document.id, document.source, document.path, document.line)
        content.update(repr(origin).encode() + hashlib.sha256(document.text.encode()).digest())
    for record in skipped:
        content.update(repr((record.place, record.reason)).encode())
    return Batch(number, documents, skipped, content.hexdigest())


@dataclass
class Tally:
    """The totals of a scan, and the documents with findings."""

    # What was read.
    meter: Meter = field(default_factory=Meter)
    # Number of batches that were added.
    batches: int = 0
    # One row of the document table for each document with findings, in the order of the collection.
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    # Number of documents that were searched, and how many of them are blank.
    documents: int = 0
    blank: int = 0
    # Number of documents with a finding other than suspected copies.
    found: int = 0
    # Number of documents with suspected copies and no other finding.
    suspected: int = 0
    # Number of records that could not be read, and the first of these records.
    skipped: int = 0
    skipped_first: list[Skipped] = field(default_factory=list)
    # Number of documents with findings of a kind, keyed by kind.
    kinds: Counter[str] = field(default_factory=Counter)
    # Number of documents, keyed by source; None if there are too many sources to count.
    sources: Counter[str | None] | None = field(default_factory=Counter)

    def add(self, batch: Batch, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add a batch to the totals.

        Args:
            batch: the next batch in the order of the collection.
            rows: one row per document with findings.
        """
        self.batches += 1
        self.rows += rows
        self.documents += len(batch.documents)
        self.blank += sum(not document.text.strip() for document in batch.documents)
        only_suspected = sum(row["kinds"] == [SpanKind.SUSPECTED] for row in rows)
        self.suspected += only_suspected
        self.found += len(rows) - only_suspected
        self.skipped += len(batch.skipped)
        self.skipped_first += batch.skipped[: _NAMED_RECORDS - len(self.skipped_first)]
        for row in rows:
            self.kinds.update(row["kinds"])
        if self.sources is not None:
            self.sources.update(document.source for document in batch.documents)
            # With more sources than this, documents are not counted by source.
            if len(self.sources) > _MOST_SOURCES:
                self.sources = None


def search(
    collection: Documents,
    rules: CleaningRules,
    keeper: Keeper,
    *,
    workers: int,
    progress: ProgressCallback,
) -> Tally:
    """Search all documents, except those in batches whose findings are already stored.

    Args:
        collection: the documents.
        rules: what to look for.
        keeper: stores the findings of each batch.
        workers: number of processes.
        progress: called before the first batch and after every batch.

    Returns:
        The totals over all documents, and all documents with findings, including those of stored batches.
    """
    tally = Tally()
    meter = tally.meter
    # Batches that wait until all earlier batches have been added to the totals, with the rows of each; keyed
    # by batch number.
    waiting: dict[int, tuple[Batch, Sequence[Mapping[str, Any]]]] = {}
    searched = 0  # documents that were searched in this call

    def add_in_order(batch: Batch, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add a batch to the totals once all earlier batches have been added, and report progress.

        A stored batch can arrive while earlier batches are still being searched.
        """
        waiting[batch.number] = batch, rows
        while tally.batches in waiting:  # batches are numbered from 0
            next_batch, next_rows = waiting.pop(tally.batches)
            tally.add(next_batch, next_rows)
            done = tally.documents
            estimated_total = done + 1  # at least one more document may follow
            share_read = meter.share
            if share_read:
                # The reader runs ahead of the search. So at first, the share is too large, and the estimate
                # of the total is too small.
                estimated_total = max(estimated_total, round(done / share_read))
            progress(Progress(_SEARCH, done, estimated_total, searched, unit=_SEARCH_UNIT))

    def new_batches() -> Iterator[tuple[Batch, list[str]]]:
        for batch in make_batches(collection.read(meter)):
            stored_rows = keeper.load(batch)
            if stored_rows is None:
                yield batch, [document.text for document in batch.documents]
            else:
                add_in_order(batch, stored_rows)

    # The number of documents is unknown until they have been read.
    progress(Progress(_SEARCH, done=0, total=1, unit=_SEARCH_UNIT))
    # Close the generator explicitly: an interrupt during its garbage collection would only be printed.
    with closing(examine_batches(new_batches(), rules, workers)) as stream:
        for batch, findings in stream:
            rows = []
            for document, finding in zip(batch.documents, findings, strict=True):
                if finding is not None:
                    rows.append(_make_row(document, finding))
            keeper.save(batch, rows)
            searched += len(batch.documents)
            add_in_order(batch, rows)
    if tally.documents:
        progress(Progress(_SEARCH, tally.documents, tally.documents, searched, unit=_SEARCH_UNIT))
    return tally


def _make_row(document: Document, finding: dict[str, Any]) -> dict[str, Any]:
    """Return what `examine` found in a document, with the document's origin and the line in its file."""
    line_in_file = document.line
    # A record of a file, such as a line of JSONL, keeps the line on which it begins: line breaks of its text
    # may be escaped in the file, so lines of the text are not lines of the file.
    if document.is_whole_file and line_in_file is not None:
        line_in_text = finding["line"]  # counted from 0
        line_in_file += line_in_text
    origin = {
        "number": document.number,
        "id": document.id,
        "source": document.source,
        "path": document.path,
    }
    return origin | finding | {"line": line_in_file}
