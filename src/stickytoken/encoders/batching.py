"""Batches of equal length: no padding, so no wasted work and no padding side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


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
        rows = max(1, token_budget // max(1, length))
        batches.extend(members[start : start + rows] for start in range(0, len(members), rows))
    return batches
