"""Values with confidence intervals: of shares, and of contrasts between scores by the bootstrap. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number")


class Interval(NamedTuple, Generic[Number]):
    """A value and the ends of its confidence interval."""

    value: Number
    low: Number
    high: Number

    def as_columns(self, name: str) -> dict[str, Number]:
        """Return value and ends as columns of a table: ``name``, ``name_low`` and ``name_high``."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


class Intervals(NamedTuple):
    """Values of T tokens with their confidence intervals.

    Attributes:
        value: the values, shape (T,).
        low: lower ends of the intervals, shape (T,).
        high: upper ends of the intervals, shape (T,).
    """

    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @classmethod
    def of_tokens(cls, intervals: Sequence[Interval[float]]) -> Intervals:
        """Return the intervals of T tokens as arrays."""
        rows = np.array(intervals, dtype=np.float64).reshape(-1, 3)  # also if there is no token
        value, low, high = rows.T
        return cls(value, low, high)

    def of_each(self) -> list[Interval[float]]:
        """Return the interval of each token."""
        rows = np.stack(self, axis=1)  # shape (T, 3): value, low and high
        return [Interval(*row) for row in rows.tolist()]

    def of_rows(self, rows: NDArray[np.intp]) -> Intervals:
        """Return the intervals of the tokens in these rows."""
        return Intervals(self.value[rows], self.low[rows], self.high[rows])

    def divided_by(self, unit: float) -> Intervals:
        """Divide the values and their intervals by ``unit``, which must be positive."""
        return Intervals(self.value / unit, self.low / unit, self.high / unit)


def estimate_share(successes: int, trials: int, confidence: float) -> Interval[float]:
    """Return the share of successes, with its exact two-sided interval.

    The interval is that of Clopper and Pearson (1934, "The use of confidence or fiducial limits illustrated
    in the case of the binomial", Biometrika 26). Trials count as independent.

    >>> [round(end, 3) for end in estimate_share(3, 20, 0.9)]
    [0.15, 0.042, 0.344]
    """
    from scipy.stats import binomtest

    low, high = binomtest(successes, trials).proportion_ci(confidence, method="exact")
    return Interval(successes / trials, float(low), float(high))


def bootstrap_samples(units: int, count: int, key: Sequence[int]) -> NDArray[np.intp]:
    """Draw bootstrap samples: indices of units, drawn with replacement.

    Args:
        units: Number of units.
        count: Number of samples.
        key: Seed of the random draw.

    Returns:
        Indices of units, shape (count, units).
    """
    return np.random.default_rng(list(key)).integers(units, size=(count, units))


def resampled(
    scores: Callable[[NDArray[np.intp] | None], NDArray[np.float64]], samples: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Compute scores on all units, then on each sample.

    Args:
        scores: Function that takes indices of units (None for all units) and returns the scores of all
            conditions on these units. All conditions are scored on the same units, so that differences
            between conditions can be resampled.
        samples: Indices of units, one row per sample.

    Returns:
        The scores on all units, followed by one row of scores per sample, shape (1 + samples, conditions).
    """
    scores_of_samples = [scores(sample) for sample in samples]
    return np.array([scores(None), *scores_of_samples])


def contrast_intervals(
    scores: NDArray[np.float64], contrasts: NDArray[np.float64], confidence: float
) -> list[Interval[float | None]]:
    """Compute linear contrasts of scores with bootstrap percentile intervals (Efron 1979).

    Args:
        scores: the result of `resampled`, shape (1 + samples, conditions).
        contrasts: weights of the conditions, one row per contrast, such as 1 and -1 for a difference.
        confidence: nominal coverage of the intervals, such as 0.95.

    Returns:
        One `Interval` per contrast. Samples on which the contrast is undefined are left out. Both ends are
        None if the contrast is undefined on all units taken together, or on more than half of the samples.
        The value is None only if the contrast is undefined on all units taken together.
    """
    values_on_all_units = combine(contrasts, scores[0])  # shape (contrasts,), NaN if undefined
    values_on_samples = np.array([combine(contrasts, sample_scores) for sample_scores in scores[1:]])
    # Shape (samples, contrasts), also if there are no samples.
    values_on_samples = values_on_samples.reshape(-1, len(contrasts))
    tail = (1 - confidence) / 2
    intervals: list[Interval[float | None]] = []
    for value, values_of_contrast in zip(values_on_all_units.tolist(), values_on_samples.T, strict=True):
        defined = values_of_contrast[~np.isnan(values_of_contrast)]
        has_enough_samples = len(defined) > 0 and len(defined) >= len(values_of_contrast) / 2
        if math.isnan(value) or not has_enough_samples:
            intervals.append(Interval(value=present(value), low=None, high=None))
        else:
            low, high = np.quantile(defined, [tail, 1 - tail]).tolist()
            intervals.append(Interval(value, low, high))
    return intervals


def combine(contrasts: NDArray[np.float64], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weighted sum of scores for each contrast; NaN if any score with nonzero weight is NaN.

    ``contrasts`` has the weights, shape (contrasts, conditions). ``scores`` has the shape (conditions,).
    """
    is_undefined = ((contrasts != 0) & np.isnan(scores)).any(axis=1)
    # 0 times NaN would be NaN, so an undefined score becomes 0 for the contrasts that give it no weight.
    return np.where(is_undefined, np.nan, contrasts @ np.nan_to_num(scores))


def present(value: float) -> float | None:
    """Return the value if it is finite, else None."""
    return value if math.isfinite(value) else None
