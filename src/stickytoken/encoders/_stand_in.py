"""An encoder that stands in for another one, in everything but how it encodes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Generic, TypeVar

from stickytoken.encoders.protocol import EncoderIdentity, WordEncoder
from stickytoken.insertion import TokenizedText
from stickytoken.vocabulary.categories import RoundTripTokenizer

Whole_co = TypeVar("Whole_co", bound=WordEncoder, covariant=True)


class StandIn(Generic[Whole_co]):
    """Says of itself what another encoder says of itself."""

    def __init__(self, encoder: Whole_co) -> None:
        self._encoder = encoder
        self.name = encoder.name
        self.device = encoder.device
        self.tokenizer: RoundTripTokenizer = encoder.tokenizer
        self.noise = float(getattr(encoder, "noise", 0.0))

    @cached_property
    def identity(self) -> EncoderIdentity:
        """Identity of the model."""
        return self._encoder.identity

    @property
    def max_length(self) -> int | None:
        """Longest input in tokens."""
        return self._encoder.max_length

    @property
    def dimension(self) -> int:
        """Number of components of a vector."""
        return self._encoder.dimension

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Return the content ids of each text by word."""
        return self._encoder.tokenize(texts)

    def content_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of the prompt and each text."""
        return self._encoder.content_ids(texts)

    def fits(self, ids: Sequence[int]) -> bool:
        """Return whether the model reads these ids in full."""
        return self._encoder.fits(ids)
