"""Compare a token's value with those of benign tokens. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy  # loads its submodules lazily
from numpy.typing import NDArray

Vector = NDArray[np.float64]

# Smaller differences, relative to 1 plus the value, are rounding errors.
_ROUNDING = 1e-6
# Shares are clipped this far from 0 and 1, where log-odds are infinite.
_LEAST_SHARE = 1e-6


@dataclass(frozen=True, slots=True)
class Comparison:
    """Values of a token and of its benign tokens; arrays of the same shape, NaN where undefined.

    Attributes:
        value: mean over carriers.
        low: lower end of its Student interval; carriers are the sampling unit.
        high: upper end of that interval.
        benign_mean: mean over benign tokens.
        benign_low: lower end of the prediction interval for one more benign token.
        benign_high: upper end of that interval.
        deviations: distance from the benign mean in standard deviations of the benign tokens; for shares,
            on the log-odds scale.
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
    """Compare a token with benign tokens.

    The benign interval is Student's prediction interval for one more observation, m -+ t s sqrt(1 + 1/k),
    from the means of the k benign tokens. It holds simultaneously for all comparisons of a family
    (Bonferroni): an ordinary token leaves it anywhere with a probability of about 1 - confidence. Shares
    are skewed, more so near 0, so their interval is computed on the log-odds of the means.

    Args:
        values: values of the token, carriers along the first axis, shape (n, ...).
        benign: values of the benign tokens, shape (k, n, ...).
        confidence: coverage of the intervals.
        family: number of comparisons made together.
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
    """Return the Wasserstein distance and the KL divergence of a sample from a reference.

    The divergence (in nats) compares histograms with ten common bins. Half an observation is added to each
    bin to keep it finite.

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
