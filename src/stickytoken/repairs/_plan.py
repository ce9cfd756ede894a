"""Choose a strategy for every token. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stickytoken.errors import RepairError
from stickytoken.repairs.strategies import ROWS, Strategy

_ALL_TEXTS = "the model itself puts it into every text, so a new row would change every vector"
_REASONS = {
    Strategy.RELATIVES: "a new row from entries with similar spelling",
    Strategy.UNREACHABLE: "text falls into its pieces, and nothing else changes",
    Strategy.PLAIN_SPECIALS: "a special token: as text it becomes plain text, and the model's own stays",
    Strategy.COLLAPSE: "asked for: runs of any word are cut to two",
    Strategy.CENTRE: "asked for: the mean direction is removed from every vector",
}


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """What the choice for a token depends on.

    Attributes:
        token_id: its id.
        token: its vocabulary string.
        text: its decoded text.
        special: whether the tokenizer matches it in text before anything else.
        templated: whether the model puts it around every text.
        unsplittable: why text cannot fall into its pieces; None if it can.
    """

    token_id: int
    token: str
    text: str
    special: bool
    templated: bool
    unsplittable: str | None


@dataclass(frozen=True, slots=True)
class TokenPlan:
    """What to do about a token.

    Attributes:
        facts: the token.
        candidates: strategies to try, the preferred one first; the first is taken if there is one alone.
        reason: why, in a few words.
    """

    facts: TokenFacts
    candidates: tuple[Strategy, ...]
    reason: str


def plan_tokens(asked: Strategy, tokens: Sequence[TokenFacts], rows_writable: bool) -> list[TokenPlan]:
    """Choose what to do about every token.

    A row from entries with similar spelling comes before pieces: it stays closer to the true rows of planted
    words in lift and meaning, and changes a clean score less (docs/benchmarks.md, Repairs).

    Args:
        asked: the strategy that the user asked for.
        tokens: the tokens.
        rows_writable: whether new rows can be written into the weights; ``auto`` depends on it.
    """
    if asked is Strategy.AUTO:
        return [_automatic(token, rows_writable) for token in tokens]
    return [_asked(token, asked) for token in tokens]


def _automatic(token: TokenFacts, rows_writable: bool) -> TokenPlan:
    if token.special:
        return TokenPlan(token, (Strategy.PLAIN_SPECIALS,), _REASONS[Strategy.PLAIN_SPECIALS])
    if token.unsplittable is not None:
        if token.templated:
            raise _unsuited(token, f"{token.unsplittable}; {_ALL_TEXTS}")
        return TokenPlan(token, ROWS, f"a new row, because {token.unsplittable}")
    if token.templated:
        return TokenPlan(token, (Strategy.UNREACHABLE,), f"text falls into its pieces; {_ALL_TEXTS}")
    if not rows_writable:
        reason = "text falls into its pieces; no row can be written into these weights"
        return TokenPlan(token, (Strategy.UNREACHABLE,), reason)
    return TokenPlan(token, (Strategy.RELATIVES, Strategy.UNREACHABLE), _REASONS[Strategy.RELATIVES])


def _asked(token: TokenFacts, asked: Strategy) -> TokenPlan:
    if asked in ROWS and token.templated:
        raise _unsuited(token, _ALL_TEXTS, asked, "use plain-specials or auto")
    if asked is Strategy.PLAIN_SPECIALS and not token.special:
        raise _unsuited(token, "it is not a special token", asked, "use auto, or leave the token out")
    if asked is Strategy.UNREACHABLE and token.special:
        raise _unsuited(token, "it is a special token", asked, "use plain-specials or auto")
    if asked is Strategy.UNREACHABLE and token.unsplittable is not None:
        raise _unsuited(token, token.unsplittable, asked, "use auto, or leave the token out")
    return TokenPlan(token, (asked,), _REASONS.get(asked, "asked for"))


def _unsuited(
    token: TokenFacts, reason: str, asked: Strategy | None = None, advice: str = "leave the token out"
) -> RepairError:
    tried = "" if asked is None else f" by {asked}"
    return RepairError(
        f"token {token.token!r} (id {token.token_id}) cannot be repaired{tried}: {reason}; {advice}"
    )
