"""An empirical null: how the effects of ordinary tokens are distributed. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import scipy  # its parts are loaded when they are used

from stickytoken.methods.statistics import Estimates, Vector

# Quantiles that the null is fitted to: the tails to two on either side, the width to an upper one close to
# the tail that is tested, which leaves room for sticky tokens beyond it.
_BODY, _TAIL, _WIDTH = 0.9, 0.98, 0.95
# Heavier tails or skewness must be this many standard errors away from normal to count.
_CHANCE = 2.0
_LEAST_FREEDOM, _NORMAL_FREEDOM = 2.0, 1e6
_LARGEST_SKEWNESS = 1.0
# Standard deviation of the skewness between vocabularies.
_SKEWNESS_SPREAD = 0.3
_NODES = 32


@dataclass(frozen=True, slots=True)
class Shape:
    """A distribution with median 0 that agrees with the standard normal one at an upper quantile.

    Attributes:
        freedom: degrees of freedom of Student's t; infinite is normal.
        skewness: g of Tukey's distribution of (exp(g Z) - 1) / g, Z standard normal (Hoaglin 1985);
            0 is normal. It is used only if the freedom is infinite.
    """

    freedom: float = math.inf
    skewness: float = 0.0

    def exceedance(self, distance: Vector, spread: float, error: Vector) -> Vector:
        """Compute the upper tail probability of effect plus normal noise, by Gauss-Hermite quadrature.

        Args:
            distance: distances from the median.
            spread: standard deviation of the effects.
            error: standard deviations of the noise.
        """
        if spread == 0 or (math.isinf(self.freedom) and self.skewness == 0):
            scale = np.sqrt(spread**2 + error**2)
            standard = np.divide(
                distance, scale, out=np.where(distance > 0, np.inf, -np.inf), where=scale > 0
            )
            return np.asarray(scipy.stats.norm.sf(standard), dtype=np.float64)
        nodes, weights = scipy.special.roots_hermitenorm(_NODES)
        standard = (distance[:, None] - error[:, None] * nodes) / spread
        return np.asarray(self._survival(standard) @ (weights / weights.sum()), dtype=np.float64)

    def spread(self, distance: float, level: float, noise: float) -> float:
        """Find the spread at which a quantile of effects and noise lies ``distance`` above their median."""
        if distance <= noise * scipy.stats.norm.ppf(level):
            return 0.0

        def excess(spread: float) -> float:
            return self.beyond(distance + self.median(spread, noise), spread, noise) - (1 - level)

        # A quantile in a heavy tail needs a small spread, one in the body a larger one.
        return float(scipy.optimize.brentq(excess, 0.0, 10 * distance))

    def median(self, spread: float, noise: float) -> float:
        """Compute the median of effects and noise; noise moves the median of skewed effects to their mean."""
        if math.isfinite(self.freedom) or self.skewness == 0 or spread == 0:
            return 0.0
        reach = spread + noise
        return float(
            scipy.optimize.brentq(lambda place: self.beyond(place, spread, noise) - 0.5, -reach, reach)
        )

    def beyond(self, distance: float, spread: float, noise: float) -> float:
        """Compute `exceedance` for one distance."""
        return float(self.exceedance(np.array([distance]), spread, np.array([noise]))[0])

    def _survival(self, standard: Vector) -> Vector:
        if math.isinf(self.freedom):
            # Below the lower end of the distribution log(0) is minus infinity, which gives probability 1.
            inside = np.maximum(0.0, 1 + standard * math.expm1(self.skewness * _at_width()) / _at_width())
            with np.errstate(divide="ignore"):
                return np.asarray(scipy.stats.norm.sf(np.log(inside) / self.skewness), dtype=np.float64)
        stretch = scipy.stats.t.ppf(_WIDTH, self.freedom) / _at_width()
        return np.asarray(scipy.stats.t.sf(standard * stretch, self.freedom), dtype=np.float64)


@dataclass(frozen=True)
class Null:
    """The distribution of effects over the ordinary tokens of a vocabulary (Efron 2004).

    Attributes:
        center: the median effect.
        spread: standard deviation of the effects above the median, without their noise.
        shape: shape of the effects.
    """

    center: float
    spread: float
    shape: Shape

    @classmethod
    def fit(cls, values: Vector, variance: float) -> Null:
        """Fit the width above the median, heavy tails on both sides and skewness to the right.

        Sticky tokens lie in the upper tail, and many of them look like a heavy tail; a long lower
        tail may be skewness. So the lighter of the two tails decides how heavy they are. The
        width may differ between the sides and is taken from the side that is tested. If the
        body reaches further up than down, the upper tail is expected to do the same.

        Args:
            values: noisy effects of unselected tokens, shape (tokens,).
            variance: variance of their noise.
        """
        levels = (1 - _TAIL, 1 - _WIDTH, 1 - _BODY, 0.5, _BODY, _WIDTH, _TAIL)
        low_tail, low_width, low_body, center, body, width, tail = (
            float(quantile) for quantile in np.quantile(values, levels)
        )
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
        """Scale the distribution."""
        return Null(self.center * factor, self.spread * factor, self.shape)

    def exceedance(self, estimates: Estimates) -> Vector:
        """Compute p-values: how often an ordinary token, measured with the same error, comes out as high."""
        return self.shape.exceedance(estimates.value - self.center, self.spread, estimates.error)


@cache
def _at_width() -> float:
    """Compute the standard normal quantile at the level of the width."""
    return float(scipy.stats.norm.ppf(_WIDTH))


def _freedom(body: float, tail: float, noise: float, size: int) -> float:
    """Find the degrees of freedom at which effects and noise together reach both quantiles.

    Infinite if the tail is that of a normal distribution, or heavier by chance only.
    """

    def excess(freedom: float) -> float:
        shape = Shape(freedom=freedom)
        spread = shape.spread(body, _BODY, noise)
        return shape.beyond(tail, spread, noise) - (1 - _TAIL)

    if body <= noise * scipy.stats.norm.ppf(_BODY):
        return math.inf
    if excess(math.inf) > -_CHANCE * math.sqrt(_TAIL * (1 - _TAIL) / size):
        return math.inf
    if excess(_LEAST_FREEDOM) <= 0:
        return _LEAST_FREEDOM
    return float(scipy.optimize.brentq(excess, _LEAST_FREEDOM, _NORMAL_FREEDOM))


def _skewness(below: float, above: float, noise: float, size: int) -> float:
    """Find the skewness at which effects and noise together reach the quantiles on both sides.

    Zero if the lower side reaches as far, or less far by chance only; pulled to zero by its error,
    which is large if tokens are few.
    """

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
