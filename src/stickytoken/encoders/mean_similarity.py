"""Mean cosine of vocabulary embeddings (u), from all entries or estimated from a random sample."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, has_vector, reads_ids
from stickytoken.errors import EncodingError
from stickytoken.unit_vectors import exact_unit_vectors

# Seed of the random order of entries. The seed is fixed, so that models with the same vocabulary get the same
# sample.
_SEED = 4
# Number of entries that are encoded together if all are.
_BLOCK = 4096
# Number of groups of a block of a sample. The vectors of a group are added up, and the standard error is that
# over groups.
_GROUPS = 32


EntryBlock: TypeAlias = tuple[tuple[str, ...], ...]
"""Vocabulary entries that are encoded together, divided into groups."""


class MeanSimilarity(NamedTuple):
    """Mean cosine over all pairs of vocabulary embeddings.

    Attributes:
        value: the mean similarity u.
        entries: number of vocabulary entries used.
        left_out: number of entries that are not used, because they have no tokens, more tokens than the model
            reads, or no usable vector.
        error: standard error of u; 0 if u was computed from all entries rather than estimated from a sample.

    Examples:
        >>> from stickytoken.encoders import mean_similarity
        >>> round(mean_similarity(model, most=500).value, 1)
        0.2
    """

    value: float
    entries: int
    left_out: int
    error: float = 0.0


class VectorSums(NamedTuple):
    """Sums of the unit vectors of G groups of entries.

    Attributes:
        sums: the sums, shape (G, d).
        counts: number of entries in each sum, shape (G,).
    """

    sums: NDArray[np.float64]
    counts: NDArray[np.int64]


def blocks_of_entries(encoder: Encoder) -> list[EntryBlock]:
    """Divide the strings of the vocabulary into blocks of one group each."""
    strings = tuple(encoder.tokenizer.entries.values())
    return [(strings[start : start + _BLOCK],) for start in range(0, len(strings), _BLOCK)]


def sampled_entries(encoder: Encoder, size: int, most: int) -> list[EntryBlock]:
    """Draw random entries of the vocabulary, in blocks of several groups each.

    Args:
        encoder: the model.
        size: number of entries in a block.
        most: maximum number of entries to draw.
    """
    strings = list(encoder.tokenizer.entries.values())
    drawn_indices = np.random.default_rng(_SEED).permutation(len(strings))[:most].tolist()
    drawn_strings = tuple(strings[index] for index in drawn_indices)
    group_size = max(1, size // _GROUPS)  # the standard error is computed over groups
    blocks = []
    for block_start in range(0, len(drawn_strings), size):
        strings_of_block = drawn_strings[block_start : block_start + size]
        group_starts = range(0, len(strings_of_block), group_size)
        blocks.append(tuple(strings_of_block[start : start + group_size] for start in group_starts))
    return blocks


def add_unit_vectors(encoder: Encoder, groups: Sequence[Sequence[str]]) -> VectorSums:
    """Encode groups of strings as texts, and add up the unit vectors of each.

    Strings that have no tokens, that the model cannot read in full, or that have no usable vector are left
    out.
    """
    strings = list(chain.from_iterable(groups))
    group_of_string = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    contents = encoder.content_ids(strings)
    readable = [index for index, content in enumerate(contents) if content and encoder.fits(content)]
    if reads_ids(encoder):  # the ids are known already
        vectors = encoder.encode_ids([contents[index] for index in readable], allow_zero=True)
    else:
        vectors = encoder.encode([strings[index] for index in readable], allow_zero=True)
    is_usable = has_vector(vectors)
    units = exact_unit_vectors(vectors[is_usable])
    group_of_unit = group_of_string[readable][is_usable]
    sums = np.zeros((len(groups), encoder.dimension))
    np.add.at(sums, group_of_unit, units)  # adds each vector to the sum of its group
    return VectorSums(sums, np.bincount(group_of_unit, minlength=len(groups)))


def mean_of_sums(name: str, parts: Sequence[VectorSums], drawn: int, entries: int) -> MeanSimilarity:
    """Return u, the mean cosine over all ordered pairs of entries, from sums of their unit vectors.

    The mean over all pairs, including each entry with itself, is the squared norm of the mean unit vector.
    The mean cosine between different entries of a sample is a U-statistic. Its standard error is that of the
    jackknife over the groups (Arvesen 1969).

    Args:
        name: name of the model, for the error.
        parts: the sums of all groups.
        drawn: number of entries in these groups, whether used or left out.
        entries: number of entries in the vocabulary.

    Raises:
        EncodingError: Fewer than two entries can be encoded.
    """
    sums = np.concatenate([part.sums for part in parts])
    counts = np.concatenate([part.counts for part in parts])
    count = int(counts.sum())
    if count < 2:
        raise EncodingError(f"{name}: only {count} of {drawn:,} vocabulary entries can be encoded")
    total = sums.sum(axis=0)
    if drawn == entries:  # nothing is estimated
        mean = total / count
        return MeanSimilarity(float(mean @ mean), count, entries - count)
    between_entries = float(_mean_of_pairs(total, np.array(count)))  # between different entries
    # For the whole vocabulary, u also includes the pair of each entry with itself, which is one in `entries`
    # pairs.
    value = between_entries + (1 - between_entries) / entries
    # The jackknife leaves out one group at a time; the other entries must form a pair.
    leaves_pair = count - counts >= 2
    means_without_group = _mean_of_pairs(total - sums[leaves_pair], count - counts[leaves_pair])
    group_count = len(means_without_group)
    variance = (group_count - 1) * float(means_without_group.var()) if group_count else 0.0
    # The last factor is that of sampling without replacement: a sample of nearly all entries is nearly exact.
    error = np.sqrt(variance * (1 - drawn / entries))
    return MeanSimilarity(value, count, drawn - count, float(error))


def _mean_of_pairs(total: NDArray[np.float64], count: NDArray[np.int64]) -> NDArray[np.float64]:
    # The mean cosine of different entries, from the sum of their unit vectors, shape (..., d), and their
    # number, shape (...). The sum over all pairs is the squared norm of the sum of vectors. It includes the
    # pairs of an entry with itself, each of which has the cosine 1.
    sums_of_cosines = (total**2).sum(axis=-1) - count
    return np.asarray(sums_of_cosines / (count * (count - 1)))


def mean_similarity(encoder: Encoder, most: int | None = None) -> MeanSimilarity:
    """Return u, the mean cosine over all ordered pairs of vocabulary embeddings.

    Every string in the vocabulary is encoded as a text, as for the published values (Chen et al. 2025). This
    takes O(V d) time and O(d) memory.

    Args:
        encoder: the model.
        most: maximum number of entries to encode; if the vocabulary has more, u is estimated from a random
            sample of this size. If None, all entries are encoded.

    Raises:
        EncodingError: Fewer than two entries can be encoded.

    Examples:
        >>> from stickytoken.encoders import mean_similarity
        >>> mean_similarity(model, most=500).entries
        500
    """
    entries = len(encoder.tokenizer.entries)
    drawn = entries if most is None else min(most, entries)
    if drawn == entries:
        blocks = blocks_of_entries(encoder)
    else:
        blocks = sampled_entries(encoder, size=drawn, most=drawn)  # all in one block
    parts = [add_unit_vectors(encoder, groups) for groups in blocks]
    return mean_of_sums(encoder.name, parts, drawn, entries)


def isoscore(vectors: NDArray[np.floating]) -> float | None:
    """Return the IsoScore, which measures how evenly vectors use their dimensions.

    The formula and its terms are from section 4 of the paper on IsoScore by Rudman and others (Findings of
    ACL 2022).

    Args:
        vectors: the vectors, shape (n, d).

    Returns:
        0 if one dimension has all the variance, 1 if all dimensions have the same. None if there is only one
        dimension or no variance.

    Examples:
        >>> import numpy as np
        >>> from stickytoken.encoders import isoscore
        >>> isoscore(np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
        1.0
    """
    covariance = np.atleast_2d(np.cov(vectors, rowvar=False, bias=True))  # of one dimension, it is a number
    size = len(covariance)
    # One for each principal component. Rounding may make them slightly negative.
    variances = np.maximum(np.linalg.eigvalsh(covariance), 0.0)
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
