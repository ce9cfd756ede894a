"""Correct lifts that are computed from pulls and contractions by those of a few measured tokens. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.methods.statistics import Vector

# Ridge penalties to choose from, relative to the mean squared length of the features.
_PENALTIES = np.geomspace(1e-2, 1e3, 16)


class Calibrated(NamedTuple):
    """Lifts of all tokens on a corpus.

    Attributes:
        values: shape (T,).
        error: standard error of a value: how far it is off for tokens that had no part in it.
    """

    values: Vector
    error: float


def calibrate(
    predicted: Vector,
    features: Sequence[NDArray[np.floating[Any]]],
    measured: NDArray[np.intp],
    lifts: Vector,
    noise: float,
) -> Calibrated:
    """Fit the measured lifts of some tokens by a line in the predicted ones, and the residuals by features.

    Carriers of one corpus are not those of another: a question takes copies in another way than a statement
    does. What differs depends on the token, in directions that measured tokens show: a ridge regression,
    whose penalty is the best of several by leave-one-out cross-validation, the infinite one, which leaves
    the line alone, included (Golub, Heath and Wahba 1979). Every group of features counts alike.

    Args:
        predicted: lifts computed from pulls and contractions, shape (T,).
        features: groups of features of T tokens, each of shape (T, any).
        measured: rows of the R measured tokens.
        lifts: their lifts, shape (R,).
        noise: variance of the noise of these.
    """
    slope, intercept = _line(predicted[measured], lifts)
    line = intercept + slope * predicted
    left = lifts - line[measured]
    centers = [group[measured].mean(axis=0, dtype=np.float64) for group in features]
    parts = [group[measured] - center for group, center in zip(features, centers, strict=True)]
    scales = [float(np.sqrt(np.square(part).sum(axis=1).mean())) or 1.0 for part in parts]
    own = np.column_stack([part / scale for part, scale in zip(parts, scales, strict=True)])
    places, lengths, directions = np.linalg.svd(own, full_matrices=False)
    inside, values = places.T @ left, lengths**2
    best, weights = float((left**2).mean()), np.zeros(own.shape[1])
    for penalty in _PENALTIES * max(float(values.sum()) / len(left), np.finfo(float).tiny):
        kept = values / (values + penalty)
        errors = (left - places @ (kept * inside)) / (1 - (places**2) @ kept)
        if (found := float((errors**2).mean())) < best:
            best, weights = found, directions.T @ (lengths * inside / (values + penalty))
    fitted, begin = line.copy(), 0
    # Group by group: the features of a large vocabulary are never copied as a whole.
    for group, center, scale in zip(features, centers, scales, strict=True):
        of_group = weights[begin : begin + group.shape[1]] / scale
        fitted += group @ of_group.astype(group.dtype) - center @ of_group
        begin += group.shape[1]
    return Calibrated(fitted, float(np.sqrt(max(best - noise, 0.0))))


def _line(x: Vector, y: Vector) -> tuple[float, float]:
    """Slope and intercept by least squares; slope 0 where x does not vary."""
    deviations = x - x.mean()
    variation = float(deviations @ deviations)
    slope = float(deviations @ y) / variation if variation > 0 else 0.0
    return slope, float(y.mean() - slope * x.mean())
