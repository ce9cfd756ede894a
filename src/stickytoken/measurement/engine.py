"""Engines execute plan items through an encoder and commit shards."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, EncoderIdentity, reads_ids, require_ids
from stickytoken.encoders.views import whole_vectors
from stickytoken.insertion import Probe, Token
from stickytoken.machine import Precision
from stickytoken.measurement import ResultFolder, ShardCost

Measured: TypeAlias = float | str | list[float] | NDArray[np.floating[Any]]
"""What a row of a stage holds: a number, a text, or several numbers."""

# The number of shards is a multiple of this, so that one, two or four workers get equal shares.
_TURNS = 4


class Stage(Protocol):
    """One pass over tokens. Pure and self-contained.

    With ``carrier_texts``, the text without copies of each probe, its rows say, as ``seen``, how many copies
    the tokenizer sees. With ``measure_all`` it measures many tokens at once, from `whole_vectors` of its
    ``layers`` where it names any.
    """

    @property
    def name(self) -> str: ...  # of its shards, too
    @property
    def probes_per_token(self) -> int: ...
    @property
    def precision(self) -> Precision | None: ...  # that the model may compute in; None is its own

    # The encoder input for one token, all texts or all id tuples; and its numbers from their vectors.
    def probes(self, token: Token) -> Sequence[Probe]: ...
    def measure(self, token: Token, vectors: NDArray[np.float32]) -> Mapping[str, Measured]: ...


@dataclass(frozen=True, slots=True)
class Shard:
    index: int  # place in the stage
    tokens: tuple[Token, ...]


def cut_into_shards(tokens: Sequence[Token], probes_per_token: int, shard_probes: int) -> list[Shard]:
    probes_per_token = max(1, probes_per_token)
    count = -(-len(tokens) // max(1, shard_probes // probes_per_token))
    even = -(-count // _TURNS) * _TURNS
    if even <= len(tokens) and len(tokens) * probes_per_token >= even * shard_probes / 8:
        count = even
    ends = [len(tokens) * index // max(1, count) for index in range(count + 1)]
    return [
        Shard(index, tuple(tokens[start:stop]))
        for index, (start, stop) in enumerate(itertools.pairwise(ends))
    ]


@dataclass(frozen=True, slots=True)
class Progress:
    stage: str
    done: int  # units, including those of earlier sessions
    total: int
    computed: int = 0  # units that this session computed
    sequences: int = 0  # texts that this session encoded in this stage


ProgressCallback: TypeAlias = Callable[[Progress], None]


def ignore_progress(_: Progress) -> None: ...


class AnyShard(Protocol):
    @property
    def index(self) -> int: ...


S = TypeVar("S", bound=AnyShard)
S_contra = TypeVar("S_contra", bound=AnyShard, contravariant=True)
P = TypeVar("P")


class Work(Protocol[S_contra, P]):
    """Work that an engine executes shard by shard. Pure except for the encoder; it can be pickled."""

    @property
    def name(self) -> str: ...

    # While the model computes the previous shard.
    def prepare(self, shard: S_contra, encoder: Encoder) -> P: ...
    def compute(self, prepared: P, encoder: Encoder) -> tuple[Sequence[Mapping[str, Any]], int]: ...


@dataclass(frozen=True, slots=True)
class ComputedShard(Generic[S]):
    shard: S
    rows: Sequence[Mapping[str, Any]]
    cost: ShardCost


@runtime_checkable
class Engine(Protocol):
    @property
    def identity(self) -> EncoderIdentity: ...  # of the model

    # Every shard once, as soon as it is computed.
    def compute(self, work: Work[S, P], shards: Sequence[S]) -> Iterator[ComputedShard[S]]: ...


class LocalEngine:
    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    @property
    def identity(self) -> EncoderIdentity:
        return self._encoder.identity

    def compute(self, work: Work[S, P], shards: Sequence[S]) -> Iterator[ComputedShard[S]]:
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="probes") as ahead:
            upcoming = [ahead.submit(work.prepare, shard, self._encoder) for shard in shards[:1]]
            for place, shard in enumerate(shards):
                if place + 1 < len(shards):
                    upcoming.append(ahead.submit(work.prepare, shards[place + 1], self._encoder))
                started = time.perf_counter()
                prepared = upcoming.pop(0).result()
                rows, sequences = work.compute(prepared, self._encoder)
                yield ComputedShard(shard, rows, ShardCost(time.perf_counter() - started, sequences))


# Tokens; their probes, as content ids, or as texts if the encoder reads only texts; and for each token the
# copies that the tokenizer sees in its probes, if the stage asks.
_Prepared: TypeAlias = tuple[Sequence[Token], Sequence[Probe], Sequence[list[int]]]


@dataclass(frozen=True, slots=True)
class TokenWork:
    stage: Stage

    @property
    def name(self) -> str:
        return self.stage.name

    def prepare(self, shard: Shard, encoder: Encoder) -> _Prepared:
        probes = [probe for token in shard.tokens for probe in self.stage.probes(token)]
        seen = []
        if texts := getattr(self.stage, "carrier_texts", ()):  # beyond those of the text without copies
            ids = iter(encoder.content_ids([probe for probe in probes if isinstance(probe, str)]))
            carriers = encoder.content_ids(texts)
            seen = [
                [max(0, next(ids).count(token.id) - carrier.count(token.id)) for carrier in carriers]
                for token in shard.tokens
            ]
        return shard.tokens, tokenized_probes(encoder, probes), seen

    def compute(self, prepared: _Prepared, encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        stage, (tokens, probes, seen) = self.stage, prepared
        layers, measure_all = getattr(stage, "layers", None), getattr(stage, "measure_all", None)
        reading = encoder if layers is None else whole_vectors(encoder, layers)
        vectors = encode_probes(reading, probes, stage.precision)
        found: Sequence[Mapping[str, Any]]
        if measure_all is not None:
            found = measure_all(tokens, vectors)
        else:
            by_token = vectors.reshape(len(tokens), -1, vectors.shape[-1])
            found = [stage.measure(token, own) for token, own in zip(tokens, by_token, strict=True)]
        rows: list[dict[str, Any]] = [
            {"token_id": token.id, **numbers} for token, numbers in zip(tokens, found, strict=True)
        ]
        for row, counts in zip(rows, seen, strict=False):
            row["seen"] = counts
        return rows, len(probes)


def compute_shard(stage: Stage, shard: Shard, encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
    work = TokenWork(stage)
    return work.compute(work.prepare(shard, encoder), encoder)


def tokenized_probes(encoder: Encoder, probes: Sequence[Probe]) -> Sequence[Probe]:
    texts = [probe for probe in probes if isinstance(probe, str)]
    return list(map(tuple, encoder.content_ids(texts))) if texts and reads_ids(encoder) else probes


def encode_probes(
    encoder: Encoder, probes: Sequence[Probe], precision: Precision | None = None
) -> NDArray[np.float32]:
    texts = [probe for probe in probes if isinstance(probe, str)]
    if texts and precision is None:
        return encoder.encode(texts)
    ids = [probe for probe in probes if not isinstance(probe, str)]
    return require_ids(encoder, "insertion 'ids' or a lower precision").at(precision).encode_ids(ids)


@dataclass(frozen=True)
class Rows(Generic[S]):
    keys: Callable[[S], Sequence[int]]  # in the order of the rows
    column: str  # that holds them
    size: Callable[[S], int]  # of a shard in units of progress


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
    title, total = title or name, sum(rows.size(shard) for shard in shards)
    frames = {
        shard.index: folder.read_shard(name, shard.index, rows.keys(shard), rows.column) for shard in shards
    }
    missing = [shard for shard in shards if frames[shard.index] is None]
    progress(Progress(title, 0, total))
    if done := total - sum(rows.size(shard) for shard in missing):
        progress(Progress(title, done, total))
    computed = sequences = 0
    if missing:
        work, spent = make_work()
        for found in engine.compute(work, missing):
            cost = found.cost
            if not found.shard.index:
                cost = ShardCost(cost.seconds + spent.seconds, cost.sequences + spent.sequences)
            folder.write_shard(name, found.shard.index, found.rows, cost)
            frames[found.shard.index] = pl.DataFrame(list(found.rows), infer_schema_length=None)
            computed += rows.size(found.shard)
            sequences += cost.sequences
            progress(Progress(title, done + computed, total, computed, sequences))
    return [frame for shard in shards if (frame := frames[shard.index]) is not None]
