"""The interface for looking inside a model, and the records that it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.protocol import IdEncoder


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


@dataclass(frozen=True, slots=True)
class Inside:
    """Record of one text of T tokens, including those that the model puts around it.

    Special tokens and the template around the text are one part, the last. If a model reads a text in several
    prompts, or a prompt repeats it, T counts all tokens.

    Attributes:
        labels: part of each position, shape (T,).
        hidden: hidden states by layer, embeddings first, float32 of shape (layers + 1, T, D); None if the
            model does not return them.
        attention: mean weight by layer, head, attending part and attended part, shape (layers, heads, parts,
            parts); NaN for an attending part without positions. None if the model does not return it.
        pooled: pooled last hidden states, shape (P,); None without pooling.
        supplied: share of each part in ``pooled``, shape (parts, P), summing to it; None if the pooling is
            not a sum over positions.
        vector: output of the model, shape (d,).
    """

    labels: NDArray[np.intp]
    hidden: NDArray[np.float32] | None
    attention: NDArray[np.float64] | None
    pooled: NDArray[np.float64] | None
    supplied: NDArray[np.float64] | None
    vector: NDArray[np.float32]


class Inspector(Protocol):
    """Looks into the model of an encoder without changing it."""

    @property
    def encoder(self) -> IdEncoder:
        """The encoder of the model."""

    @property
    def pooling(self) -> str | None:
        """How hidden states are pooled, such as ``mean``; None if unknown."""

    @property
    def has_layers(self) -> bool:
        """Whether there are layers between embeddings and pooling; a static embedding model has none."""

    def embedding_matrix(self) -> NDArray[np.float32] | None:
        """Return the token embeddings, shape (entries, D); None if they cannot be reached."""

    def look(
        self, contents: Sequence[Sequence[int]], labels: Sequence[Sequence[int]], parts: int
    ) -> list[Inside]:
        """Run texts through the model and record its inside."""

    def differentiating(self) -> AbstractContextManager[None]:
        """Prepare the model for `embedded` and its vectors: locked, without gradients and dropout."""

    def embedded(self, content: Sequence[int]) -> EmbeddedText:
        """Return a text as embeddings, which the caller may change."""


def as_numbers(values: torch.Tensor) -> NDArray[np.float64]:
    """Convert a tensor of any device and precision to an array."""
    found: NDArray[np.float64] = values.double().cpu().numpy()
    return found
