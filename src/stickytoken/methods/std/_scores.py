"""The sticky score and its bounds, the validation rate, and the two thresholds. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import EncodingError
from stickytoken.insertion import Placement
from stickytoken.methods.std._settings import PlacementWeights, ScoreConstants

Vector = NDArray[np.float64]

PLACEMENTS = tuple(Placement)


class Metric(StrEnum):
    """Distances in which scores and rates are computed; cosine decides."""

    COSINE = "cosine"
    EUCLIDEAN = "euclidean"
    MANHATTAN = "manhattan"


def distances(vectors: NDArray[np.floating], others: NDArray[np.floating]) -> dict[Metric, Vector]:
    """Compute the distances of vectors and others, of shapes that broadcast, along the last axis."""
    unit_float64 = np.asarray(vectors, dtype=np.float64)
    right = np.asarray(others, dtype=np.float64)
    norms = np.sqrt(np.einsum("...d,...d->...", unit_float64, unit_float64)) * np.sqrt(
        np.einsum("...d,...d->...", right, right)
    )
    if not norms.all():
        raise EncodingError("a zero vector has no cosine distance to anything")
    difference = unit_float64 - right
    squares = np.einsum("...d,...d->...", difference, difference)
    return {
        Metric.COSINE: 1.0 - np.einsum("...d,...d->...", unit_float64, right) / norms,
        Metric.EUCLIDEAN: np.sqrt(squares),
        Metric.MANHATTAN: np.abs(difference, out=difference).sum(axis=-1),
    }


def sticky_score(distances: Vector, alone: Vector, constants: ScoreConstants) -> Vector:
    """Reward falls of the distance as copies are added, and penalise rises (Chen et al. 2025, step 3).

    Args:
        distances: between carrier and anchor by number of copies, 0 first, along the last axis.
        alone: between anchor and the token alone; the shape of ``distances`` without the last axis.
        constants: of the score.
    """
    # score = (sum of falls + alpha * number of falls + 0.1 t) / (sum of rises + beta * rises + gamma)
    changes = np.diff(distances, axis=-1)
    falls = np.clip(-changes, 0, None)
    rises = np.clip(changes, 0, None)
    reward = falls.sum(-1) + constants.alpha * (changes < 0).sum(-1) + 0.1 * alone
    penalty = rises.sum(-1) + constants.beta * (changes > 0).sum(-1) + constants.gamma
    scores: Vector = reward / penalty
    return scores


def score_bounds(distances: Vector, alone: Vector, constants: ScoreConstants) -> Vector:
    """Bound `sticky_score` from above where only some of the distances are known.

    Args:
        distances: as for `sticky_score`, NaN where unknown; without copies they are known.
        alone: as for `sticky_score`.
        constants: of the score.

    Returns:
        The score itself where all distances are known; elsewhere no completion has a larger score.
    """
    # Between two known numbers of copies, the largest score has as many falls as possible: as many as there
    # are steps if the distance falls from the first to the second, and one less if it rises, because then at
    # least one step rises by at least as much. Behind the last known one, the distance falls to 0.
    shape = distances.shape[:-1]
    last = distances[..., 0].copy()
    last_copies = np.zeros(shape, dtype=np.intp)
    reward = 0.1 * alone
    penalty = np.full(shape, constants.gamma)
    is_complete = np.ones(shape, dtype=np.bool_)
    for copies in range(1, distances.shape[-1]):
        is_known = ~np.isnan(distances[..., copies])
        is_complete &= is_known
        steps = copies - last_copies
        change = np.where(is_known, distances[..., copies] - last, 0.0)
        rises = is_known & (change > 0)
        falls = is_known & ~rises
        is_level = (change == 0) & (steps == 1)  # a step without a change is neither
        penalty += np.where(rises, change + constants.beta, 0.0)
        reward += np.where(falls, -change, 0.0)
        reward += constants.alpha * np.where(rises, steps - 1, 0)
        reward += constants.alpha * np.where(falls & ~is_level, steps, 0)
        last = np.where(is_known, distances[..., copies], last)
        last_copies = np.where(is_known, copies, last_copies)
    steps = distances.shape[-1] - 1 - last_copies
    reward += np.where(steps > 0, last + constants.alpha * steps, 0.0)
    bounds: Vector = reward / penalty
    # Going up and down by x between two known distances adds x to both sums: the quotient moves toward 1.
    return np.where(is_complete, bounds, np.maximum(bounds, 1.0))


def has_risen(distances: Vector) -> NDArray[np.bool_]:
    """Say where a known distance is larger than the known one before it."""
    last = distances[..., 0].copy()
    exceeds = np.zeros(last.shape, dtype=np.bool_)
    for copies in range(1, distances.shape[-1]):
        known_distances = distances[..., copies]
        exceeds |= known_distances > last  # NaN compares as false
        last = np.where(np.isnan(known_distances), last, known_distances)
    return exceeds


def placement_weights(weights: PlacementWeights) -> Vector:
    return np.array([getattr(weights, placement.value) for placement in PLACEMENTS])


def weighted(values: Vector, weights: PlacementWeights) -> Vector:
    """Average values of shape (..., pairs, placements) over pairs, and weigh the placements."""
    means: Vector = values.mean(axis=-2) @ placement_weights(weights)
    return means


def candidate_threshold(scores: Sequence[float] | Vector, share: float) -> float:
    """Return the score that the best share of the tokens reaches (ibid., step 3)."""
    return float(np.quantile(np.asarray(scores, dtype=np.float64), 1 - share))


def scores_behind_threshold(tokens: int, share: float) -> int:
    """Return how many of the best scores `candidate_threshold` depends on; it interpolates between two."""
    # One more than that, in case the position is rounded to the next whole number.
    return min(tokens, tokens - int((tokens - 1) * (1 - share)) + 1)


def outlier_threshold(rates: Sequence[float], outlier_range: float) -> float:
    """Compute Q3 + outlier_range x IQR of the rates: beyond it, a candidate is sticky (ibid., step 4)."""
    first, third = np.quantile(np.asarray(rates, dtype=np.float64), [0.25, 0.75])
    return float(third + outlier_range * (third - first))
