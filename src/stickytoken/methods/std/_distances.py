"""The three distances that the paper scores tokens with."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import EncodingError


class Metric(StrEnum):
    """A distance between two vectors."""

    COSINE = "cosine"
    EUCLIDEAN = "euclidean"
    MANHATTAN = "manhattan"


def distances(
    vectors: NDArray[np.floating], others: NDArray[np.floating]
) -> dict[Metric, NDArray[np.float64]]:
    """Distances between vectors along the last axis, the other axes broadcast.

    Args:
        vectors: shape (..., d).
        others: shape (..., d), broadcast against ``vectors``.

    Returns:
        For every metric an array of the broadcast shape without d; cosine distance is
        1 - cosine similarity.
    """
    left = np.asarray(vectors, dtype=np.float64)
    right = np.asarray(others, dtype=np.float64)
    norms = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    if not norms.all():
        raise EncodingError("a zero vector has no cosine distance to anything")
    difference = left - right
    return {
        Metric.COSINE: 1.0 - np.einsum("...d,...d->...", left, right) / norms,
        Metric.EUCLIDEAN: np.linalg.norm(difference, axis=-1),
        Metric.MANHATTAN: np.abs(difference).sum(axis=-1),
    }
