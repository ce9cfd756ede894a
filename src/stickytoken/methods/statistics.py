"""Estimates, intervals and error control for many effects that are measured with noise. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from stickytoken.methods.probes import CarrierPanel, Vector

# Prior of the scale between two rounds: its standard deviation around 1, and its smallest value.
_SCALE_SPREAD, _LEAST_SCALE = 0.25, 0.1


class Estimates(NamedTuple):
    value: Vector
    error: Vector
    low: Vector
    high: Vector

    def scaled(self, factor: float) -> Estimates:
        return Estimates(*(column * factor for column in self))


def centre_probes(values: Vector, reference: NDArray[np.bool_], expected: Vector | None = None) -> Vector:
    """Remove the common effect of each probe: y_tk - mean over reference of (y_rk - expected_r)."""
    known = np.zeros(len(values)) if expected is None else expected
    centred: Vector = values - (values[reference] - known[reference, None]).mean(axis=0)
    return centred


def mean_with_interval(
    centred: Vector, confidence: float, common_variance: float = 0.0, least_variance: float = 0.0
) -> Estimates:
    """Average over probes, with a Student interval; the probe is the unit of sampling."""
    probes, value = centred.shape[1], centred.mean(axis=1)
    error = np.sqrt(np.maximum(centred.var(axis=1, ddof=1), least_variance) / probes + common_variance)
    half = scipy.stats.t.ppf((1 + confidence) / 2, probes - 1) * error
    return Estimates(value, error, value - half, value + half)


def shrunk(values: Vector, variance: float, spread: float, confidence: float) -> Estimates:
    """Compute posterior means and intervals under a normal prior around 0 (James and Stein 1961)."""
    total = spread + variance
    kept = spread / total if total > 0 else 1.0
    value = kept * values
    error = np.full(len(values), np.sqrt(kept * variance))
    half = scipy.special.ndtri((1 + confidence) / 2) * error
    return Estimates(value, error, value - half, value + half)


def combined(chances: Sequence[Vector], ordinary: NDArray[np.bool_]) -> Vector:
    """Combine p values of each test into one (Fisher 1932), widened by their dependence (Brown 1975)."""
    # X = -2 (ln p1 + ... + ln pk) has mean 2k and, for independent tests, variance 4k. Positive covariances
    # of the parts, estimated on ordinary tests, add to it; X / c is then chi-squared with 2k / c degrees of
    # freedom, c = variance / 4k. No part counts more than the first, which only makes X smaller.
    parts = -2 * np.log(np.maximum(np.stack(chances), np.finfo(float).tiny))
    shared = np.atleast_2d(np.cov(parts[:, ordinary])) if ordinary.sum() > 1 else np.zeros((1, 1))
    freedom = 2 * len(parts)
    scale = 1 + max(0.0, float(shared.sum() - np.trace(shared))) / (2 * freedom)
    together = np.minimum(parts, parts[0]).sum(axis=0)
    return np.asarray(scipy.stats.chi2.sf(together / scale, freedom / scale), dtype=np.float64)


def tail_chances(values: Vector, ordinary: Vector) -> Vector:
    """Say how often ordinary values are as high; beyond the last fiftieth, by an exponential tail."""
    # It goes on from two quantiles, however many values of whatever kind lie beyond them.
    chances = np.maximum(len(ordinary) - np.searchsorted(np.sort(ordinary), values), 1) / len(ordinary)
    body, tail = np.quantile(ordinary, (_BODY, _TAIL))
    if tail > body:
        scale = (tail - body) / math.log((1 - _BODY) / (1 - _TAIL))
        chances[values > tail] = (1 - _TAIL) * np.exp(
            np.maximum((tail - values[values > tail]) / scale, -600)
        )
    return chances


def q_values(p_values: Vector, tests: int) -> Vector:
    """Find the smallest false discovery rate that rejects each hypothesis (Benjamini and Hochberg 1995)."""
    found = scipy.stats.false_discovery_control(p_values, method="bh") * (tests / len(p_values))
    return np.asarray(np.minimum(found, 1.0), dtype=np.float64)


def scale_between(first: Vector, reliability: float, second: Vector) -> float:
    """Estimate the slope cov(first, second) / var(first) / reliability, pulled to 1 by its own error."""
    if len(first) < 3 or not first.var() > 0 or reliability <= 0:
        return 1.0
    line = scipy.stats.linregress(first, second)
    slope, error = line.slope / reliability, line.stderr / reliability
    kept = _SCALE_SPREAD**2 / (_SCALE_SPREAD**2 + error**2)
    return float(max(_LEAST_SCALE, 1 + kept * (slope - 1)))


def present_mean(values: Vector) -> Vector:
    present = np.isfinite(values)
    counts = present.sum(axis=0)
    sums = np.where(present, values, 0.0).sum(axis=0)
    return np.asarray(
        np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0), dtype=np.float64
    )


# Quantiles that the null is fitted to: the tails to two on either side, the width to an upper one close to
# the tail that is tested, which leaves room for sticky tokens beyond it.
_BODY, _TAIL, _WIDTH = 0.9, 0.98, 0.95
# Heavier tails or skewness must be this many standard errors away from normal to count.
_CHANCE = 2.0
_LEAST_FREEDOM, _NORMAL_FREEDOM = 2.0, 1e6
_LARGEST_SKEWNESS = 1.0
# Standard deviation of the skewness between vocabularies.
_SKEWNESS_SPREAD = 0.3


@cache  # a fit needs it thousands of times
def _quadrature(nodes: int) -> tuple[Vector, Vector]:
    found: tuple[Vector, Vector] = scipy.special.roots_hermitenorm(nodes)
    return found


@cache
def _at_width() -> float:
    return float(scipy.special.ndtri(_WIDTH))


@dataclass(frozen=True, slots=True)
class Shape:
    """A distribution with median 0 that agrees with the standard normal one at an upper quantile."""

    # Degrees of freedom of Student's t; infinite is normal.
    freedom: float = math.inf
    # g of Tukey's distribution of (exp(g Z) - 1) / g, Z standard normal (Hoaglin 1985); 0 is normal. It is
    # used only if the freedom is infinite.
    skewness: float = 0.0

    def exceedance(self, distance: Vector, spread: float, error: Vector) -> Vector:
        """Compute the upper tail probability of effect plus normal noise, by Gauss-Hermite quadrature."""
        if spread == 0 or (math.isinf(self.freedom) and self.skewness == 0):
            scale = np.sqrt(spread**2 + error**2)
            standard = np.divide(
                distance, scale, out=np.where(distance > 0, np.inf, -np.inf), where=scale > 0
            )
            return np.asarray(scipy.special.ndtr(-standard), dtype=np.float64)
        # Without noise, the node at 0 is the answer.
        nodes, weights = _quadrature(32 if np.any(error) else 1)
        standard = (distance[:, None] - error[:, None] * nodes) / spread
        if math.isinf(self.freedom):
            # Below the lower end of the distribution log(0) is minus infinity, which gives probability 1.
            inside = np.maximum(0.0, 1 + standard * math.expm1(self.skewness * _at_width()) / _at_width())
            with np.errstate(divide="ignore"):
                survival = scipy.special.ndtr(-np.log(inside) / self.skewness)
        else:
            stretch = scipy.stats.t.ppf(_WIDTH, self.freedom) / _at_width()
            survival = scipy.stats.t.sf(standard * stretch, self.freedom)
        return np.asarray(survival @ (weights / weights.sum()), dtype=np.float64)

    def spread(self, distance: float, level: float, noise: float) -> float:
        """Find the spread at which a quantile of effects and noise lies ``distance`` above their median."""
        if distance <= noise * scipy.special.ndtri(level):
            return 0.0

        def excess(spread: float) -> float:
            return self.beyond(distance + self.median(spread, noise), spread, noise) - (1 - level)

        # A quantile in a heavy tail needs a small spread, one in the body a larger one.
        return float(scipy.optimize.brentq(excess, 0.0, 10 * distance))

    def median(self, spread: float, noise: float) -> float:
        """Compute the median of effects and noise, which moves that of skewed effects to their mean."""
        if math.isfinite(self.freedom) or self.skewness == 0 or spread == 0:
            return 0.0
        reach = spread + noise
        return float(
            scipy.optimize.brentq(lambda place: self.beyond(place, spread, noise) - 0.5, -reach, reach)
        )

    def beyond(self, distance: float, spread: float, noise: float) -> float:
        return float(self.exceedance(np.array([distance]), spread, np.array([noise]))[0])


@dataclass(frozen=True)
class Null:
    """The distribution of effects over the ordinary tokens of a vocabulary (Efron 2004)."""

    center: float  # the median effect
    spread: float  # standard deviation of the effects above the median, without their noise
    shape: Shape

    @classmethod
    def fit(cls, values: Vector, variance: float) -> Null:
        """Fit the width above the median, the side that is tested, heavy tails and skewness to the right."""
        # Many sticky tokens look like a heavy upper tail, and a long lower tail may be skewness, so the
        # lighter tail decides. If the body reaches further up than down, the upper tail should as well.
        levels = (1 - _TAIL, 1 - _WIDTH, 1 - _BODY, 0.5, _BODY, _WIDTH, _TAIL)
        low_tail, low_width, low_body, center, body, width, tail = np.quantile(values, levels).tolist()
        noise, size = math.sqrt(variance), len(values)
        below = _freedom(center - low_body, center - low_tail, noise, size)
        above = _freedom(body - center, tail - center, noise, size)
        freedom, skewness = max(below, above), 0.0
        if math.isinf(freedom):
            skewness = _skewness(center - low_width, width - center, noise, size)
        shape = Shape(freedom, skewness)
        spread = shape.spread(width - center, _WIDTH, noise)
        return cls(center - shape.median(spread, noise), spread, shape)

    def scaled(self, factor: float) -> Null:
        return Null(self.center * factor, self.spread * factor, self.shape)

    def exceedance(self, estimates: Estimates) -> Vector:
        """Compute p-values: how often an ordinary token, measured with the same error, comes out as high."""
        return self.shape.exceedance(estimates.value - self.center, self.spread, estimates.error)


def _freedom(body: float, tail: float, noise: float, size: int) -> float:
    """Find the degrees of freedom at which effects and noise together reach both quantiles."""

    def excess(freedom: float) -> float:
        shape = Shape(freedom=freedom)
        spread = shape.spread(body, _BODY, noise)
        return shape.beyond(tail, spread, noise) - (1 - _TAIL)

    if body <= noise * scipy.special.ndtri(_BODY):
        return math.inf
    if excess(math.inf) > -_CHANCE * math.sqrt(_TAIL * (1 - _TAIL) / size):
        return math.inf
    if excess(_LEAST_FREEDOM) <= 0:
        return _LEAST_FREEDOM
    return float(scipy.optimize.brentq(excess, _LEAST_FREEDOM, _NORMAL_FREEDOM))


def _skewness(below: float, above: float, noise: float, size: int) -> float:
    """Find the skewness at which effects and noise together reach the quantiles on both sides."""

    def excess(skewness: float) -> float:
        shape = Shape(skewness=skewness)
        spread = shape.spread(above, _WIDTH, noise)
        return _WIDTH - shape.beyond(shape.median(spread, noise) - below, spread, noise)

    chance = math.sqrt(2 * _WIDTH * (1 - _WIDTH) / size)  # both quantiles have an error
    if above <= noise * _at_width() or (unexplained := excess(0.0)) < _CHANCE * chance:
        return 0.0
    found = _LARGEST_SKEWNESS
    if excess(found) < 0:
        found = float(scipy.optimize.brentq(excess, 0.0, _LARGEST_SKEWNESS))
    error = found * chance / unexplained
    return found * _SKEWNESS_SPREAD**2 / (_SKEWNESS_SPREAD**2 + error**2)


# Below it, carriers differ by rounding alone.
_NO_VARIATION = 1e-12
# Without contraction there is no fixed point.
_LEAST_CONTRACTION = 1e-3


class Pull(NamedTuple):
    """Contraction and pull of T tokens: cos(after) = (1 - k) cos(before) + p . anchor."""

    contraction: Vector  # k; 0 leaves a text's meaning, 1 erases it; shape (T,)
    pull: NDArray[np.floating[Any]]  # p, shape (T, d)


class TokenEffects(NamedTuple):
    ids: NDArray[np.int64]  # ascending
    contraction: Vector
    pull: NDArray[np.floating[Any]]


def fit_pull(before: NDArray[np.float32], after: NDArray[np.float32]) -> Pull:
    """Fit k and p of T tokens by least squares: after = (1 - k) before + p, over carriers and dimensions."""
    origin, mean = before.mean(axis=0, dtype=np.float64), after.mean(axis=1, dtype=np.float64)
    deviations = before - origin
    variation = float((deviations**2).sum())
    if variation < _NO_VARIATION:
        return Pull(np.zeros(len(after)), mean - origin)
    # The deviations sum to zero, so the means of the vectors do not matter.
    kept = after.reshape(len(after), -1).astype(np.float64) @ deviations.ravel() / variation
    return Pull(1 - kept, mean - kept[:, None] * origin)


def carrier_contractions(before: NDArray[np.float32], after: NDArray[np.float32]) -> Vector:
    """Divide the k of `fit_pull` into values by carrier, of which it is the mean, shape (T, K)."""
    deviations = (before - before.mean(axis=0, dtype=np.float64)).astype(np.float64)
    variation = float((deviations**2).sum())
    if variation < _NO_VARIATION:
        return np.zeros(after.shape[:2])
    own = after - after.mean(axis=1, keepdims=True, dtype=np.float64)
    kept = np.einsum("tkd,kd->tk", own, deviations) * (len(before) / variation)
    return np.asarray(1 - kept, dtype=np.float64)


def predicted_lifts(tokens: Pull | TokenEffects, carriers: CarrierPanel) -> Vector:
    """Compute the lifts of T tokens, p . mean anchor - k x mean similarity of the pairs that count, (T,)."""
    weights = carriers.pair_weights
    count = max(1, int((weights.sum(axis=1) > 0).sum()))
    mean = (weights.sum(axis=0) / count) @ carriers.panel.vectors
    similarity = float((weights * carriers.before).sum() / count)
    return np.asarray(tokens.pull @ mean - tokens.contraction * similarity, dtype=np.float64)


def fixed_points(tokens: Pull | TokenEffects, center: Vector) -> Vector:
    """Compute the similarities toward which T tokens drag: p . center / k."""
    drawn = tokens.pull.astype(np.float64) @ center
    clear = np.abs(tokens.contraction) > _LEAST_CONTRACTION
    points: Vector = np.divide(drawn, tokens.contraction, out=np.full(len(drawn), np.nan), where=clear)
    return points


def share_erased(contraction: Vector | float, ordinary: float) -> Any:
    """Compute the share of what an ordinary token leaves of a text that copies take from it as well."""
    return (contraction - ordinary) / max(1 - ordinary, np.finfo(float).tiny)
