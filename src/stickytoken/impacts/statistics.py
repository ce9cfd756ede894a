"""From metrics under all conditions to differences, intervals and tests. Pure.

What varies is taken apart: intervals say how the numbers would move with other queries,
pairs or texts (bootstrap over units, the tokens fixed); the test says whether sticky
tokens differ from matched benign ones (sign flips over tokens, the units fixed).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# All sign flips of 12 tokens and fewer are tried out.
_FLIPS = 4095
_LEAST_TOKENS = 2
_DECIMALS = 12


class Interval(NamedTuple):
    """A value with an interval; None where it is not defined."""

    value: float | None
    low: float | None
    high: float | None


class Comparison(NamedTuple):
    """Sticky against benign tokens on one task.

    Attributes:
        p_value: one-sided: as large a difference by chance; None for fewer than two tokens.
        effect_size: mean difference in standard deviations of the tokens' differences; None
            where that is not defined.
    """

    p_value: float | None
    effect_size: float | None


def bootstrap_samples(units: int, count: int, key: Sequence[int]) -> NDArray[np.intp]:
    """Indices of units drawn with replacement, shape (count, units)."""
    return np.random.default_rng(list(key)).integers(units, size=(count, units))


def resampled(
    scores: Callable[[NDArray[np.intp] | None], NDArray[np.float64]], samples: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Scores on all units, then on each sample of them.

    All conditions are resampled together: a unit is in all of them or in none.

    Args:
        scores: of all conditions on a sample of units, shape (conditions,).
        samples: from `bootstrap_samples`.

    Returns:
        Shape (1 + samples, conditions).
    """
    return np.array([scores(None), *(scores(sample) for sample in samples)])


def contrast_intervals(
    scores: NDArray[np.float64], contrasts: NDArray[np.float64], confidence: float
) -> list[Interval]:
    """Linear contrasts of scores, with percentile intervals of the bootstrap (Efron 1979).

    Args:
        scores: from `resampled`.
        contrasts: weights, shape (contrasts, conditions).
        confidence: coverage.

    Returns:
        One a contrast; without ends where there are no samples.
    """
    points, *drawn = (combine(contrasts, row) for row in scores)
    columns = np.array(drawn).reshape(-1, len(contrasts)).T
    tail = (1 - confidence) / 2
    return [_interval(float(point), column, tail) for point, column in zip(points, columns, strict=True)]


def combine(contrasts: NDArray[np.float64], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weighted sums; a score that is not defined spoils only the sums that it is part of."""
    used = contrasts != 0
    spoiled = (used & np.isnan(scores)).any(axis=1)
    return np.where(spoiled, np.nan, contrasts @ np.nan_to_num(scores))


def _interval(point: float, drawn: NDArray[np.float64], tail: float) -> Interval:
    defined = drawn[~np.isnan(drawn)]
    # A sample on which the metric is not defined says nothing; if most are, nothing is known.
    if np.isnan(point) or not len(defined) or len(defined) < len(drawn) / 2:
        return Interval(None if np.isnan(point) else point, None, None)
    low, high = np.quantile(defined, [tail, 1 - tail])
    return Interval(point, float(low), float(high))


def compare(sticky: NDArray[np.float64], benign: NDArray[np.float64], key: Sequence[int]) -> Comparison:
    """Test whether sticky tokens cost more than the benign ones they are matched with.

    The test flips which of a pair is the sticky one. Repetitions of a token are averaged
    before: they are not independent of each other, so they may not be flipped by themselves.

    Args:
        sticky: what each sticky token costs, mean over repetitions, shape (tokens,).
        benign: the same for its matched tokens, mean over them.
        key: of the random flips, where there are too many to try all.
    """
    from scipy.stats import permutation_test

    defined = ~(np.isnan(sticky) | np.isnan(benign))
    differences = (sticky - benign)[defined]
    if len(differences) < _LEAST_TOKENS:
        return Comparison(None, None)
    test = permutation_test(
        (differences,),
        # Rounded, so that flips that tie are equal whatever the order of the sum.
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
    """p-values corrected over tasks (Benjamini and Hochberg 1995); missing ones stay missing."""
    from scipy.stats import false_discovery_control

    known = [p_value for p_value in p_values if p_value is not None]
    if not known:
        return [None] * len(p_values)
    found = iter(false_discovery_control(known).tolist())
    return [None if p_value is None else next(found) for p_value in p_values]
