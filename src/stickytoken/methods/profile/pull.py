"""How hard copies pull similarities toward the mean: lift and contraction together. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from stickytoken.methods.profile.estimates import Measurements, Vector
from stickytoken.methods.profile.rounds import Round
from stickytoken.methods.statistics import centre_probes, interaction_variance

# Contraction counts half as much as the lift: fewer texts tell less about it, and more about some tokens
# than about others, which gives the pulls heavy tails where it counts as much.
_CONTRACTION_SHARE = 0.5


def pulls(
    rounds: Mapping[Round, Measurements], unselected: NDArray[np.int64]
) -> dict[Round, NDArray[np.float64]]:
    """Pull of every probe, in units of the lift: lift + weight / 2 x (1 - slope).

    What draws all texts to one value raises the low similarities and flattens the line of
    similarity after on similarity before. A word that is near to much raises them and flattens
    nothing: over ordinary tokens lift and contraction go against each other. Their sum tells the
    two apart better than the lift does.

    Args:
        rounds: what was measured.
        unselected: tokens of the first round that nothing selected.

    Returns:
        By round, shape (T, K). Where no line can be drawn, the lift alone.
    """
    first = rounds[Round.SCREEN]
    weight = _CONTRACTION_SHARE * contraction_weight(
        first.lifts, contractions(first), np.isin(first.ids, unselected)
    )
    return {step: measured.lifts + weight * contractions(measured) for step, measured in rounds.items()}


def contractions(measured: Measurements) -> Vector:
    """1 - slope of every probe, 0 where its carrier is as similar to one anchor as to any; shape (T, K)."""
    return np.nan_to_num(1 - measured.slopes, nan=0.0)


def contraction_weight(lifts: Vector, contracted: Vector, reference: NDArray[np.bool_]) -> float:
    """Weight at which contraction varies between unselected tokens as much as the lift does.

    Args:
        lifts: shape (T, K).
        contracted: contractions of the same probes, shape (T, K).
        reference: unselected tokens, shape (T,).

    Returns:
        0 where noise explains one of the two.
    """
    lift = _effect_variance(lifts, reference)
    contraction = _effect_variance(contracted, reference)
    if lift <= 0 or contraction <= 0:
        return 0.0
    return math.sqrt(lift / contraction)


def _effect_variance(values: Vector, reference: NDArray[np.bool_]) -> float:
    """Variance between tokens, the noise of their means taken out."""
    centred = centre_probes(values, reference)[reference]
    noise = interaction_variance(centred) / values.shape[1]
    return float(max(0.0, centred.mean(axis=1).var(ddof=1) - noise))
