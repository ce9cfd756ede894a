"""How unusual the rows of a token embedding matrix are. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# With fewer rows for each dimension, the covariance says too little about the directions that hardly vary.
ROWS_PER_DIMENSION = 10
# Rows that are computed with at a time: a large matrix is never copied as a whole.
_BLOCK = 8192


# A row is unusual from so many median absolute deviations above the median on. Of all-MiniLM-L6-v2, 125 of
# 23,699 natural rows are; rows that were optimised from outside lie at 6.5 to 16.
UNUSUAL_DEVIATION = 6.0

Blocks: TypeAlias = Callable[[], Iterator[NDArray[np.floating[Any]]]]


def vector_deviations(rows: NDArray[np.floating[Any]]) -> NDArray[np.float64] | None:
    """Measure how unusual each row is among the others; see `vector_deviations_of`."""

    def blocks() -> Iterator[NDArray[np.floating[Any]]]:
        for start in range(0, len(rows), _BLOCK):
            yield rows[start : start + _BLOCK]

    return vector_deviations_of(blocks, *rows.shape)


def vector_deviations_of(blocks: Blocks, count: int, dimensions: int) -> NDArray[np.float64] | None:
    """Measure how unusual each row is among the others, without all rows in memory.

    The statistic is d = (squared Mahalanobis distance from the mean row) / (squared Euclidean distance from
    it). It is large for a row whose length lies in directions in which the other rows hardly vary, whatever
    its length. Training leaves few such rows; a row that was optimised from outside is one.

    Args:
        blocks: gives the rows of the entries that can occur in text, block by block, each time anew.
        count: number of rows n.
        dimensions: length of a row.

    Returns:
        For each row, by how many median absolute deviations log d lies above its median, shape (n,). A row
        that equals the mean row has NaN. None if there are fewer than 10 rows for each dimension, or if more
        than half of the rows have the same log d.
    """
    if count < ROWS_PER_DIMENSION * dimensions:
        return None
    total = np.zeros(dimensions)
    for block in blocks():
        total += block.sum(axis=0, dtype=np.float64)
    mean = total / count
    products = np.zeros((dimensions, dimensions))
    for block in blocks():
        centred = block.astype(np.float64) - mean
        products += centred.T @ centred
    variances, directions = np.linalg.eigh(products / count)
    # Directions without variance (a matrix of lower rank) would divide rounding by zero.
    varying = variances > variances[-1] * np.finfo(np.float32).eps
    whitening = directions[:, varying] / np.sqrt(variances[varying])
    log_ratios = []
    for block in blocks():
        centred = block.astype(np.float64) - mean
        mahalanobis = np.square(centred @ whitening).sum(axis=1)
        euclidean = np.square(centred).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_ratio = np.log(mahalanobis / euclidean)
        log_ratios.append(np.where(np.isfinite(log_ratio), log_ratio, np.nan))
    return robust_deviations(np.concatenate(log_ratios))


def robust_deviations(
    values: NDArray[np.float64], reference: NDArray[np.float64] | None = None
) -> NDArray[np.float64] | None:
    """Compute by how many median absolute deviations each value lies above the median.

    Args:
        values: shape (n,).
        reference: values that median and deviation are taken from; None is the values themselves.

    Returns:
        Shape (n,); None if the median absolute deviation is 0.
    """
    reference_values = values if reference is None else reference
    median = float(np.nanmedian(reference_values))
    spread = float(np.nanmedian(np.abs(reference_values - median)))
    if not spread > 0:
        return None
    deviations: NDArray[np.float64] = (values - median) / spread
    return deviations
