"""The two passes of a scan: search all documents in batches, and measure the effect of the copies found."""

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
# Largest batch, in documents and in characters. It bounds the memory, and the work that an interrupt loses.
_DOCUMENTS = 1024
_CHARACTERS = 4_000_000
# Unreadable records that the result names.
_NAMED_RECORDS = 100
# Largest number of sources that are counted. With more, the column is probably not a source.
_MOST_SOURCES = 10_000


class Keeper:
    """Stores the findings of each batch: in the folder of a scan, or in memory without one.

    Args:
        folder: of the scan.
        begin: called before the first batch is written.
    """

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

    def findings(self, index: int, digest: str) -> list[dict[str, Any]]:
        """Return one row per document with findings in a batch."""
        values = self.load(_TOKENS, index, digest)
        return [] if values is None else list(values["found"])


class Batch(NamedTuple):
    """Documents that are searched together. The digest covers their texts and places."""

    number: int
    documents: tuple[Document, ...]
    skipped: tuple[Skipped, ...]
    keys: tuple[bytes, ...]  # a hash of each document's text, to sample by
    digest: str


def batched(records: Iterable[Record]) -> Iterator[Batch]:
    """Divide the records of a collection into batches."""
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

    sampled: int  # number of clean documents to draw
    digests: list[str] = field(default_factory=list)
    documents: int = 0
    found: int = 0  # documents with findings that are more than suspected
    suspected: int = 0  # documents with suspected copies and no other finding
    skipped: int = 0
    skipped_first: list[Skipped] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)  # of documents
    sources: Counter[str | None] | None = field(default_factory=Counter)  # None where there are too many
    # The distinct clean documents with the smallest hashes, by hash. So the sample is random, and does not
    # depend on the order of the documents.
    sample: dict[int, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of documents with a finding of any kind."""
        return self.found + self.suspected

    def add(self, batch: Batch, rows: Sequence[Mapping[str, Any]]) -> None:
        """Count a batch.

        Args:
            batch: the next batch in the order of the collection.
            rows: one row per document with findings.
        """
        self.digests.append(batch.digest)
        self.documents += len(batch.documents)
        suspected = sum(row["kinds"] == [SpanKind.SUSPECTED] for row in rows)
        self.suspected += suspected
        self.found += len(rows) - suspected
        self.skipped += len(batch.skipped)
        self.skipped_first += batch.skipped[: _NAMED_RECORDS - len(self.skipped_first)]
        for row in rows:
            self.kinds.update(row["kinds"])
        if self.sources is not None:
            self.sources.update(document.source for document in batch.documents)
            if len(self.sources) > _MOST_SOURCES:
                self.sources = None
        if self.sampled:
            with_findings = {row["number"] for row in rows}
            for document, key in zip(batch.documents, batch.keys, strict=True):
                if document.number not in with_findings and document.text.strip():
                    self.sample[int.from_bytes(key[:8])] = document.text[:KEPT_TEXT]
            self.sample = dict(heapq.nsmallest(self.sampled, self.sample.items()))


def search(
    collection: Collection,
    rules: CleaningRules,
    keeper: Keeper,
    *,
    workers: int,
    sampled: int,
    progress: ProgressCallback,
) -> Tally:
    """Search all documents, except batches that the keeper has from before.

    Args:
        collection: the documents.
        rules: what to look for.
        keeper: stores the findings of each batch.
        workers: number of processes.
        sampled: number of documents without findings to draw.
        progress: told of every batch.

    Returns:
        The totals, with the sample.
    """
    meter = Meter()
    tally = Tally(sampled)
    finished: dict[int, tuple[Batch, Sequence[Mapping[str, Any]]]] = {}
    computed = 0

    def add(batch: Batch, rows: Sequence[Mapping[str, Any]]) -> None:
        # Batches are counted in order, and a batch from the keeper may come before an earlier one.
        finished[batch.number] = batch, rows
        while len(tally.digests) in finished:
            tally.add(*finished.pop(len(tally.digests)))
            share = meter.share
            done = tally.documents
            # The reader is ahead of the search, so this estimate of the total improves with time.
            total = max(done + 1, round(done / share)) if share else done + 1
            progress(Progress("scan", done, total, computed))

    def new_batches() -> Iterator[tuple[Batch, list[str]]]:
        for batch in batched(collection.read(meter)):
            values = keeper.load(_TOKENS, batch.number, batch.digest)
            if values is None:
                yield batch, [document.text for document in batch.documents]
            else:
                add(batch, values["found"])

    # Closed here, because an interrupt that meets a generator during garbage collection is only printed.
    with closing(examined(new_batches(), rules, workers)) as stream:
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
    """Return the findings of a document together with its place."""
    line = document.line
    if document.is_whole_file and line is not None:
        line += finding["line"]
    place = {"number": document.number, "id": document.id, "source": document.source, "path": document.path}
    return place | finding | {"line": line}


# Clean documents whose first words serve as queries, and clean documents that others are compared with.
QUERIES = 100
REFERENCE = 200
# The smallest number of either.
_FEWEST = 10
# Words of a document that serve as a query.
_QUERY_WORDS = 30
# Share of the clean documents that a document must pass to move up for a query.
_MOVES_UP = 0.1
# Smallest standard deviation of the similarities of clean documents. Below it, effects are rounding errors.
_SMALLEST_SPREAD = 1e-6
# Largest contraction of a token in a prediction, which divides by one minus the contraction.
_LARGEST_CONTRACTION = 0.9

Vectors = NDArray[np.float32]
Vector = NDArray[np.float64]


class Effect(StrEnum):
    """How the effect of copies on a document is determined."""

    MEASURED = "measured"  # the document is encoded with the copies and without
    PREDICTED = "predicted"  # it is encoded as it is; pull and contraction of its tokens give the rest


COLUMNS = ("shift", "rise", "moves_up", "predicted")


class PanelTexts(NamedTuple):
    """Texts that documents with findings are compared with."""

    queries: Sequence[str]
    reference: Sequence[str]  # clean documents
    queries_from: str  # source of the queries


def panel_texts(
    sample: Sequence[str], queries: Sequence[str] | None, queries_from: str, name: str
) -> PanelTexts:
    """Choose the texts that documents with findings are compared with.

    Args:
        sample: clean documents, drawn at random.
        queries: the user's queries; None takes the first words of some of the sample.
        queries_from: source of the user's queries.
        name: of the collection, for messages.

    Raises:
        InputError: there are too few clean documents.
    """
    needed = _FEWEST if queries is not None else 2 * _FEWEST
    if len(sample) < needed:
        raise InputError(
            f"{name} has {len(sample)} documents without findings, and {needed} are needed to compare the "
            "others with: pass more documents, or leave effects out"
        )
    if queries is not None:
        return PanelTexts(queries, sample[:REFERENCE], queries_from)
    count = min(QUERIES, len(sample) // 2)
    first_words = [" ".join(text.split()[:_QUERY_WORDS]) for text in sample[:count]]
    reference = sample[count : count + REFERENCE]
    return PanelTexts(first_words, reference, f"the first words of {count} documents")


class Panel(NamedTuple):
    """Vectors that documents with findings are compared with."""

    queries: Vectors  # unit vectors, shape (q, d)
    reference: Vectors  # unit vectors, shape (n, d)
    ranked: Vectors  # similarities of the clean documents to each query, ascending, shape (n, q)
    spread: float  # standard deviation of these similarities


@dataclass(frozen=True)
class EffectPass:
    """Measures or predicts the effect of copies on the documents of a finished search."""

    kind: Effect
    encoder: IdReader
    effects: TokenEffects | None  # None if the run's method does not measure them
    texts: PanelTexts
    identity: str  # of the run
    keeper: Keeper

    @cached_property
    def panel(self) -> Panel:
        """The vectors of the queries and of the clean documents."""
        queries = unit_vectors(self.encoder.encode_ids(self._tokenized(self.texts.queries)))
        reference = unit_vectors(self.encoder.encode_ids(self._tokenized(self.texts.reference)))
        similarities = reference @ queries.T
        spread = float(similarities.std())
        if spread < _SMALLEST_SPREAD:
            raise InputError(
                f"{self.encoder.name} gives all documents the same similarity to the queries: pass other "
                "queries"
            )
        return Panel(queries, reference, np.sort(similarities, axis=0), spread)

    def _tokenized(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        limit = content_limit(self.encoder)
        return [text.ids[:limit] for text in self.encoder.tokenize(texts)]

    def run(self, tally: Tally, progress: ProgressCallback) -> None:
        """Determine the effects in all batches that the keeper does not have."""
        done = 0
        computed = 0
        encoded = 0
        for index, batch in enumerate(tally.digests):
            rows = self.keeper.findings(index, batch)
            if not rows:
                continue
            if self.columns(index, batch) is None:
                columns, texts = self._columns(rows)
                self.keeper.save(self.kind.value, index, self._key(batch), columns, texts)
                computed += len(rows)
                encoded += texts
            done += len(rows)
            progress(Progress("effects", done, tally.rows, computed, encoded))

    def columns(self, index: int, batch: str) -> dict[str, Any] | None:
        """Return the effects in a batch by column; None if they were not determined."""
        return self.keeper.load(self.kind.value, index, self._key(batch))

    def _key(self, batch: str) -> str:
        texts = digest([self.texts.queries, self.texts.reference])
        return digest([batch, texts, self.identity])

    def _columns(self, found_rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], int]:
        """Determine the effect of copies on documents.

        Returns:
            One list per column, with None where nothing can be measured, and the number of encoded texts.
            ``shift`` is the mean change of the similarity to the queries, ``rise`` the mean share of clean
            documents that it passes, and ``moves_up`` the share of queries for which it passes a tenth of
            them.
        """
        panel = self.panel
        with_copies = self._tokenized([row["text"] for row in found_rows])
        without = self._tokenized([row["rest"] for row in found_rows])
        rows = [row for row, ids in enumerate(without) if ids and with_copies[row]]
        columns = {name: np.full(len(found_rows), np.nan) for name in COLUMNS}
        if rows:
            vectors, has_vectors = self._vectors([with_copies[row] for row in rows])
            if self.effects is not None:
                removed = [Counter(with_copies[row]) - Counter(without[row]) for row in rows]
                columns["predicted"][rows] = predicted_shifts(vectors, removed, self.effects, panel)
                unread = [row for row in rows if with_copies[row] == without[row]]
                columns["predicted"][unread] = 0.0
            if self.kind is Effect.MEASURED:
                clean, has_clean_vectors = self._vectors([without[row] for row in rows])
                has_vectors &= has_clean_vectors
                after = vectors @ panel.queries.T
                before = clean @ panel.queries.T
                passed = (_ranks(after, panel) - _ranks(before, panel)) / len(panel.reference)
                columns["shift"][rows] = (after - before).mean(axis=1, dtype=np.float64)
                columns["rise"][rows] = passed.mean(axis=1)
                columns["moves_up"][rows] = (passed >= _MOVES_UP).mean(axis=1)
            for values in columns.values():
                values[rows] = np.where(has_vectors, values[rows], np.nan)
        encodings = 2 if self.kind is Effect.MEASURED else 1
        lists = {name: _null_for_nan(values) for name, values in columns.items()}
        return lists, len(rows) * encodings

    def _vectors(self, ids: Sequence[tuple[int, ...]]) -> tuple[Vectors, NDArray[np.bool_]]:
        """Return unit vectors, and a mask of the texts that have one; the others have a zero vector."""
        vectors = self.encoder.encode_ids(ids, allow_zero=True)
        usable = np.linalg.norm(vectors, axis=1) > 0
        vectors[~usable] = 1.0
        return unit_vectors(vectors), usable


def _ranks(similarities: Vectors, panel: Panel) -> NDArray[np.int64]:
    """Count the clean documents that are less similar to each query, shape (documents, q)."""
    counts = [
        np.searchsorted(ranked, values) for ranked, values in zip(panel.ranked.T, similarities.T, strict=True)
    ]
    return np.stack(counts, axis=1)


def _null_for_nan(values: Vector) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def predicted_shifts(
    vectors: Vectors, removed: Sequence[Counter[int]], effects: TokenEffects, panel: Panel
) -> Vector:
    """Predict the mean change of the similarity to the queries that copies cause.

    A token moves every text toward one point, its pull divided by its contraction. The run measured that
    point on short texts, which do not show how far the copies move a long document. The vector of the
    document shows it: as the share of the way from the mean of the clean documents to the point.

    Args:
        vectors: unit vectors of the documents with their copies, shape (n, d).
        removed: number of copies of each token in each document, by token id.
        effects: pull and contraction of the tokens.
        panel: queries and clean documents.

    Returns:
        One change per document; NaN if none of its tokens has an effect.
    """
    center = panel.reference.mean(axis=0, dtype=np.float64)
    queries = panel.queries.mean(axis=0, dtype=np.float64)
    shifts = np.full(len(vectors), np.nan)
    for row, copies in enumerate(removed):
        ids = np.array(sorted(copies), dtype=np.int64)
        rows = np.searchsorted(effects.ids, ids)
        last_row = len(effects.ids) - 1
        has_effects = effects.ids[np.minimum(rows, last_row)] == ids
        rows = rows[has_effects]
        ids = ids[has_effects]
        contraction = np.minimum(effects.contraction[rows], _LARGEST_CONTRACTION)
        shares = np.array([copies[token_id] for token_id in ids.tolist()]) / (1 - contraction)
        weight = float(shares @ contraction)
        if weight <= 0:  # also if no token has effects
            continue
        way = (shares @ effects.pull[rows].astype(np.float64)) / weight - center
        covered = float(np.clip((vectors[row] - center) @ way / (way @ way), 0.0, 1.0))
        shifts[row] = covered * float(way @ queries)
    return shifts
