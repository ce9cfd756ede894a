"""What may be done about each token, and which of the candidates is taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from stickytoken.errors import RepairError
from stickytoken.repairs.recheck import RecheckedToken
from stickytoken.repairs.result import ROWS, TOKENIZER, Strategy
from stickytoken.repairs.rows import Row
from stickytoken.repairs.tokenizer_edit import WITHOUT_EDITING

# A candidate is as good as ordinary if its lift and its erased share are at most this share of the thresholds
# that apply to it: by default 0.25 SD and 20%. It leaves room for other texts, in which a token may do more.
ORDINARY_REACH = 0.5

# The order in which the strategies of a token are tried.
_ORDER = (Strategy.RELATIVES, Strategy.UNREACHABLE, Strategy.KEEP_MEANING, Strategy.NEAREST)
# The strategies that change nothing in the tokenizer, and need to know nothing of its pieces.
_WITHOUT_EDITING_ORDER = (Strategy.KEEP_MEANING, Strategy.NEAREST)

_ALL_TEXTS = "the model itself puts it into every text, so a new row would change every vector"
_REASONS = {
    Strategy.RELATIVES: "a new row from entries with similar spelling",
    Strategy.NEAREST: "the row of the nearest ordinary entry",
    Strategy.UNREACHABLE: "text falls into its pieces, and nothing else changes",
    Strategy.PLAIN_SPECIALS: "a special token: as text it becomes plain text, and the model's own stays",
}
_SECOND_CHOICES = {
    Strategy.UNREACHABLE: "text falls into its pieces, because no row from similar spelling is ordinary",
    Strategy.KEEP_MEANING: "a new row that keeps the effect of a single copy",
    Strategy.NEAREST: "the row of the nearest ordinary entry, because no other repair is ordinary",
}


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """What decides how a token can be repaired."""

    name: str  # for messages, such as: token 'river' (id 7)
    special: bool = False  # the tokenizer matches it in text before anything else
    templated: bool = False  # the model puts it around every text
    unsplittable: str | None = None  # why text cannot fall into its pieces; None if it can


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What may be done about a token."""

    strategies: tuple[Strategy, ...]  # to try, the preferred one first
    reason: str  # for the preferred one

    def reason_for(self, chosen: Strategy) -> str:
        """Say why a strategy was taken."""
        is_second_choice = chosen is not self.strategies[0] and Strategy.UNREACHABLE in self.strategies
        return _SECOND_CHOICES[chosen] if is_second_choice else self.reason


def plan_token(asked: Strategy, token: TokenFacts, rows_writable: bool) -> RepairPlan:
    """Decide what may be done about a token.

    Args:
        asked: what the user asked for.
        token: the token.
        rows_writable: whether the format of the model's weights allows new rows.

    Raises:
        RepairError: the token cannot be repaired as asked.
    """
    _require_suitable(asked, token)
    if asked is not Strategy.AUTO:
        return RepairPlan((asked,), _REASONS.get(asked, "asked for"))
    if token.special:
        return RepairPlan((Strategy.PLAIN_SPECIALS,), _REASONS[Strategy.PLAIN_SPECIALS])
    if token.unsplittable is not None:
        return RepairPlan(ROWS, f"a new row, because {token.unsplittable}")
    if token.templated:
        return RepairPlan((Strategy.UNREACHABLE,), f"text falls into its pieces; {_ALL_TEXTS}")
    if not rows_writable:
        reason = "text falls into its pieces; no row can be written into these weights"
        return RepairPlan((Strategy.UNREACHABLE,), reason)
    return RepairPlan(_ORDER, _REASONS[Strategy.RELATIVES])


def plan_without_editing(asked: Strategy, token: TokenFacts, tokenizer_kind: str) -> RepairPlan:
    """Do as `plan_token` for a tokenizer that is written in Python, which cannot be edited.

    Args:
        asked: what the user asked for.
        token: the token.
        tokenizer_kind: name of the tokenizer's class.

    Raises:
        RepairError: the token cannot be repaired as asked.
    """
    reason = f"its tokenizer, a {tokenizer_kind}, is written in Python"
    why = None
    advice = WITHOUT_EDITING
    if token.templated:
        why = f"{reason} and cannot be edited; {_ALL_TEXTS}"
        advice = "leave it out, and remove it from documents with stickytoken clean"
    elif asked in TOKENIZER:
        why = f"{reason} and cannot be edited"
    elif asked is Strategy.RELATIVES:
        why = f"{reason}, so that its pieces are unknown"
    if why is not None:
        by = "" if asked is Strategy.AUTO else f" by {asked}"
        raise RepairError(f"{token.name} cannot be repaired{by}: {why}; {advice}")
    if asked is Strategy.AUTO:
        return RepairPlan(_WITHOUT_EDITING_ORDER, f"a new row, because {reason}")
    return RepairPlan((asked,), _REASONS.get(asked, "asked for"))


