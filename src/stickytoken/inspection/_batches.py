"""What inspectors of all kinds of models share: the order of work on texts, and the state of the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.batching import equal_length_batches
from stickytoken.encoders.checks import require_usable, shown
from stickytoken.encoders.model_state import computing
from stickytoken.encoders.protocol import IdEncoder
from stickytoken.errors import EncodingError
from stickytoken.inspection._attention import plain_attention
from stickytoken.inspection.protocol import Inside

if TYPE_CHECKING:
    from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder

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


class BatchInspector(ABC):
    """Look at texts of equal length together.

    Args:
        encoder: encoder of the model.
        network: the whole model.
        backbone: the transformers model in it; None without one.
    """

    limits = BatchLimits()

    def __init__(
        self,
        encoder: SentenceTransformerEncoder | CausalPromptEncoder,
        network: torch.nn.Module,
        backbone: Any,
    ) -> None:
        self.encoder = encoder
        self._network = network
        self._backbone = backbone

    @abstractmethod
    def _length(self, content: int) -> int:
        """Return the length of an input with ``content`` content ids."""

    @abstractmethod
    def _look(
        self, contents: Sequence[tuple[int, ...]], labels: Sequence[Sequence[int]], parts: int
    ) -> list[Inside]:
        """Look at texts of one length."""

    def look(
        self, contents: Sequence[Sequence[int]], labels: Sequence[Sequence[int]], parts: int
    ) -> list[Inside]:
        """Run texts through the model and record its inside; see `Inspector.look`."""
        rows = [tuple(content) for content in contents]
        label = _label(self.encoder, rows)
        for row, content in enumerate(rows):
            self.encoder.check_input(content, partial(label, row))
        found: dict[int, Inside] = {}
        with computing(self._network), _memory_told(self.encoder, "look into"):
            for batch in self._batches([self._length(len(content)) for content in rows]):
                looked = self._look([rows[k] for k in batch], [labels[k] for k in batch], parts)
                found |= dict(zip(batch.tolist(), looked, strict=True))
        result = [found[row] for row in range(len(rows))]
        if result:
            vectors = np.stack([each.vector for each in result])
            require_usable(vectors, self.encoder.name, label, allow_zero=False)
        return result

    @contextmanager
    def differentiating(self) -> Iterator[None]:
        """Prepare the model for `embedded` and its vectors; see `Inspector.differentiating`."""
        with (
            computing(self._network, gradients=True),
            plain_attention(self._backbone),
            _memory_told(self.encoder, "attribute"),
        ):
            yield

    def _batches(self, lengths: Sequence[int]) -> list[NDArray[np.intp]]:
        """Group texts of equal length into batches within the limits."""
        config = getattr(self._backbone, "config", None)
        heads = getattr(config, "num_attention_heads", None) or _HEADS_IF_UNKNOWN
        layers = getattr(config, "num_hidden_layers", None) or 1
        width = getattr(config, "hidden_size", None) or 1024
        batches = []
        for same in equal_length_batches(lengths, self.limits.tokens):
            length = max(1, lengths[same[0]])
            by_weights = self.limits.weights // (heads * length**2)
            by_states = self.limits.states // ((layers + 1) * length * width)
            batches += np.array_split(same, -(-len(same) // max(1, min(by_weights, by_states))))
        return batches


def _label(encoder: IdEncoder, contents: Sequence[Sequence[int]]) -> Callable[[int], str]:
    """Return a function from row to the text that messages show, decoded from its ids."""
    return lambda row: shown(encoder.tokenizer.decode_many([contents[row]])[0])


@contextmanager
def _memory_told(encoder: IdEncoder, what: str) -> Iterator[None]:
    """Turn an out-of-memory error into one that names the model."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise EncodingError(
            f"{encoder.name}: {encoder.device} does not have enough memory to {what} one text: "
            "use shorter texts, a lower precision or another device"
        ) from error
