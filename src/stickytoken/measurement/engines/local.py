"""Compute shards one after another in this process."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from stickytoken.encoders.protocol import Encoder, EncoderIdentity
from stickytoken.insertion import Probe, Token
from stickytoken.measurement.engines.protocol import ComputedShard
from stickytoken.measurement.stage import Shard, Stage
from stickytoken.measurement.store import ShardCost


class LocalEngine:
    """Computes shards in this process.

    Args:
        encoder: encodes the probes.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    @property
    def identity(self) -> EncoderIdentity:
        """Of the model that it computes with."""
        return self._encoder.identity

    def compute(self, stage: Stage, shards: Sequence[Shard]) -> Iterator[ComputedShard]:
        """Give the shards in order; see `Engine.compute`.

        The probes of the next shard are made and tokenized while the model computes.
        """
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="probes") as ahead:
            upcoming = deque(self._submitted(ahead, stage, shards[:1]))
            for place, shard in enumerate(shards):
                upcoming.extend(self._submitted(ahead, stage, shards[place + 1 : place + 2]))
                started = time.perf_counter()
                prepared = upcoming.popleft().result()
                rows, sequences = measure_shard(stage, prepared, self._encoder)
                yield ComputedShard(shard, rows, ShardCost(time.perf_counter() - started, sequences))

    def _submitted(
        self, ahead: Executor, stage: Stage, shards: Sequence[Shard]
    ) -> list[Future[PreparedShard]]:
        return [ahead.submit(prepare_shard, stage, shard, self._encoder) for shard in shards]


@dataclass(frozen=True, slots=True)
class PreparedShard:
    """A shard ready for the model.

    Attributes:
        tokens: what it covers, each with the slice of its probes.
        ids: content ids of all probes.
    """

    tokens: Sequence[tuple[Token, slice]]
    ids: Sequence[Sequence[int]]


def compute_shard(stage: Stage, shard: Shard, encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
    """Encode all probes of a shard together and measure token by token.

    Returns:
        One row a token, and the number of probes.
    """
    return measure_shard(stage, prepare_shard(stage, shard, encoder), encoder)


def prepare_shard(stage: Stage, shard: Shard, encoder: Encoder) -> PreparedShard:
    """Make the probes of a shard and tokenize those that are texts."""
    probes: list[Probe] = []
    tokens: list[tuple[Token, slice]] = []
    for token in shard.tokens:
        start = len(probes)
        probes.extend(stage.probes(token))
        tokens.append((token, slice(start, len(probes))))
    return PreparedShard(tokens, probe_ids(encoder, probes))


def probe_ids(encoder: Encoder, probes: Sequence[Probe]) -> Sequence[Sequence[int]]:
    """Content ids of probes, which are all texts or all ids already."""
    texts = [probe for probe in probes if isinstance(probe, str)]
    if texts and len(texts) == len(probes):
        return encoder.content_ids(texts)
    return [probe for probe in probes if not isinstance(probe, str)]


def measure_shard(
    stage: Stage, prepared: PreparedShard, encoder: Encoder
) -> tuple[list[dict[str, Any]], int]:
    """Encode what was prepared and measure token by token; as `compute_shard`."""
    vectors = encoder.at(stage.precision).encode_ids(prepared.ids)
    rows = [{"token_id": token.id, **stage.measure(token, vectors[own])} for token, own in prepared.tokens]
    return rows, len(prepared.ids)
