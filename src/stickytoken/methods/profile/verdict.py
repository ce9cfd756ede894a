"""Judge tokens: sticky, topical or benign, and how severe. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.methods.profile.estimates import TokenEstimates, Vector
from stickytoken.methods.statistics import q_values
from stickytoken.methods.verdicts import Severity, Verdict, severity_of

# A lift that may be smaller than this share of the smallest effect is never flagged.
NEGLIGIBLE_SHARE = 0.5
# A sticky token lifts most kinds of text.
UNIVERSAL_SHARE = 0.5
# With fewer unselected tokens, the null distribution cannot be estimated.
LEAST_NULL_TOKENS = 200


class Flagged(NamedTuple):
    """Tokens whose lifts matter.

    Attributes:
        q_values: shape (T,); None without an empirical null: too few tokens, or effects that differ by no
            more than noise.
        found: whether each token's lift matters, shape (T,).
    """

    q_values: Vector | None
    found: NDArray[np.bool_]


def find_lifts(
    tokens: TokenEstimates,
    null_tokens: int,
    available: int,
    smallest: float,
    fdr: float,
    outliers_only: bool = False,
) -> Flagged:
    """Find lifts that matter: large ones, and smaller ones that ordinary tokens do not have.

    The interval must lie above half the smallest effect. With an empirical null, it must also reach the
    smallest effect, or the lift must be an outlier of its vocabulary, with false discoveries over all
    its tokens controlled, measured or not: whoever names the strongest tokens of a vocabulary does not make
    them rare. So a token with the smallest effect is missed only if its interval excludes it.

    Args:
        tokens: estimates of the lift.
        null_tokens: number of unselected tokens that the null was fitted to.
        available: number of available tokens of the vocabulary.
        smallest: the smallest effect that matters.
        fdr: false discovery rate.
        outliers_only: however large the lift, it must be an outlier.
    """
    large = tokens.lift.low > tokens.null.center + NEGLIGIBLE_SHARE * smallest
    # A null of no width would call everything beyond the noise an outlier.
    if null_tokens < LEAST_NULL_TOKENS or tokens.null.spread == 0:
        return Flagged(None, large)
    found = q_values(tokens.null.exceedance(tokens.tested), max(available, len(tokens.ids)))
    reaching = tokens.lift.high >= tokens.null.center + smallest
    return Flagged(found, large & ((reaching & (not outliers_only)) | (found <= fdr)))


def universality(effects: Vector, spreads: Vector, smallest: float) -> Vector:
    """Compute the share of the kinds of text that tokens lift by at least half the smallest effect.

    Args:
        effects: lifts above the ordinary token's by kind, NaN where a kind has no pair below the mean
            similarity, shape (T, kinds).
        spreads: standard deviations of the similarities to each kind, shape (kinds,).
        smallest: the smallest effect that matters, in standard deviations.

    Returns:
        Shape (T,); NaN without a kind.
    """
    known = np.isfinite(effects)
    lifted = known & (np.nan_to_num(effects) >= NEGLIGIBLE_SHARE * smallest * spreads)
    counts = known.sum(axis=1)
    shares = np.divide(lifted.sum(axis=1), counts, out=np.full(len(counts), np.nan), where=counts > 0)
    return np.asarray(shares, dtype=np.float64)


def severities(effects: Vector, verdicts: Sequence[Verdict]) -> list[Severity | None]:
    """Grade effects above the ordinary token's; only flagged tokens have a severity.

    Args:
        effects: in standard deviations of the model's own similarities, shape (T,).
        verdicts: verdict of each token.
    """
    return [
        None if verdict is Verdict.BENIGN else severity_of(effect)
        for effect, verdict in zip(effects, verdicts, strict=True)
    ]


def verdicts(mattering: NDArray[np.bool_], on_a_kind: NDArray[np.bool_], universal: Vector) -> list[Verdict]:
    """Call flagged tokens sticky if they lift most kinds of text, and topical otherwise.

    Args:
        mattering: whether the lift matters on the anchors that the run is about, shape (T,).
        on_a_kind: whether it is an outlier on one of several kinds among these, shape (T,).
        universal: universality of each token, shape (T,); NaN, unknown, counts as universal.
    """
    flagged = mattering | on_a_kind
    sticky = flagged & ~(universal <= UNIVERSAL_SHARE)
    return [
        Verdict.STICKY if is_sticky else Verdict.TOPICAL if is_flagged else Verdict.BENIGN
        for is_sticky, is_flagged in zip(sticky, flagged, strict=True)
    ]
