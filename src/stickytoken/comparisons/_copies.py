"""How many copies of a token make its lift serious."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.detection.evidence import RunEvidence
from stickytoken.methods.descriptions import Scale


class CopiesNeeded(NamedTuple):
    """How many copies make a lift serious, among the numbers that were tried.

    Attributes:
        enough: the fewest copies with a serious lift; None if no number that was tried is enough.
        too_few: the next smaller number that was tried; None if the smallest is enough.
    """

    enough: int | None
    too_few: int | None


def copies_needed(evidence: RunEvidence, token_id: int, scale: Scale) -> CopiesNeeded | None:
    """Read from the symptom curves of a run how many copies of a token make its lift serious.

    The rise of a curve is compared with the mean rise of the ordinary tokens' curves at the same number of
    copies, in standard deviations of the model's similarities.

    Returns:
        None if the run has no curve of the token, or no pair of texts below the mean similarity.
    """
    ordinary = _curves(evidence.tokens.filter("ordinary"))
    own = _curves(evidence.tokens.filter(~pl.col("ordinary"), token_id=token_id))
    if not own or not ordinary:
        return None
    copies = evidence.tokens.filter(token_id=token_id)["copies"][0].to_list()[1:]
    serious = (_rises(own)[0] - _rises(ordinary).mean(axis=0)) / scale.spread >= scale.serious
    if not serious.any():
        return CopiesNeeded(None, copies[-1])
    first = int(serious.argmax())
    return CopiesNeeded(copies[first], copies[first - 1] if first else None)


def _curves(rows: pl.DataFrame) -> list[list[float]]:
    """Return the mean similarities of unrelated pairs by number of copies; empty curves are left out."""
    return [curve for curve in rows["below"].to_list() if curve]


def _rises(curves: list[list[float]]) -> NDArray[np.float64]:
    lines = np.array(curves, dtype=np.float64)
    return lines[:, 1:] - lines[:, :1]
