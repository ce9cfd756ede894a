"""The value that sticky tokens pull to: the mean cosine over the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from stickytoken.encoders.protocol import Encoder
from stickytoken.errors import EncodingError

_CHUNK = 4096


class MeanSimilarity(NamedTuple):
    """Mean cosine over all pairs of vocabulary embeddings.

    Attributes:
        value: the mean similarity u.
        entries: vocabulary entries that it rests on.
        left_out: entries that tokenize to nothing or to more than the model reads, or whose
            vector is zero.
    """

    value: float
    entries: int
    left_out: int


def mean_similarity(encoder: Encoder, progress: Callable[[int, int], None] | None = None) -> MeanSimilarity:
    """Compute u: the mean cosine over all ordered pairs of vocabulary embeddings.

    Every vocabulary string is encoded as a text, as the published values were
    (Chen et al. 2025). The mean over all V x V pairs, each entry with itself
    included, is the squared norm of the mean unit vector: O(V d) time, O(d) memory.

    Args:
        encoder: the model.
        progress: called with entries done and entries in all, first with 0 done.

    Raises:
        EncodingError: no entry can be encoded.
    """
    strings = list(encoder.tokenizer.entries.values())
    total = np.zeros(encoder.identity.dimension)
    used = 0
    if progress is not None:
        progress(0, len(strings))
    for start in range(0, len(strings), _CHUNK):
        ids = [text.ids for text in encoder.tokenize(strings[start : start + _CHUNK])]
        usable = [row for row in ids if row and encoder.fits(row)]
        vectors = encoder.encode_ids(usable, allow_zero=True).astype(np.float64)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        total += np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0).sum(axis=0)
        used += int(np.count_nonzero(norms))
        if progress is not None:
            progress(min(start + _CHUNK, len(strings)), len(strings))
    if used == 0:
        raise EncodingError(f"{encoder.name}: no vocabulary entry can be encoded")
    mean = total / used
    return MeanSimilarity(float(mean @ mean), used, len(strings) - used)
