"""A text as the embeddings that a model reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class EmbeddedText:
    """One text of T tokens, all that the model puts around it included.

    Attributes:
        rows: embeddings, shape (T, D).
        filler: the padding token's embedding, or zeros, shape (D,).
        content: at each position the number of the content id that stands there, -1 for what the model puts
            around a text, shape (T,). An id may stand at several positions.
        vectors: from embeddings of shape (n, T, D) to vectors before any last normalisation, shape (n, d).
    """

    rows: torch.Tensor
    filler: torch.Tensor
    content: torch.Tensor
    vectors: Callable[[torch.Tensor], torch.Tensor]

    def emptied(self) -> torch.Tensor:
        """The embeddings with the filler in every place of the content, shape (T, D)."""
        return torch.where(self.content[:, None] >= 0, self.filler, self.rows)
