"""Pure functions that estimate token effects with confidence intervals, and fit contraction and pull."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from stickytoken.intervals import Intervals
from stickytoken.methods.probes import Floats

# Variance of the median of a large normal sample, divided by the variance of the mean (Laplace 1812).
_MEDIAN_VARIANCE = np.pi / 2


class RelativeEffects(NamedTuple):
    """Effects of T tokens relative to the ordinary token.

    Attributes:
        estimates: each token's effect minus the ordinary token's.
        ordinary: effect of the ordinary token, which is the median effect of random tokens.
    """

    estimates: Intervals
    ordinary: float


def beyond_ordinary(values: Floats, is_random: NDArray[np.bool_], confidence: float) -> RelativeEffects:
    """Average the effect of each token over the carriers, and subtract the effect of the ordinary token.

    The effect of the ordinary token is the median effect of the random tokens. Some carriers raise or lower
    the values of all tokens. To remove this carrier effect, each carrier's mean over the random tokens is
    subtracted first. The intervals are Student intervals that treat the carriers as a random sample; they
    include the standard error of the median. If a server's vectors differ from call to call, no variance is
    added for these differences, because they are part of the variance over carriers.

    Args:
        values: effect of each token in each carrier, shape (T, K), with at least two carriers.
        is_random: whether each token was drawn at random, shape (T,).
        confidence: coverage of the two-sided intervals.

    Returns:
        The effects relative to the ordinary token, with intervals, and the effect of the ordinary token.
    """
    carrier_count = values.shape[1]
    carrier_means = values[is_random].mean(axis=0)  # shape (K,)
    centred = values - carrier_means
    means = centred.mean(axis=1)
    random_means = means[is_random]
    median = float(np.median(random_means))
    variance_of_median = 0.0
    if len(random_means) > 1:  # one value has no variance
        variance_of_median = _MEDIAN_VARIANCE * float(random_means.var(ddof=1)) / len(random_means)
    # Variance of a token's value in a single carrier. The variance of the mean over K carriers is 1/K of it.
    variance = centred.var(axis=1, ddof=1)
    error = np.sqrt(variance / carrier_count + variance_of_median)
    degrees_of_freedom = carrier_count - 1
    half_width = scipy.stats.t.ppf((1 + confidence) / 2, degrees_of_freedom) * error
    effect = means - median
    estimates = Intervals(effect, effect - half_width, effect + half_width)
    # The carrier means were subtracted from all values, so their mean is added to the ordinary effect again.
    return RelativeEffects(estimates, ordinary=float(carrier_means.mean()) + median)


# If the carriers' squared deviations from their mean vector sum to less than this, the carriers differ only
# by rounding errors.
_NO_VARIATION = 1e-12


class Effects(NamedTuple):
    """How copies of T tokens change the vector of a text, as a linear model.

    Copies scale the vector of a text by 1 - k and add p, where k is the contraction and p the pull. The
    similarity between the text and another one therefore changes from s to (1 - k) * s + dot(p, other).

    Attributes:
        ids: token ids, ascending, shape (T,).
        contraction: k, the share of a text's meaning that copies erase, shape (T,): 0 if all of the meaning
            remains, and 1 if none remains.
        pull: p, the vector that copies add to the vectors of texts, shape (T, d).
    """

    ids: NDArray[np.int64]
    contraction: Floats
    pull: NDArray[np.floating[Any]]


def fit_effects(before: NDArray[np.float32], after: NDArray[np.float32]) -> tuple[Floats, Floats]:
    """Fit contraction k and pull p of each token by least squares: after = (1 - k) * before + p.

    Args:
        before: unit vectors of the carriers without copies, shape (K, d).
        after: unit vectors of the carriers with copies, shape (T, K, d).

    Returns:
        The contraction and the pull of each token, fitted to all carriers together (see `Effects`). If all
        carriers have the same vector, the contractions are 0.
    """
    mean_before = before.mean(axis=0, dtype=np.float64)  # shape (d,)
    mean_after = after.mean(axis=1, dtype=np.float64)  # shape (T, d)
    deviations = before - mean_before
    variation = float((deviations**2).sum())
    if variation < _NO_VARIATION:
        return np.zeros(len(after)), mean_after - mean_before
    # The slope 1 - k of a token is a sum over all carriers and dimensions. The deviations sum to zero, so
    # centring the vectors with copies would not change it.
    flat_after = after.reshape(len(after), -1).astype(np.float64)  # shape (T, K x d)
    slopes = flat_after @ deviations.ravel() / variation
    return 1 - slopes, mean_after - slopes[:, None] * mean_before


def carrier_contractions(before: NDArray[np.float32], after: NDArray[np.float32]) -> Floats:
    """Return the contraction of each token in each carrier: the share of the carrier that copies erase.

    The mean of these contractions over the carriers equals the contraction that `fit_effects` estimates.

    Args:
        before: unit vectors of the carriers without copies, shape (K, d).
        after: unit vectors of the carriers with copies, shape (T, K, d).

    Returns:
        Contractions, shape (T, K); 0 if all carriers have the same vector.
    """
    deviations = (before - before.mean(axis=0, dtype=np.float64)).astype(np.float64)
    variation = float((deviations**2).sum())
    if variation < _NO_VARIATION:
        return np.zeros(after.shape[:2])
    deviations_after = after - after.mean(axis=1, keepdims=True, dtype=np.float64)
    products = np.einsum("tkd,kd->tk", deviations_after, deviations)  # summed over the dimensions
    # The slope 1 - k of a token over all K carriers is the sum of its products, divided by the variation. A
    # carrier's own slope is K times its term of this sum, so that the mean of the K slopes is the slope over
    # all carriers.
    slopes = products * (len(before) / variation)
    return np.asarray(1 - slopes, dtype=np.float64)
