"""Batches of inputs of equal length, which need no padding."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Where possible, the number of tokens in a batch is a multiple of this constant. Matrix kernels are fastest
# if the number of tokens is a multiple of 64, and if batches have only a few different sizes.
TOKEN_MULTIPLE = 64


def equal_length_batches(lengths: Sequence[int], token_budget: int) -> list[NDArray[np.intp]]:
    """Divide inputs into batches whose inputs all have the same length, the longest inputs first.

    Args:
        lengths: number of tokens in each input.
        token_budget: maximum number of tokens in a batch; a longer input becomes a batch of its own.

    Returns:
        One array per batch, with the indices of its inputs.
    """
    sizes = np.asarray(lengths, dtype=np.intp)
    batches: list[NDArray[np.intp]] = []
    for length in sorted(set(sizes.tolist()), reverse=True):
        indices = np.flatnonzero(sizes == length)
        rows = max(1, token_budget // max(1, length))
        # The smallest number of rows that makes the token count a multiple of TOKEN_MULTIPLE.
        step = TOKEN_MULTIPLE // math.gcd(length, TOKEN_MULTIPLE)
        if rows >= step:
            rows -= rows % step
        batches.extend(indices[start : start + rows] for start in range(0, len(indices), rows))
    return batches
