"""Compute the mean cosine over the vocabulary, the value that sticky tokens pull towards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, reads_ids
from stickytoken.encoders.views import View
from stickytoken.errors import EncodingError
from stickytoken.unit_vectors import exact_unit_vectors

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
    (found,) = mean_similarities(encoder, [View(encoder.dimension)], progress, chunk=chunk, most=most)
    return found


def mean_similarities(
    encoder: Encoder,
    views: Sequence[View],
    progress: EntryProgress | None = None,
    *,
    chunk: int = 4096,
    most: int | None = None,
) -> list[MeanSimilarity]:
    """Compute u in several views from one encoding; see `mean_similarity`.

    Args:
        encoder: from `whole_vectors`.
        views: of its vectors.
        progress: see `mean_similarity`.
        chunk: see `mean_similarity`.
        most: see `mean_similarity`.

    Raises:
        EncodingError: No entry can be encoded.
    """
    strings = list(encoder.tokenizer.entries.values())
    entries = len(strings)
    sampled = most is not None and most < entries
    if sampled:
        places = np.sort(np.random.default_rng(_SAMPLE).permutation(entries)[:most])
        strings = [strings[place] for place in places.tolist()]
    totals = [np.zeros(view.dimension) for view in views]
    used = [0] * len(views)
    kept: list[list[NDArray[np.float64]]] = [[] for _ in views]
    for vectors in _chunks(encoder, strings, progress, chunk):
        for place, view in enumerate(views):
            units = exact_unit_vectors(view.of(vectors))
            units = units[units.any(axis=1)]
            totals[place] += units.sum(axis=0)
            used[place] += len(units)
            if sampled:
                kept[place].append(units)
    if sampled:
        return [_estimated(encoder, np.concatenate(units), len(strings), entries) for units in kept]
    for view, count in zip(views, used, strict=True):
        if count == 0:
            where = f" with a vector that is not zero at {view}" if max(used) else ""
            raise EncodingError(f"{encoder.name}: no vocabulary entry can be encoded{where}")
    means = [total / count for total, count in zip(totals, used, strict=True)]
    return [
        MeanSimilarity(float(mean @ mean), count, entries - count)
        for mean, count in zip(means, used, strict=True)
    ]


def _estimated(encoder: Encoder, vectors: NDArray[np.float64], drawn: int, entries: int) -> MeanSimilarity:
    """Estimate u from a random sample, with the standard error of a U-statistic (Hoeffding 1948)."""
    count = len(vectors)
    if count < 2:
        raise EncodingError(f"{encoder.name}: of {drawn:,} random vocabulary entries, {count} can be encoded")
    mean = vectors.mean(axis=0)
    of_two = (count * float(mean @ mean) - 1) / (count - 1)  # of two different entries
    value = of_two + (1 - of_two) / entries  # an entry is paired with itself, too
    error = 2 * float((vectors @ mean).std(ddof=1)) * np.sqrt((1 - count / entries) / count)
    return MeanSimilarity(value, count, drawn - count, float(error))


def _chunks(
    encoder: Encoder, strings: list[str], progress: EntryProgress | None, chunk: int
) -> Iterator[NDArray[np.float32]]:
    """Yield the vectors of the entries that the model reads in full, chunk by chunk, shape (n, d)."""
    if progress is not None:
        progress(0, len(strings))
    for start in range(0, len(strings), chunk):
        yield _vectors(encoder, strings[start : start + chunk])
        if progress is not None:
            progress(min(start + chunk, len(strings)), len(strings))


def _vectors(encoder: Encoder, strings: Sequence[str]) -> NDArray[np.float32]:
    """Encode the strings that the model reads in full, shape (n, d)."""
    ids = encoder.content_ids(strings)
    usable = [place for place, row in enumerate(ids) if row and encoder.fits(row)]
    if reads_ids(encoder):
        return encoder.encode_ids([ids[place] for place in usable], allow_zero=True)
    return encoder.encode([strings[place] for place in usable], allow_zero=True)
