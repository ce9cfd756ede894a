"""Who is sticky, how badly, and whether on everything or only on its own subject. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.methods.profile.estimates import Ids, Measurements, TokenEstimates, Vector
from stickytoken.methods.profile.rounds import Round
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.statistics import q_values, weighted_quantile
from stickytoken.methods.verdicts import Verdict

# A sticky token lifts more than this share of the anchors above what an ordinary token does. One that
# lifts all sentences, and half of the vocabulary entries by chance, reaches 0.625 at the default weights.
UNIVERSAL_SHARE = 0.7
# Fewer unselected tokens than this say too little about what is ordinary.
LEAST_NULL_TOKENS = 200


class Severity(StrEnum):
    """Size of a lift in standard deviations of the model's own similarities.

    The bounds are the conventional small, medium and large effects (Cohen 1988).
    """

    NEGLIGIBLE = "negligible"
    MILD = "mild"
    SERIOUS = "serious"
    SEVERE = "severe"


SEVERITY_BOUNDS = {Severity.MILD: 0.2, Severity.SERIOUS: 0.5, Severity.SEVERE: 0.8}


@dataclass(frozen=True)
class Profile:
    """How a token acts on groups of anchors; T tokens.

    Attributes:
        floor: effect that the groups with `UNIVERSAL_SHARE` of the weight exceed, shape (T,).
        universality: weight of the groups with a positive effect, shape (T,).
        rising: share of pairs that rise, shape (T,).
        contraction: 1 - slope, shape (T,).
        fixed_point: similarity that pairs are pulled to, NaN where the slope is 1, shape (T,).
    """

    floor: Vector
    universality: Vector
    rising: Vector
    contraction: Vector
    fixed_point: Vector


class Outliers(NamedTuple):
    """Which effects are outliers of their vocabulary.

    Attributes:
        q_values: shape (T,); None where the vocabulary is too small for an empirical null.
        found: shape (T,).
    """

    q_values: Vector | None
    found: NDArray[np.bool_]


def find_outliers(
    tokens: TokenEstimates,
    rarity: TokenEstimates,
    null_tokens: int,
    smallest: float,
    settings: ProfileSettings,
) -> Outliers:
    """Effects that ordinary tokens do not have and that are large enough to matter.

    With an empirical null, false discoveries are controlled over all tokens; on top, and without
    one alone, the interval must lie above the smallest effect.

    Args:
        tokens: estimates of the lift.
        rarity: estimates of what is tested against the null.
        null_tokens: unselected tokens that the null was fitted to.
        smallest: the smallest effect that matters, as a lift.
        settings: false discovery rate.
    """
    large = tokens.lift.low > tokens.null.center + smallest
    if null_tokens < LEAST_NULL_TOKENS:
        return Outliers(None, large)
    found = q_values(rarity.null.exceedance(rarity.tested))
    return Outliers(found, large & (found <= settings.fdr))


def profile(
    rounds: Mapping[Round, Measurements],
    tokens: TokenEstimates,
    reference: Ids,
    weights: Vector,
) -> Profile:
    """Profiles of all tokens, each from the latest round that it reached.

    Args:
        rounds: what was measured.
        tokens: their estimates.
        reference: unselected tokens; those in a round show its common effect on each group.
        weights: of the groups, shape (G,).
    """
    size = len(tokens.ids)
    floor, universality, rising, slope, intercept = (np.full(size, np.nan) for _ in range(5))
    for measured in rounds.values():
        rows = rounds[Round.SCREEN].rows(measured.ids)
        effects = _group_effects(measured, tokens.null.center, reference)
        present = np.isfinite(effects).all(axis=0)
        shares = weights[present] / weights[present].sum()
        floor[rows] = weighted_quantile(effects[:, present], shares, 1 - UNIVERSAL_SHARE)
        universality[rows] = (effects[:, present] > 0) @ shares
        rising[rows], slope[rows], intercept[rows] = measured.rising, measured.slope, measured.intercept
    contraction = 1 - slope
    fixed_point = np.divide(
        intercept, contraction, out=np.full(size, np.nan), where=np.abs(contraction) > 1e-3
    )
    return Profile(floor, universality, rising, contraction, fixed_point)


def _group_effects(measured: Measurements, center: float, reference: Ids) -> Vector:
    """Effects by group, above the ordinary token's."""
    own = np.isin(measured.ids, reference)
    effects: Vector = measured.groups - measured.groups[own].mean(axis=0) - center
    return effects


def severities(effects: Vector, spread: float) -> list[Severity]:
    """Severity of effects above the typical token's.

    Args:
        effects: lift minus the typical token's, shape (T,).
        spread: standard deviation of the model's own similarities.
    """
    names = (Severity.NEGLIGIBLE, *SEVERITY_BOUNDS)
    grades = np.digitize(effects / spread, tuple(SEVERITY_BOUNDS.values()))
    return [names[grade] for grade in grades]


def verdicts(
    outlying: NDArray[np.bool_], on_sentences: NDArray[np.bool_], universality: Vector
) -> list[Verdict]:
    """Sticky: an outlier on most anchors. Topical: an outlier on some of them, or on sentences alone.

    Args:
        outlying: outliers on all anchors, shape (T,).
        on_sentences: outliers on the corpus's sentences, shape (T,).
        universality: shape (T,).
    """
    sticky = outlying & (universality > UNIVERSAL_SHARE)
    topical = ~sticky & (outlying | on_sentences)
    return [
        Verdict.STICKY if is_sticky else Verdict.TOPICAL if is_topical else Verdict.BENIGN
        for is_sticky, is_topical in zip(sticky, topical, strict=True)
    ]
