"""Compute shards one after another in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.detection.stage import Shard, Stage
from stickytoken.encoders.protocol import Encoder, EncoderIdentity
from stickytoken.insertion import Probe, Token
from stickytoken.runs.engines.protocol import ComputedShard
from stickytoken.runs.store import ShardCost


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
        """Give the shards in order; see `Engine.compute`."""
        for shard in shards:
            started = time.perf_counter()
            rows, sequences = compute_shard(stage, shard, self._encoder)
            yield ComputedShard(shard, rows, ShardCost(time.perf_counter() - started, sequences))


def compute_shard(stage: Stage, shard: Shard, encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
    """Encode all probes of a shard together and measure token by token.

    Returns:
        One row a token, and the number of probes.
    """
    probes: list[Probe] = []
    spans: list[tuple[Token, int, int]] = []
    for token in shard.tokens:
        start = len(probes)
        probes.extend(stage.probes(token))
        spans.append((token, start, len(probes)))
    vectors = encode_probes(encoder, probes)
    rows = [
        {"token_id": token.id, **stage.measure(token, vectors[start:stop])} for token, start, stop in spans
    ]
    return rows, len(probes)


def encode_probes(encoder: Encoder, probes: Sequence[Probe]) -> NDArray[np.float32]:
    """Encode texts, or id tuples; one kind at a time."""
    texts = [probe for probe in probes if isinstance(probe, str)]
    if len(texts) == len(probes):
        return encoder.encode(texts)
    return encoder.encode_ids([probe for probe in probes if not isinstance(probe, str)])
