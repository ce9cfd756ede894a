"""How far copies move documents up in the search results of a corpus. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stickytoken.methods.pull import Pull
from stickytoken.methods.statistics import Vector

# Documents and queries to draw; together they are many pairs.
_DRAWN = 100
# A document moves up if it passes this share of the corpus.
_PASSED = 0.1
_SPLIT = 4  # key of the generator


def moves_up(effects: Pull, texts: NDArray[np.float32], seed: int) -> Vector:
    """Compute the share of random queries and documents for which copies move the document up.

    Random texts of the corpus are the queries, others the documents; a document moves up if it passes at
    least a tenth of all texts. cos(after) is computed from the token's pull and contraction.

    Args:
        effects: of T tokens.
        texts: unit vectors of the corpus, shape (n, d).
        seed: seed of the draw.

    Returns:
        Shape (T,).
    """
    order = np.random.default_rng([seed, _SPLIT]).permutation(len(texts))
    count = min(_DRAWN, len(texts) // 2)
    queries, documents = order[:count], order[count : 2 * count]
    similarities = (texts @ texts[queries].T).astype(np.float64)
    before = similarities[documents]
    ranked = np.sort(similarities, axis=0)
    ahead = _ahead(ranked, before)
    shares = []
    for contraction, pull in zip(effects.contraction, effects.pull, strict=True):
        after = (1 - contraction) * before + texts[queries] @ pull
        shares.append(float((ahead - _ahead(ranked, after) >= _PASSED * len(texts)).mean()))
    return np.array(shares)


def _ahead(ranked: Vector, similarities: Vector) -> NDArray[np.intp]:
    """Count the texts that are more similar to each query, shape (documents, queries)."""
    columns = [
        len(ranked) - np.searchsorted(ranked[:, query], similarities[:, query], side="right")
        for query in range(ranked.shape[1])
    ]
    return np.stack(columns, axis=1)
