"""Make new rows of the embedding matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import RepairError
from stickytoken.repairs.rows._context import RowContext
from stickytoken.repairs.strategies import Strategy

if TYPE_CHECKING:
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder
    from stickytoken.repairs.rows._embedding_table import EmbeddingTable

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
    from stickytoken.repairs.rows._embedding_table import embedding_table

    distinct = list(dict.fromkeys(ids))
    if not distinct:
        return {}
    table = embedding_table(context.model, distinct, context.avoided)
    _require_own(table, SentenceTransformerEncoder(context.model, "the model", packed_layers=False))
    if strategy is Strategy.PIECES:
        table.require_pieces()
        return {token_id: table.mean_of_pieces(pieces) for token_id, pieces in table.pieces.items()}
    if strategy is Strategy.RELATIVES:
        from stickytoken.repairs.rows._relatives import related_rows

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
    from stickytoken.repairs.rows._distil import distilled_rows
    from stickytoken.repairs.rows._keep import kept_rows
    from stickytoken.repairs.rows._network import Network

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
