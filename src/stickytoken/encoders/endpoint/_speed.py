"""Estimate how long requests take: a time per request plus a time per token. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Sample(NamedTuple):
    """Size and time of an answered request."""

    texts: int
    tokens: int
    seconds: float


class Speed(NamedTuple):
    """Seconds of a request.

    Attributes:
        request: whatever is in it.
        token: for each token more.
    """

    request: float
    token: float

    def seconds(self, requests: int, tokens: int) -> float:
        """Time of several requests, one after the other."""
        return requests * self.request + tokens * self.token


def fitted_speed(samples: Sequence[Sample]) -> Speed:
    """Fit both by least squares; neither is negative."""
    from scipy.optimize import lsq_linear

    sizes = np.array([[1.0, sample.tokens] for sample in samples])
    seconds = np.array([sample.seconds for sample in samples])
    # scipy's nnls returns worse fits in some versions; bounded-variable least squares is exact in all.
    request, token = lsq_linear(sizes, seconds, bounds=(0.0, np.inf), method="bvls").x
    return Speed(float(request), float(token))
