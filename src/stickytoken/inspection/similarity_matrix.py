"""The similarity of two texts as a sum over pairs of their parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Watch: TypeAlias = Callable[[int, int], None]
"""Called with how much is computed, and of how much."""


@dataclass(frozen=True, slots=True)
class Contributions:
    """The unit vector of a text as a sum, up to the error of the method.

    Attributes:
        vector: the unit vector, shape (d,).
        reference: what no part of the text contributes, shape (d,); zeros without such a rest.
        parts: contribution of each part of the text, shape (parts, d).
    """

    vector: NDArray[np.float64]
    reference: NDArray[np.float64]
    parts: NDArray[np.float64]

    @property
    def error(self) -> float:
        """Norm of the difference between the unit vector and the sum; 0 is exact."""
        return float(np.linalg.norm(self.reference + self.parts.sum(axis=0) - self.vector))


def similarity_matrix(first: Contributions, second: Contributions) -> NDArray[np.float64]:
    """Return the cosine of two texts by pairs of parts.

    Moeller, Nikolaev, Pado (EMNLP 2023), section 2.

    Args:
        first: contributions of the parts of one text.
        second: those of the other.

    Returns:
        Shape (parts + 1, parts + 1), the references last. Up to the errors of the contributions it sums to
        ``first.vector @ second.vector``.
    """
    rows = np.vstack([first.parts, first.reference])
    columns = np.vstack([second.parts, second.reference])
    return rows @ columns.T
