"""Batches of equal length: no padding, so no wasted work and no padding side."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Kernels like such numbers of tokens, and few different ones.
TOKEN_MULTIPLE = 64


def equal_length_batches(lengths: Sequence[int], token_budget: int) -> list[NDArray[np.intp]]:
    """Group inputs of one length into batches of at most ``token_budget`` tokens.

    Longest first, so that a lack of memory shows at once; a batch holds at least one
    input, in the order given.

    Args:
        lengths: tokens of each input.
        token_budget: tokens of a batch.

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
    """Inputs of a batch: where it can, so many that their tokens are a multiple of `TOKEN_MULTIPLE`."""
    rows = max(1, token_budget // max(1, length))
    step = TOKEN_MULTIPLE // math.gcd(length, TOKEN_MULTIPLE)
    return rows - rows % step if rows >= step else rows
