"""The protocols of encoders."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import ModelError
from stickytoken.insertion import TokenizedText
from stickytoken.precision import Precision
from stickytoken.vocabulary.categories import RoundTripTokenizer


@dataclass(frozen=True, slots=True)
class EncoderIdentity:
    """Everything about an encoder that can change its vectors.

    Attributes:
        weights: sha256 of all parameters and buffers.
        tokenizer: sha256 of the tokenizer's pipeline and vocabulary.
        modules: sha256 of the types and settings of the modules (pooling, dense, ...).
        prompt: text put before every input.
        dtype: precision of the weights.
        max_length: longest input in tokens, including special tokens; None is no limit.
        dimension: number of components of a vector.
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
    """Turns texts into vectors.

    Detection with text insertion needs nothing more. `stickytoken.load_encoder` turns an object that has only
    `encode` into an encoder.
    """

    @property
    def name(self) -> str:
        """The name that the user gave."""

    @property
    def device(self) -> str:
        """Where the model computes, such as ``cpu`` or ``cuda:0``."""

    @property
    def identity(self) -> EncoderIdentity:
        """Everything that can change the vectors, computed from the current model.

        This hashes the weights, so store the result if you need it repeatedly. `max_length` and `dimension`
        are cheap.
        """

    @property
    def max_length(self) -> int | None:
        """Longest input in tokens, including special tokens; None is no limit."""

    @property
    def dimension(self) -> int:
        """Number of components of a vector."""

    @property
    def tokenizer(self) -> RoundTripTokenizer:
        """The tokenizer, for the vocabulary.

        Raises:
            ModelError: The encoder has none.
        """

    def content_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the content ids of each text, including the prompt, as `encode` passes them to the model."""

    def fits(self, ids: Sequence[int]) -> bool:
        """Check that the model reads these content ids in full and embeds all of them."""

    def encode(self, texts: Sequence[str], *, allow_zero: bool = False) -> NDArray[np.float32]:
        """Encode texts with the prompt before each.

        Args:
            texts: n texts.
            allow_zero: return zero vectors instead of raising on them.

        Returns:
            float32 array of shape (n, d).

        Raises:
            EncodingError: A text is too long or has no tokens, or its vector is not finite or zero. The
                message names the text.
        """


@runtime_checkable
class WordEncoder(Encoder, Protocol):
    """An encoder that also tells which content ids each word of a text has."""

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Return the content ids of each text by word, prompt in the head, without special tokens."""


@runtime_checkable
class IdReader(WordEncoder, Protocol):
    """An encoder that also reads token ids."""

    def encode_ids(self, ids: Sequence[Sequence[int]], *, allow_zero: bool = False) -> NDArray[np.float32]:
        """Encode lists of content ids; the special tokens of the template are added.

        Args:
            ids: n lists like `TokenizedText.ids`, including the prompt.
            allow_zero: return zero vectors instead of raising on them.

        Returns:
            float32 array of shape (n, d), equal to `encode` of the text with these ids.

        Raises:
            EncodingError: As for `encode`.
        """


@runtime_checkable
class IdEncoder(IdReader, Protocol):
    """An encoder whose model computes here, and so at other precisions."""

    def at(self, precision: Precision | None) -> IdEncoder:
        """Return an encoder of the same model with faster, less exact arithmetic; None returns itself.

        Raises:
            InputError: The device or the model does not support the precision.
        """


_TEXT_PARTS = tuple(part for part in vars(Encoder) if not part.startswith("_"))
_WORD_PARTS = tuple(part for part in vars(WordEncoder) if not part.startswith("_"))
_ID_PARTS = (
    *_WORD_PARTS,
    *(part for kind in (IdReader, IdEncoder) for part in vars(kind) if not part.startswith("_")),
)
_BEHIND_ENDPOINT = "endpoint"


def is_encoder(model: object) -> TypeGuard[Encoder]:
    """Check for the members of `Encoder` without computing any of them, as `isinstance` would."""
    return all(_has(model, part) for part in _TEXT_PARTS)


def reads_ids(encoder: Encoder) -> TypeGuard[IdEncoder]:
    """Check whether an encoder is an `IdEncoder`, without computing its identity."""
    return all(_has(encoder, part) for part in _ID_PARTS)


def require_words(encoder: Encoder, purpose: str) -> WordEncoder:
    """Return an encoder that tells the content ids of words.

    Args:
        encoder: any encoder.
        purpose: what needs them, the subject of the message.

    Raises:
        ModelError: The encoder does not tell.
    """
    if all(_has(encoder, part) for part in _WORD_PARTS):
        words: WordEncoder = encoder  # type: ignore[assignment]
        return words
    raise ModelError(
        f"{purpose} needs the tokens of texts, and {encoder.name} (a {type(encoder).__name__}) has no method "
        "tokenize: give it one, or pass an object with `encode` and a `tokenizer`"
    )


def require_ids(encoder: Encoder, purpose: str, instead: str | None = None) -> IdEncoder:
    """Return an encoder that reads token ids.

    Args:
        encoder: any encoder.
        purpose: what needs token ids, the subject of the message.
        instead: what the caller can do without token ids, if anything.

    Raises:
        ModelError: The encoder reads only texts.
    """
    if reads_ids(encoder):
        return encoder
    if encoder.device == _BEHIND_ENDPOINT:
        raise ModelError(
            f"{purpose} needs the model itself, and {encoder.name} is behind an endpoint, which gives only "
            f"vectors of texts: {instead or 'pass a model that is on this machine'}"
        )
    missing = ", ".join(part for part in _ID_PARTS if not _has(encoder, part))
    advice = "pass a SentenceTransformer or the name of a model"
    raise ModelError(
        f"{purpose} needs token ids, and {encoder.name} encodes texts only (a {type(encoder).__name__} "
        f"without {missing}): {advice if instead is None else f'{instead}, or {advice}'}"
    )


def _has(model: object, part: str) -> bool:
    missing: Any = object()
    if inspect.getattr_static(model, part, missing) is not missing:
        return True
    # Members from __getattr__; properties were found above without computing them.
    return hasattr(type(model), "__getattr__") and hasattr(model, part)
