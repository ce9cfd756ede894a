"""Choose new rows: strategies are tried in turn until a token moves texts no more than an ordinary one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import RepairError
from stickytoken.repairs._plan import TokenPlan
from stickytoken.repairs.strategies import Strategy

Row = NDArray[np.float32]

# Half of what a run calls a lift that matters.
_ORDINARY = 0.25


@dataclass(frozen=True)
class RowChoice:
    """What was chosen for a token.

    Attributes:
        strategy: how its row was made, or `Strategy.UNREACHABLE`.
        row: the row, shape (D,); None if the entry becomes unreachable instead.
        tried: every strategy that was tried, with the lift beyond an ordinary token's that it leaves, in
            standard deviations.
    """

    strategy: Strategy
    row: Row | None
    tried: tuple[tuple[Strategy, float], ...] = ()


def choose_rows(
    plans: Sequence[TokenPlan],
    compute: Callable[[Strategy, list[int]], Mapping[int, Row]],
    trial: Callable[[Mapping[int, Row]], Mapping[int, float]] | None,
) -> dict[int, RowChoice]:
    """Choose a row for each token.

    Args:
        plans: tokens with the strategies to try, the preferred one first.
        compute: makes the rows of tokens by a strategy.
        trial: measures what tokens with new rows lift beyond an ordinary token, in standard deviations; None
            takes the first strategy of each token.

    Returns:
        By token id: the first row in the order of the strategies that lifts no more than an ordinary token.
        Without one, the entry becomes unreachable if its plan ends so; otherwise, the row that lifts least is
        taken.
    """
    found: dict[int, list[tuple[float, Strategy, Row]]] = {plan.facts.token_id: [] for plan in plans}
    plans_by_id = {plan.facts.token_id: plan for plan in plans}
    chosen: dict[int, RowChoice] = {}
    for turn in range(max((len(plan.candidates) for plan in plans), default=0)):
        waiting = [
            plan for plan in plans if plan.facts.token_id not in chosen and turn < len(plan.candidates)
        ]
        for strategy in dict.fromkeys(plan.candidates[turn] for plan in waiting):
            own = [plan for plan in waiting if plan.candidates[turn] is strategy]
            if strategy is Strategy.UNREACHABLE:
                chosen |= {token_id: _unreachable(found[token_id]) for token_id in _ids(own)}
                continue
            rows = _possible(compute, strategy, own)
            if not rows:
                continue
            needed = trial is not None and any(len(plan.candidates) > 1 for plan in own)
            lifts = trial(rows) if trial is not None and needed else dict.fromkeys(rows, -np.inf)
            for token_id, row in rows.items():
                found[token_id].append((lifts[token_id], strategy, row))
                if lifts[token_id] <= _ORDINARY:
                    chosen[token_id] = _choice(found[token_id], len(found[token_id]) - 1)
    for token_id, tried in found.items():
        if token_id not in chosen and not tried:
            compute(plans_by_id[token_id].candidates[-1], [token_id])  # raises, with the reason
        elif token_id not in chosen:
            chosen[token_id] = _choice(tried, int(np.argmin([lift for lift, _, _ in tried])))
    return chosen


def _possible(
    compute: Callable[[Strategy, list[int]], Mapping[int, Row]],
    strategy: Strategy,
    plans: Sequence[TokenPlan],
) -> dict[int, Row]:
    """Make the rows of the tokens that can have one by this strategy, with halves of them after an error."""
    try:
        return dict(compute(strategy, _ids(plans)))
    except RepairError:
        if all(len(plan.candidates) == 1 for plan in plans):
            raise
    if len(plans) == 1:
        return {}
    middle = len(plans) // 2
    return {
        token_id: row
        for half in (plans[:middle], plans[middle:])
        for token_id, row in _possible(compute, strategy, half).items()
    }


def _ids(plans: Sequence[TokenPlan]) -> list[int]:
    return [plan.facts.token_id for plan in plans]


def _unreachable(tried: Sequence[tuple[float, Strategy, Row]]) -> RowChoice:
    return RowChoice(Strategy.UNREACHABLE, None, _measured(tried))


def _choice(tried: Sequence[tuple[float, Strategy, Row]], place: int) -> RowChoice:
    _, strategy, row = tried[place]
    return RowChoice(strategy, row, _measured(tried))


def _measured(tried: Sequence[tuple[float, Strategy, Row]]) -> tuple[tuple[Strategy, float], ...]:
    return tuple((each, lift) for lift, each, _ in tried if np.isfinite(lift))
