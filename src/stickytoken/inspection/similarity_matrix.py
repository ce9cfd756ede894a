"""The similarity of two texts as a sum over pairs of their parts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stickytoken.inspection.integrated_jacobians import Contributions


def similarity_matrix(first: Contributions, second: Contributions) -> NDArray[np.float64]:
    """Return the cosine of two texts by pairs of parts.

    Moeller, Nikolaev, Pado (EMNLP 2023), section 2; `stickytoken.inspection.integrated_jacobians` says what
    the last row and column are.

    Args:
        first: contributions of the parts of one text.
        second: those of the other.

    Returns:
        Shape (parts + 1, parts + 1), the reference inputs last. Up to the error of the integration it sums to
        ``first.vector @ second.vector``.
    """
    rows = np.vstack([first.parts, first.reference])
    columns = np.vstack([second.parts, second.reference])
    return rows @ columns.T
