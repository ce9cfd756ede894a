"""What happens inside a model between token ids and vector, reduced to arrays."""

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
from stickytoken.inspection.embedded_text import EmbeddedText

_HEADS_IF_UNKNOWN = 32


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What one batch may hold.

    Attributes:
        weights: attention weights of one layer.
        states: numbers in the hidden states of all layers.
        tokens: tokens.
    """

    weights: int = 2**25
    states: int = 2**26
    tokens: int = 2048


BATCH_LIMITS = BatchLimits()
"""The default limits."""


@dataclass(frozen=True, slots=True)
class Inside:
    """What was seen of one text of T tokens, with all that the model puts around it.

    Special tokens and a template that the text stands in are one part, the last. Where a model reads a text
    in several prompts, or a prompt has it twice, T counts all of its tokens.

    Attributes:
        labels: part that each position belongs to, shape (T,).
        hidden: hidden states by layer, the embeddings first, float32 of shape (layers + 1, T, D); None
            where the model does not give them.
        attention: mean weight by layer, head, part that attends and part that receives, shape (layers,
            heads, parts, parts); NaN for a part without a position. None where the model does not give it.
        pooled: what the pooling makes of the last hidden states, shape (P,); None without a pooling.
        supplied: of that, what each part supplies, shape (parts, P), summing to ``pooled``; None where the
            pooling is no sum over positions.
        vector: the model's output, shape (d,).
    """

    labels: NDArray[np.intp]
    hidden: NDArray[np.float32] | None
    attention: NDArray[np.float64] | None
    pooled: NDArray[np.float64] | None
    supplied: NDArray[np.float64] | None
    vector: NDArray[np.float32]


class Inspector(Protocol):
    """Looks into the model of an encoder, and leaves it as it was."""

    @property
    def encoder(self) -> IdEncoder:
        """Whose model it is."""
        ...

    @property
    def pooling(self) -> str | None:
        """How the sentence vector is made of hidden states, such as ``mean``; None where nobody can say."""
        ...

    @property
    def has_layers(self) -> bool:
        """Whether there is anything between embeddings and pooling; a static embedding model has nothing."""
        ...

    def embedding_matrix(self) -> NDArray[np.float32] | None:
        """Rows of the token embeddings, shape (entries, D); None where the model does not show them."""
        ...

    def look(
        self, contents: Sequence[Sequence[int]], labels: Sequence[Sequence[int]], parts: int
    ) -> list[Inside]:
        """Send texts through the model and keep what is seen on the way.

        Args:
            contents: content ids of n texts, as for `Encoder.encode_ids`.
            labels: for each id the part that it belongs to, from 0 on.
            parts: number of parts; what the model puts around a text is one more, behind them.

        Raises:
            EncodingError: a text that the model does not read whole, or without a usable vector.
        """
        ...

    def differentiating(self) -> AbstractContextManager[None]:
        """The model for calls of `embedded` and of its vectors: alone, without gradients, without dropout.

        Raises:
            EncodingError: the device has no memory for one text.
        """
        ...

    def embedded(self, content: Sequence[int]) -> EmbeddedText:
        """A text as the embeddings that the model reads, which may be changed.

        Args:
            content: content ids.

        Raises:
            ModelError: the model's token embeddings cannot be reached.
        """
        ...


def look_in_batches(
    encoder: IdEncoder,
    contents: Sequence[tuple[int, ...]],
    lengths: Sequence[int],
    config: Any,
    limits: BatchLimits,
    look: Callable[[NDArray[np.intp]], Sequence[Inside]],
) -> list[Inside]:
    """Look at texts of equal length together, and refuse vectors that cannot be used.

    Args:
        encoder: whose model it is.
        contents: content ids of n texts.
        lengths: tokens of each, with all that the model puts around it.
        config: the transformers configuration.
        limits: what one batch may hold.
        look: what is seen of some of the texts, given by their numbers.

    Raises:
        EncodingError: a text without a usable vector, or no memory for one text.
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
    """How messages call a text of which only the ids are known."""
    return lambda row: shown(encoder.tokenizer.decode_many([contents[row]])[0])


@contextmanager
def memory_told(encoder: IdEncoder, what: str) -> Iterator[None]:
    """Say what there was no memory for.

    Raises:
        EncodingError: the device has no memory.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise EncodingError(
            f"{encoder.name}: {encoder.device} has no memory to {what} one text: "
            "use shorter texts, a lower precision or another device"
        ) from error


def as_numbers(values: torch.Tensor) -> NDArray[np.float64]:
    """A tensor of any device and precision as an array."""
    found: NDArray[np.float64] = values.double().cpu().numpy()
    return found


def _batches_in_memory(lengths: Sequence[int], config: Any, limits: BatchLimits) -> list[NDArray[np.intp]]:
    """Texts of equal length, so few that neither weights nor states outgrow their limits."""
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
