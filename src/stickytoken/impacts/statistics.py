"""Compute differences, intervals and tests from metrics under all conditions. Pure.

Two sources of variation are kept apart. Intervals show how the numbers would vary with other queries, pairs
or texts (bootstrap over units, tokens fixed). The test shows whether sticky tokens cost more than matched
benign tokens (permutations within the matched sets, units fixed).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Up to so many ways to choose one member of every set, the test counts all of them; else it draws some.
_MOST_COUNTED = 10_000
_DRAWS = 9_999
# Statistics that differ by less are equal: the order of summation changes them.
_ROUNDING = 1e-12
_LEAST_FOR_SPREAD = 2


class Interval(NamedTuple):
    """A value with an interval; None if undefined."""

    value: float | None
    low: float | None
    high: float | None


class Comparison(NamedTuple):
    """Comparison of sticky with benign tokens on one task.

    Attributes:
        p_value: one-sided p-value; None without a matched set.
        effect_size: mean difference in standard deviations of the sets' differences; None if undefined.
    """

    p_value: float | None
    effect_size: float | None


def bootstrap_samples(units: int, count: int, key: Sequence[int]) -> NDArray[np.intp]:
    """Draw indices of units with replacement, shape (count, units)."""
    return np.random.default_rng(list(key)).integers(units, size=(count, units))


def resampled(
    scores: Callable[[NDArray[np.intp] | None], NDArray[np.float64]], samples: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Compute scores on all units, then on each sample of them.

    All conditions are resampled together: each sample has the same units under every condition.

    Args:
        scores: returns the scores of all conditions on a sample of units, shape (conditions,).
        samples: samples from `bootstrap_samples`.

    Returns:
        Shape (1 + samples, conditions).
    """
    return np.array([scores(None), *(scores(sample) for sample in samples)])


def contrast_intervals(
    scores: NDArray[np.float64], contrasts: NDArray[np.float64], confidence: float
) -> list[Interval]:
    """Compute linear contrasts of scores with bootstrap percentile intervals (Efron 1979).

    Args:
        scores: scores from `resampled`.
        contrasts: weights, shape (contrasts, conditions).
        confidence: coverage of the intervals.

    Returns:
        One interval per contrast; without ends if there are no samples.
    """
    points, *drawn = (combine(contrasts, row) for row in scores)
    columns = np.array(drawn).reshape(-1, len(contrasts)).T
    tail = (1 - confidence) / 2
    return [_interval(float(point), column, tail) for point, column in zip(points, columns, strict=True)]


def combine(contrasts: NDArray[np.float64], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute weighted sums; an undefined score makes only the sums that use it undefined."""
    used = contrasts != 0
    spoiled = (used & np.isnan(scores)).any(axis=1)
    return np.where(spoiled, np.nan, contrasts @ np.nan_to_num(scores))


def _interval(point: float, drawn: NDArray[np.float64], tail: float) -> Interval:
    defined = drawn[~np.isnan(drawn)]
    # Samples on which the metric is undefined are left out; if most are, there is no interval.
    if np.isnan(point) or not len(defined) or len(defined) < len(drawn) / 2:
        return Interval(None if np.isnan(point) else point, None, None)
    low, high = np.quantile(defined, [tail, 1 - tail])
    return Interval(point, float(low), float(high))


def compare(costs: NDArray[np.float64], key: Sequence[int]) -> Comparison:
    """Test whether sticky tokens cost more than the benign ones they are matched with.

    A permutation test within strata (Good 2005, "Permutation, Parametric and Bootstrap Tests of Hypotheses"):
    under the null hypothesis, any member of a matched set is as likely to be the sticky one. The statistic is
    the mean over sets of the difference between that member and the mean of the others.

    Args:
        costs: cost of each token, averaged over repetitions, because these are not independent; one row per
            matched set with the sticky token first, shape (sets, members). Rows with NaN are left out.
        key: seed of the random choices, used if there are too many to count.
    """
    costs = costs[~np.isnan(costs).any(axis=1)]
    sets, members = costs.shape
    if not sets or members < 2:
        return Comparison(None, None)
    differences = (members * costs - costs.sum(axis=1, keepdims=True)) / (members - 1)
    own = differences[:, 0]
    spread = float(own.std(ddof=1)) if sets >= _LEAST_FOR_SPREAD else 0.0
    effect_size = float(own.mean()) / spread if spread > _ROUNDING else None
    return Comparison(_p_value(differences, key), effect_size)


def _p_value(differences: NDArray[np.float64], key: Sequence[int]) -> float:
    """Return the share of choices of one member per set whose mean is at least that of the first members."""
    sets, members = differences.shape
    least = differences[:, 0].mean() - _ROUNDING
    if members**sets <= _MOST_COUNTED:
        sums = np.zeros(1)
        for row in differences:
            sums = np.add.outer(sums, row).ravel()
        return float((sums / sets >= least).mean())
    chosen = np.random.default_rng(list(key)).integers(members, size=(_DRAWS, sets))
    means = differences[np.arange(sets), chosen].mean(axis=1)
    # The choice that was observed is one of them (Phipson and Smyth 2010).
    return float((1 + (means >= least).sum()) / (1 + _DRAWS))


def corrected(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values over tasks (Benjamini and Hochberg 1995); missing ones stay missing."""
    from scipy.stats import false_discovery_control

    known = [p_value for p_value in p_values if p_value is not None]
    if not known:
        return [None] * len(p_values)
    found = iter(false_discovery_control(known).tolist())
    return [None if p_value is None else next(found) for p_value in p_values]
