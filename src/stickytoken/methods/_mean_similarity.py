"""Measure the mean similarity u of a model's vocabulary on an engine, which keeps what it has encoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from stickytoken.encoders.mean_similarity import (
    MeanSimilarity,
    VectorSums,
    add_unit_vectors,
    blocks_of_entries,
    mean_of_sums,
    sampled_entries,
)
from stickytoken.encoders.protocol import Encoder
from stickytoken.measurement.engine import Rows, Shard
from stickytoken.methods.runner import Runner

# Number of entries in the first sample that u is estimated from. Each further sample has twice as many.
_FIRST_SAMPLE = 256
_LARGEST_SAMPLE = 2048

Entries: TypeAlias = tuple[str, ...]
"""A group of vocabulary entries, each as a text of its own, whose unit vectors are added up."""


class EntryWork:
    """Adds up the unit vectors of vocabulary entries; the result has one row per group."""

    name = "mean similarity"

    def prepare(self, shard: Shard[Entries], encoder: Encoder) -> Shard[Entries]:
        """Return the shard as it is: `compute` needs the strings."""
        del encoder
        return shard

    def compute(self, prepared: Shard[Entries], encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        totals = add_unit_vectors(encoder, prepared.items)
        rows = [
            {"group": group, "sum": total, "entries": int(count)}
            for group, (total, count) in enumerate(zip(totals.sums, totals.counts, strict=True))
        ]
        return rows, _count_entries(prepared)


def _count_entries(shard: Shard[Entries]) -> int:
    return sum(len(group) for group in shard.items)


_ROWS_OF_GROUPS: Rows[Entries] = Rows(
    keys=lambda shard: list(range(len(shard.items))), column="group", size=_count_entries, unit="texts"
)


def measure_mean_similarity(
    encoder: Encoder, runner: Runner, tolerance: float | None = None
) -> MeanSimilarity:
    """Return the model's mean similarity u.

    Args:
        encoder: the model.
        runner: encodes the vocabulary entries, and keeps what it has encoded.
        tolerance: u is estimated from twice as many random entries until its standard error is at most
            ``tolerance``, or the largest sample is used. If None, all entries are encoded.
    """
    if tolerance is None:
        return _measure_blocks(encoder, runner, blocks_of_entries(encoder))
    blocks = sampled_entries(encoder, _FIRST_SAMPLE, _LARGEST_SAMPLE)
    block_count = 1
    similarity = _measure_blocks(encoder, runner, blocks[:block_count])
    while similarity.error > tolerance and block_count < len(blocks):
        block_count *= 2
        similarity = _measure_blocks(encoder, runner, blocks[:block_count])
    return similarity


def _measure_blocks(
    encoder: Encoder, runner: Runner, blocks: Sequence[tuple[Entries, ...]]
) -> MeanSimilarity:
    # Each block is a shard, which has one row per group: the sum of its unit vectors, and their number.
    shards = [Shard(index, groups) for index, groups in enumerate(blocks)]
    sums_of_blocks = []
    for table in runner.run_work(EntryWork(), shards, _ROWS_OF_GROUPS):
        sums = np.array(table["sum"].to_list(), dtype=np.float64)  # shape (groups, d)
        sums_of_blocks.append(VectorSums(sums, table["entries"].to_numpy()))
    encoded = sum(_count_entries(shard) for shard in shards)
    return mean_of_sums(encoder.name, sums_of_blocks, encoded, len(encoder.tokenizer.entries))
