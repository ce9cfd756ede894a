"""Compute shards one by one in this process."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, EncoderIdentity, reads_ids, require_ids
from stickytoken.encoders.views import whole_vectors
from stickytoken.insertion import Probe, Token
from stickytoken.measurement.engines.protocol import ComputedShard, P, S, Work
from stickytoken.measurement.stage import CountingStage, Shard, Stage, counts_copies, measures_batches
from stickytoken.measurement.store import ShardCost
from stickytoken.precision import Precision


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
    """Encode all probes of a shard together and measure each token.

    Returns:
        One row per token, and the number of probes.
    """
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
    """Encode probes from `tokenized_probes`, shape (n, d).

    Raises:
        ModelError: the probes are ids, or the precision is lower, and the encoder reads only texts.
    """
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
