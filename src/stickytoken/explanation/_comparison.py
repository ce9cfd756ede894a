"""Compare a token's value with those of benign tokens. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy  # loads its submodules lazily
from numpy.typing import NDArray

Vector = NDArray[np.float64]

# Smaller differences, relative to 1 plus the value, are rounding errors.
_ROUNDING = 1e-6
# Bounded values are clipped this far from their bounds, where log-odds are infinite.
_LEAST_SHARE = 1e-6


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range of a measure; intervals stay inside it."""

    low: float = -np.inf
    high: float = np.inf

    @property
    def closed(self) -> bool:
        """Whether both ends are finite."""
        return bool(np.isfinite(self.low) and np.isfinite(self.high))

    def log_odds(self, values: Vector) -> Vector:
        """Return where values lie between the bounds, as log-odds; for a cosine twice Fisher's z."""
        shares = (values - self.low) / (self.high - self.low)
        found: Vector = scipy.special.logit(np.clip(shares, _LEAST_SHARE, 1 - _LEAST_SHARE))
        return found

    def value(self, log_odds: Vector) -> Vector:
        """Return the values that have these log-odds."""
        found: Vector = self.low + (self.high - self.low) * scipy.special.expit(log_odds)
        return found


UNBOUNDED = Bounds()


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
        deviations: distance from the benign mean in standard deviations of the benign tokens; between
            two bounds, on the log-odds scale.
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
    values: Vector, benign: Vector, confidence: float, family: int, bounds: Bounds = UNBOUNDED
) -> Comparison:
    """Compare a token with benign tokens.

    The benign interval is Student's prediction interval for one more observation, m -+ t s sqrt(1 + 1/k),
    from the means of the k benign tokens. It holds simultaneously for all comparisons of a family
    (Bonferroni): an ordinary token leaves it anywhere with a probability of about 1 - confidence.

    A measure between two bounds is skewed, more so near a bound, so its intervals are computed on the
    log-odds of the means (the delta method for the interval over carriers) and never cross a bound. With one
    bound, they end there: an observation beyond it is impossible, so the coverage is the same.

    Args:
        values: values of the token, carriers along the first axis, shape (n, ...).
        benign: values of the benign tokens, shape (k, n, ...).
        confidence: coverage of the intervals.
        family: number of comparisons made together.
        bounds: range of the values.
    """
    value = values.mean(axis=0)
    k = len(benign)
    means = benign.mean(axis=1)
    own, others = (bounds.log_odds(value), bounds.log_odds(means)) if bounds.closed else (value, means)
    centre, spread = others.mean(axis=0), others.std(axis=0, ddof=1)
    quantile = scipy.stats.t.ppf(1 - (1 - confidence) / (2 * family), k - 1)
    noise = _ROUNDING * (1 + np.abs(centre))
    reach = np.maximum(quantile * spread * np.sqrt(1 + 1 / k), noise)
    deviations = np.divide(
        own - centre, spread, out=np.full_like(value, np.nan), where=np.asarray(spread > noise)
    )
    low, high = centre - reach, centre + reach
    if bounds.closed:
        low, high = bounds.value(low), bounds.value(high)
    else:
        low, high = np.maximum(low, bounds.low), np.minimum(high, bounds.high)
    mean = means.mean(axis=0)
    # Log-odds make large differences of tiny ones near a bound.
    differs = np.abs(value - mean) > _ROUNDING * (1 + np.abs(mean))
    over_carriers = _interval_of_mean(values, confidence, bounds)
    return Comparison(
        value=value,
        low=over_carriers[0],
        high=over_carriers[1],
        benign_mean=mean,
        benign_low=low,
        benign_high=high,
        deviations=deviations,
        outside=differs & (np.abs(own - centre) > reach),
    )


def _interval_of_mean(values: Vector, confidence: float, bounds: Bounds) -> tuple[Vector, Vector]:
    """Return the ends of Student's interval of the mean over the first axis; NaN for a single value."""
    n, mean = len(values), values.mean(axis=0)
    if n < 2:
        return np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    error = values.std(axis=0, ddof=1) / np.sqrt(n)
    half = scipy.stats.t.ppf((1 + confidence) / 2, n - 1) * error
    if not bounds.closed:
        return np.maximum(mean - half, bounds.low), np.minimum(mean + half, bounds.high)
    centre, width = bounds.log_odds(mean), bounds.high - bounds.low
    share = scipy.special.expit(centre)
    half = half / (width * share * (1 - share))  # the derivative of the log-odds
    low, high = bounds.value(centre - half), bounds.value(centre + half)
    # A mean at a bound is clipped, but lies in its own interval.
    return np.minimum(low, mean), np.maximum(high, mean)


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
