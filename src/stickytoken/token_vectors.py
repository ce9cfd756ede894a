"""Measure how unusual each row of a token embedding matrix is, compared with the other rows. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Minimum number of rows per dimension. With fewer, the estimate of the covariance is too uncertain in the
# directions in which rows hardly vary.
ROWS_PER_DIMENSION = 10
# Number of rows processed at a time, so that a large matrix is never copied as a whole.
_BLOCK_ROWS = 8192


def vector_deviations(rows: NDArray[np.floating[Any]]) -> NDArray[np.float64] | None:
    """Measure how unusual each row of a matrix is, compared with all rows.

    The statistic of a row is its squared Mahalanobis distance from the mean row, divided by its squared
    Euclidean distance. It depends only on the direction in which the row differs from the mean row, not on
    how far away it is, and is large if the other rows hardly vary in this direction. It is small for most
    trained rows, and large for rows that an attacker has optimised.

    Args:
        rows: the matrix, shape (n, d).

    Returns:
        For each row, how many median absolute deviations the logarithm of its statistic lies above the
        median, shape (n,); NaN for a row that equals the mean row. None if there are fewer than
        `ROWS_PER_DIMENSION` rows for each dimension, or if more than half of the rows have the same
        statistic.
    """
    count, dimensions = rows.shape
    if count < ROWS_PER_DIMENSION * dimensions:
        return None
    total = np.zeros(dimensions)
    for block in _split(rows):
        total += block.sum(axis=0, dtype=np.float64)
    mean = total / count
    products = np.zeros((dimensions, dimensions))
    for block in _split(rows):
        centred = block.astype(np.float64) - mean
        products += centred.T @ centred
    covariance = products / count
    variances, directions = np.linalg.eigh(covariance)  # in ascending order of the variance
    # If the rows do not span all dimensions, some directions have no variance. These are left out to avoid a
    # division by zero.
    has_variance = variances > variances[-1] * np.finfo(np.float32).eps
    # Multiplied with it, rows have the variance 1 in every direction, so that their Euclidean distance is the
    # Mahalanobis distance.
    whitening = directions[:, has_variance] / np.sqrt(variances[has_variance])
    log_ratios = []
    for block in _split(rows):
        centred = block.astype(np.float64) - mean
        mahalanobis = np.square(centred @ whitening).sum(axis=1)
        euclidean = np.square(centred).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):  # both are 0 for a row that equals the mean row
            log_ratio = np.log(mahalanobis / euclidean)
        log_ratios.append(np.where(np.isfinite(log_ratio), log_ratio, np.nan))
    return robust_deviations(np.concatenate(log_ratios))


def _split(rows: NDArray[np.floating[Any]]) -> Iterator[NDArray[np.floating[Any]]]:
    for start in range(0, len(rows), _BLOCK_ROWS):
        yield rows[start : start + _BLOCK_ROWS]


def robust_deviations(values: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Compute how many median absolute deviations each value lies above the median, ignoring NaN.

    Returns:
        One deviation per value, shape (n,); None if the median absolute deviation is 0.
    """
    median = float(np.nanmedian(values))
    spread = float(np.nanmedian(np.abs(values - median)))
    if not spread > 0:  # also if all values are NaN
        return None
    deviations: NDArray[np.float64] = (values - median) / spread
    return deviations
