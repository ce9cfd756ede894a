"""A text as token embeddings, the input of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class EmbeddedText:
    """One text of T tokens, including those that the model puts around it.

    Attributes:
        rows: embeddings, shape (T, D).
        filler: embedding of the padding token, or zeros, shape (D,).
        content: index of the content id at each position, -1 for tokens that the model puts around the text,
            shape (T,). An id may be at several positions.
        vectors: maps embeddings of shape (n, T, D) to vectors before any final normalisation, shape (n, d).
    """

    rows: torch.Tensor
    filler: torch.Tensor
    content: torch.Tensor
    vectors: Callable[[torch.Tensor], torch.Tensor]

    def emptied(self) -> torch.Tensor:
        """Return the embeddings with the filler at every position of the content, shape (T, D)."""
        return torch.where(self.content[:, None] >= 0, self.filler, self.rows)
