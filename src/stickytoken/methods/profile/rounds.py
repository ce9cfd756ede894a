"""Spend the budget: the rounds, their carriers, and the number of tokens that go on. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.views import View
from stickytoken.insertion import Placement
from stickytoken.methods.profile.settings import ProfileSettings

# Carriers of the first round, beside what the budget leaves for the others.
_LEAST_SCREENING = 2
# Smallest number of tokens in the last round.
_LEAST_CONFIRMED = 30
# Every further view adds at least this share of the number of tokens that whole vectors choose.
_OF_A_VIEW = 0.15
# Number of random tokens that are measured on all carriers.
LATE_REFERENCE = 128


class Round(StrEnum):
    """The passes of the method, in order."""

    PILOT = "pilot"
    """Random tokens on all carriers: which few carriers stand for all of them, and what is ordinary."""
    SCREEN = "screen"
    """All tokens on those few."""
    CONFIRM = "confirm"
    """The tokens with the highest lifts on all the others."""


def view_columns(view: View) -> tuple[str, str]:
    """Name the columns of a view in a shard: lifts, rising, groups and contraction together; the pull."""
    return f"{view.key}:numbers", f"{view.key}:pull"


@dataclass(frozen=True, slots=True)
class Cell:
    """Where copies go, and how many."""

    placement: Placement
    copies: int


def cells(settings: ProfileSettings, probes: int) -> list[Cell]:
    """Choose placement and number of copies of each carrier: all combinations in turn.

    Neighbours differ in both, so that a few carriers already cover all placements and numbers.
    """
    placements = tuple(Placement)
    grid = [
        Cell(placement, settings.copies[(place + turn) % len(settings.copies)])
        for turn, (place, placement) in product(range(len(settings.copies)), enumerate(placements))
    ]
    return [grid[k % len(grid)] for k in range(probes)]


def screening_carriers(settings: ProfileSettings) -> int:
    """Count the carriers that every token is put into."""
    whole = int(settings.budget)
    return max(_LEAST_SCREENING, whole - 1 if settings.adaptive else whole)


def carriers_needed(settings: ProfileSettings) -> int:
    """Count the carriers of a plan."""
    few = screening_carriers(settings)
    return few + settings.confirming_texts if settings.adaptive else few


def tokens_to_confirm(settings: ProfileSettings, tokens: int) -> int:
    """Count the tokens of the last round, so that the budget is met on average.

    A small selection of tokens may exceed it, because some always go on.

    Args:
        settings: settings of the method.
        tokens: number of tokens to measure.
    """
    rest = (settings.budget - screening_carriers(settings)) * tokens
    rest -= min(LATE_REFERENCE, tokens) * carriers_needed(settings)
    return min(tokens, max(_LEAST_CONFIRMED, int(rest / settings.confirming_texts)))


def tokens_of_a_view(count: int, reaching: int) -> int:
    """Count the tokens that a further view sends to the last round, beside those of the whole vectors.

    Args:
        count: tokens that the whole vectors send there.
        reaching: tokens whose lift in this view may matter.
    """
    return min(count, max(math.ceil(_OF_A_VIEW * count), reaching))


def highest(ids: NDArray[np.int64], values: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Choose the tokens with the highest values; ties go to the smaller id.

    Args:
        ids: tokens to choose from, shape (T,).
        values: shape (T,), or (T, columns): the columns choose in turn, each the next of its own order; a
            column whose next is chosen already loses its turn.
        count: number of tokens to choose; all if there are fewer.

    Returns:
        Their ids, ascending.
    """
    columns = values[:, None] if values.ndim == 1 else values
    orders = [np.lexsort((ids, -columns[:, place])) for place in range(columns.shape[1])]
    chosen: dict[int, None] = {}
    for row in np.stack(orders, axis=1).ravel():
        if len(chosen) == count:
            break
        chosen.setdefault(int(ids[row]))
    return np.array(sorted(chosen), dtype=np.int64)
