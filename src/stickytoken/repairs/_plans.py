"""Plan which repairs to try for each token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stickytoken.errors import RepairError
from stickytoken.repairs.model_folder import RepairableModel, rows_writable
from stickytoken.repairs.records import ROW_STRATEGIES, TOKENIZER_STRATEGIES
from stickytoken.repairs.tokenizer_edit import WITHOUT_EDITING, reasons_against_splitting
from stickytoken.settings.repair import Strategy
from stickytoken.vocabulary import Vocabulary

# Order in which strategies are tried for a token.
ORDER = (Strategy.RELATIVES, Strategy.UNREACHABLE, Strategy.NEAREST)

_IN_EVERY_TEXT = "the model itself puts it into every text, so a new row would change every vector"
_REASONS = {
    Strategy.RELATIVES: "a new row from entries with similar spelling",
    Strategy.NEAREST: "the row of the nearest ordinary entry",
    Strategy.UNREACHABLE: "the text is split into pieces, and nothing else changes",
    Strategy.PLAIN_SPECIALS: "a special token: plain text when a user writes it; the model still adds it",
}
_PLAIN_ADDED = "an added token: its text is read as if it had never been added"
_ADDED_IS_WHOLE = "an added token is found before its text could be split"
_SECOND_CHOICES = {
    Strategy.UNREACHABLE: "the text is split into pieces, because no row from similar spelling is ordinary",
    Strategy.NEAREST: "the row of the nearest ordinary entry, because no other repair is ordinary",
}


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """Properties of a token that decide which repairs are possible."""

    name: str  # Name in error messages, for example "token 'river' (id 7)".
    special: bool = False  # Whether this is a special token.
    # Whether this is an ordinary token that was added to the vocabulary. Like a special token, it is found in
    # a text before other tokens.
    added: bool = False
    templated: bool = False  # Whether the model adds the token before or after every text.
    unsplittable: str | None = None  # Why the token's text cannot be split into pieces; None if it can.


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The repairs to try for a token."""

    strategies: tuple[Strategy, ...]  # The strategies to try, in this order.
    reason: str  # Why these strategies are tried, or why the first is preferred.
    # The reasons for choosing other strategies than the preferred one; empty if `reason` applies to all.
    reasons_of_others: Mapping[Strategy, str] = field(default_factory=dict)

    def reason_for(self, chosen: Strategy) -> str:
        return self.reasons_of_others.get(chosen, self.reason)


def plan_repairs(
    model: RepairableModel, vocabulary: Vocabulary, ids: Sequence[int], strategy: Strategy
) -> dict[int, RepairPlan]:
    """Return the repairs to try for each token, keyed by token id.

    Args:
        model: the model.
        vocabulary: vocabulary of the model.
        ids: ids of the tokens to repair.
        strategy: the strategy that the user asked for.

    Raises:
        RepairError: a token cannot be repaired as requested.
    """
    encoder = model.encoder
    route = model.named_route
    special_ids = encoder.own_tokenizer.marked_ids
    added_ids = encoder.own_tokenizer.added_ids
    template_ids = {*encoder.template.before, *encoder.template.after}  # which are in every text
    is_editable = encoder.own_tokenizer.is_fast  # a tokenizer written in Python has no tokenizer.json to edit
    ordinary_ids = [token_id for token_id in ids if token_id not in special_ids]
    splittable_ids = [token_id for token_id in ordinary_ids if token_id not in added_ids]
    # Both `reasons_against_splitting` and `rows_writable` read the files of the model, so they are called
    # only where their result matters.
    unsplittable: Mapping[int, str | None] = {}
    if is_editable and strategy not in ROW_STRATEGIES:
        unsplittable = reasons_against_splitting(model.folder, splittable_ids, route)
    are_rows_writable = False
    if strategy is Strategy.AUTO and ordinary_ids:
        are_rows_writable = rows_writable(model.folder, route)
    plans = {}
    for token_id in ids:
        facts = TokenFacts(
            name=f"token {vocabulary.tokens[vocabulary.index_of(token_id)]!r} (id {token_id})",
            special=token_id in special_ids,
            added=token_id in added_ids,
            templated=token_id in template_ids,
            unsplittable=_ADDED_IS_WHOLE if token_id in added_ids else unsplittable.get(token_id),
        )
        if is_editable:
            plans[token_id] = plan_token(strategy, facts, are_rows_writable)
        else:
            plans[token_id] = plan_without_editing(strategy, facts, type(encoder.user_tokenizer).__name__)
    return plans


