"""The interface for looking inside a model, and the records that it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.batching import equal_length_batches
from stickytoken.encoders.checks import require_usable, shown
from stickytoken.encoders.protocol import IdEncoder
from stickytoken.errors import EncodingError
from stickytoken.inspection._embedded_text import EmbeddedText

_HEADS_IF_UNKNOWN = 32


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of one batch.

    Attributes:
        weights: number of attention weights in one layer.
        states: number of components in the hidden states of all layers.
        tokens: number of tokens.
    """

    weights: int = 2**25
    states: int = 2**26
    tokens: int = 2048


BATCH_LIMITS = BatchLimits()
"""The default limits."""


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
        """Run texts through the model and record its inside.

        Args:
            contents: content ids of n texts, as for `IdEncoder.encode_ids`.
            labels: part of each id, from 0.
            parts: number of parts; tokens that the model puts around a text are one more, after them.

        Raises:
            EncodingError: The model cannot read a text in full, or its vector is not usable.
        """

    def differentiating(self) -> AbstractContextManager[None]:
        """Prepare the model for `embedded` and its vectors: locked, without gradients and dropout.

        Raises:
            EncodingError: The device has not enough memory for one text.
        """

    def embedded(self, content: Sequence[int]) -> EmbeddedText:
        """Return a text as embeddings, which the caller may change.

        Args:
            content: content ids.

        Raises:
            ModelError: The token embeddings of the model cannot be reached.
        """


def look_in_batches(
    encoder: IdEncoder,
    contents: Sequence[tuple[int, ...]],
    lengths: Sequence[int],
    config: Any,
    limits: BatchLimits,
    look: Callable[[NDArray[np.intp]], Sequence[Inside]],
) -> list[Inside]:
    """Look at texts of equal length together, and refuse unusable vectors.

    Args:
        encoder: encoder of the model.
        contents: content ids of n texts.
        lengths: tokens of each text, including those that the model puts around it.
        config: the transformers configuration.
        limits: what one batch may hold.
        look: looks at the texts with the given indices.

    Raises:
        EncodingError: The vector of a text is not usable, or there is not enough memory for one text.
    """
    found: dict[int, Inside] = {}
    with memory_told(encoder, "look into"):
        for batch in _batches_in_memory(lengths, config, limits):
            found |= dict(zip(batch.tolist(), look(batch), strict=True))
    result = [found[row] for row in range(len(contents))]
    if result:
        vectors = np.stack([each.vector for each in result])
        require_usable(vectors, encoder.name, content_label(encoder, contents), allow_zero=False)
    return result


def content_label(encoder: IdEncoder, contents: Sequence[Sequence[int]]) -> Callable[[int], str]:
    """Return a function from row to the text that messages show, decoded from its ids."""
    return lambda row: shown(encoder.tokenizer.decode_many([contents[row]])[0])


@contextmanager
def memory_told(encoder: IdEncoder, what: str) -> Iterator[None]:
    """Turn an out-of-memory error into one that names the model.

    Raises:
        EncodingError: The device is out of memory.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise EncodingError(
            f"{encoder.name}: {encoder.device} does not have enough memory to {what} one text: "
            "use shorter texts, a lower precision or another device"
        ) from error


def as_numbers(values: torch.Tensor) -> NDArray[np.float64]:
    """Convert a tensor of any device and precision to an array."""
    found: NDArray[np.float64] = values.double().cpu().numpy()
    return found


def _batches_in_memory(lengths: Sequence[int], config: Any, limits: BatchLimits) -> list[NDArray[np.intp]]:
    """Group texts of equal length into batches within the limits."""
    heads = getattr(config, "num_attention_heads", None) or _HEADS_IF_UNKNOWN
    layers = getattr(config, "num_hidden_layers", None) or 1
    width = getattr(config, "hidden_size", None) or 1024
    batches = []
    for same in equal_length_batches(lengths, limits.tokens):
        length = max(1, lengths[same[0]])
        by_weights = limits.weights // (heads * length**2)
        by_states = limits.states // ((layers + 1) * length * width)
        batches += np.array_split(same, -(-len(same) // max(1, min(by_weights, by_states))))
    return batches
