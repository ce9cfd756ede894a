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

from stickytoken.encoders.protocol import (
    Encoder,
    EncoderIdentity,
    content_limit,
    reads_ids,
    require_ids,
    require_usable,
    shown,
)
from stickytoken.errors import EncodingError
from stickytoken.insertion import Probe, Token
from stickytoken.machine import Precision
from stickytoken.measurement import ResultFolder, ShardCost

Measured: TypeAlias = float | str | list[float] | list[int] | NDArray[np.floating[Any]]
"""What a row of a stage holds: a number, a text, or several numbers."""

# Column of a shard: a text of the token for which a server gave no vector; null if it gave all. The column is
# missing from shards in which it would be null throughout.
UNANSWERED = "unanswered"

# The number of shards is a multiple of this, so that one, two or four workers get equal shares.
_TURNS = 4


class Stage(Protocol):
    """One pass over tokens. Pure and self-contained.

    With ``carrier_texts``, the text without copies of each probe, its rows say, as ``seen``, how many copies
    the tokenizer sees.
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


@runtime_checkable
class BatchStage(Protocol):
    """A stage that also measures many tokens at once, which is faster."""

    def measure_all(
        self, tokens: Sequence[Token], vectors: NDArray[np.float32]
    ) -> Sequence[Mapping[str, Measured]]: ...


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
    note: str = ""  # something to tell the user once


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
            for number, shard in enumerate(shards):
                if number + 1 < len(shards):
                    upcoming.append(ahead.submit(work.prepare, shards[number + 1], self._encoder))
                started = time.perf_counter()
                prepared = upcoming.pop(0).result()
                rows, sequences = work.compute(prepared, self._encoder)
                yield ComputedShard(shard, rows, ShardCost(time.perf_counter() - started, sequences))


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The probes of a shard, token by token."""

    tokens: Sequence[Token]
    counts: Sequence[int]  # probes of each token
    probes: Sequence[Probe]  # as content ids, or as texts if the encoder reads only texts
    seen: Sequence[list[int]]  # copies that the tokenizer sees in the probes of each token, if the stage asks