def plan_token(requested: Strategy, token: TokenFacts, are_rows_writable: bool) -> RepairPlan:
    """Return the repairs to try for a token.

    Args:
        requested: the strategy that the user asked for.
        token: properties of the token.
        are_rows_writable: whether new rows can be written into the weights of the model.

    Raises:
        RepairError: the token cannot be repaired as requested.
    """
    _require_suitable(requested, token)
    if requested is Strategy.AUTO and (token.special or (token.added and not are_rows_writable)):
        requested = Strategy.PLAIN_SPECIALS
    if requested is not Strategy.AUTO:
        is_plain_added = token.added and requested is Strategy.PLAIN_SPECIALS
        return RepairPlan((requested,), _PLAIN_ADDED if is_plain_added else _REASONS[requested])
    if token.unsplittable is not None:
        return RepairPlan(ROW_STRATEGIES, f"a new row, because {token.unsplittable}")
    if token.templated:
        return RepairPlan((Strategy.UNREACHABLE,), f"the text is split into pieces; {_IN_EVERY_TEXT}")
    if not are_rows_writable:
        reason = "the text is split into pieces; no row can be written into these weights"
        return RepairPlan((Strategy.UNREACHABLE,), reason)
    return RepairPlan(ORDER, _REASONS[Strategy.RELATIVES], _SECOND_CHOICES)


def plan_without_editing(requested: Strategy, token: TokenFacts, tokenizer_kind: str) -> RepairPlan:
    """Return the only repair, the nearest row, for a token of a tokenizer that is written in Python.

    Args:
        requested: the strategy that the user asked for.
        token: properties of the token.
        tokenizer_kind: name of the tokenizer's class.

    Raises:
        RepairError: the token cannot be repaired as requested.
    """
    obstacle = f"its tokenizer, a {tokenizer_kind}, is written in Python"
    why_impossible = None
    advice = WITHOUT_EDITING
    if token.templated:
        why_impossible = f"{obstacle} and cannot be edited; {_IN_EVERY_TEXT}"
        advice = "leave it out, and remove it from documents with stickytoken clean"
    elif requested in TOKENIZER_STRATEGIES:
        why_impossible = f"{obstacle} and cannot be edited"
    elif requested is Strategy.RELATIVES:
        why_impossible = f"{obstacle}, so its pieces are unknown"
    if why_impossible is not None:
        by = "" if requested is Strategy.AUTO else f" by {requested}"
        raise RepairError(f"{token.name} cannot be repaired{by}: {why_impossible}; {advice}")
    # The strategy is auto or nearest. Copying the row of another entry is the only repair that needs neither
    # an edit of the tokenizer nor the pieces of the token.
    if requested is Strategy.AUTO:
        return RepairPlan((Strategy.NEAREST,), f"a new row, because {obstacle}")
    return RepairPlan((Strategy.NEAREST,), _REASONS[Strategy.NEAREST])


def _require_suitable(requested: Strategy, token: TokenFacts) -> None:
    """Raise a RepairError if the requested strategy is impossible for this token."""
    by = f" by {requested}"
    advice = "use the strategy auto, or leave the token out"
    # The model puts a templated token into every text, so its row must stay: a new row would change every
    # vector. A special token can be made plain text instead; any other token can only be split into pieces.
    can_only_be_split = token.templated and not token.special
    if requested in ROW_STRATEGIES and token.templated:
        why = _IN_EVERY_TEXT
        advice = f"use the strategy {'plain-specials' if token.special else 'unreachable'} or auto"
    elif requested is Strategy.PLAIN_SPECIALS and not (token.special or token.added):
        why = "it is not a special token"
    elif requested is Strategy.UNREACHABLE and (token.special or token.added):
        why = "it is a special token" if token.special else _ADDED_IS_WHOLE
        advice = "use the strategy plain-specials or auto"
    elif requested is Strategy.UNREACHABLE and token.unsplittable is not None:
        why = token.unsplittable
    elif requested is Strategy.AUTO and can_only_be_split and token.unsplittable is not None:
        why = f"{token.unsplittable}; {_IN_EVERY_TEXT}"
        advice = "leave the token out"
        by = ""  # the token cannot be repaired by any strategy
    else:
        return
    raise RepairError(f"{token.name} cannot be repaired{by}: {why}; {advice}")
