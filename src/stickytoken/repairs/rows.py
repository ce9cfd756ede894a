"""New rows of the embedding matrix for tokens that are repaired."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import RepairError
from stickytoken.repairs.plan import RowContext, TokenPlan, pieces_of
from stickytoken.repairs.result import Strategy

if TYPE_CHECKING:
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder
    from stickytoken.repairs._training import EmbeddingTable


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
    """Choose a row for each token."""
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


# Entries that are trained together.
_AT_ONCE = 32


def new_rows(strategy: Strategy, ids: Sequence[int], context: RowContext) -> dict[int, NDArray[np.float32]]:
    """Make new rows for entries; the model is not changed.

    The same seed, texts and entries give the same rows. Entries are trained together, but each as if alone.

    Args:
        strategy: how the rows are made, one of `ROWS`.
        ids: the entries; none of them serves as a piece or a relative of another.
        context: the model, texts to train in, and a seed.

    Returns:
        Rows in single precision, shape (D,) each, by token id in the order of ``ids``.

    Raises:
        RepairError: an entry cannot have a row by this strategy, and the message names it; or the model does
            not let rows be trained.
    """
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder
    from stickytoken.repairs._training import embedding_table

    distinct = list(dict.fromkeys(ids))
    if not distinct:
        return {}
    table = embedding_table(context.model, distinct, context.avoided)
    _require_own(table, SentenceTransformerEncoder(context.model, "the model", packed_layers=False))
    if strategy is Strategy.PIECES:
        table.require_pieces()
        return {token_id: table.mean_of_pieces(pieces) for token_id, pieces in table.pieces.items()}
    if strategy is Strategy.RELATIVES:
        from stickytoken.repairs._training import related_rows

        return related_rows(table, context.seed)
    return _trained(strategy, table, context)


def _require_own(table: EmbeddingTable, encoder: SentenceTransformerEncoder) -> None:
    """Refuse entries that the model itself puts around every text."""
    template = {*encoder.template.before, *encoder.template.after}
    for token_id in table.pieces:
        if token_id in template:
            raise RepairError(
                f"{table.shown(token_id)} is put around every text by the model itself: a new row would "
                "change every vector; make it plain text instead"
            )


def _trained(
    strategy: Strategy, table: EmbeddingTable, context: RowContext
) -> dict[int, NDArray[np.float32]]:
    from stickytoken.repairs._training import Network, distilled_rows, kept_rows

    if strategy is Strategy.DISTIL:
        table.require_pieces()
    network = Network(context.model)
    rows: dict[int, NDArray[np.float32]] = {}
    ids = list(table.pieces)
    for begin in range(0, len(ids), _AT_ONCE):
        part = table.of(ids[begin : begin + _AT_ONCE])
        if strategy is Strategy.DISTIL:
            made = distilled_rows(part, network, context)
        else:
            made = kept_rows(part, network, context)
        rows |= dict(zip(part.pieces, made.astype(np.float32), strict=True))
    return rows


__all__ = ["RowContext", "new_rows", "pieces_of"]
