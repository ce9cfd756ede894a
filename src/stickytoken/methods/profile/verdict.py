"""Judge tokens: sticky, topical or benign, and how severe. Pure."""

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

# A sticky token lifts more than this share of the anchors further than an ordinary token does. A token that
# lifts all sentences, and half of the vocabulary entries by chance, reaches 0.625 at the default weights.
UNIVERSAL_SHARE = 0.7
# With fewer unselected tokens, the null distribution cannot be estimated.
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
    """Effects of T tokens on the groups of anchors.

    Attributes:
        floor: effect exceeded in groups with `UNIVERSAL_SHARE` of the weight, shape (T,).
        universality: weight of the groups with a positive effect, shape (T,).
        rising: share of pairs that rise, shape (T,).
        contraction: 1 - slope, shape (T,).
        fixed_point: similarity that pairs are pulled to, NaN if the slope is 1, shape (T,).
    """

    floor: Vector
    universality: Vector
    rising: Vector
    contraction: Vector
    fixed_point: Vector


class Outliers(NamedTuple):
    """Tokens whose effects are outliers of their vocabulary.

    Attributes:
        q_values: shape (T,); None without an empirical null: too few tokens, or effects that differ by no
            more than noise.
        found: whether each token is an outlier, shape (T,).
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
    """Find effects that ordinary tokens do not have and that are large enough to matter.

    The interval must lie above the smallest effect. With an empirical null, false discoveries
    over all tokens are controlled as well.

    Args:
        tokens: estimates of the lift.
        rarity: estimates of the effect that is tested against the null.
        null_tokens: number of unselected tokens that the null was fitted to.
        smallest: smallest lift that matters.
        settings: with the false discovery rate.
    """
    large = tokens.lift.low > tokens.null.center + smallest
    # A null of no width would call everything beyond the noise an outlier.
    if null_tokens < LEAST_NULL_TOKENS or rarity.null.spread == 0:
        return Outliers(None, large)
    found = q_values(rarity.null.exceedance(rarity.tested))
    return Outliers(found, large & (found <= settings.fdr))


def profile(
    rounds: Mapping[Round, Measurements],
    tokens: TokenEstimates,
    reference: Ids,
    weights: Vector,
) -> Profile:
    """Profile all tokens, each from the latest round that it reached.

    Args:
        rounds: measurements.
        tokens: estimates.
        reference: unselected tokens; in each round they give the common effect on each group.
        weights: weights of the groups, shape (G,).
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
    """Compute the effects by group above those of the ordinary token."""
    own = np.isin(measured.ids, reference)
    effects: Vector = measured.groups - measured.groups[own].mean(axis=0) - center
    return effects


def severities(effects: Vector, spread: float) -> list[Severity]:
    """Grade effects above the typical token's.

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
    """Call outliers on most anchors sticky; those on some anchors, or on sentences alone, topical.

    Args:
        outlying: outliers on all anchors, shape (T,).
        on_sentences: outliers on the corpus's sentences, shape (T,).
        universality: universality of each token, shape (T,).
    """
    sticky = outlying & (universality > UNIVERSAL_SHARE)
    topical = ~sticky & (outlying | on_sentences)
    return [
        Verdict.STICKY if is_sticky else Verdict.TOPICAL if is_topical else Verdict.BENIGN
        for is_sticky, is_topical in zip(sticky, topical, strict=True)
    ]
