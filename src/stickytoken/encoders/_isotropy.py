"""How evenly vectors use their dimensions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def isoscore(vectors: NDArray[np.floating]) -> float | None:
    """Return the IsoScore, which measures how evenly vectors use their dimensions.

    The formula and its terms are from section 4 of the paper on IsoScore by Rudman and others (Findings of
    ACL 2022).

    Args:
        vectors: the vectors, shape (n, d).

    Returns:
        0 if one dimension has all the variance, and 1 if all dimensions have the same variance. None if there
        is only one dimension or no variance.

    Examples:
        >>> import numpy as np
        >>> from stickytoken.encoders import isoscore
        >>> isoscore(np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
        1.0
    """
    covariance = np.atleast_2d(np.cov(vectors, rowvar=False, bias=True))
    size = len(covariance)
    variances = np.maximum(np.linalg.eigvalsh(covariance), 0.0)  # one for each principal component
    length = float(np.linalg.norm(variances))
    if size < 2 or length == 0:
        return None
    # If all variances are equal, each of these normalized variances is 1.
    normalized_variances = np.sqrt(size) * variances / length
    # The isotropy defect: 0 if all variances are equal, 1 if only one of them is not zero.
    isotropy_defect = np.linalg.norm(normalized_variances - 1) / np.sqrt(2 * (size - np.sqrt(size)))
    # Fraction of the dimensions that are used: 1 / size if the defect is 1, and 1 if the defect is 0.
    used_fraction = (size - isotropy_defect**2 * (size - np.sqrt(size))) ** 2 / size**2
    # Rescale the fraction from the interval [1 / size, 1] to the interval [0, 1].
    return float((size * used_fraction - 1) / (size - 1))
