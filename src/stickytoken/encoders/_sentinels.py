"""Fixed texts whose vectors stand for a model: if they change, the model did."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from stickytoken.unit_vectors import exact_unit_vectors

SENTINELS = (
    "a",
    "The river is cold in winter.",
    "She paid 42.50 for two tickets!",
    "Ein alter Baum steht am Ufer.",
    "https://example.org/a?b=c",
    "the the the the the the the the",
)
_DECIMALS = 4


def fingerprint_of(vectors: NDArray[np.float32]) -> str:
    """Return a hash of the directions of the vectors of the fixed texts, rounded."""
    # Adding zero makes -0.0 equal to 0.0.
    return hashlib.sha256((exact_unit_vectors(vectors).round(_DECIMALS) + 0.0).tobytes()).hexdigest()
