"""Compute differences, intervals and tests from metrics under all conditions. Pure.

Two sources of variation are kept apart. Intervals show how the numbers would vary with other queries, pairs
or texts (bootstrap over units, tokens fixed). The test shows whether sticky tokens differ from matched benign
tokens (sign flips over tokens, units fixed).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Up to 12 tokens, the test enumerates all sign flips.
_FLIPS = 4095
_LEAST_TOKENS = 2
_DECIMALS = 12


class Interval(NamedTuple):
    """A value with an interval; None if undefined."""

    value: float | None
    low: float | None
    high: float | None


class Comparison(NamedTuple):
    """Comparison of sticky with benign tokens on one task.

    Attributes:
        p_value: one-sided p-value; None for fewer than two tokens.
        effect_size: mean difference in standard deviations of the tokens' differences; None if undefined.
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


def compare(sticky: NDArray[np.float64], benign: NDArray[np.float64], key: Sequence[int]) -> Comparison:
    """Test whether sticky tokens cost more than the benign ones they are matched with.

    The test randomly swaps the sticky and the benign token of each pair. Repetitions of a token are averaged
    first, because they are not independent and must not be swapped separately.

    Args:
        sticky: cost of each sticky token, averaged over repetitions, shape (tokens,).
        benign: cost of its matched tokens, averaged over them, shape (tokens,).
        key: seed of the random swaps, used if there are too many to enumerate.
    """
    from scipy.stats import permutation_test

    defined = ~(np.isnan(sticky) | np.isnan(benign))
    differences = (sticky - benign)[defined]
    if len(differences) < _LEAST_TOKENS:
        return Comparison(None, None)
    test = permutation_test(
        (differences,),
        # Rounded, so that ties do not depend on the order of summation.
        lambda values, axis: values.mean(axis=axis).round(_DECIMALS),
        permutation_type="samples",
        alternative="greater",
        vectorized=True,
        n_resamples=_FLIPS + 1,
        rng=np.random.default_rng(list(key)),
    )
    spread = float(differences.std(ddof=1))
    return Comparison(float(test.pvalue), float(differences.mean()) / spread if spread > 0 else None)


def corrected(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values over tasks (Benjamini and Hochberg 1995); missing ones stay missing."""
    from scipy.stats import false_discovery_control

    known = [p_value for p_value in p_values if p_value is not None]
    if not known:
        return [None] * len(p_values)
    found = iter(false_discovery_control(known).tolist())
    return [None if p_value is None else next(found) for p_value in p_values]
