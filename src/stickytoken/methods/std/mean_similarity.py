"""The mean similarity u of a model: the mean cosine over all pairs of vocabulary entries."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from stickytoken.encoders.protocol import Encoder, has_vector, reads_ids
from stickytoken.errors import EncodingError
from stickytoken.measurement.engine import Rows, Shard
from stickytoken.methods.runner import Runner
from stickytoken.unit_vectors import exact_unit_vectors

# Number of entries that are encoded together.
_BLOCK = 4096


class MeanSimilarity(NamedTuple):
    """The mean similarity u."""

    value: float
    # Number of entries that it is computed from: all but those that have no tokens, more tokens than the
    # model reads, or no usable vector.
    entries: int


class EntryWork:
    """Adds up the unit vectors of vocabulary entries, each of which is a text of its own."""

    name = "mean similarity"

    def prepare(self, shard: Shard[str], encoder: Encoder) -> Shard[str]:
        """Return the shard as it is: `compute` needs the strings."""
        del encoder
        return shard

    def compute(self, prepared: Shard[str], encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        """Return one row with the sum of the unit vectors of a shard, and the number of texts."""
        contents = encoder.content_ids(prepared.items)
        # Without the entries that have no tokens, and those that are too long.
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


_ONE_ROW: Rows[str] = Rows(
    keys=lambda shard: [shard.index], column="block", size=lambda shard: len(shard.items), unit="texts"
)


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
    count = 0
    for table in runner.run_work(EntryWork(), shards, _ONE_ROW):
        row = table.row(0, named=True)
        total += np.array(row["sum"], dtype=np.float64)
        count += row["entries"]
    if count < 2:
        raise EncodingError(
            f"{encoder.name}: only {count} of {len(entries):,} vocabulary entries can be encoded"
        )
    mean = total / count
    return MeanSimilarity(float(mean @ mean), count)
