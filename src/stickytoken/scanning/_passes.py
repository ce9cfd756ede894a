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
from stickytoken.data.documents import Collection, Document, Meter, Record, Skipped
from stickytoken.encoders.protocol import IdReader, content_limit
from stickytoken.errors import InputError
from stickytoken.machine import digest
from stickytoken.measurement import ResultFolder, ShardCost
from stickytoken.measurement.engine import Progress, ProgressCallback
from stickytoken.methods.statistics import TokenEffects
from stickytoken.scanning._workers import KEPT_TEXT, examined
from stickytoken.unit_vectors import unit_vectors

_TOKENS = "tokens"
_BATCH = "batch"
_DOCUMENTS = 1024
_CHARACTERS = 4_000_000


class Keeper:
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
        return list((self.load(_TOKENS, index, digest) or {"found": ()})["found"])


class Batch(NamedTuple):
    number: int
    documents: tuple[Document, ...]
    skipped: tuple[Skipped, ...]
    keys: tuple[bytes, ...]  # a hash of each document's text, to sample by
    digest: str


def batched(records: Iterable[Record]) -> Iterator[Batch]:
    index, size = 0, 0
    pending: list[Record] = []
    for record in records:
        pending.append(record)
        size += len(record.text) if isinstance(record, Document) else 0
        if len(pending) >= _DOCUMENTS or size >= _CHARACTERS:
            yield _batch(index, pending)
            index, size, pending = index + 1, 0, []
    if pending:
        yield _batch(index, pending)


def _batch(index: int, records: list[Record]) -> Batch:
    documents = tuple(record for record in records if isinstance(record, Document))
    skipped = tuple(record for record in records if isinstance(record, Skipped))
    keys = tuple(hashlib.sha256(document.text.encode()).digest() for document in documents)
    digest = hashlib.sha256()
    for each, key in zip(documents, keys, strict=True):
        digest.update(repr((each.number, each.id, each.source, each.path, each.line)).encode() + key)
    for other in skipped:
        digest.update(repr((other.place, other.reason)).encode())
    return Batch(index, documents, skipped, keys, digest.hexdigest())


@dataclass
class Tally:
    sampled: int  # how many clean documents to draw
    digests: list[str] = field(default_factory=list)
    documents: int = 0
    found: int = 0
    skipped: int = 0
    skipped_first: list[Skipped] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)  # of documents
    sources: Counter[str | None] | None = field(default_factory=Counter)  # None where there are too many
    # The distinct clean documents with the smallest hashes, by hash: a random draw that depends on no order.
    drawn: dict[int, str] = field(default_factory=dict)

    def add(self, batch: Batch, found: Sequence[Mapping[str, Any]]) -> None:
        self.digests.append(batch.digest)
        self.documents += len(batch.documents)
        self.found += len(found)
        self.skipped += len(batch.skipped)
        self.skipped_first += batch.skipped[: 100 - len(self.skipped_first)]
        for each in found:
            self.kinds.update(each["kinds"])
        if self.sources is not None:
            self.sources.update(document.source for document in batch.documents)
            if len(self.sources) > 10_000:
                self.sources = None
        if self.sampled:
            with_findings = {each["number"] for each in found}
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
    meter, tally = Meter(), Tally(sampled)
    finished: dict[int, tuple[Batch, Sequence[Mapping[str, Any]]]] = {}
    computed = 0

    def add(batch: Batch, found: Sequence[Mapping[str, Any]]) -> None:
        # Counted in order: one that was found in the folder may come before an earlier one.
        finished[batch.number] = batch, found
        while (ready := finished.pop(len(tally.digests), None)) is not None:
            tally.add(*ready)
            share, done = meter.share, tally.documents
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
            found = []
            for document, each in zip(batch.documents, findings, strict=True):
                if each is None:
                    continue
                names = ("number", "id", "source", "path")
                line = document.line
                if document.whole and line is not None:
                    line += each["line"]
                found.append({name: getattr(document, name) for name in names} | each | {"line": line})
            keeper.save(_TOKENS, batch.number, batch.digest, {"found": found})
            computed += len(batch.documents)
            add(batch, found)
    progress(Progress("scan", tally.documents, tally.documents, computed))
    return tally


QUERIES = 100
REFERENCE = 200
_LEAST = 10

Vectors = NDArray[np.float32]
Vector = NDArray[np.float64]


class Effect(StrEnum):
    MEASURED = "measured"  # each document is encoded with the copies and without
    PREDICTED = "predicted"  # it is encoded as it is; the rest is from pull and contraction of its tokens


COLUMNS = ("shift", "rise", "moves_up", "predicted")


