"""Spend the budget: probes of each round, and the number of tokens that go on. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import product

import numpy as np
from numpy.typing import NDArray

from stickytoken.insertion import Placement
from stickytoken.methods.profile.settings import ProfileSettings

# Share of the budget for the first round, and share of the rest for the second.
_SCREENING_SHARE = 2 / 3
_REFINING_SHARE = 0.4
# Smallest number of tokens in the later rounds.
_LEAST_REFINED = 60
_LEAST_CONFIRMED = 30
# Number of reference tokens in the later rounds.
LATE_REFERENCE = 128


class Round(StrEnum):
    """The passes of the method, in order."""

    SCREEN = "screen"
    REFINE = "refine"
    CONFIRM = "confirm"


@dataclass(frozen=True, slots=True)
class Cell:
    """Where copies go, and how many."""

    placement: Placement
    copies: int


def cells(settings: ProfileSettings, probes: int) -> list[Cell]:
    """Choose placement and number of copies of each probe: all combinations in turn.

    Neighbours differ in both, so that a few probes already cover all placements and numbers.
    """
    placements = tuple(Placement)
    grid = [
        Cell(placement, settings.copies[(place + turn) % len(settings.copies)])
        for turn, (place, placement) in product(range(len(settings.copies)), enumerate(placements))
    ]
    return [grid[k % len(grid)] for k in range(probes)]


def probes_in(settings: ProfileSettings) -> dict[Round, int]:
    """Count the carriers of each round; the first round also has the token alone."""
    if not settings.adaptive:
        return {Round.SCREEN: max(2, round(settings.budget) - 1)}
    return {
        Round.SCREEN: max(2, round(settings.budget * _SCREENING_SHARE) - 1),
        Round.REFINE: settings.refining_texts,
        Round.CONFIRM: settings.confirming_texts,
    }


def tokens_in(settings: ProfileSettings, tokens: int) -> dict[Round, int]:
    """Count the tokens of each round, so that the budget holds on average.

    A small selection of tokens may exceed it, because some always go on.

    Args:
        settings: settings of the method.
        tokens: number of tokens to measure.
    """
    probes = probes_in(settings)
    if not settings.adaptive:
        return {Round.SCREEN: tokens}
    rest = max(0.0, (settings.budget - probes[Round.SCREEN] - 1) * tokens)
    late = min(LATE_REFERENCE, tokens)
    refined = int(_REFINING_SHARE * rest / probes[Round.REFINE]) - late
    confirmed = int((1 - _REFINING_SHARE) * rest / probes[Round.CONFIRM]) - late
    return {
        Round.SCREEN: tokens,
        Round.REFINE: min(tokens, max(_LEAST_REFINED, refined)),
        Round.CONFIRM: min(tokens, max(_LEAST_CONFIRMED, confirmed)),
    }


def advancing(
    ids: NDArray[np.int64], lifts: NDArray[np.float64], pulls: NDArray[np.float64], count: int
) -> NDArray[np.int64]:
    """Choose the tokens that lift most, and as many others that pull most; ties go to the smaller id.

    Args:
        ids: tokens to choose from, shape (T,).
        lifts: estimated lifts, shape (T,).
        pulls: estimated pulls, shape (T,).
        count: number of tokens to choose; all if there are fewer.

    Returns:
        Their ids, ascending.
    """
    by_lift = np.lexsort((ids, -lifts))
    lifting, rest = by_lift[: (count + 1) // 2], by_lift[(count + 1) // 2 :]
    pulling = rest[np.lexsort((ids[rest], -pulls[rest]))][: count // 2]
    return np.sort(ids[np.concatenate([lifting, pulling])])
