"""Engines execute plan items through an encoder and commit shards."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, EncoderIdentity, reads_ids, require_ids
from stickytoken.encoders.views import whole_vectors
from stickytoken.insertion import Probe, Token
from stickytoken.machine import Precision
from stickytoken.measurement.stage import (
    CountingStage,
    Progress,
    ProgressCallback,
    Shard,
    Stage,
    counts_copies,
    measures_batches,
)
from stickytoken.measurement.store import ResultFolder, ShardCost


class AnyShard(Protocol):
    """A slice of work, computed and committed as a unit."""

    @property
    def index(self) -> int:
        """Position in the work."""


S = TypeVar("S", bound=AnyShard)
S_contra = TypeVar("S_contra", bound=AnyShard, contravariant=True)
P = TypeVar("P")


class Work(Protocol[S_contra, P]):
    """Work that an engine executes shard by shard. Pure except for the encoder; it can be pickled."""

    @property
    def name(self) -> str:
        """Name of its shards."""

    def prepare(self, shard: S_contra, encoder: Encoder) -> P:
        """Prepare a shard while the model computes the previous one."""

    def compute(self, prepared: P, encoder: Encoder) -> tuple[Sequence[Mapping[str, Any]], int]:
        """Compute the rows of a shard."""


@dataclass(frozen=True, slots=True)
class ComputedShard(Generic[S]):
    """A shard that is computed but not committed.

    Attributes:
        shard: the shard.
        rows: its rows in order.
        cost: cost of computing it.
    """

    shard: S
    rows: Sequence[Mapping[str, Any]]
    cost: ShardCost


@runtime_checkable
class Engine(Protocol):
    """Computes shards of any work."""

    @property
    def identity(self) -> EncoderIdentity:
        """Identity of the model."""

    def compute(self, work: Work[S, P], shards: Sequence[S]) -> Iterator[ComputedShard[S]]:
        """Yield every shard once, as soon as it is computed."""


class LocalEngine:
    """Computes shards in this process."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    @property
    def identity(self) -> EncoderIdentity:
        """Identity of the model."""
        return self._encoder.identity

    def compute(self, work: Work[S, P], shards: Sequence[S]) -> Iterator[ComputedShard[S]]:
        """Yield the shards in order; see `Engine.compute`.

        The next shard is prepared while the model computes.
        """
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="probes") as ahead:
            upcoming = deque(self._submitted(ahead, work, shards[:1]))
            for place, shard in enumerate(shards):
                upcoming.extend(self._submitted(ahead, work, shards[place + 1 : place + 2]))
                started = time.perf_counter()
                prepared = upcoming.popleft().result()
                rows, sequences = work.compute(prepared, self._encoder)
                yield ComputedShard(shard, rows, ShardCost(time.perf_counter() - started, sequences))

    def _submitted(self, ahead: Executor, work: Work[S, P], shards: Sequence[S]) -> list[Future[P]]:
        return [ahead.submit(work.prepare, shard, self._encoder) for shard in shards]


