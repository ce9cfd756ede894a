"""What every encoder offers, whatever stands behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from stickytoken.insertion import TokenizedText
from stickytoken.precision import Precision
from stickytoken.vocabulary.categories import RoundTripTokenizer


@dataclass(frozen=True, slots=True)
class EncoderIdentity:
    """Everything about an encoder that can change its vectors.

    Attributes:
        weights: sha256 over all parameters and buffers.
        tokenizer: sha256 over the tokenizer's pipeline and vocabulary.
        modules: sha256 over the kinds and settings of the modules (pooling, dense, ...).
        prompt: text put in front of every input.
        dtype: precision of the weights.
        max_length: longest input in tokens, special tokens included; None is no limit.
        dimension: components of a vector.
    """

    weights: str
    tokenizer: str
    modules: str
    prompt: str
    dtype: str
    max_length: int | None
    dimension: int


@runtime_checkable
class Encoder(Protocol):
    """Turns texts, or lists of token ids, into vectors."""

    @property
    def name(self) -> str:
        """The name that the user gave."""
        ...

    @property
    def device(self) -> str:
        """Where the model computes, such as ``cpu`` or ``cuda:0``."""
        ...

    @property
    def identity(self) -> EncoderIdentity:
        """What can change the vectors."""
        ...

    @property
    def tokenizer(self) -> RoundTripTokenizer:
        """The tokenizer, for the vocabulary."""
        ...

    def at(self, precision: Precision | None) -> Encoder:
        """The same encoder computing faster and less exactly, for early rounds; None is itself.

        Raises:
            InputError: the device or the model does not compute in this precision.
        """
        ...

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Content ids of each text (prompt in the head), without special tokens."""
        ...

    def content_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Content ids of each text, the prompt's included: what `encode` would send to the model."""
        ...

    def fits(self, ids: Sequence[int]) -> bool:
        """Whether the model reads these ids whole, special tokens added, and has rows for all of them."""
        ...

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode texts, the prompt put in front.

        Args:
            texts: n texts.

        Returns:
            float32 array of shape (n, d).

        Raises:
            EncodingError: a text is too long, empty after tokenization, or its vector is
                not finite or zero. The message names the text.
        """
        ...

    def encode_ids(self, ids: Sequence[Sequence[int]], *, allow_zero: bool = False) -> NDArray[np.float32]:
        """Encode lists of content ids; the special tokens of the template are added.

        Args:
            ids: n lists, as `TokenizedText.ids` (the prompt's ids included).
            allow_zero: return zero vectors instead of raising on them.

        Returns:
            float32 array of shape (n, d), equal to `encode` of the text with these ids.

        Raises:
            EncodingError: as `encode`.
        """
        ...
