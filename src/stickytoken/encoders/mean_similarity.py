"""Compute the mean cosine over the vocabulary, the value that sticky tokens pull towards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, reads_ids
from stickytoken.errors import EncodingError


class MeanSimilarity(NamedTuple):
    """Mean cosine over all pairs of vocabulary embeddings.

    Attributes:
        value: the mean similarity u.
        entries: number of vocabulary entries used.
        left_out: number of entries that tokenize to nothing or to more than the model reads, or whose vector
            is zero.
    """

    value: float
    entries: int
    left_out: int


def mean_similarity(
    encoder: Encoder, progress: Callable[[int, int], None] | None = None, *, chunk: int = 4096
) -> MeanSimilarity:
    """Compute u: the mean cosine over all ordered pairs of vocabulary embeddings.

    Every vocabulary string is encoded as a text, as the published values were
    (Chen et al. 2025). The mean over all V x V pairs, each entry with itself
    included, is the squared norm of the mean unit vector: O(V d) time, O(d) memory.

    Args:
        encoder: the model.
        progress: called with the entries done and the total, first with 0 done.
        chunk: entries encoded at a time.

    Raises:
        EncodingError: No entry can be encoded.
    """
    strings = list(encoder.tokenizer.entries.values())
    total = np.zeros(encoder.dimension)
    used = 0
    if progress is not None:
        progress(0, len(strings))
    for start in range(0, len(strings), chunk):
        vectors = _vectors(encoder, strings[start : start + chunk]).astype(np.float64)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        total += np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0).sum(axis=0)
        used += int(np.count_nonzero(norms))
        if progress is not None:
            progress(min(start + chunk, len(strings)), len(strings))
    if used == 0:
        raise EncodingError(f"{encoder.name}: no vocabulary entry can be encoded")
    mean = total / used
    return MeanSimilarity(float(mean @ mean), used, len(strings) - used)


def _vectors(encoder: Encoder, strings: Sequence[str]) -> NDArray[np.float32]:
    """Encode the strings that the model reads in full, shape (n, d)."""
    ids = encoder.content_ids(strings)
    usable = [place for place, row in enumerate(ids) if row and encoder.fits(row)]
    if reads_ids(encoder):
        return encoder.encode_ids([ids[place] for place in usable], allow_zero=True)
    return encoder.encode([strings[place] for place in usable], allow_zero=True)
