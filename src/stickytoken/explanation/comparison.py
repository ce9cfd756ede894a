"""A token's value beside those of benign tokens, with intervals. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy  # its parts are loaded when they are used
from numpy.typing import NDArray

Vector = NDArray[np.float64]

# Values that agree to this are the same: below it is the noise of arithmetic.
_ROUNDING = 1e-6
# Shares nearer to 0 or 1 are taken for this one: log-odds have an end there.
_LEAST_SHARE = 1e-6


@dataclass(frozen=True, slots=True)
class Comparison:
    """One value beside its benign values; arrays of one shape, NaN where there is nothing to say.

    Attributes:
        value: mean over carriers.
        low: lower end of its Student interval; the carrier is the unit of sampling.
        high: upper end.
        benign_mean: mean over benign tokens.
        benign_low: lower end of the interval in which one more benign token would lie.
        benign_high: upper end.
        deviations: standard deviations of the benign tokens that the value lies above their mean; of
            shares, on the scale of log-odds.
        outside: whether the value lies outside the benign interval.
    """

    value: Vector
    low: Vector
    high: Vector
    benign_mean: Vector
    benign_low: Vector
    benign_high: Vector
    deviations: Vector
    outside: NDArray[np.bool_]


def compare(
    values: Vector, benign: Vector, confidence: float, family: int, *, shares: bool = False
) -> Comparison:
    """Compare a token with benign ones.

    The benign interval is Student's for one more observation, m -+ t s sqrt(1 + 1/k), of the k benign
    tokens' means. It holds for all comparisons of a family at once (Bonferroni), so that an ordinary
    token has about a chance of 1 - confidence to leave it anywhere. Shares of tokens are skewed, the more
    the nearer they are to 0: their interval is Student's on the log-odds of the means.

    Args:
        values: of the token, carriers along the first axis, shape (n, ...).
        benign: of the benign tokens, shape (k, n, ...).
        confidence: coverage.
        family: number of comparisons that are looked at together.
        shares: whether values are shares, from 0 to 1.
    """
    value = values.mean(axis=0)
    n, k = len(values), len(benign)
    half = np.full_like(value, np.nan)
    if n > 1:
        error = values.std(axis=0, ddof=1) / np.sqrt(n)
        half = scipy.stats.t.ppf((1 + confidence) / 2, n - 1) * error
    means = benign.mean(axis=1)
    own, others = (_log_odds(value), _log_odds(means)) if shares else (value, means)
    centre, spread = others.mean(axis=0), others.std(axis=0, ddof=1)
    quantile = scipy.stats.t.ppf(1 - (1 - confidence) / (2 * family), k - 1)
    noise = _ROUNDING * (1 + np.abs(centre))
    reach = np.maximum(quantile * spread * np.sqrt(1 + 1 / k), noise)
    deviations = np.divide(
        own - centre, spread, out=np.full_like(value, np.nan), where=np.asarray(spread > noise)
    )
    ends = centre - reach, centre + reach
    low, high = (scipy.special.expit(end) for end in ends) if shares else ends
    return Comparison(
        value=value,
        low=value - half,
        high=value + half,
        benign_mean=means.mean(axis=0),
        benign_low=low,
        benign_high=high,
        deviations=deviations,
        outside=np.abs(own - centre) > reach,
    )


def _log_odds(shares: Vector) -> Vector:
    found: Vector = scipy.special.logit(np.clip(shares, _LEAST_SHARE, 1 - _LEAST_SHARE))
    return found


def distribution_distances(sample: Vector, reference: Vector) -> tuple[float, float]:
    """Wasserstein distance and KL divergence of a sample from a reference.

    The divergence (in nats) is that of histograms with common edges, ten bins over both, each bin
    with half an observation more, so that it is finite.

    Args:
        sample: values, shape (n,).
        reference: values, shape (m,).
    """
    distance = float(scipy.stats.wasserstein_distance(sample, reference))
    low, high = min(sample.min(), reference.min()), max(sample.max(), reference.max())
    if high - low <= _ROUNDING:
        return distance, 0.0
    edges = np.linspace(low, high, 11)
    ours, theirs = (np.histogram(values, edges)[0] + 0.5 for values in (sample, reference))
    return distance, float(scipy.stats.entropy(ours, theirs))
