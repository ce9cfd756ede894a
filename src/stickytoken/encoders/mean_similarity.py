"""Compute the mean cosine over the vocabulary, the value that sticky tokens pull towards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, reads_ids
from stickytoken.errors import EncodingError

EntryProgress = Callable[[int, int], None]

_SAMPLE = 4  # key of the generator


class MeanSimilarity(NamedTuple):
    """Mean cosine over all pairs of vocabulary embeddings.

    Attributes:
        value: the mean similarity u.
        entries: number of vocabulary entries used.
        left_out: number of entries that tokenize to nothing or to more than the model reads, or whose vector
            is zero.
        error: standard error of the value; 0 if all entries were encoded.
    """

    value: float
    entries: int
    left_out: int
    error: float = 0.0


def mean_similarity(
    encoder: Encoder,
    progress: EntryProgress | None = None,
    *,
    chunk: int = 4096,
    most: int | None = None,
) -> MeanSimilarity:
    """Compute u: the mean cosine over all ordered pairs of vocabulary embeddings.

    Every vocabulary string is encoded as a text, as the published values were
    (Chen et al. 2025). The mean over all V x V pairs, each entry with itself
    included, is the squared norm of the mean unit vector: O(V d) time, O(d) memory.

    Args:
        encoder: the model.
        progress: called with the entries done and the total, first with 0 done.
        chunk: entries encoded at a time.
        most: encode at most this many entries, and estimate u from this fixed random sample.

    Raises:
        EncodingError: No entry can be encoded.
    """
    strings = list(encoder.tokenizer.entries.values())
    if most is not None and most < len(strings):
        return _estimated(encoder, strings, most, progress, chunk)
    total, used = np.zeros(encoder.dimension), 0
    for vectors in _unit_vectors(encoder, strings, progress, chunk):
        total += vectors.sum(axis=0)
        used += len(vectors)
    if used == 0:
        raise EncodingError(f"{encoder.name}: no vocabulary entry can be encoded")
    mean = total / used
    return MeanSimilarity(float(mean @ mean), used, len(strings) - used)


def _estimated(
    encoder: Encoder, strings: list[str], most: int, progress: EntryProgress | None, chunk: int
) -> MeanSimilarity:
    """Estimate u from a random sample, with the standard error of a U-statistic (Hoeffding 1948)."""
    places = np.sort(np.random.default_rng(_SAMPLE).permutation(len(strings))[:most])
    chosen = [strings[place] for place in places.tolist()]
    vectors = np.concatenate(list(_unit_vectors(encoder, chosen, progress, chunk)))
    count, entries = len(vectors), len(strings)
    if count < 2:
        raise EncodingError(f"{encoder.name}: of {most:,} random vocabulary entries, {count} can be encoded")
    mean = vectors.mean(axis=0)
    of_two = (count * float(mean @ mean) - 1) / (count - 1)  # of two different entries
    value = of_two + (1 - of_two) / entries  # an entry is paired with itself, too
    error = 2 * float((vectors @ mean).std(ddof=1)) * np.sqrt((1 - count / entries) / count)
    return MeanSimilarity(value, count, most - count, float(error))


def _unit_vectors(
    encoder: Encoder, strings: list[str], progress: EntryProgress | None, chunk: int
) -> Iterator[NDArray[np.float64]]:
    """Yield the unit vectors of the entries that have one, chunk by chunk, shape (n, d)."""
    if progress is not None:
        progress(0, len(strings))
    for start in range(0, len(strings), chunk):
        vectors = _vectors(encoder, strings[start : start + chunk]).astype(np.float64)
        norms = np.linalg.norm(vectors, axis=1)
        yield vectors[norms > 0] / norms[norms > 0, None]
        if progress is not None:
            progress(min(start + chunk, len(strings)), len(strings))


def _vectors(encoder: Encoder, strings: Sequence[str]) -> NDArray[np.float32]:
    """Encode the strings that the model reads in full, shape (n, d)."""
    ids = encoder.content_ids(strings)
    usable = [place for place, row in enumerate(ids) if row and encoder.fits(row)]
    if reads_ids(encoder):
        return encoder.encode_ids([ids[place] for place in usable], allow_zero=True)
    return encoder.encode([strings[place] for place in usable], allow_zero=True)
