"""Estimates, intervals and error control for many effects that are measured with noise. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy  # its parts are loaded when they are used
from numpy.typing import NDArray

from stickytoken.errors import InputError

Vector = NDArray[np.float64]


# How much the scales of two rounds may differ, as a standard deviation around 1, and at most.
_SCALE_SPREAD, _LEAST_SCALE = 0.25, 0.1


class Estimates(NamedTuple):
    """One estimate an effect.

    Attributes:
        value: shape (tokens,).
        error: standard errors, shape (tokens,).
        low: lower ends of the intervals.
        high: upper ends of the intervals.
    """

    value: Vector
    error: Vector
    low: Vector
    high: Vector

    def scaled(self, factor: float) -> Estimates:
        """All of it on another scale."""
        return Estimates(*(column * factor for column in self))


def centre_probes(values: Vector, reference: NDArray[np.bool_], expected: Vector | None = None) -> Vector:
    """Remove what a probe does to every token: y_tk - mean over reference of (y_rk - expected_r).

    Args:
        values: y, shape (tokens, probes).
        reference: tokens that no earlier result selected, shape (tokens,).
        expected: effects of the tokens that are known already; None is zero.
    """
    known = np.zeros(len(values)) if expected is None else expected
    centred: Vector = values - (values[reference] - known[reference, None]).mean(axis=0)
    return centred


def interaction_variance(centred: Vector) -> float:
    """Variance of one probe around its token's effect: the residual mean square of a two-way table.

    Args:
        centred: shape (tokens, probes), probe effects removed.

    Raises:
        InputError: fewer than two tokens or probes.
    """
    tokens, probes = centred.shape
    if tokens < 2 or probes < 2:
        raise InputError(f"{tokens} tokens with {probes} probes each: two of both are needed")
    residuals = centred - centred.mean(axis=1, keepdims=True)
    return float((residuals**2).sum() / ((tokens - 1) * (probes - 1)))


def mean_with_interval(centred: Vector, confidence: float, common_variance: float = 0.0) -> Estimates:
    """Mean over probes with a Student interval; the probe is the unit of sampling.

    Args:
        centred: shape (tokens, probes), probe effects removed.
        confidence: coverage of the intervals.
        common_variance: of an error that all means share.
    """
    probes = centred.shape[1]
    value = centred.mean(axis=1)
    error = np.sqrt(centred.var(axis=1, ddof=1) / probes + common_variance)
    half = scipy.stats.t.ppf((1 + confidence) / 2, probes - 1) * error
    return Estimates(value, error, value - half, value + half)


@dataclass(frozen=True)
class Regression:
    """A prior for effects: normal around a line in known covariates (Fay and Herriot 1979).

    Attributes:
        coefficients: of the covariates, the intercept last.
        variance: of the effects around the line.
    """

    coefficients: Vector
    variance: float

    @classmethod
    def fit(cls, values: Vector, variance: float, covariates: Vector) -> Regression:
        """Fit by least squares and moments.

        Args:
            values: noisy effects, shape (tokens,).
            variance: of their noise.
            covariates: shape (tokens, covariates).
        """
        design = _with_intercept(covariates)
        coefficients = np.asarray(np.linalg.lstsq(design, values, rcond=None)[0], dtype=np.float64)
        residuals = values - design @ coefficients
        freedom = max(1, len(values) - design.shape[1])
        return cls(coefficients, max(0.0, float(residuals @ residuals) / freedom - variance))

    def scaled(self, factor: float) -> Regression:
        """The same prior for effects on another scale."""
        return Regression(self.coefficients * factor, self.variance * factor**2)

    def shrink(self, values: Vector, variances: Vector, covariates: Vector, confidence: float) -> Estimates:
        """Posterior means and intervals: each value is pulled to the line by its noise.

        mean = line + (1 - B) (value - line), variance = (1 - B) v, B = v / (v + prior variance).

        Args:
            values: noisy effects, shape (tokens,).
            variances: of their noise, shape (tokens,).
            covariates: shape (tokens, covariates).
            confidence: coverage of the intervals.
        """
        line = _with_intercept(covariates) @ self.coefficients
        total = variances + self.variance
        kept = np.divide(self.variance, total, out=np.ones_like(total), where=total > 0)
        value = line + kept * (values - line)
        error = np.sqrt(kept * variances)
        half = scipy.stats.norm.ppf((1 + confidence) / 2) * error
        return Estimates(value, error, value - half, value + half)


def _with_intercept(covariates: Vector) -> Vector:
    return np.column_stack([covariates, np.ones(len(covariates))])


def q_values(p_values: Vector) -> Vector:
    """Smallest false discovery rate at which each hypothesis is rejected (Benjamini and Hochberg 1995)."""
    return np.asarray(scipy.stats.false_discovery_control(p_values, method="bh"), dtype=np.float64)


def weighted_quantile(values: Vector, weights: Vector, level: float) -> Vector:
    """Lower weighted quantile along the last axis: the smallest value that ``level`` of the weight reaches.

    Args:
        values: shape (..., n).
        weights: shape (n,), summing to 1.
        level: between 0 and 1.
    """
    order = np.argsort(values, axis=-1, kind="stable")
    reached = np.cumsum(weights[order], axis=-1) >= level - 1e-12
    first = np.argmax(reached, axis=-1)[..., None]
    chosen = np.take_along_axis(order, first, axis=-1)
    return np.asarray(np.take_along_axis(values, chosen, axis=-1)[..., 0], dtype=np.float64)


def scale_between(first: Vector, reliability: float, second: Vector) -> float:
    """How much the effects of the second measurement grow with those of the first, its noise aside.

    Slope of a regression with errors in the regressor, cov(first, second) / var(first) / reliability,
    pulled to 1 by its own error: it is 1 where there is nothing to compare.

    Args:
        first: noisy effects of unselected tokens.
        reliability: share of their variance, in the whole population, that is no noise.
        second: effects of the same tokens, measured by other probes.
    """
    if len(first) < 3 or not first.var() > 0 or reliability <= 0:
        return 1.0
    line = scipy.stats.linregress(first, second)
    slope, error = line.slope / reliability, line.stderr / reliability
    kept = _SCALE_SPREAD**2 / (_SCALE_SPREAD**2 + error**2)
    return float(max(_LEAST_SCALE, 1 + kept * (slope - 1)))


def present_mean(values: Vector) -> Vector:
    """Mean over the first axis of what is no NaN; NaN where nothing is left."""
    present = np.isfinite(values)
    counts = present.sum(axis=0)
    sums = np.where(present, values, 0.0).sum(axis=0)
    return np.asarray(
        np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0), dtype=np.float64
    )
