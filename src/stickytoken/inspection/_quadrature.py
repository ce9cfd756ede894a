"""Gauss-Legendre points and weights between 0 and 1. Pure."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.float64]

Rule: TypeAlias = tuple[Vector, Vector]
"""Places in (0, 1) in order, and weights that sum to 1, both of shape (points,)."""

_PANEL_POINTS = 4
# Weight of travelled distance in the size of a panel; the rest is its width.
_TRAVELLED = 0.8


def whole_rule(points: int) -> Rule:
    """Return the rule of one panel from 0 to 1."""
    nodes, shares = np.polynomial.legendre.leggauss(points)
    return (nodes + 1) / 2, shares / 2


def rule_along(travelled: Vector, points: int) -> Rule:
    """Return a rule of panels that are short where a path turns.

    All panels are equal in a weighted sum of width and travelled distance. Few points make one panel.

    Args:
        travelled: cumulative distance at equally spaced places from 0 to 1, shape (n,), starting at 0 and
            never decreasing.
        points: number of points.
    """
    panels = max(1, points // _PANEL_POINTS)
    places = np.linspace(0, 1, len(travelled))
    whole = float(travelled[-1])
    # Products with a length so short would lose all their digits.
    still = whole < np.finfo(float).tiny
    held = places if still else (1 - _TRAVELLED) * places + _TRAVELLED * travelled / whole
    edges = np.interp(np.linspace(0, 1, panels + 1), held, places)
    sizes = np.full(panels, points // panels) + (np.arange(panels) < points % panels)
    found, weights = [], []
    for low, high, size in zip(edges[:-1], edges[1:], sizes, strict=True):
        nodes, shares = whole_rule(int(size))
        found.append(low + (high - low) * nodes)
        weights.append((high - low) * shares)
    return np.concatenate(found), np.concatenate(weights)