def panel_texts(
    sample: Sequence[str], own: Sequence[str] | None, source: str, name: str
) -> tuple[Sequence[str], Sequence[str], str]:
    needed = _LEAST if own is not None else 2 * _LEAST
    if len(sample) < needed:
        raise InputError(
            f"{name} has {len(sample)} documents without findings, and {needed} are needed to compare the "
            "others with: pass more documents, or leave effects out"
        )
    if own is not None:
        return own, sample[:REFERENCE], source
    drawn = min(QUERIES, len(sample) // 2)
    queries = [" ".join(text.split()[:30]) for text in sample[:drawn]]
    return queries, sample[drawn : drawn + REFERENCE], f"the first words of {drawn} documents"


class Panel(NamedTuple):
    queries: Vectors  # unit vectors, shape (q, d)
    reference: Vectors  # unit vectors, shape (n, d)
    ranked: Vectors  # similarities of the clean documents to each query, ascending, shape (n, q)
    spread: float  # standard deviation of these similarities


@dataclass(frozen=True)
class EffectPass:
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
        queries, reference = (
            unit_vectors(self.encoder.encode_ids(self._tokenized(each)))
            for each in (self.queries, self.reference)
        )
        similarities = reference @ queries.T
        spread = float(similarities.std())
        if spread < 1e-6:
            raise InputError(
                f"{self.encoder.name} gives all documents the same similarity to the queries: pass others"
            )
        return Panel(queries, reference, np.sort(similarities, axis=0), spread)

    def _tokenized(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        limit = content_limit(self.encoder)
        return [text.ids[:limit] for text in self.encoder.tokenize(texts)]

    def run(self, tally: Tally, progress: ProgressCallback) -> None:
        done, computed, encoded = 0, 0, 0
        for index, batch in enumerate(tally.digests):
            found = self.keeper.found(index, batch)
            if not found:
                continue
            if self.columns(index, batch) is None:
                columns, texts = self._columns(found)
                self.keeper.save(self.kind.value, index, self._key(batch), columns, texts)
                computed, encoded = computed + len(found), encoded + texts
            done += len(found)
            progress(Progress("effects", done, tally.found, computed, encoded))

    def columns(self, index: int, batch: str) -> dict[str, Any] | None:
        return self.keeper.load(self.kind.value, index, self._key(batch))

    def _key(self, batch: str) -> str:
        return digest([batch, digest([self.queries, self.reference]), self.identity])

    def _columns(self, found: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], int]:
        # ``shift`` is the mean change of the similarity to the queries, ``rise`` the mean share of clean
        # documents that it passes, and ``moves_up`` the share of queries for which it passes a tenth of them.
        panel = self.panel
        with_copies, without = (self._tokenized([each[name] for each in found]) for name in ("text", "rest"))
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
                after, before = vectors @ panel.queries.T, clean @ panel.queries.T
                # How many clean documents are less similar to each query, shape (documents, q).
                ranks_after, ranks_before = (
                    np.stack([np.searchsorted(*each) for each in zip(panel.ranked.T, side.T, strict=True)], 1)
                    for side in (after, before)
                )
                passed = (ranks_after - ranks_before) / len(panel.reference)
                columns["shift"][rows] = (after - before).mean(axis=1, dtype=np.float64)
                columns["rise"][rows] = passed.mean(axis=1)
                columns["moves_up"][rows] = (passed >= 0.1).mean(axis=1)
            for values in columns.values():
                values[rows] = np.where(whole, values[rows], np.nan)
        known = {
            name: [None if math.isnan(value) else value for value in values.tolist()]
            for name, values in columns.items()
        }
        return known, len(rows) * (2 if self.kind is Effect.MEASURED else 1)

    def _vectors(self, ids: Sequence[tuple[int, ...]]) -> tuple[Vectors, NDArray[np.bool_]]:
        # Unit vectors, and which of the texts have one.
        vectors = self.encoder.encode_ids(ids, allow_zero=True)
        usable = np.linalg.norm(vectors, axis=1) > 0
        vectors[~usable] = 1.0
        return unit_vectors(vectors), usable


def predicted_shifts(
    found: Vectors, removed: Sequence[Counter[int]], effects: TokenEffects, panel: Panel
) -> Vector:
    # A token draws every text toward one point, its pull divided by its contraction. How far the copies have
    # drawn a document, its own vector tells: it lies that far from the mean of the clean documents toward the
    # point. What short texts showed of a token says where documents go, but not how far.
    center = panel.reference.mean(axis=0, dtype=np.float64)
    queries = panel.queries.mean(axis=0, dtype=np.float64)
    shifts = np.full(len(found), np.nan)
    for row, copies in enumerate(removed):
        ids = np.array(sorted(copies), dtype=np.int64)
        rows = np.searchsorted(effects.ids, ids)
        known = (rows < len(effects.ids)) & (effects.ids[np.minimum(rows, len(effects.ids) - 1)] == ids)
        rows, ids = rows[known], ids[known]
        contraction = np.minimum(effects.contraction[rows], 0.9)
        shares = np.array([copies[token_id] for token_id in ids.tolist()]) / (1 - contraction)
        weight = float(shares @ contraction)
        if weight <= 0:  # also where no token is known
            continue
        way = (shares @ effects.pull[rows].astype(np.float64)) / weight - center
        covered = float(np.clip((found[row] - center) @ way / (way @ way), 0.0, 1.0))
        shifts[row] = covered * float(way @ queries)
    return shifts
