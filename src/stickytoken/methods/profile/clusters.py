"""Groups of anchors where nobody named their topics."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

# A cluster that is much smaller says little about its group.
_LEAST_MEMBERS = 4


def cluster(vectors: NDArray[np.float32], groups: int, seed: int) -> NDArray[np.intp]:
    """K-means on unit vectors, numbered in the order in which the clusters appear.

    Args:
        vectors: unit vectors, shape (n, d).
        groups: clusters at most; fewer where they would be tiny.
        seed: of the first centers, which are vectors of the set.

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
        # Vectors that differ in their last bits alone make fewer clusters than were asked for.
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = KMeans(count, init=distinct[chosen], n_init=1).fit(vectors).labels_
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    return np.asarray(rank[inverse], dtype=np.intp)
