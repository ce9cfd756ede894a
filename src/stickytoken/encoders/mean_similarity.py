"""Mean cosine of vocabulary embeddings (u), and how evenly the embeddings use all dimensions (IsoScore)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, has_vector, reads_ids
from stickytoken.errors import EncodingError
from stickytoken.unit_vectors import exact_unit_vectors

# Seed of the random sample of entries. The seed is fixed, so that models with the same vocabulary get the
# same sample.
_SEED = 4


class MeanSimilarity(NamedTuple):
    """Mean cosine over all pairs of vocabulary embeddings.

    Attributes:
        value: the mean similarity u.
        entries: number of vocabulary entries used.
        left_out: number of entries that are not used, because they have no tokens, more tokens than the model
            reads, or no usable vector.
        error: standard error of u; 0 if u was computed from all entries rather than estimated from a sample.
        isoscore: how evenly the vectors use all dimensions, from 0 to 1; None if undefined. See `isoscore`.

    Example:
        >>> from stickytoken.encoders import mean_similarity
        >>> mean_similarity(model, most=500).entries
        500
    """

    value: float
    entries: int
    left_out: int
    error: float = 0.0
    isoscore: float | None = None


def isoscore(covariance: NDArray[np.float64]) -> float | None:
    """Return the IsoScore, which measures how evenly vectors use their dimensions.

    The formula and its terms are from section 4 of the paper on IsoScore by Rudman and others (Findings of
    ACL 2022).

    Args:
        covariance: covariance matrix of the vectors, shape (d, d).

    Returns:
        The IsoScore: 0 if one dimension has all the variance, 1 if all dimensions have the same variance.
        None if there is only one dimension or no variance.
    """
    size = len(covariance)
    variances = np.maximum(np.linalg.eigvalsh(covariance), 0.0)  # one for each principal component
    length = float(np.linalg.norm(variances))
    if size < 2 or length == 0:
        return None
    # If all variances are equal, each of these normalized variances is 1.
    normalized_variances = np.sqrt(size) * variances / length
    # The isotropy defect: 0 if all variances are equal, 1 if only one of them is not zero.
    isotropy_defect = np.linalg.norm(normalized_variances - 1) / np.sqrt(2 * (size - np.sqrt(size)))
    # Fraction of the dimensions that are used: 1 / size if the defect is 1, and 1 if it is 0.
    used_fraction = (size - isotropy_defect**2 * (size - np.sqrt(size))) ** 2 / size**2
    # Rescale the fraction from the interval [1 / size, 1] to the interval [0, 1].
    return float((size * used_fraction - 1) / (size - 1))


def mean_similarity(
    encoder: Encoder,
    report: Callable[[int, int], None] | None = None,
    most: int | None = None,
    *,
    chunk: int = 4096,
) -> MeanSimilarity:
    """Return u, the mean cosine over all ordered pairs of vocabulary embeddings, and the IsoScore.

    Every string in the vocabulary is encoded as a text, as for the published values (Chen et al. 2025). The
    mean over all V x V pairs, including each entry with itself, is the squared norm of the mean unit vector.
    Computing it takes O(V d) time and O(d) memory. The covariance of the same vectors, for the IsoScore,
    takes O(V d^2) time and O(d^2) memory.

    Args:
        encoder: the model.
        report: called with the number of entries encoded so far (first with 0) and the number of entries to
            encode.
        most: maximum number of entries to encode; if the vocabulary has more entries, u is estimated from a
            random sample of this size. If ``most`` is None, all entries are encoded.
        chunk: number of entries to encode at a time.

    Raises:
        EncodingError: No entry can be encoded.

    Example:
        >>> from stickytoken.encoders import mean_similarity
        >>> round(mean_similarity(model, most=500).value, 1)
        0.2
    """
    strings = list(encoder.tokenizer.entries.values())
    entries = len(strings)
    sampled = most is not None and most < entries
    if sampled:
        order = np.random.default_rng(_SEED).permutation(entries)
        strings = [strings[index] for index in np.sort(order[:most]).tolist()]
    total = np.zeros(encoder.dimension)
    product = np.zeros((encoder.dimension, encoder.dimension))
    count = 0
    sampled_units: list[NDArray[np.float64]] = []
    if report is not None:
        report(0, len(strings))
    for start in range(0, len(strings), chunk):
        units = _unit_vectors_of_entries(encoder, strings[start : start + chunk])
        total += units.sum(axis=0)
        count += len(units)
        if sampled:
            sampled_units.append(units)
        else:
            product += units.T @ units
        if report is not None:
            report(min(start + chunk, len(strings)), len(strings))
    if sampled:
        return _estimated(encoder, np.concatenate(sampled_units), len(strings), entries)
    if count == 0:
        raise EncodingError(f"{encoder.name}: no vocabulary entry can be encoded")
    mean = total / count
    evenness = isoscore(product / count - np.outer(mean, mean))
    return MeanSimilarity(float(mean @ mean), count, entries - count, isoscore=evenness)


def _unit_vectors_of_entries(encoder: Encoder, strings: list[str]) -> NDArray[np.float64]:
    """Return the unit vectors of the strings that can be encoded, shape (n, d).

    Strings that have no tokens, that the model cannot read in full, or that have no usable vector are left
    out.
    """
    ids = encoder.content_ids(strings)
    readable = [index for index, content in enumerate(ids) if content and encoder.fits(content)]
    if reads_ids(encoder):
        vectors = encoder.encode_ids([ids[index] for index in readable], allow_zero=True)
    else:
        vectors = encoder.encode([strings[index] for index in readable], allow_zero=True)
    return exact_unit_vectors(vectors[has_vector(vectors)])


def _estimated(
    encoder: Encoder, vectors: NDArray[np.float64], sample_size: int, entries: int
) -> MeanSimilarity:
    """Estimate the mean similarity u of a vocabulary from a random sample of its entries.

    The mean cosine between different entries of the sample is a U-statistic, whose standard error is known
    (Hoeffding 1948).

    Returns:
        The estimate of u, its standard error, and the IsoScore of the sample.

    Raises:
        EncodingError: fewer than two entries of the sample can be encoded.
    """
    count = len(vectors)
    if count < 2:
        raise EncodingError(
            f"{encoder.name}: only {count} of {sample_size:,} random vocabulary entries can be encoded"
        )
    mean = vectors.mean(axis=0)
    # The mean over all pairs of the sample, `mean @ mean`, includes the pair of each entry with itself, whose
    # cosine is 1. The mean over pairs of different entries leaves these pairs out. The sum over all pairs is
    # count**2 * (mean @ mean). Without the pairs of an entry with itself, the sum is smaller by `count`, and
    # count * (count - 1) pairs remain.
    between_entries = (count * float(mean @ mean) - 1) / (count - 1)
    # For the whole vocabulary, u also includes the pair of each entry with itself, which is one in `entries`
    # pairs.
    value = between_entries + (1 - between_entries) / entries
    # A small change in the mean vector changes its squared norm by 2 * (mean @ change), so the error of u is
    # twice the error of the mean of `vectors @ mean`. The factor 1 - count / entries makes the error 0 if the
    # sample is the whole vocabulary.
    spread = float((vectors @ mean).std(ddof=1))
    error = 2 * spread * np.sqrt((1 - count / entries) / count)
    covariance = vectors.T @ vectors / count - np.outer(mean, mean)
    return MeanSimilarity(
        value, count, left_out=sample_size - count, error=float(error), isoscore=isoscore(covariance)
    )