def _require_suitable(asked: Strategy, token: TokenFacts) -> None:
    """Refuse a strategy that the token does not allow."""
    use_auto = "use auto, or leave the token out"
    by = f" by {asked}"
    if asked in ROWS and token.templated:
        why, advice = _ALL_TEXTS, "use plain-specials or auto"
    elif asked is Strategy.PLAIN_SPECIALS and not token.special:
        why, advice = "it is not a special token", use_auto
    elif asked is Strategy.UNREACHABLE and token.special:
        why, advice = "it is a special token", "use plain-specials or auto"
    elif asked is Strategy.UNREACHABLE and token.unsplittable is not None:
        why, advice = token.unsplittable, use_auto
    elif asked is Strategy.AUTO and token.templated and not token.special and token.unsplittable is not None:
        why, advice, by = f"{token.unsplittable}; {_ALL_TEXTS}", "leave the token out", ""
    else:
        return
    raise RepairError(f"{token.name} cannot be repaired{by}: {why}; {advice}")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A repair of one token that can be tried."""

    strategy: Strategy
    row: Row | None  # shape (D,); None if the tokenizer changes instead
    effect: RecheckedToken | None = None  # what copies then do; None if it was not tried

    @property
    def is_ordinary(self) -> bool:
        """Whether copies do no more than those of ordinary tokens; true for all if nothing is tried."""
        return self.effect is None or self.effect.reach <= ORDINARY_REACH

    @property
    def badness(self) -> float:
        """How far lift or erased share reaches toward its threshold. A missing number is the worst."""
        if self.effect is None:
            return -math.inf
        return math.inf if math.isnan(self.effect.reach) else self.effect.reach


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidate that is taken for a token, and what copies did with each that was tried."""

    taken: Candidate
    tried: Mapping[Strategy, RecheckedToken] = field(default_factory=dict)


ComputeRows: TypeAlias = Callable[[Strategy, list[int]], Mapping[int, Row]]
"""Makes rows for tokens by a strategy. Leaves out, or refuses with a RepairError, those without one."""
Trial: TypeAlias = Callable[[Mapping[int, Candidate]], Mapping[int, RecheckedToken]]
"""Builds the model with these candidates, all of one strategy, and measures what copies then do."""


def choose_candidates(
    strategies: Mapping[int, Sequence[Strategy]], compute_rows: ComputeRows, trial: Trial | None
) -> dict[int, Choice]:
    """Choose a repair for each token: the first one that is as good as ordinary, or else the best.

    Args:
        strategies: what may be done, by token id.
        compute_rows: makes the rows of a strategy.
        trial: measures candidates; None takes the first that can be made.

    Raises:
        RepairError: no candidate can be made for a token.
    """
    candidates: dict[int, list[Candidate]] = {token_id: [] for token_id in strategies}
    for strategy in _ORDER:
        unsolved = [
            token_id
            for token_id, own in candidates.items()
            if strategy in strategies[token_id] and not any(candidate.is_ordinary for candidate in own)
        ]
        new_candidates = _candidates(strategy, unsolved, compute_rows)
        effects: Mapping[int, RecheckedToken] = {}
        if new_candidates and trial is not None:
            effects = trial(new_candidates)
        for token_id, candidate in new_candidates.items():
            effect = effects.get(token_id)
            candidates[token_id].append(Candidate(strategy, candidate.row, effect))
    choices = {}
    for token_id, own in candidates.items():
        if not own:
            compute_rows(strategies[token_id][-1], [token_id])  # raises, with the reason
        tried = {
            candidate.strategy: candidate.effect
            for candidate in own
            if candidate.effect is not None and not math.isnan(candidate.effect.reach)
        }
        choices[token_id] = Choice(min(own, key=lambda candidate: candidate.badness), tried)
    return choices


def _candidates(strategy: Strategy, ids: list[int], compute_rows: ComputeRows) -> dict[int, Candidate]:
    """Make the candidates of one strategy; a token without a row has none."""
    if not ids:
        return {}
    if strategy is Strategy.UNREACHABLE:
        return {token_id: Candidate(strategy, None) for token_id in ids}
    rows: Mapping[int, Row] = {}
    with suppress(RepairError):  # no row by this strategy: another one may do
        rows = compute_rows(strategy, ids)
    return {token_id: Candidate(strategy, row) for token_id, row in rows.items()}
