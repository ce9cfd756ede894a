"""Correct lifts that are computed from pulls and contractions by those of a few measured tokens. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.methods.profile.pull import Pull
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
    predicted: Vector, effects: Pull, measured: NDArray[np.intp], lifts: Vector, noise: float
) -> Calibrated:
    """Fit the measured lifts of some tokens by a line in the predicted ones, and what is left by the pulls.

    Carriers of one corpus are not those of another: a question takes copies in another way than a statement
    does. What differs depends on the token's pull, in directions that a few hundred measured tokens show:
    a ridge regression, whose penalty is the best of several by leave-one-out cross-validation, the
    infinite one, which leaves the line alone, included (Golub, Heath and Wahba 1979).

    Args:
        predicted: lifts computed from pulls and contractions, shape (T,).
        effects: pulls and contractions, of T tokens.
        measured: rows of the R measured tokens.
        lifts: their lifts, shape (R,).
        noise: variance of the noise of these.
    """
    slope, intercept = _line(predicted[measured], lifts)
    line = intercept + slope * predicted
    left = lifts - line[measured]
    features = np.column_stack([effects.pull, effects.contraction]).astype(np.float64)
    features -= features[measured].mean(axis=0)
    own = features[measured]
    values, vectors = np.linalg.eigh(own @ own.T)
    inside = vectors.T @ left
    best, weights = float((left**2).mean()), np.zeros(len(left))
    for penalty in _PENALTIES * max(float(values.mean()), np.finfo(float).tiny):
        kept = values / (values + penalty)
        errors = (left - vectors @ (kept * inside)) / (1 - (vectors**2) @ kept)
        if (found := float((errors**2).mean())) < best:
            best, weights = found, vectors @ (inside / (values + penalty))
    return Calibrated(line + features @ (own.T @ weights), float(np.sqrt(max(best - noise, 0.0))))


def _line(x: Vector, y: Vector) -> tuple[float, float]:
    """Slope and intercept by least squares; slope 0 where x does not vary."""
    deviations = x - x.mean()
    variation = float(deviations @ deviations)
    slope = float(deviations @ y) / variation if variation > 0 else 0.0
    return slope, float(y.mean() - slope * x.mean())
