"""Estimates, intervals and error control for many effects that are measured with noise. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy  # its parts are loaded when they are used
from numpy.typing import NDArray

from stickytoken.errors import InputError
from stickytoken.methods.panel import Vector

# Prior of the scale between two rounds: its standard deviation around 1, and its smallest value.
_SCALE_SPREAD, _LEAST_SCALE = 0.25, 0.1


class Estimates(NamedTuple):
    """One estimate per effect.

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
        """Multiply values, errors and intervals by a factor."""
        return Estimates(*(column * factor for column in self))


def centre_probes(values: Vector, reference: NDArray[np.bool_], expected: Vector | None = None) -> Vector:
    """Remove the common effect of each probe: y_tk - mean over reference of (y_rk - expected_r).

    Args:
        values: y, shape (tokens, probes).
        reference: tokens that no earlier result selected, shape (tokens,).
        expected: known effects of the tokens; None is zero.
    """
    known = np.zeros(len(values)) if expected is None else expected
    centred: Vector = values - (values[reference] - known[reference, None]).mean(axis=0)
    return centred


def interaction_variance(centred: Vector) -> float:
    """Estimate the variance of one probe around its token's effect: the residual mean square.

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


def mean_with_interval(
    centred: Vector, confidence: float, common_variance: float = 0.0, least_variance: float = 0.0
) -> Estimates:
    """Average over probes, with a Student interval; the probe is the unit of sampling.

    Args:
        centred: shape (tokens, probes), probe effects removed.
        confidence: coverage of the intervals.
        common_variance: variance of an error that all means share.
        least_variance: variance that a single probe is known to have, whatever the few of them show.
    """
    probes = centred.shape[1]
    value = centred.mean(axis=1)
    error = np.sqrt(np.maximum(centred.var(axis=1, ddof=1), least_variance) / probes + common_variance)
    half = scipy.stats.t.ppf((1 + confidence) / 2, probes - 1) * error
    return Estimates(value, error, value - half, value + half)


def shrunk(values: Vector, variance: float, spread: float, confidence: float) -> Estimates:
    """Compute posterior means and intervals under a normal prior around 0 (James and Stein 1961).

    mean = kept x value, variance = kept x variance, kept = spread / (spread + variance).

    Args:
        values: noisy effects, shape (tokens,).
        variance: variance of their noise.
        spread: variance of the effects.
        confidence: coverage of the intervals.
    """
    total = spread + variance
    kept = spread / total if total > 0 else 1.0
    value = kept * values
    error = np.full(len(values), np.sqrt(kept * variance))
    half = scipy.stats.norm.ppf((1 + confidence) / 2) * error
    return Estimates(value, error, value - half, value + half)


def q_values(p_values: Vector, tests: int) -> Vector:
    """Find the smallest false discovery rate that rejects each hypothesis (Benjamini and Hochberg 1995).

    Args:
        p_values: of the hypotheses, or of a selection of them, which may have been chosen by its results.
        tests: number of all hypotheses, of which those left out reject nothing.
    """
    found = scipy.stats.false_discovery_control(p_values, method="bh") * (tests / len(p_values))
    return np.asarray(np.minimum(found, 1.0), dtype=np.float64)


def scale_between(first: Vector, reliability: float, second: Vector) -> float:
    """Estimate the slope of the second measurement's effects on the first's, noise aside.

    The slope of a regression with errors in the regressor, cov(first, second) / var(first) / reliability,
    is pulled to 1 by its own error. It is 1 if there is nothing to compare.

    Args:
        first: noisy effects of unselected tokens.
        reliability: share of their variance in the whole population that is not noise.
        second: effects of the same tokens, measured by other probes.
    """
    if len(first) < 3 or not first.var() > 0 or reliability <= 0:
        return 1.0
    line = scipy.stats.linregress(first, second)
    slope, error = line.slope / reliability, line.stderr / reliability
    kept = _SCALE_SPREAD**2 / (_SCALE_SPREAD**2 + error**2)
    return float(max(_LEAST_SCALE, 1 + kept * (slope - 1)))


def present_mean(values: Vector) -> Vector:
    """Average over the first axis without NaNs; NaN if nothing is left."""
    present = np.isfinite(values)
    counts = present.sum(axis=0)
    sums = np.where(present, values, 0.0).sum(axis=0)
    return np.asarray(
        np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0), dtype=np.float64
    )
