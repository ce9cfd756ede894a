"""What copies do to documents: measured, and predicted. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.methods.token_effects import TokenEffects
from stickytoken.scanning._panel import Panel, Vectors

PASSED = 0.1
"""A document moves up if it passes this share of the clean ones."""
_MOST_ERASED = 0.9

Vector = NDArray[np.float64]


class Shifts(NamedTuple):
    """Effects of copies on n documents; positive where they bring documents closer to queries.

    Attributes:
        shift: Mean change of the similarity to the queries, shape (n,).
        rise: Mean share of the clean documents that a document passes, shape (n,).
        moves_up: Share of the queries for which it passes a tenth of them, shape (n,).
    """

    shift: Vector
    rise: Vector
    moves_up: Vector


def measured_shifts(found: Vectors, rest: Vectors, panel: Panel) -> Shifts:
    """Compare documents with copies and without.

    Args:
        found: Unit vectors with the copies, shape (n, d).
        rest: Unit vectors without, shape (n, d).
        panel: What to compare with.
    """
    after, before = found @ panel.queries.T, rest @ panel.queries.T
    passed = (_behind(panel.ranked, after) - _behind(panel.ranked, before)) / len(panel.reference)
    return Shifts(
        (after - before).mean(axis=1, dtype=np.float64), passed.mean(axis=1), (passed >= PASSED).mean(axis=1)
    )


def predicted_shifts(
    found: Vectors, removed: Sequence[Counter[int]], effects: TokenEffects, panel: Panel
) -> Vector:
    """Predict the mean change of similarity from documents as they are.

    A token draws every text toward one point, its pull divided by its contraction. How far the copies have
    drawn a document, its own vector tells: it lies that far from the mean of the clean documents toward the
    point. What short texts showed of a token says where documents go, but not how far.

    Args:
        found: Unit vectors with the copies, shape (n, d).
        removed: Token ids of the copies in each document.
        effects: Of the tokens.
        panel: What to compare with.

    Returns:
        Shape (n,); NaN where a document has no token that the effects know.
    """
    center = panel.reference.mean(axis=0, dtype=np.float64)
    queries = panel.queries.mean(axis=0, dtype=np.float64)
    shifts = np.full(len(found), np.nan)
    for row, copies in enumerate(removed):
        point = _drawn_to(copies, effects)
        if point is None:
            continue
        way = point - center
        covered = float(np.clip((found[row] - center) @ way / (way @ way), 0.0, 1.0))
        shifts[row] = covered * float(way @ queries)
    return shifts


def _drawn_to(copies: Counter[int], effects: TokenEffects) -> Vector | None:
    """Return the point toward which copies draw every text, shape (d,).

    With k / (1 - k) as the weight of a token, weights of copies add up.
    """
    ids = np.array(sorted(copies), dtype=np.int64)
    rows = np.searchsorted(effects.ids, ids)
    known = (rows < len(effects.ids)) & (effects.ids[np.minimum(rows, len(effects.ids) - 1)] == ids)
    if not known.any():
        return None
    rows, ids = rows[known], ids[known]
    contraction = np.minimum(effects.contraction[rows], _MOST_ERASED)
    shares = np.array([copies[token_id] for token_id in ids.tolist()]) / (1 - contraction)
    weight = float(shares @ contraction)
    return (shares @ effects.pull[rows].astype(np.float64)) / weight if weight > 0 else None


def _behind(ranked: Vectors, similarities: Vectors) -> Vector:
    """Count the clean documents that are less similar to each query, shape (n, q)."""
    columns = [
        np.searchsorted(ranked[:, query], similarities[:, query], side="left")
        for query in range(ranked.shape[1])
    ]
    return np.stack(columns, axis=1).astype(np.float64)
