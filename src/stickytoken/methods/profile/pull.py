"""How hard copies pull similarities toward the mean: lift and contraction together. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from stickytoken.methods.profile.estimates import Measurements, Vector
from stickytoken.methods.profile.rounds import Round
from stickytoken.methods.statistics import centre_probes, interaction_variance

# Contraction counts half as much as the lift. It is known less exactly, and for some tokens less than for
# others, so that a full weight would give the pulls heavy tails.
_CONTRACTION_SHARE = 0.5


def pulls(
    rounds: Mapping[Round, Measurements], unselected: NDArray[np.int64]
) -> dict[Round, NDArray[np.float64]]:
    """Compute the pull of every probe, in units of the lift: lift + weight / 2 x (1 - slope).

    A token that draws all texts to one value raises the low similarities and flattens the line
    of similarity after on similarity before. A word that is close to many texts raises the low
    similarities without flattening the line: over ordinary tokens, lift and contraction are
    negatively correlated. Their sum separates the two better than the lift alone.

    Args:
        rounds: measurements.
        unselected: unselected tokens of the first round.

    Returns:
        Pulls by round, shape (T, K). Where the slope is undefined, the lift alone.
    """
    first = rounds[Round.SCREEN]
    weight = _CONTRACTION_SHARE * contraction_weight(
        first.lifts, contractions(first), np.isin(first.ids, unselected)
    )
    return {step: measured.lifts + weight * contractions(measured) for step, measured in rounds.items()}


def contractions(measured: Measurements) -> Vector:
    """Compute 1 - slope of every probe, shape (T, K); 0 if the carrier is equally similar to all anchors."""
    return np.nan_to_num(1 - measured.slopes, nan=0.0)


def contraction_weight(lifts: Vector, contracted: Vector, reference: NDArray[np.bool_]) -> float:
    """Find the weight at which contraction varies between unselected tokens as much as the lift.

    Args:
        lifts: shape (T, K).
        contracted: contractions of the same probes, shape (T, K).
        reference: unselected tokens, shape (T,).

    Returns:
        The weight; 0 if noise explains all the variance of one of them.
    """
    lift = _effect_variance(lifts, reference)
    contraction = _effect_variance(contracted, reference)
    if lift <= 0 or contraction <= 0:
        return 0.0
    return math.sqrt(lift / contraction)


def _effect_variance(values: Vector, reference: NDArray[np.bool_]) -> float:
    """Estimate the variance between tokens without the noise of their means."""
    centred = centre_probes(values, reference)[reference]
    noise = interaction_variance(centred) / values.shape[1]
    return float(max(0.0, centred.mean(axis=1).var(ddof=1) - noise))
