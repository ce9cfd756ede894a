"""Read documents, and find what does not belong in them. Needs no model."""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stickytoken.cleaning.rules import CleaningRules
from stickytoken.measurement.stage import Progress, ProgressCallback
from stickytoken.measurement.store import ResultFolder, ShardCost
from stickytoken.scanning._worker import KEPT_TEXT
from stickytoken.scanning._workers import Finding, batched, examined
from stickytoken.scanning._workers import TextBatch as Batch
from stickytoken.scanning.documents import Collection, Document, Meter

_BATCH = "batch"


class Keeper(Protocol):
    """Keeps JSON values of batches, by name."""

    def load(self, name: str, index: int, digest: str) -> dict[str, Any] | None:
        """Return the stored values of a batch with this digest; None if there are none."""

    def save(self, name: str, index: int, digest: str, values: Mapping[str, Any], encoded: int = 0) -> None:
        """Keep values of a batch."""


class FolderKeeper:
    """Keeps each batch in a shard of a folder."""

    def __init__(self, folder: ResultFolder, begin: Callable[[], None]) -> None:
        self._folder = folder
        self._begin: Callable[[], None] | None = begin

    def load(self, name: str, index: int, digest: str) -> dict[str, Any] | None:
        """See `Keeper`."""
        shard = self._folder.read_shard(name, index, [index], _BATCH)
        if shard is None or shard["digest"].item() != digest:
            return None
        values: dict[str, Any] = json.loads(shard["values"].item())
        return values

    def save(self, name: str, index: int, digest: str, values: Mapping[str, Any], encoded: int = 0) -> None:
        """See `Keeper`."""
        if self._begin is not None:
            self._begin()
            self._begin = None
        row = {_BATCH: index, "digest": digest, "values": json.dumps(values)}
        self._folder.write_shard(name, index, [row], ShardCost(0.0, encoded))


class MemoryKeeper:
    """Keeps batches until the scan ends."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], Mapping[str, Any]] = {}

    def load(self, name: str, index: int, digest: str) -> dict[str, Any] | None:
        """See `Keeper`; one scan does not change its documents."""
        del digest
        values = self._kept.get((name, index))
        return None if values is None else dict(values)

    def save(self, name: str, index: int, digest: str, values: Mapping[str, Any], encoded: int = 0) -> None:
        """See `Keeper`."""
        del digest, encoded
        self._kept[name, index] = values


TOKENS = "tokens"
_SKIPPED_SHOWN = 100
_SOURCES = 10_000
"""Sources that are told apart; more are no sources but ids."""


@dataclass
class Tally:
    """Totals over all batches.

    Attributes:
        digests: Digest of each batch.
        documents: How many were read.
        found: How many of them have findings.
        skipped: How many records were no documents.
        skipped_first: The first of them: place and reason.
        kinds: Documents by kind of finding.
        sources: Documents by source; None where there are too many sources.
        sample: Clean documents, drawn without regard to their order.
    """

    digests: list[str] = field(default_factory=list)
    documents: int = 0
    found: int = 0
    skipped: int = 0
    skipped_first: list[tuple[str, str]] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    sources: Counter[str | None] | None = field(default_factory=Counter)
    sample: list[str] = field(default_factory=list)


class TokenPass:
    """Searches a collection batch by batch, and keeps what it finds."""

    def __init__(
        self, rules: CleaningRules, keeper: Keeper, workers: int, sampled: int, progress: ProgressCallback
    ) -> None:
        self._rules = rules
        self._keeper = keeper
        self._workers = workers
        self._sample = _Sample(sampled)
        self._progress = progress
        self._meter = Meter()
        self._tally = Tally()
        self._computed = 0
        self._finished: dict[int, tuple[Batch, Mapping[str, Any]]] = {}

    def run(self, collection: Collection) -> Tally:
        """Search all documents."""
        batches = self._unknown(batched(collection.read(self._meter)))
        for batch, found in examined(batches, self._rules, self._workers):
            values = _values(batch, found)
            self._keeper.save(TOKENS, batch.index, batch.digest, values)
            self._computed += len(batch.documents)
            self._add(batch, values)
        self._tally.sample = self._sample.texts()
        done = self._tally.documents
        self._progress(Progress("scan", done, done, self._computed))
        return self._tally

    def _unknown(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, Sequence[str]]]:
        """Yield the batches that no earlier session examined; count the others."""
        for batch in batches:
            values = self._keeper.load(TOKENS, batch.index, batch.digest)
            if values is None:
                yield batch, batch.texts
            else:
                self._add(batch, values)

    def _add(self, batch: Batch, values: Mapping[str, Any]) -> None:
        """Count a batch; one that was found in the folder may come before an earlier one."""
        self._finished[batch.index] = batch, values
        while (ready := self._finished.pop(len(self._tally.digests), None)) is not None:
            self._count(*ready)

    def _count(self, batch: Batch, values: Mapping[str, Any]) -> None:
        tally = self._tally
        tally.digests.append(batch.digest)
        tally.documents += len(batch.documents)
        tally.found += len(values["found"])
        tally.skipped += len(batch.skipped)
        room = _SKIPPED_SHOWN - len(tally.skipped_first)
        tally.skipped_first += [(each.place, each.reason) for each in batch.skipped[:room]]
        for each in values["found"]:
            tally.kinds.update(each["kinds"])
        if tally.sources is not None:
            tally.sources.update(document.source for document in batch.documents)
            if len(tally.sources) > _SOURCES:
                tally.sources = None
        numbers = {each["number"] for each in values["found"]}
        self._sample.add(batch, numbers)
        share, done = self._meter.share, tally.documents
        # The reader is ahead of the search, so the total is an estimate that grows better.
        total = max(done + 1, round(done / share)) if share else done + 1
        self._progress(Progress("scan", done, total, self._computed))


class _Sample:
    """The clean documents with the smallest hashes: a random draw that depends on no order."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._drawn: list[tuple[int, str]] = []
        self._known: set[int] = set()

    def add(self, batch: Batch, found: set[int]) -> None:
        if not self._size:
            return
        for document, digest in zip(batch.documents, batch.keys, strict=True):
            rank = -int.from_bytes(digest[:8])
            if len(self._drawn) == self._size and rank <= self._drawn[0][0]:
                continue
            if rank in self._known or document.number in found or not document.text.strip():
                continue
            self._known.add(rank)
            item = rank, document.text[:KEPT_TEXT]
            if len(self._drawn) < self._size:
                heapq.heappush(self._drawn, item)
            else:
                self._known.discard(heapq.heapreplace(self._drawn, item)[0])

    def texts(self) -> list[str]:
        return [text for _, text in sorted(self._drawn, reverse=True)]


def _values(batch: Batch, found: Sequence[Finding]) -> dict[str, Any]:
    """What is kept of a batch: its documents with findings."""
    return {
        "found": [
            _described(document, each)
            for document, each in zip(batch.documents, found, strict=True)
            if each is not None
        ]
    }


def _described(document: Document, found: Mapping[str, Any]) -> dict[str, Any]:
    line = document.line
    if document.whole and line is not None:
        line += found["line"]
    return {
        "number": document.number,
        "id": document.id,
        "source": document.source,
        "path": document.path,
        **found,
        "line": line,
    }
