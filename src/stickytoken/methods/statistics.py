"""Estimates with intervals from a few texts, and the effect of a token as contraction and pull. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from stickytoken.methods.probes import CarrierPanel, Vector

# Variance of the median of normal values, relative to that of their mean (Laplace 1812).
_MEDIAN_VARIANCE = np.pi / 2


class Estimates(NamedTuple):
    """Values of T tokens with standard errors and the ends of their intervals, each of shape (T,)."""

    value: Vector
    error: Vector
    low: Vector
    high: Vector

    def divided_by(self, unit: float) -> Estimates:
        """Express the estimates in another unit."""
        return Estimates(self.value / unit, self.error / unit, self.low / unit, self.high / unit)

    def of_rows(self, rows: NDArray[np.intp]) -> Estimates:
        """Return the estimates of some of the tokens."""
        return Estimates(self.value[rows], self.error[rows], self.low[rows], self.high[rows])


class Relative(NamedTuple):
    """Effects of T tokens beyond the ordinary token: the median over tokens that nobody selected."""

    estimates: Estimates
    ordinary: float  # effect of the ordinary token


def beyond_ordinary(
    values: Vector, ordinary: NDArray[np.bool_], confidence: float, least_variance: float = 0.0
) -> Relative:
    """Average each token over its carriers, relative to the ordinary token.

    Each carrier has an effect that all tokens share; it is removed first. The interval is Student's, with the
    carrier as the unit of sampling, and includes the error of the ordinary token, which all tokens share.

    Args:
        values: one row per token, one column per carrier, shape (T, K), K at least 2.
        ordinary: which tokens nobody selected, shape (T,).
        confidence: coverage of the two-sided interval.
        least_variance: lower bound of the variance of a single value, such as that of repeated calls.
    """
    carriers = values.shape[1]
    common = values[ordinary].mean(axis=0)
    centred = values - common
    means = centred.mean(axis=1)
    median = float(np.median(means[ordinary]))
    count = int(ordinary.sum())
    variance_of_median = _MEDIAN_VARIANCE * float(means[ordinary].var(ddof=1)) / count if count > 1 else 0.0
    variance = np.maximum(centred.var(axis=1, ddof=1), least_variance)
    error = np.sqrt(variance / carriers + variance_of_median)
    half_width = scipy.stats.t.ppf((1 + confidence) / 2, carriers - 1) * error
    effect = means - median
    estimates = Estimates(effect, error, effect - half_width, effect + half_width)
    return Relative(estimates, float(common.mean()) + median)


def present_mean(values: Vector) -> Vector:
    """Average over the first axis, ignoring NaN; NaN if all values are missing."""
    present = np.isfinite(values)
    counts = present.sum(axis=0)
    sums = np.where(present, values, 0.0).sum(axis=0)
    means = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
    return np.asarray(means, dtype=np.float64)


# Below this variation between the vectors of carriers, they differ by rounding alone.
_NO_VARIATION = 1e-12


class Pull(NamedTuple):
    """Contraction and pull of T tokens: cos(after) = (1 - k) cos(before) + p . anchor."""

    contraction: Vector  # k; 0 leaves a text's meaning, 1 erases it; shape (T,)
    pull: NDArray[np.floating[Any]]  # p, shape (T, d)


class TokenEffects(NamedTuple):
    """Contraction and pull by token id."""

    ids: NDArray[np.int64]  # ascending
    contraction: Vector
    pull: NDArray[np.floating[Any]]


def fit_pull(before: NDArray[np.float32], after: NDArray[np.float32]) -> Pull:
    """Fit k and p of T tokens by least squares: after = (1 - k) before + p, over carriers and dimensions."""
    origin = before.mean(axis=0, dtype=np.float64)
    mean = after.mean(axis=1, dtype=np.float64)
    deviations = before - origin
    variation = float((deviations**2).sum())
    if variation < _NO_VARIATION:
        return Pull(np.zeros(len(after)), mean - origin)
    # The deviations sum to zero, so the means of the vectors do not matter.
    slopes = after.reshape(len(after), -1).astype(np.float64) @ deviations.ravel() / variation
    return Pull(1 - slopes, mean - slopes[:, None] * origin)


def carrier_contractions(before: NDArray[np.float32], after: NDArray[np.float32]) -> Vector:
    """Divide the k of `fit_pull` into values by carrier, of which it is the mean, shape (T, K)."""
    deviations = (before - before.mean(axis=0, dtype=np.float64)).astype(np.float64)
    variation = float((deviations**2).sum())
    if variation < _NO_VARIATION:
        return np.zeros(after.shape[:2])
    centred = after - after.mean(axis=1, keepdims=True, dtype=np.float64)
    slopes = np.einsum("tkd,kd->tk", centred, deviations) * (len(before) / variation)
    return np.asarray(1 - slopes, dtype=np.float64)


def predicted_lifts(tokens: Pull | TokenEffects, carriers: CarrierPanel) -> Vector:
    """Compute the lifts of T tokens, p . mean anchor - k x mean similarity of the pairs that count, (T,)."""
    weights = carriers.pair_weights
    count = max(1, int((weights.sum(axis=1) > 0).sum()))
    mean_anchor = (weights.sum(axis=0) / count) @ carriers.panel.vectors
    similarity = float((weights * carriers.before).sum() / count)
    return np.asarray(tokens.pull @ mean_anchor - tokens.contraction * similarity, dtype=np.float64)


def share_erased(contraction: Vector | float, ordinary: float) -> Any:
    """Compute the erased share (k - k0) / (1 - k0), where k0 is the contraction of an ordinary token."""
    return (contraction - ordinary) / max(1 - ordinary, np.finfo(float).tiny)
