"""Vectors of length 1, and similarities of vectors."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.floating[Any])


def unit_vectors(vectors: NDArray[Number]) -> NDArray[Number]:
    """Scale vectors to length 1 in their own precision; zero vectors stay zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    units: NDArray[Number] = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return units


def exact_unit_vectors(vectors: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Scale vectors to length 1 in float64; zero vectors stay zero."""
    return unit_vectors(vectors.astype(np.float64))


class Similarity(StrEnum):
    """How a model compares vectors, by the names of sentence-transformers. A distance is negated."""

    COSINE = "cosine"
    DOT = "dot"
    EUCLIDEAN = "euclidean"
    MANHATTAN = "manhattan"

    def prepared(self, vectors: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Return vectors in float64, as `of_pairs` and `of_all` take them. The cosine needs length 1."""
        return exact_unit_vectors(vectors) if self is Similarity.COSINE else vectors.astype(np.float64)

    def of_pairs(self, left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
        """Compare prepared vectors row by row, shape (n, d) twice; return shape (n,)."""
        if self in (Similarity.COSINE, Similarity.DOT):
            similarities: NDArray[np.float64] = (left * right).sum(axis=1)
        elif self is Similarity.EUCLIDEAN:
            similarities = -np.linalg.norm(left - right, axis=1)
        else:
            similarities = -np.abs(left - right).sum(axis=1)
        return similarities

    def of_all(self, left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
        """Compare every row of (n, d) with every row of (m, d), both prepared; return shape (n, m)."""
        if self in (Similarity.COSINE, Similarity.DOT):
            return left @ right.T
        from scipy.spatial.distance import cdist

        distances: NDArray[np.float64] = cdist(
            left, right, "euclidean" if self is Similarity.EUCLIDEAN else "cityblock"
        )
        return -distances
