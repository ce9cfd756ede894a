"""Scale vectors to length 1. Pure."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.floating[Any])


def unit_vectors(vectors: NDArray[Number]) -> NDArray[Number]:
    """Scale vectors to length 1 in their own precision; zero vectors stay zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    found: NDArray[Number] = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return found


def exact_unit_vectors(vectors: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Scale vectors to length 1 in float64; zero vectors stay zero."""
    return unit_vectors(vectors.astype(np.float64))
