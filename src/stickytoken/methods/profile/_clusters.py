"""Group anchors whose topics are unknown."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

# A much smaller cluster would say little about its group.
_LEAST_MEMBERS = 4


def cluster(vectors: NDArray[np.float32], groups: int, seed: int) -> NDArray[np.intp]:
    """Cluster unit vectors with k-means; clusters are numbered in order of appearance.

    Args:
        vectors: unit vectors, shape (n, d).
        groups: largest number of clusters; fewer if they would be tiny.
        seed: seed of the choice of the first centers among the vectors.

    Returns:
        Group of each vector, shape (n,).
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    distinct = np.unique(vectors, axis=0)
    count = min(groups, len(distinct), max(1, len(vectors) // _LEAST_MEMBERS))
    if count <= 1:
        return np.zeros(len(vectors), dtype=np.intp)
    chosen = np.random.default_rng(seed).choice(len(distinct), size=count, replace=False)
    with warnings.catch_warnings():
        # Vectors that differ only in their last bits give fewer clusters than requested.
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = KMeans(count, init=distinct[chosen], n_init=1).fit(vectors).labels_
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    return np.asarray(rank[inverse], dtype=np.intp)
