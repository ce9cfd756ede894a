"""Choose calibration inputs, and compare vectors of a lower precision with the model's own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import InputError
from stickytoken.precision import Precision

_ENTRIES = 512
_IN_A_ROW = 8
_COPIES = 8
# Mean cosine between the vectors of a lower precision and the model's own, below which it is of no use.
_LEAST_AGREEMENT = 0.95


def calibration_inputs(entries: Sequence[int], special: Sequence[int]) -> list[tuple[int, ...]]:
    """Rows of different vocabulary entries, alone and with copies of one entry behind.

    The entries are spread over the vocabulary; special ones, which move a model most, are all there.

    Args:
        entries: ids that the model reads.
        special: those with a role of their own.

    Returns:
        Lists of content ids; a function of the arguments alone.
    """
    known = set(entries)
    step = max(1, len(entries) // _ENTRIES)
    spread = [entries[place] for place in range(0, len(entries), step)]
    rows = [tuple(spread[start : start + _IN_A_ROW]) for start in range(0, len(spread), _IN_A_ROW)]
    repeated = [*(row[0] for row in rows), *(entry for entry in special if entry in known)]
    copies = [(*rows[place % len(rows)], *(entry,) * _COPIES) for place, entry in enumerate(repeated)]
    return [*rows, *copies]


def require_agreement(
    exact: NDArray[np.float32], found: NDArray[np.float32], precision: Precision, name: str
) -> None:
    """Refuse a precision whose vectors are too far from the model's own.

    Args:
        exact: vectors of the calibration inputs, shape (n, d).
        found: vectors of the same inputs in the lower precision.
        precision: the lower precision.
        name: name of the model in messages.

    Raises:
        InputError: There are no inputs to compare, or the mean cosine is below 0.95.
    """
    if not len(exact):
        raise InputError(
            f"{name} reads too few tokens to compare {precision} with its own: leave the precision out"
        )
    lengths = np.linalg.norm(exact, axis=1) * np.linalg.norm(found, axis=1)
    agreement = float(np.mean((exact * found).sum(axis=1) / np.maximum(lengths, np.finfo(np.float32).tiny)))
    # The comparison is false where a vector is not finite.
    if not agreement >= _LEAST_AGREEMENT:
        raise InputError(
            f"{precision} changes the vectors of {name} too much (mean cosine {agreement:.2f} with "
            "its own): use another precision, or leave it out"
        )
