"""Batches of equal length: no padding, so no wasted work and no padding side."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Kernels are fastest with multiples of this, and with few distinct numbers of tokens.
TOKEN_MULTIPLE = 64


def equal_length_batches(lengths: Sequence[int], token_budget: int) -> list[NDArray[np.intp]]:
    """Group inputs of one length into batches of at most ``token_budget`` tokens.

    The longest come first, so that a lack of memory shows at once. A batch has at least one input, and inputs
    keep their order.

    Args:
        lengths: tokens of each input.
        token_budget: tokens per batch.

    Returns:
        Index arrays that partition ``range(len(lengths))``.
    """
    sizes = np.asarray(lengths, dtype=np.intp)
    batches: list[NDArray[np.intp]] = []
    for length in sorted(set(sizes.tolist()), reverse=True):
        members = np.flatnonzero(sizes == length)
        rows = _rows(length, token_budget)
        batches.extend(members[start : start + rows] for start in range(0, len(members), rows))
    return batches


def _rows(length: int, token_budget: int) -> int:
    """Return the inputs per batch; their tokens are a multiple of `TOKEN_MULTIPLE` if possible."""
    rows = max(1, token_budget // max(1, length))
    step = TOKEN_MULTIPLE // math.gcd(length, TOKEN_MULTIPLE)
    return rows - rows % step if rows >= step else rows