@dataclass(frozen=True, slots=True)
class TokenWork:
    stage: Stage
    truncate: bool = False  # cut texts that are longer than the model reads, as the model does

    @property
    def name(self) -> str:
        return self.stage.name

    def prepare(self, shard: Shard, encoder: Encoder) -> _Prepared:
        by_token = [self.stage.probes(token) for token in shard.tokens]
        probes = [probe for of_token in by_token for probe in of_token]
        counts = [len(of_token) for of_token in by_token]
        carrier_texts = getattr(self.stage, "carrier_texts", ())
        copies_seen = _copies_seen(encoder, shard.tokens, probes, carrier_texts) if carrier_texts else []
        return _Prepared(shard.tokens, counts, tokenized_probes(encoder, probes, self.truncate), copies_seen)

    def compute(self, prepared: _Prepared, encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        stage = self.stage
        tokens = prepared.tokens
        vectors = encode_probes(encoder, prepared.probes, stage.precision)
        unanswered = _fill_unanswered(vectors, prepared, encoder.name)
        measurements: Sequence[Mapping[str, Any]]
        if isinstance(stage, BatchStage):
            measurements = stage.measure_all(tokens, vectors)
        else:
            by_token = np.split(vectors, np.cumsum(prepared.counts)[:-1])
            measurements = [
                stage.measure(token, of_token) for token, of_token in zip(tokens, by_token, strict=True)
            ]
        rows: list[dict[str, Any]] = [
            {"token_id": token.id, **numbers} for token, numbers in zip(tokens, measurements, strict=True)
        ]
        for row, copies in zip(rows, prepared.seen, strict=False):
            row["seen"] = copies
        if unanswered:
            for index, row in enumerate(rows):
                row[UNANSWERED] = unanswered.get(index)
        return rows, len(prepared.probes)


def _copies_seen(
    encoder: Encoder, tokens: Sequence[Token], probes: Sequence[Probe], carrier_texts: Sequence[str]
) -> list[list[int]]:
    """Count, by token and carrier, the copies that the tokenizer sees beyond those in the carrier itself."""
    carriers = encoder.content_ids(carrier_texts)
    probe_ids = iter(encoder.content_ids([probe for probe in probes if isinstance(probe, str)]))
    copies_of_tokens: list[list[int]] = []
    for token in tokens:
        of_token = []
        for carrier in carriers:
            added = next(probe_ids).count(token.id) - carrier.count(token.id)
            of_token.append(max(0, added))
        copies_of_tokens.append(of_token)
    return copies_of_tokens


def _fill_unanswered(vectors: NDArray[np.float32], prepared: _Prepared, name: str) -> dict[int, str]:
    """Replace missing vectors by the mean of other tokens' vectors at the same place, in place.

    A server may give no vector for a text. Its token is measured like an ordinary one, so that methods need
    not know of this, and the numbers of the token are removed at the end (`FolderRunner.unanswered`).

    Args:
        vectors: one row per probe, shape (P, d); rows of NaN are missing.
        prepared: the probes.
        name: name of the encoder.

    Returns:
        One of the texts without a vector, by the place of the token.

    Raises:
        EncodingError: the server gives no token a vector for one of the places.
    """
    missing = np.isnan(vectors[:, 0])
    unanswered: dict[int, str] = {}
    if not missing.any():
        return unanswered
    token_of_probe = np.repeat(np.arange(len(prepared.counts)), prepared.counts)
    place_of_probe = np.concatenate([np.arange(count) for count in prepared.counts])
    for row in np.flatnonzero(missing).tolist():
        text = str(prepared.probes[row])
        unanswered.setdefault(int(token_of_probe[row]), text)
        answered = vectors[(place_of_probe == place_of_probe[row]) & ~missing]
        if not len(answered):
            raise EncodingError(
                f"{name}: the server gives no vector for the text {shown(text)}, nor for others like it: "
                "leave the token out, or use shorter sentences or fewer copies"
            )
        vectors[row] = answered.mean(axis=0)
    return unanswered


def compute_shard(
    stage: Stage, shard: Shard, encoder: Encoder, truncate: bool = False
) -> tuple[list[dict[str, Any]], int]:
    work = TokenWork(stage, truncate)
    return work.compute(work.prepare(shard, encoder), encoder)


def tokenized_probes(encoder: Encoder, probes: Sequence[Probe], truncate: bool = False) -> Sequence[Probe]:
    texts = [probe for probe in probes if isinstance(probe, str)]
    if not texts or not reads_ids(encoder):
        return probes
    limit = content_limit(encoder) if truncate else None
    return [tuple(ids[:limit]) for ids in encoder.content_ids(texts)]


def encode_probes(
    encoder: Encoder, probes: Sequence[Probe], precision: Precision | None = None
) -> NDArray[np.float32]:
    """Encode texts or ids. Rows of NaN are texts for which a server gives no vector."""
    texts = [probe for probe in probes if isinstance(probe, str)]
    if texts and precision is None:
        vectors = encoder.encode(texts, allow_zero=True)
        answered = np.flatnonzero(~np.isnan(vectors).any(axis=1)).tolist()
        require_usable(
            vectors[answered], encoder.name, lambda row: shown(texts[answered[row]]), allow_zero=False
        )
        return vectors
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
    """Compute the shards that the folder lacks, commit each, and return the tables of all shards.

    Args:
        name: name of the shards.
        make_work: makes the work, and says what that cost; called only if a shard is missing.
        shards: all shards of the work.
        rows: which rows a shard has.
        engine: computes the shards.
        folder: where they are committed.
        progress: told of every shard.
        title: what the progress is called; None is the name.
    """
    title = title or name
    total = sum(rows.size(shard) for shard in shards)
    frames: dict[int, pl.DataFrame] = {}
    missing: list[S] = []
    for shard in shards:
        frame = folder.read_shard(name, shard.index, rows.keys(shard), rows.column)
        if frame is None:
            missing.append(shard)
        else:
            frames[shard.index] = frame
    done = total - sum(rows.size(shard) for shard in missing)
    progress(Progress(title, 0, total))
    if done:
        progress(Progress(title, done, total))
    computed = 0
    sequences = 0
    if missing:
        work, preparation = make_work()
        for result in engine.compute(work, missing):
            index = result.shard.index
            cost = result.cost
            if index == 0:
                cost = ShardCost(cost.seconds + preparation.seconds, cost.sequences + preparation.sequences)
            frames[index] = folder.write_shard(name, index, result.rows, cost)
            computed += rows.size(result.shard)
            sequences += cost.sequences
            progress(Progress(title, done + computed, total, computed, sequences))
    return [frames[shard.index] for shard in shards]
