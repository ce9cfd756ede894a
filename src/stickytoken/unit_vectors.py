"""Vectors of length 1, and similarities of vectors."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.floating[Any])


def unit_vectors(vectors: NDArray[Number]) -> NDArray[Number]:
    """Scale vectors, shape (..., d), to length 1 in their own precision; zero vectors stay zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    units: NDArray[Number] = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return units


def exact_unit_vectors(vectors: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Scale vectors to length 1 in float64; zero vectors stay zero."""
    return unit_vectors(vectors.astype(np.float64))


class Similarity(StrEnum):
    """How a model compares vectors, named as in sentence-transformers.

    Distances are negated, so that a larger value always means more similar.
    """

    COSINE = "cosine"
    DOT = "dot"
    EUCLIDEAN = "euclidean"
    MANHATTAN = "manhattan"

    def prepared(self, vectors: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Return vectors as `of_pairs` and `of_all` need them: float64, of length 1 for the cosine only."""
        return exact_unit_vectors(vectors) if self is Similarity.COSINE else vectors.astype(np.float64)

    def of_pairs(self, left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the similarity of each row of ``left`` with the corresponding row of ``right``, shape (n,).

        Both arrays have shape (n, d) and hold vectors as `prepared` returns them, that is, scaled to length 1
        for the cosine only.
        """
        if self in (Similarity.COSINE, Similarity.DOT):
            similarities: NDArray[np.float64] = (left * right).sum(axis=1)
        elif self is Similarity.EUCLIDEAN:
            similarities = -np.linalg.norm(left - right, axis=1)
        else:
            similarities = -np.abs(left - right).sum(axis=1)
        return similarities

    def of_all(self, left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the similarity of every row of ``left`` with every row of ``right``, shape (n, m).

        Both arrays hold vectors as `prepared` returns them, that is, scaled to length 1 for the cosine only:
        ``left`` has shape (n, d) and ``right`` has shape (m, d).
        """
        if self in (Similarity.COSINE, Similarity.DOT):
            return left @ right.T
        from scipy.spatial.distance import cdist

        distances: NDArray[np.float64] = cdist(
            left, right, "euclidean" if self is Similarity.EUCLIDEAN else "cityblock"
        )
        return -distances
