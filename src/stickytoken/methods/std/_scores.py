"""The sticky score and its bounds, and the thresholds of candidates and sticky tokens. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import EncodingError
from stickytoken.insertion import Placement

Floats: TypeAlias = NDArray[np.float64]

PLACEMENTS = tuple(Placement)

SCORING_WEIGHTS = {Placement.PREFIX: 0.35, Placement.SUFFIX: 0.35, Placement.RANDOM: 0.30}
"""How much each placement of the copies contributes to the score (Chen et al. 2025, step 3)."""
VALIDATION_WEIGHTS = {Placement.PREFIX: 4 / 11, Placement.SUFFIX: 4 / 11, Placement.RANDOM: 3 / 11}
"""How much each placement of the copies contributes to the validation rate (Chen et al. 2025, step 4)."""


class Metric(StrEnum):
    """Distance metrics for scores and validation rates. Verdicts depend only on the cosine distance."""

    COSINE = "cosine"
    EUCLIDEAN = "euclidean"
    MANHATTAN = "manhattan"


@dataclass(frozen=True)
class ScoreConstants:
    """Constants of the sticky score (Chen et al. 2025, step 3 of the Sticky Token Detector).

    Attributes:
        alpha: Added to the numerator each time the distance falls.
        beta: Added to the denominator each time the distance rises.
        gamma: Added to the denominator once, so that it stays above 0.
    """

    alpha: float
    beta: float
    gamma: float


SCORE_CONSTANTS = {
    Metric.COSINE: ScoreConstants(0.1, 0.05, 0.01),
    Metric.EUCLIDEAN: ScoreConstants(0.1, 0.05, 0.01),
    Metric.MANHATTAN: ScoreConstants(1.0, 0.5, 0.1),
}
"""The constants of the sticky score for each metric (Chen et al. 2025, step 3)."""


def distances(vectors: NDArray[np.floating], others: NDArray[np.floating]) -> dict[Metric, Floats]:
    """Return the distances between two arrays of vectors, keyed by metric.

    Args:
        vectors: an array of shape (..., d).
        others: an array that can be broadcast against ``vectors``.

    Returns:
        For each metric, an array that has the broadcast shape without the last axis.

    Raises:
        EncodingError: a vector is zero.
    """
    left = np.asarray(vectors, dtype=np.float64)
    right = np.asarray(others, dtype=np.float64)
    # "...d,...d->..." is the dot product over the last axis, which takes no memory for the products.
    left_norms = np.sqrt(np.einsum("...d,...d->...", left, left))
    right_norms = np.sqrt(np.einsum("...d,...d->...", right, right))
    products_of_norms = left_norms * right_norms
    if not products_of_norms.all():
        raise EncodingError(
            "the model maps a text to the zero vector, for which cosine distance is undefined: remove "
            "that text"
        )
    difference = left - right
    squares = np.einsum("...d,...d->...", difference, difference)
    return {
        Metric.COSINE: 1.0 - np.einsum("...d,...d->...", left, right) / products_of_norms,
        Metric.EUCLIDEAN: np.sqrt(squares),
        Metric.MANHATTAN: np.abs(difference, out=difference).sum(axis=-1),  # in place, to save memory
    }


def sticky_score(distances: Floats, alone: Floats, constants: ScoreConstants) -> Floats:
    """Compute the sticky score (Chen et al. 2025, step 3).

    The score is high if the distance between carrier and anchor falls with additional copies, and low if it
    rises.

    Args:
        distances: distances between carrier and anchor with 0, 1, 2, ... copies, shape (..., copies + 1).
        alone: distances between the anchor and a text that consists of the token alone, shape (...).
        constants: constants of the score.

    Returns:
        Scores, shape (...).
    """
    # The score is (sum of falls + alpha x number of falls + 0.1 x alone)
    # divided by (sum of rises + beta x number of rises + gamma).
    changes = np.diff(distances, axis=-1)  # the change that each copy makes
    falls = np.clip(-changes, 0, None)
    rises = np.clip(changes, 0, None)
    reward = falls.sum(-1) + constants.alpha * (changes < 0).sum(-1) + 0.1 * alone
    penalty = rises.sum(-1) + constants.beta * (changes > 0).sum(-1) + constants.gamma
    scores: Floats = reward / penalty
    return scores


def score_bounds(distances: Floats, alone: Floats, constants: ScoreConstants) -> Floats:
    """Return upper bounds of `sticky_score` when only some of the distances are known.

    Args:
        distances: distances between carrier and anchor with 0, 1, 2, ... copies, shape (..., copies + 1); NaN
            where unknown. The distance with 0 copies must be known.
        alone: distances between the anchor and a text that consists of the token alone, shape (...).
        constants: constants of the score.

    Returns:
        An upper bound of the score that holds for all values of the unknown distances, or the score itself if
        all distances are known; shape (...).
    """
    # The score is (sum of falls + alpha x number of falls + 0.1 x alone)
    # divided by (sum of rises + beta x number of rises + gamma).
    # Numerator (reward) and denominator (penalty) are sums over the intervals between successive known
    # distances. An interval consists of one or more steps, each of which adds one copy. For example, if the
    # distances with 0 and 3 copies are known, the interval has 3 steps. The score is largest if the distance
    # falls in as many steps as possible:
    # - If the distance at the end of the interval is lower than at the start, all steps can be falls.
    # - If it is higher, one step must be a rise by at least the difference, and all other steps can be falls.
    # - If it is equal, a single step is neither a fall nor a rise. Several steps are counted as falls: they
    #   cannot all be falls, but the result is still an upper bound.
    # - After the last known distance, the unknown distances can fall to 0.
    shape = distances.shape[:-1]
    last = distances[..., 0].copy()  # the last known distance so far
    last_copies = np.zeros(shape, dtype=np.intp)  # the number of copies at this distance
    reward = 0.1 * alone
    penalty = np.full(shape, constants.gamma)
    is_complete = np.ones(shape, dtype=np.bool_)
    for copies in range(1, distances.shape[-1]):
        is_known = ~np.isnan(distances[..., copies])
        is_complete &= is_known
        steps = copies - last_copies  # in the interval that ends here, if this distance is known
        change = np.where(is_known, distances[..., copies] - last, 0.0)
        rises = is_known & (change > 0)
        does_not_rise = is_known & ~rises
        is_single_level_step = (change == 0) & (steps == 1)
        penalty += np.where(rises, change + constants.beta, 0.0)
        reward += np.where(does_not_rise, -change, 0.0)
        reward += constants.alpha * np.where(rises, steps - 1, 0)
        reward += constants.alpha * np.where(does_not_rise & ~is_single_level_step, steps, 0)
        last = np.where(is_known, distances[..., copies], last)
        last_copies = np.where(is_known, copies, last_copies)
    remaining_steps = distances.shape[-1] - 1 - last_copies
    reward += np.where(remaining_steps > 0, last + constants.alpha * remaining_steps, 0.0)
    bounds: Floats = reward / penalty
    # The unknown distances may also rise and fall again by some amount x, which adds x to the reward and the
    # penalty. If the quotient is below 1, adding x to both raises the quotient, but never to more than 1, so
    # the bound must be at least 1.
    return np.where(is_complete, bounds, np.maximum(bounds, 1.0))


def has_risen(distances: Floats) -> NDArray[np.bool_]:
    """Return whether any known distance is larger than the previous known distance, shape (...).

    ``distances`` has the distances with 0, 1, 2, ... copies, shape (..., copies + 1); NaN where unknown. The
    distance with 0 copies must be known.
    """
    last_known = distances[..., 0].copy()
    any_rises = np.zeros(last_known.shape, dtype=np.bool_)
    for copies in range(1, distances.shape[-1]):
        next_distances = distances[..., copies]
        any_rises |= next_distances > last_known  # false if the distance is NaN
        last_known = np.where(np.isnan(next_distances), last_known, next_distances)
    return any_rises


def placement_weights(weights: Mapping[Placement, float]) -> Floats:
    """Return the weights of the placements as an array, in the order of `PLACEMENTS`."""
    return np.array([weights[placement] for placement in PLACEMENTS])


def weighted(values: Floats, weights: Mapping[Placement, float]) -> Floats:
    """Average values over pairs, and return the weighted sum of the averages over placements.

    Args:
        values: values for each pair and placement, shape (..., pairs, placements).
        weights: the weight of each placement.

    Returns:
        The weighted sums, shape (...).
    """
    means: Floats = values.mean(axis=-2) @ placement_weights(weights)
    return means


def candidate_threshold(scores: Sequence[float] | Floats, share: float) -> float:
    """Return the score that only a fraction ``share`` of the tokens reaches (Chen et al. 2025, step 3)."""
    return float(np.quantile(np.asarray(scores, dtype=np.float64), 1 - share))


def scores_behind_threshold(token_count: int, share: float) -> int:
    """Return how many of the best scores must be known exactly to compute `candidate_threshold`.

    The threshold is interpolated between two adjacent scores, so both must be exact.
    """
    # The index of the lower of the two scores, if all scores are in ascending order.
    lower_index = int((token_count - 1) * (1 - share))
    # Add 1 in case rounding moves the position of the quantile to the next score.
    return min(token_count, token_count - lower_index + 1)


def outlier_threshold(rates: Sequence[float], outlier_range: float) -> float:
    """Return Q3 + outlier_range x IQR of the validation rates. Candidates above it are sticky (step 4)."""
    first_quartile, third_quartile = np.quantile(np.asarray(rates, dtype=np.float64), [0.25, 0.75])
    return float(third_quartile + outlier_range * (third_quartile - first_quartile))
