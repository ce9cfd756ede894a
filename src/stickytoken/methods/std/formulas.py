"""Score, validation rate and verdict of the paper's method."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import InputError
from stickytoken.methods.std.settings import ScoreConstants


def sticky_score(
    distances: NDArray[np.float64], alone: NDArray[np.float64], constants: ScoreConstants
) -> NDArray[np.float64]:
    """Reward falls of the distance as copies are added, and penalise rises.

    score = (sum of falls + alpha * number of falls + 0.1 t)
            / (sum of rises + beta * number of rises + gamma)

    (Chen et al. 2025, step 3 of the Sticky Token Detector.)

    Args:
        distances: shape (..., n + 1), for 0, 1, ..., n copies.
        alone: t, the distance between the token alone and the anchor; broadcast
            against the leading axes.
        constants: alpha, beta, gamma.

    Returns:
        Scores of the leading shape.
    """
    changes = np.diff(distances, axis=-1)
    falls, rises = np.clip(-changes, 0, None), np.clip(changes, 0, None)
    reward = falls.sum(-1) + constants.alpha * (changes < 0).sum(-1) + 0.1 * alone
    penalty = rises.sum(-1) + constants.beta * (changes > 0).sum(-1) + constants.gamma
    scores: NDArray[np.float64] = reward / penalty
    return scores


def falls_on_average(distances: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Check whether the mean distance over 1, ..., n copies is below the distance without copies.

    Args:
        distances: shape (..., n + 1), for 0, 1, ..., n copies.

    Returns:
        Booleans of the leading shape.
    """
    below: NDArray[np.bool_] = distances[..., 1:].mean(-1) < distances[..., 0]
    return below


def candidate_threshold(scores: Sequence[float], share: float) -> float:
    """Find the score that the best ``share`` of the tokens reach (linear quantile).

    Raises:
        InputError: there are no scores.
    """
    if not len(scores):
        raise InputError("no token was scored")
    return float(np.quantile(np.asarray(scores, dtype=np.float64), 1 - share))


def outlier_threshold(rates: Sequence[float], outlier_range: float) -> float:
    """Compute Q3 + outlier_range x IQR of the validation rates (linear quantiles).

    A candidate with a higher rate is sticky (Chen et al. 2025, step 4 of the Sticky Token
    Detector).

    Raises:
        InputError: there are no rates.
    """
    if not len(rates):
        raise InputError("no candidate was validated")
    first, third = np.quantile(np.asarray(rates, dtype=np.float64), [0.25, 0.75])
    return float(third + outlier_range * (third - first))
