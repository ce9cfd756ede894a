"""What a run knows of its tokens, whatever they are compared with."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class TokenEffects(NamedTuple):
    """Contraction and pull of T tokens: cos(after) = (1 - k) cos(before) + p . anchor.

    Attributes:
        ids: token ids, ascending, shape (T,).
        contraction: k, shape (T,).
        pull: p, shape (T, d).
    """

    ids: NDArray[np.int64]
    contraction: NDArray[np.float64]
    pull: NDArray[np.floating[Any]]
