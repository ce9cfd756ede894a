"""How long requests take: so much for each, and so much for each token. Pure."""

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
    from scipy.optimize import nnls

    sizes = np.array([[1.0, sample.tokens] for sample in samples])
    (request, token), _ = nnls(sizes, np.array([sample.seconds for sample in samples]))
    return Speed(float(request), float(token))
