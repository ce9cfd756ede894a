"""Choose a strategy for every token, and a row where it gets one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import InputError, RepairError
from stickytoken.repairs.result import ROWS, Strategy
from stickytoken.validation import set_whole_numbers, shown

Row = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RepairSettings:
    strategy: Strategy = Strategy.AUTO
    verify: bool = True
    neighbours: int = 2  # nearest rows of the embedding matrix to measure again, per repaired token
    seed: int = 4242  # of rows, random texts and random placements; another one than that of the run

    def __post_init__(self) -> None:
        set_whole_numbers(self, {"neighbours": 0, "seed": 0})
        name: Any = self.strategy
        try:
            object.__setattr__(self, "strategy", Strategy(name))
        except ValueError:
            raise InputError(f"strategy is {shown(name)}: use one of {', '.join(Strategy)}") from None
        if not isinstance(self.verify, bool):
            raise InputError(f"verify is {shown(self.verify)}: pass True or False")


_ALL_TEXTS = "the model itself puts it into every text, so a new row would change every vector"
_REASONS = {
    Strategy.RELATIVES: "a new row from entries with similar spelling",
    Strategy.UNREACHABLE: "text falls into its pieces, and nothing else changes",
    Strategy.PLAIN_SPECIALS: "a special token: as text it becomes plain text, and the model's own stays",
}


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """What the choice for a token depends on."""

    token_id: int
    token: str  # its vocabulary string
    text: str  # its decoded text
    special: bool  # the tokenizer matches it in text before anything else
    templated: bool  # the model puts it around every text
    unsplittable: str | None  # why text cannot fall into its pieces; None if it can


@dataclass(frozen=True, slots=True)
class TokenPlan:
    """What to do about a token."""

    facts: TokenFacts
    candidates: tuple[Strategy, ...]  # to try, the preferred one first; taken without a trial if alone
    reason: str


def plan_tokens(asked: Strategy, tokens: Sequence[TokenFacts], rows_writable: bool) -> list[TokenPlan]:
    """Choose what to do about every token.

    A row from entries with similar spelling comes first: it stays closer to the true rows of planted words in
    lift and meaning, and changes a clean score less (benchmarks/results/README.md).
    """
    if asked is Strategy.AUTO:
        return [_automatic(token, rows_writable) for token in tokens]
    return [_asked(token, asked) for token in tokens]


def _automatic(token: TokenFacts, rows_writable: bool) -> TokenPlan:
    if token.special:
        return TokenPlan(token, (Strategy.PLAIN_SPECIALS,), _REASONS[Strategy.PLAIN_SPECIALS])
    if token.unsplittable is not None:
        if token.templated:
            raise _refusal(token, f"{token.unsplittable}; {_ALL_TEXTS}")
        return TokenPlan(token, ROWS, f"a new row, because {token.unsplittable}")
    if token.templated:
        return TokenPlan(token, (Strategy.UNREACHABLE,), f"text falls into its pieces; {_ALL_TEXTS}")
    if not rows_writable:
        reason = "text falls into its pieces; no row can be written into these weights"
        return TokenPlan(token, (Strategy.UNREACHABLE,), reason)
    return TokenPlan(token, (Strategy.RELATIVES, Strategy.UNREACHABLE), _REASONS[Strategy.RELATIVES])


def _asked(token: TokenFacts, asked: Strategy) -> TokenPlan:
    if asked in ROWS and token.templated:
        raise _refusal(token, _ALL_TEXTS, asked, "use plain-specials or auto")
    if asked is Strategy.PLAIN_SPECIALS and not token.special:
        raise _refusal(token, "it is not a special token", asked, "use auto, or leave the token out")
    if asked is Strategy.UNREACHABLE and token.special:
        raise _refusal(token, "it is a special token", asked, "use plain-specials or auto")
    if asked is Strategy.UNREACHABLE and token.unsplittable is not None:
        raise _refusal(token, token.unsplittable, asked, "use auto, or leave the token out")
    return TokenPlan(token, (asked,), _REASONS.get(asked, "asked for"))


def _refusal(
    token: TokenFacts, reason: str, asked: Strategy | None = None, advice: str = "leave the token out"
) -> RepairError:
    tried = "" if asked is None else f" by {asked}"
    return RepairError(
        f"token {token.token!r} (id {token.token_id}) cannot be repaired{tried}: {reason}; {advice}"
    )


# Half of what a run calls a lift that matters.
_ORDINARY = 0.25


@dataclass(frozen=True)
class RowChoice:
    """What was chosen for a token."""

    strategy: Strategy  # how its row was made, or `Strategy.UNREACHABLE`
    row: Row | None  # shape (D,); None if the entry becomes unreachable instead
    # Every strategy that was tried, with the lift beyond an ordinary token's that it leaves, in standard
    # deviations.
    tried: tuple[tuple[Strategy, float], ...] = ()


def choose_rows(
    candidates: Mapping[int, Sequence[Strategy]],
    compute: Callable[[Strategy, list[int]], Mapping[int, Row]],
    trial: Callable[[Mapping[int, Row]], Mapping[int, float]] | None,
) -> dict[int, RowChoice]:
    """Choose a row for each token: that of the first strategy whose row is ordinary, or the least lifting.

    Tokens with one candidate get that row without a trial.
    """
    made: dict[int, list[tuple[float, Strategy, Row]]] = {token_id: [] for token_id in candidates}
    chosen: dict[int, RowChoice] = {}

    def choose(token_id: int, strategy: Strategy, row: Row | None) -> None:
        tried = tuple((each, lift) for lift, each, _ in made[token_id] if np.isfinite(lift))
        chosen[token_id] = RowChoice(strategy, row, tried)

    for turn in range(max(map(len, candidates.values()), default=0)):
        waiting: dict[Strategy, list[int]] = {}
        for token_id, own in candidates.items():
            if token_id not in chosen and turn < len(own):
                waiting.setdefault(own[turn], []).append(token_id)
        for strategy, ids in waiting.items():
            if strategy is Strategy.UNREACHABLE:
                for token_id in ids:
                    choose(token_id, strategy, None)
                continue
            alone = all(len(candidates[token_id]) == 1 for token_id in ids)
            rows = compute(strategy, ids) if alone else _possible(compute, strategy, ids)
            lifts = dict.fromkeys(rows, -np.inf) if alone or not rows or trial is None else trial(rows)
            for token_id, row in rows.items():
                made[token_id].append((lifts[token_id], strategy, row))
                if lifts[token_id] <= _ORDINARY:
                    choose(token_id, strategy, row)
    for token_id in [each for each in candidates if each not in chosen]:
        if not made[token_id]:
            compute(candidates[token_id][-1], [token_id])  # raises, with the reason
        _, strategy, row = min(made[token_id], key=lambda each: each[0])
        choose(token_id, strategy, row)
    return chosen


def _possible(
    compute: Callable[[Strategy, list[int]], Mapping[int, Row]], strategy: Strategy, ids: list[int]
) -> dict[int, Row]:
    """Make the rows of the tokens that can have one by this strategy, with halves of them after an error."""
    try:
        return dict(compute(strategy, ids))
    except RepairError:
        if len(ids) == 1:
            return {}
    middle = len(ids) // 2
    return _possible(compute, strategy, ids[:middle]) | _possible(compute, strategy, ids[middle:])