@dataclass(frozen=True, slots=True)
class PreparedShard:
    """A shard ready for the model.

    Attributes:
        tokens: tokens that it covers, each with the slice of its probes.
        probes: all probes as content ids, or as texts if the encoder reads only texts.
        seen: copies that the tokenizer sees in each probe; None if the stage does not ask.
    """

    tokens: Sequence[tuple[Token, slice]]
    probes: Sequence[Probe]
    seen: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class TokenWork:
    """A stage in the form that engines execute."""

    stage: Stage

    @property
    def name(self) -> str:
        """Name of the stage."""
        return self.stage.name

    def prepare(self, shard: Shard, encoder: Encoder) -> PreparedShard:
        """Create and tokenize the probes."""
        return prepare_shard(self.stage, shard, encoder)

    def compute(self, prepared: PreparedShard, encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        """Encode the probes and measure each token."""
        return measure_shard(self.stage, prepared, encoder)


def compute_shard(stage: Stage, shard: Shard, encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
    """Encode all probes of a shard together and measure each token."""
    return measure_shard(stage, prepare_shard(stage, shard, encoder), encoder)


def prepare_shard(stage: Stage, shard: Shard, encoder: Encoder) -> PreparedShard:
    """Create the probes of a shard and tokenize those that are texts."""
    probes: list[Probe] = []
    tokens: list[tuple[Token, slice]] = []
    for token in shard.tokens:
        start = len(probes)
        probes.extend(stage.probes(token))
        tokens.append((token, slice(start, len(probes))))
    seen = _copies_seen(stage, tokens, probes, encoder) if counts_copies(stage) else None
    return PreparedShard(tokens, tokenized_probes(encoder, probes), seen)


def _copies_seen(
    stage: CountingStage, tokens: Sequence[tuple[Token, slice]], probes: Sequence[Probe], encoder: Encoder
) -> list[int]:
    """Count the copies of its token that the tokenizer sees in each probe, beyond those of the carrier."""
    ids = encoder.content_ids([probe for probe in probes if isinstance(probe, str)])
    own = encoder.content_ids(stage.carrier_texts)
    return [
        max(0, row.count(token.id) - carrier.count(token.id))
        for token, part in tokens
        for row, carrier in zip(ids[part], own, strict=True)
    ]


def tokenized_probes(encoder: Encoder, probes: Sequence[Probe]) -> Sequence[Probe]:
    """Tokenize probes, which are all texts or all ids; texts stay texts if the encoder reads only texts."""
    texts = [probe for probe in probes if isinstance(probe, str)]
    if texts and len(texts) == len(probes) and reads_ids(encoder):
        return [tuple(ids) for ids in encoder.content_ids(texts)]
    return probes


def encode_probes(
    encoder: Encoder, probes: Sequence[Probe], precision: Precision | None = None
) -> NDArray[np.float32]:
    """Encode probes from `tokenized_probes`, shape (n, d)."""
    texts = [probe for probe in probes if isinstance(probe, str)]
    if texts and len(texts) == len(probes) and precision is None:
        return encoder.encode(texts)
    ids = [probe for probe in probes if not isinstance(probe, str)]
    return require_ids(encoder, "insertion 'ids' or a lower precision").at(precision).encode_ids(ids)


def measure_shard(
    stage: Stage, prepared: PreparedShard, encoder: Encoder
) -> tuple[list[dict[str, Any]], int]:
    """Encode a prepared shard and measure each token; see `compute_shard`."""
    found: Sequence[Mapping[str, Any]]
    if measures_batches(stage):
        reading = encoder if stage.layers is None else whole_vectors(encoder, stage.layers)
        vectors = encode_probes(reading, prepared.probes, stage.precision)
        found = stage.measure_all([token for token, _ in prepared.tokens], vectors)
    else:
        vectors = encode_probes(encoder, prepared.probes, stage.precision)
        found = [stage.measure(token, vectors[own]) for token, own in prepared.tokens]
    rows = [
        {"token_id": token.id, **numbers, **_counted(prepared, own)}
        for (token, own), numbers in zip(prepared.tokens, found, strict=True)
    ]
    return rows, len(prepared.probes)


def _counted(prepared: PreparedShard, own: slice) -> dict[str, Any]:
    return {} if prepared.seen is None else {"seen": prepared.seen[own]}


_NO_COST = ShardCost(0, 0)


@dataclass(frozen=True)
class Rows(Generic[S]):
    """Keys of the rows of a shard, by which a committed shard is recognised.

    Attributes:
        keys: returns the keys of the rows of a shard, in order.
        column: column that holds the keys.
        size: returns the size of a shard in units of progress.
    """

    keys: Callable[[S], Sequence[int]]
    column: str
    size: Callable[[S], int]


_TOKEN_ROWS: Rows[Shard] = Rows(
    lambda shard: [token.id for token in shard.tokens], "token_id", lambda shard: len(shard.tokens)
)


def run_stage(
    stage: Stage, shards: Sequence[Shard], engine: Engine, folder: ResultFolder, progress: ProgressCallback
) -> pl.DataFrame:
    """Run a stage over tokens; see `run_work`."""
    work = TokenWork(stage)
    return pl.concat(
        run_work(stage.name, lambda: (work, _NO_COST), shards, _TOKEN_ROWS, engine, folder, progress)
    )


def run_work(
    name: str,
    make_work: Callable[[], tuple[Work[S, P], ShardCost]],
    shards: Sequence[S],
    rows: Rows[S],
    engine: Engine,
    folder: ResultFolder,
    progress: ProgressCallback,
    title: str | None = None,
) -> list[pl.DataFrame]:
    """Compute the shards that are not committed yet, then return the rows of all shards.

    Only this process writes, because it holds the lock: a worker that lost its connection must not change a
    folder that another process continues.
    """
    title, total = title or name, sum(rows.size(shard) for shard in shards)
    frames = {
        shard.index: folder.read_shard(name, shard.index, rows.keys(shard), rows.column) for shard in shards
    }
    missing = [shard for shard in shards if frames[shard.index] is None]
    progress(Progress(title, 0, total))
    done = total - sum(rows.size(shard) for shard in missing)
    if done:
        progress(Progress(title, done, total))
    computed = sequences = 0
    if missing:
        work, spent = make_work()
        for found in engine.compute(work, missing):
            cost = found.cost if found.shard.index else found.cost.plus(spent)
            folder.write_shard(name, found.shard.index, found.rows, cost)
            frames[found.shard.index] = pl.DataFrame(list(found.rows), infer_schema_length=None)
            computed += rows.size(found.shard)
            sequences += cost.sequences
            progress(Progress(title, done + computed, total, computed, sequences))
    return [frame for shard in shards if (frame := frames[shard.index]) is not None]
