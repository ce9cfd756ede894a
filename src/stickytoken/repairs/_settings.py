"""Settings of a repair."""

from __future__ import annotations

from dataclasses import dataclass

from stickytoken.errors import InputError
from stickytoken.repairs.strategies import Strategy
from stickytoken.validation import set_whole_numbers, shown


@dataclass(frozen=True, slots=True)
class RepairSettings:
    """Settings of a repair.

    Attributes:
        strategy: what to do about the tokens.
        verify: whether to measure the repaired model.
        neighbours: nearest rows of the embedding matrix to measure again, per repaired token.
        seed: seed of the rows, the random texts and the random placements; another one than that of the run.
    """

    strategy: Strategy = Strategy.AUTO
    verify: bool = True
    neighbours: int = 2
    seed: int = 4242

    def __post_init__(self) -> None:
        set_whole_numbers(self, {"neighbours": 0, "seed": 0})
        object.__setattr__(self, "strategy", _known_strategy(self.strategy))
        if not isinstance(self.verify, bool):
            raise InputError(f"verify is {shown(self.verify)}: pass True or False")


def _known_strategy(name: object) -> Strategy:
    try:
        return Strategy(name)  # type: ignore[arg-type]
    except ValueError:
        known = ", ".join(Strategy)
        raise InputError(f"strategy is {shown(name)}: use one of {known}") from None
