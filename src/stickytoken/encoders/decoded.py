"""Let a model that reads only texts read token ids: they are decoded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders._stand_in import StandIn
from stickytoken.encoders.protocol import Encoder, IdReader, WordEncoder, reads_ids, require_words
from stickytoken.errors import ModelError


def as_id_reader(encoder: Encoder, purpose: str) -> IdReader:
    """Return an encoder that reads token ids, if need be by decoding them.

    Args:
        encoder: any encoder.
        purpose: what needs it, the subject of the message.

    Raises:
        ModelError: its tokenizer is not known.
    """
    if reads_ids(encoder):
        return encoder
    if getattr(encoder.tokenizer, "estimates", False):
        raise ModelError(
            f"{purpose} needs the tokens of texts, and of {encoder.name} only candidates are known: "
            "detect with its tokenizer"
        )
    return DecodedEncoder(require_words(encoder, purpose))


class DecodedEncoder(StandIn[WordEncoder]):
    """An encoder whose ids are sent as text. The model may cut that text into other tokens, which is rare.

    Args:
        encoder: reads texts.
    """

    def encode(self, texts: Sequence[str], *, allow_zero: bool = False) -> NDArray[np.float32]:
        """Encode texts; see `Encoder.encode`."""
        return self._encoder.encode(texts, allow_zero=allow_zero)

    def encode_ids(self, ids: Sequence[Sequence[int]], *, allow_zero: bool = False) -> NDArray[np.float32]:
        """Encode the texts of lists of content ids; see `IdReader.encode_ids`."""
        return self._encoder.encode([self._text(each) for each in ids], allow_zero=allow_zero)

    @cached_property
    def _prompt(self) -> list[int]:
        return self._encoder.content_ids([""])[0]

    def _text(self, ids: Sequence[int]) -> str:
        """Decode ids without those of the prompt, which `encode` puts there; drop what no longer fits."""
        shared = 0
        while shared < min(len(self._prompt), len(ids)) and ids[shared] == self._prompt[shared]:
            shared += 1
        for end in range(len(ids), shared, -1):
            (text,) = self.tokenizer.decode_many([list(ids[shared:end])])
            text = text.lstrip() if shared else text
            if self.fits(self.content_ids([text])[0]):
                return text
        return ""
