"""The mean similarity u of a model: the mean cosine over all pairs of vocabulary entries."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from stickytoken.encoders.protocol import Encoder, has_vector, reads_ids
from stickytoken.errors import EncodingError
from stickytoken.measurement.engine import Shard
from stickytoken.methods.runner import Runner
from stickytoken.unit_vectors import exact_unit_vectors

# Number of vocabulary entries that are encoded together.
_BLOCK = 4096


class MeanSimilarity(NamedTuple):
    """The mean similarity u."""

    value: float
    # Number of vocabulary entries that u is computed from: all but those that have no tokens, more tokens
    # than the model reads, or no usable vector.
    entry_count: int


class EntryWork:
    """Adds up the unit vectors of vocabulary entries, each of which is a text of its own."""

    name = "mean similarity"
    unit = "texts"
    key_column = "block"

    def keys(self, shard: Shard[str]) -> list[int]:
        return [shard.index]  # a shard has one row

    def prepare(self, shard: Shard[str], encoder: Encoder) -> Shard[str]:
        """Return the shard unchanged: `compute` needs its strings."""
        del encoder
        return shard

    def compute(self, prepared: Shard[str], encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        """Return one row with the sum of a shard's unit vectors, and the number of texts in the shard."""
        contents = encoder.content_ids(prepared.items)
        # Indices of the entries that have tokens, and no more than the model reads.
        readable = [index for index, ids in enumerate(contents) if ids and encoder.fits(ids)]
        if reads_ids(encoder):
            vectors = encoder.encode_ids([contents[index] for index in readable], allow_zero=True)
        else:
            vectors = encoder.encode([prepared.items[index] for index in readable], allow_zero=True)
        vectors = vectors[has_vector(vectors)]
        total = np.zeros(encoder.dimension)
        if len(vectors):
            total = exact_unit_vectors(vectors).sum(axis=0)
        row = {"block": prepared.index, "sum": total, "entries": len(vectors)}
        return [row], len(prepared.items)


def measure_mean_similarity(encoder: Encoder, runner: Runner) -> MeanSimilarity:
    """Return u, the mean cosine over all ordered pairs of vocabulary entries (Chen et al. 2025).

    Every string in the vocabulary is encoded as a text, as for the published values. The mean over all pairs,
    including each entry with itself, is the squared norm of the mean unit vector.

    Raises:
        EncodingError: Fewer than two entries can be encoded.
    """
    entries = tuple(encoder.tokenizer.entries.values())
    blocks = [entries[start : start + _BLOCK] for start in range(0, len(entries), _BLOCK)]
    shards = [Shard(index, block) for index, block in enumerate(blocks)]
    total = np.zeros(encoder.dimension)
    entry_count = 0
    for table in runner.run_work(EntryWork(), shards):
        row = table.row(0, named=True)
        total += np.array(row["sum"], dtype=np.float64)
        entry_count += row["entries"]
    if entry_count < 2:
        raise EncodingError(
            f"{encoder.name}: only {entry_count} of {len(entries):,} vocabulary entries can be encoded"
        )
    mean_vector = total / entry_count
    return MeanSimilarity(float(mean_vector @ mean_vector), entry_count)
