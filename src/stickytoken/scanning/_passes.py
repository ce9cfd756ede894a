"""Read documents batch by batch, find what does not belong in them, and keep it. Needs no model."""

from __future__ import annotations

import hashlib
import heapq
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.cleaning.rules import CleaningRules
from stickytoken.cleaning.spans import SpanKind
from stickytoken.data.documents import Collection, Document, Meter, Record, Skipped
from stickytoken.encoders.protocol import IdReader, content_limit
from stickytoken.errors import InputError
from stickytoken.machine import digest
from stickytoken.measurement import ResultFolder, ShardCost
from stickytoken.measurement.engine import Progress, ProgressCallback
from stickytoken.methods.statistics import TokenEffects
from stickytoken.scanning._workers import KEPT_TEXT, examined
from stickytoken.unit_vectors import unit_vectors

# Names of shards and of their column.
_TOKENS = "tokens"
_BATCH = "batch"
# A batch ends at so many documents or characters, which bounds the memory and what an interrupt loses.
_DOCUMENTS = 1024
_CHARACTERS = 4_000_000
# Records that could not be read and are named in the result.
_NAMED_RECORDS = 100
# Sources that are counted; a collection with more names something else by them.
_MOST_SOURCES = 10_000


class Keeper:
    """Keeps what was found in each batch: in the folder of a scan, or in memory without one."""

    def __init__(self, folder: ResultFolder | None = None, begin: Callable[[], None] | None = None) -> None:
        self._folder = folder
        self._begin = begin or (lambda: None)
        self._kept: dict[tuple[str, int, str], dict[str, Any]] = {}

    def load(self, name: str, index: int, digest: str) -> dict[str, Any] | None:
        if self._folder is None:
            return self._kept.get((name, index, digest))
        shard = self._folder.read_shard(name, index, [index], _BATCH)
        if shard is None or shard["digest"].item() != digest:
            return None
        return dict(json.loads(shard["values"].item()))

    def save(self, name: str, index: int, digest: str, values: dict[str, Any], encoded: int = 0) -> None:
        if self._folder is None:
            self._kept[name, index, digest] = values
            return
        self._begin()
        self._begin = lambda: None
        row = {_BATCH: index, "digest": digest, "values": json.dumps(values)}
        self._folder.write_shard(name, index, [row], ShardCost(0.0, encoded))

    def found(self, index: int, digest: str) -> list[dict[str, Any]]:
        """Return what was found in the documents of a batch, one row for each that has findings."""
        values = self.load(_TOKENS, index, digest)
        return [] if values is None else list(values["found"])


class Batch(NamedTuple):
    """Documents that are searched together. The digest is that of their texts and places."""

    number: int
    documents: tuple[Document, ...]
    skipped: tuple[Skipped, ...]
    keys: tuple[bytes, ...]  # a hash of each document's text, to sample by
    digest: str


def batched(records: Iterable[Record]) -> Iterator[Batch]:
    index = 0
    size = 0
    pending: list[Record] = []
    for record in records:
        pending.append(record)
        if isinstance(record, Document):
            size += len(record.text)
        if len(pending) >= _DOCUMENTS or size >= _CHARACTERS:
            yield _batch(index, pending)
            index += 1
            size = 0
            pending = []
    if pending:
        yield _batch(index, pending)


def _batch(index: int, records: list[Record]) -> Batch:
    documents = tuple(record for record in records if isinstance(record, Document))
    skipped = tuple(record for record in records if isinstance(record, Skipped))
    keys = tuple(hashlib.sha256(document.text.encode()).digest() for document in documents)
    content = hashlib.sha256()
    for document, key in zip(documents, keys, strict=True):
        place = (document.number, document.id, document.source, document.path, document.line)
        content.update(repr(place).encode() + key)
    for record in skipped:
        content.update(repr((record.place, record.reason)).encode())
    return Batch(index, documents, skipped, keys, content.hexdigest())


