"""The embedding matrix and the tokenizer of a model, as strategies for rows read them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import RepairError
from stickytoken.inspection.module_embedding import input_embeddings
from stickytoken.repairs.rows._pieces import pieces_of
from stickytoken.visible_text import visible

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class EmbeddingTable:
    """Rows, names and pieces of entries.

    Attributes:
        rows: the embedding matrix in single precision, shape (entries, D).
        backend: the pipeline of the tokenizer.
        pieces: pieces of the entries that are repaired, by id; empty where there are none.
        avoided: entries that are neither pieces nor relatives of others.
    """

    rows: NDArray[np.float32]
    backend: Tokenizer
    pieces: dict[int, tuple[int, ...]]
    avoided: frozenset[int]

    def shown(self, token_id: int) -> str:
        """Name an entry in a message."""
        return f"token {visible(self.backend.id_to_token(token_id) or '')!r} (id {token_id})"

    def of(self, ids: Sequence[int]) -> EmbeddingTable:
        """Return the same table for some of the entries."""
        return replace(self, pieces={token_id: self.pieces[token_id] for token_id in ids})

    def mean_of_pieces(self, pieces: Sequence[int]) -> NDArray[np.float32]:
        """Return the mean row of some entries, shape (D,)."""
        mean: NDArray[np.float32] = self.rows[list(pieces)].mean(axis=0)
        return mean

    def require_pieces(self) -> None:
        """Refuse entries without pieces."""
        for token_id, pieces in self.pieces.items():
            if not pieces:
                raise RepairError(
                    f"{self.shown(token_id)} has no pieces: it is a single character, an added token, or its "
                    "text cannot be written with other entries; use relatives or keep-meaning"
                )


def embedding_table(model: Any, ids: Sequence[int], avoided: Collection[int] = ()) -> EmbeddingTable:
    """Read the embedding matrix of a SentenceTransformer, and the pieces of entries.

    Args:
        model: the model.
        ids: the entries.
        avoided: other entries that are no pieces of these.
    """
    from tokenizers import Tokenizer

    module = input_embeddings(model)
    if module is None:
        raise RepairError("the embedding matrix of the model cannot be reached: new rows need one")
    tokenizer = model.tokenizer
    backend = tokenizer if isinstance(tokenizer, Tokenizer) else getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise RepairError(
            f"a {type(tokenizer).__name__} is written in Python: new rows need a fast tokenizer"
        )
    rows: NDArray[np.float32] = module.weight.detach().float().cpu().numpy()
    for token_id in ids:
        if not 0 <= token_id < len(rows) or backend.id_to_token(token_id) is None:
            raise RepairError(f"the model has no token id {token_id}: name an entry of its vocabulary")
    every = frozenset((*ids, *avoided))
    table = EmbeddingTable(rows, backend, pieces_of(backend, sorted(every)), every)
    return table.of(ids)
