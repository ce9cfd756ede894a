"""Compute shards one after another in this process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.detection.stage import Shard, Stage
from stickytoken.encoders.protocol import Encoder
from stickytoken.insertion import Probe, Token
from stickytoken.runs.progress import Progress, ProgressCallback
from stickytoken.runs.store import RunFolder, ShardCost


def run_stage(
    stage: Stage, shards: Sequence[Shard], encoder: Encoder, folder: RunFolder, progress: ProgressCallback
) -> pl.DataFrame:
    """Compute the shards that are not committed yet, then return all rows in order.

    Args:
        stage: probes and measurement.
        shards: the whole stage.
        encoder: encodes the probes.
        folder: where shards are committed; the caller holds its lock.
        progress: told after every shard.
    """
    total = sum(len(shard.tokens) for shard in shards)
    done = computed = sequences = 0
    frames: list[pl.DataFrame] = []
    progress(Progress(stage.name, 0, total))
    for shard in shards:
        ids = [token.id for token in shard.tokens]
        frame = folder.read_shard(stage.name, shard.index, ids)
        if frame is None:
            started = time.perf_counter()
            rows, encoded = compute_shard(stage, shard, encoder)
            cost = ShardCost(time.perf_counter() - started, encoded)
            folder.write_shard(stage.name, shard.index, rows, cost)
            frame = pl.DataFrame(rows, infer_schema_length=None)
            computed += len(ids)
            sequences += encoded
        frames.append(frame)
        done += len(ids)
        progress(Progress(stage.name, done, total, computed, sequences))
    return pl.concat(frames)


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
    vectors = encode_probes(encoder.at(stage.precision), probes)
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