@dataclass
class Tally:
    """The totals of a scan, and a sample of documents without findings."""

    sampled: int  # how many clean documents to draw
    digests: list[str] = field(default_factory=list)
    documents: int = 0
    found: int = 0  # documents with findings that are more than suspected
    suspected: int = 0  # documents with suspected copies and no other finding
    skipped: int = 0
    skipped_first: list[Skipped] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)  # of documents
    sources: Counter[str | None] | None = field(default_factory=Counter)  # None where there are too many
    # The distinct clean documents with the smallest hashes, by hash: a random draw that depends on no order.
    drawn: dict[int, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many documents have a finding of any kind."""
        return self.found + self.suspected

    def add(self, batch: Batch, found: Sequence[Mapping[str, Any]]) -> None:
        self.digests.append(batch.digest)
        self.documents += len(batch.documents)
        suspected = sum(row["kinds"] == [SpanKind.SUSPECTED] for row in found)
        self.suspected += suspected
        self.found += len(found) - suspected
        self.skipped += len(batch.skipped)
        self.skipped_first += batch.skipped[: _NAMED_RECORDS - len(self.skipped_first)]
        for row in found:
            self.kinds.update(row["kinds"])
        if self.sources is not None:
            self.sources.update(document.source for document in batch.documents)
            if len(self.sources) > _MOST_SOURCES:
                self.sources = None
        if self.sampled:
            with_findings = {row["number"] for row in found}
            for document, key in zip(batch.documents, batch.keys, strict=True):
                if document.number not in with_findings and document.text.strip():
                    self.drawn[int.from_bytes(key[:8])] = document.text[:KEPT_TEXT]
            self.drawn = dict(heapq.nsmallest(self.sampled, self.drawn.items()))


def search(
    collection: Collection,
    rules: CleaningRules,
    keeper: Keeper,
    *,
    workers: int,
    sampled: int,
    progress: ProgressCallback,
) -> Tally:
    """Search all documents, or take from the keeper what was found in them before, and return the totals."""
    meter = Meter()
    tally = Tally(sampled)
    finished: dict[int, tuple[Batch, Sequence[Mapping[str, Any]]]] = {}
    computed = 0

    def add(batch: Batch, found: Sequence[Mapping[str, Any]]) -> None:
        # Counted in order: one that was found in the folder may come before an earlier one.
        finished[batch.number] = batch, found
        while (ready := finished.pop(len(tally.digests), None)) is not None:
            tally.add(*ready)
            share = meter.share
            done = tally.documents
            # The reader is ahead of the search, so the total is an estimate that grows better.
            total = max(done + 1, round(done / share)) if share else done + 1
            progress(Progress("scan", done, total, computed))

    def unknown() -> Iterator[tuple[Batch, list[str]]]:
        for batch in batched(collection.read(meter)):
            values = keeper.load(_TOKENS, batch.number, batch.digest)
            if values is None:
                yield batch, [document.text for document in batch.documents]
            else:
                add(batch, values["found"])

    # Closed here: a generator that is closed as garbage can only print the interrupt that meets it there.
    with closing(examined(unknown(), rules, workers)) as stream:
        for batch, findings in stream:
            rows = []
            for document, finding in zip(batch.documents, findings, strict=True):
                if finding is not None:
                    rows.append(_row(document, finding))
            keeper.save(_TOKENS, batch.number, batch.digest, {"found": rows})
            computed += len(batch.documents)
            add(batch, rows)
    progress(Progress("scan", tally.documents, tally.documents, computed))
    return tally


def _row(document: Document, finding: dict[str, Any]) -> dict[str, Any]:
    """Return what was found in a document with its place."""
    line = document.line
    if document.is_whole_file and line is not None:
        line += finding["line"]
    place = {"number": document.number, "id": document.id, "source": document.source, "path": document.path}
    return place | finding | {"line": line}


# Clean documents whose first words stand for queries, and those that others are compared with.
QUERIES = 100
REFERENCE = 200
# The fewest of either.
_LEAST = 10
# Words of a document that stand for a query.
_QUERY_WORDS = 30
# A document moves up for a query if it passes this share of the clean documents.
_MOVES_UP = 0.1
# Similarities of clean documents that differ by less tell nothing.
_SMALLEST_SPREAD = 1e-6
# The largest contraction of a token in a prediction, which divides by what is left.
_LARGEST_CONTRACTION = 0.9

Vectors = NDArray[np.float32]
Vector = NDArray[np.float64]


class Effect(StrEnum):
    MEASURED = "measured"  # each document is encoded with the copies and without
    PREDICTED = "predicted"  # it is encoded as it is; the rest is from pull and contraction of its tokens


COLUMNS = ("shift", "rise", "moves_up", "predicted")


def panel_texts(
    sample: Sequence[str], own: Sequence[str] | None, source: str, name: str
) -> tuple[Sequence[str], Sequence[str], str]:
    """Return queries, clean documents to compare with, and where the queries are from.

    Args:
        sample: Clean documents, drawn at random.
        own: The user's queries; None takes the first words of some of the sample.
        source: Where these are from.
        name: The collection, in messages.
    """
    needed = _LEAST if own is not None else 2 * _LEAST
    if len(sample) < needed:
        raise InputError(
            f"{name} has {len(sample)} documents without findings, and {needed} are needed to compare the "
            "others with: pass more documents, or leave effects out"
        )
    if own is not None:
        return own, sample[:REFERENCE], source
    drawn = min(QUERIES, len(sample) // 2)
    queries = [" ".join(text.split()[:_QUERY_WORDS]) for text in sample[:drawn]]
    return queries, sample[drawn : drawn + REFERENCE], f"the first words of {drawn} documents"


class Panel(NamedTuple):
    """What documents with findings are compared with."""

    queries: Vectors  # unit vectors, shape (q, d)
    reference: Vectors  # unit vectors, shape (n, d)
    ranked: Vectors  # similarities of the clean documents to each query, ascending, shape (n, q)
    spread: float  # standard deviation of these similarities


@dataclass(frozen=True)
class EffectPass:
    """Measures or predicts what copies do to the documents of a finished search."""

    kind: Effect
    encoder: IdReader
    effects: TokenEffects | None  # None if the run's method does not measure them
    queries: Sequence[str]
    reference: Sequence[str]  # clean documents
    queries_from: str
    identity: str  # of the run
    keeper: Keeper

    @cached_property
    def panel(self) -> Panel:
        queries = unit_vectors(self.encoder.encode_ids(self._tokenized(self.queries)))
        reference = unit_vectors(self.encoder.encode_ids(self._tokenized(self.reference)))
        similarities = reference @ queries.T
        spread = float(similarities.std())
        if spread < _SMALLEST_SPREAD:
            raise InputError(
                f"{self.encoder.name} gives all documents the same similarity to the queries: pass others"
            )
        return Panel(queries, reference, np.sort(similarities, axis=0), spread)

    def _tokenized(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        limit = content_limit(self.encoder)
        return [text.ids[:limit] for text in self.encoder.tokenize(texts)]

    def run(self, tally: Tally, progress: ProgressCallback) -> None:
        done = 0
        computed = 0
        encoded = 0
        for index, batch in enumerate(tally.digests):
            found = self.keeper.found(index, batch)
            if not found:
                continue
            if self.columns(index, batch) is None:
                columns, texts = self._columns(found)
                self.keeper.save(self.kind.value, index, self._key(batch), columns, texts)
                computed += len(found)
                encoded += texts
            done += len(found)
            progress(Progress("effects", done, tally.rows, computed, encoded))

    def columns(self, index: int, batch: str) -> dict[str, Any] | None:
        return self.keeper.load(self.kind.value, index, self._key(batch))

    def _key(self, batch: str) -> str:
        return digest([batch, digest([self.queries, self.reference]), self.identity])

    def _columns(self, found: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], int]:
        """Measure what copies do to documents.

        Returns:
            One list per column, with None where nothing can be measured, and how many texts were encoded.
            ``shift`` is the mean change of the similarity to the queries, ``rise`` the mean share of clean
            documents that it passes, and ``moves_up`` the share of queries for which it passes a tenth of
            them.
        """
        panel = self.panel
        with_copies = self._tokenized([row["text"] for row in found])
        without = self._tokenized([row["rest"] for row in found])
        rows = [row for row, ids in enumerate(without) if ids and with_copies[row]]
        columns = {name: np.full(len(found), np.nan) for name in COLUMNS}
        if rows:
            vectors, whole = self._vectors([with_copies[row] for row in rows])
            if self.effects is not None:
                removed = [Counter(with_copies[row]) - Counter(without[row]) for row in rows]
                columns["predicted"][rows] = predicted_shifts(vectors, removed, self.effects, panel)
                unread = [row for row in rows if with_copies[row] == without[row]]
                columns["predicted"][unread] = 0.0
            if self.kind is Effect.MEASURED:
                clean, readable = self._vectors([without[row] for row in rows])
                whole &= readable
                after = vectors @ panel.queries.T
                before = clean @ panel.queries.T
                passed = (_ranks(after, panel) - _ranks(before, panel)) / len(panel.reference)
                columns["shift"][rows] = (after - before).mean(axis=1, dtype=np.float64)
                columns["rise"][rows] = passed.mean(axis=1)
                columns["moves_up"][rows] = (passed >= _MOVES_UP).mean(axis=1)
            for values in columns.values():
                values[rows] = np.where(whole, values[rows], np.nan)
        encodings = 2 if self.kind is Effect.MEASURED else 1
        known = {name: _null_for_nan(values) for name, values in columns.items()}
        return known, len(rows) * encodings

    def _vectors(self, ids: Sequence[tuple[int, ...]]) -> tuple[Vectors, NDArray[np.bool_]]:
        # Unit vectors, and which of the texts have one.
        vectors = self.encoder.encode_ids(ids, allow_zero=True)
        usable = np.linalg.norm(vectors, axis=1) > 0
        vectors[~usable] = 1.0
        return unit_vectors(vectors), usable


def _ranks(similarities: Vectors, panel: Panel) -> NDArray[np.int64]:
    """Count the clean documents that are less similar to each query, shape (documents, q)."""
    columns = zip(panel.ranked.T, similarities.T, strict=True)
    return np.stack([np.searchsorted(ranked, own) for ranked, own in columns], axis=1)


def _null_for_nan(values: Vector) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def predicted_shifts(
    found: Vectors, removed: Sequence[Counter[int]], effects: TokenEffects, panel: Panel
) -> Vector:
    """Predict the mean change of the similarity to the queries from the copies that documents have.

    A token draws every text toward one point, its pull divided by its contraction. The vector of the document
    shows how far the copies have drawn it: that is how far it lies from the mean of the clean documents
    toward the point. Short texts show where a token draws documents, but not how far.
    """
    center = panel.reference.mean(axis=0, dtype=np.float64)
    queries = panel.queries.mean(axis=0, dtype=np.float64)
    shifts = np.full(len(found), np.nan)
    for row, copies in enumerate(removed):
        ids = np.array(sorted(copies), dtype=np.int64)
        rows = np.searchsorted(effects.ids, ids)
        known = (rows < len(effects.ids)) & (effects.ids[np.minimum(rows, len(effects.ids) - 1)] == ids)
        rows = rows[known]
        ids = ids[known]
        contraction = np.minimum(effects.contraction[rows], _LARGEST_CONTRACTION)
        shares = np.array([copies[token_id] for token_id in ids.tolist()]) / (1 - contraction)
        weight = float(shares @ contraction)
        if weight <= 0:  # also where no token is known
            continue
        way = (shares @ effects.pull[rows].astype(np.float64)) / weight - center
        covered = float(np.clip((found[row] - center) @ way / (way @ way), 0.0, 1.0))
        shifts[row] = covered * float(way @ queries)
    return shifts
