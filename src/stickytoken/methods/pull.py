"""What a token does whatever it is compared with: its pull and its contraction. Pure.

With n copies of a token in a carrier c, and any anchor a (unit vectors),

    cos(after) = (1 - k) cos(before) + p . a

The contraction k is a number and the pull p a vector; both are fitted to a few carriers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.methods.panel import CarrierPanel, Vector

# Below it, carriers differ by rounding alone.
_NO_VARIATION = 1e-12
# Without contraction there is no fixed point.
_LEAST_CONTRACTION = 1e-3


class Pull(NamedTuple):
    """Contraction and pull of T tokens.

    Attributes:
        contraction: k; 0 leaves a text's meaning, 1 erases it; shape (T,).
        pull: p, shape (T, d).
    """

    contraction: Vector
    pull: NDArray[np.floating[Any]]


def fit_pull(before: NDArray[np.float32], after: NDArray[np.float32]) -> Pull:
    """Fit k and p of T tokens by least squares: after = (1 - k) before + p, over carriers and dimensions.

    Args:
        before: unit vectors of the carriers, shape (K, d).
        after: unit vectors of the carriers with copies in them, shape (T, K, d).

    Returns:
        k and p. Where the carriers do not differ, k is 0 and p the mean change.
    """
    origin, mean = before.mean(axis=0, dtype=np.float64), after.mean(axis=1, dtype=np.float64)
    deviations = before - origin
    variation = float((deviations**2).sum())
    if variation < _NO_VARIATION:
        return Pull(np.zeros(len(after)), mean - origin)
    # The deviations sum to zero, so the means of the vectors do not matter.
    kept = after.reshape(len(after), -1).astype(np.float64) @ deviations.ravel() / variation
    return Pull(1 - kept, mean - kept[:, None] * origin)


class Anchorage(NamedTuple):
    """What a corpus adds to a token's lift on it.

    Attributes:
        mean: mean vector of the anchors, over the pairs below the mean similarity, shape (d,).
        similarity: mean similarity of those pairs.
    """

    mean: Vector
    similarity: float


def anchorage(carriers: CarrierPanel) -> Anchorage:
    """Average over the pairs of carriers and anchors that count for the lift."""
    weights = carriers.pair_weights
    present = weights.sum(axis=1) > 0
    count = max(1, int(present.sum()))
    mean = (weights.sum(axis=0) / count) @ carriers.panel.vectors
    return Anchorage(mean, float((weights * carriers.before).sum() / count))


def predicted_lifts(tokens: Pull, corpus: Anchorage) -> Vector:
    """Compute the lifts of T tokens on a corpus: p . mean - k x similarity, shape (T,)."""
    return np.asarray(tokens.pull @ corpus.mean - tokens.contraction * corpus.similarity, dtype=np.float64)


def fixed_points(tokens: Pull, center: Vector) -> Vector:
    """Compute the similarities toward which T tokens drag: p . center / k.

    Args:
        tokens: contraction and pull.
        center: mean vector of the corpus, shape (d,).

    Returns:
        Shape (T,); NaN where there is no contraction.
    """
    drawn = tokens.pull.astype(np.float64) @ center
    clear = np.abs(tokens.contraction) > _LEAST_CONTRACTION
    points: Vector = np.divide(drawn, tokens.contraction, out=np.full(len(drawn), np.nan), where=clear)
    return points
