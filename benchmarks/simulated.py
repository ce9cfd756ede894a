"""Simulated vocabularies: the rounds that follow the first, estimates and verdicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stickytoken.methods.profile.estimates import Lifts, TokenEstimates, estimate
from stickytoken.methods.profile.plan import LATE_REFERENCE, highest, tokens_to_confirm
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.profile.verdict import NEGLIGIBLE_SHARE, find_lifts

Vector = NDArray[np.float64]
SETTINGS = ProfileSettings()


@dataclass(frozen=True)
class Simulated:
    """One vocabulary: truth and what the method made of it.

    Attributes:
        effects: true effects relative to the mean token.
        is_sticky: drawn as sticky.
        found: flagged.
        tokens: the estimates.
        confirmed: measured in the last round because of the first.
        smallest: the smallest effect that matters.
    """

    effects: Vector
    is_sticky: NDArray[np.bool_]
    found: NDArray[np.bool_]
    tokens: TokenEstimates
    confirmed: NDArray[np.bool_]
    smallest: float

    @property
    def covered(self) -> NDArray[np.bool_]:
        """Whether the interval holds the truth."""
        lift = self.tokens.lift
        return (lift.low <= self.effects) & (self.effects <= lift.high)

    @property
    def too_small(self) -> NDArray[np.bool_]:
        """Tokens whose true effect is negligible."""
        return self.effects <= np.median(self.effects) + NEGLIGIBLE_SHARE * self.smallest


def judged(
    generator: np.random.Generator,
    effects: Vector,
    is_sticky: NDArray[np.bool_],
    first: Lifts,
    measure: Callable[[NDArray[np.int64]], Vector],
    spread: float,
    late: NDArray[np.int64] | None = None,
) -> Simulated:
    """Send on the tokens that lift most, estimate and judge.

    Args:
        generator: draws the tokens of the pilot.
        effects: true effects.
        is_sticky: drawn as sticky.
        first: lifts of all tokens in the first round.
        measure: measures tokens in the last round.
        spread: standard deviation of the similarities.
        late: tokens of the pilot; None draws them.
    """
    size = len(effects)
    if late is None:
        late = np.sort(generator.permutation(size)[:LATE_REFERENCE])
    screened = estimate(first, None, first.ids, late, SETTINGS.confidence)
    chosen = highest(first.ids, screened.tested.value, tokens_to_confirm(SETTINGS, size))
    both = np.union1d(chosen, late)
    tokens = estimate(first, Lifts(both, measure(both)), first.ids, late, SETTINGS.confidence)
    smallest = SETTINGS.smallest_effect * spread
    found = find_lifts(tokens, size, size, smallest, SETTINGS.fdr).found
    return Simulated(effects, is_sticky, found, tokens, np.isin(first.ids, chosen), smallest)
