"""The protocols of encoders."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Generic, Protocol, TypeGuard, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import EncodingError, InputError, ModelError
from stickytoken.insertion import TokenizedText
from stickytoken.machine import Precision
from stickytoken.unit_vectors import Similarity
from stickytoken.validation import list_of, shown as described
from stickytoken.vocabulary import RoundTripTokenizer


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
            allow_zero: return rows without a usable vector instead of raising on them: zeros where the model
                gives zeros, NaN where a server gives no vector. `has_vector` tells them from the others.

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
            allow_zero: as for `encode`.

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


@runtime_checkable
class RefusingEncoder(Protocol):
    """An encoder whose server gives no vector for some texts."""

    @property
    def refused_texts(self) -> Collection[str]:
        """Texts without the prompt that were asked for in this session and got no vector."""


def refused_texts(encoder: object) -> Collection[str]:
    return encoder.refused_texts if isinstance(encoder, RefusingEncoder) else frozenset()


Made = TypeVar("Made")


def without_refused_texts(encoder: object, make: Callable[[], Made]) -> Made:
    """Call a function that chooses and encodes texts, again each time that a server refuses some of them.

    The function must leave `refused_texts` out, so every call chooses others.
    """
    while True:
        refused = len(refused_texts(encoder))
        try:
            return make()
        except EncodingError:
            if len(refused_texts(encoder)) == refused:
                raise


@runtime_checkable
class DeclaresSimilarity(Protocol):
    """An encoder that says how its model compares vectors."""

    @property
    def similarity(self) -> Similarity:
        """The similarity that the model declares."""


def similarity_of(encoder: Encoder) -> Similarity:
    """Return how the model of an encoder compares vectors; one that does not say so compares by cosine."""
    return encoder.similarity if isinstance(encoder, DeclaresSimilarity) else Similarity.COSINE


class Route(Protocol):
    """One of several ways in which a model reads texts."""

    route: str  # its name

    @property
    def description(self) -> str:
        """The name for a person, and what else can be asked for."""


@runtime_checkable
class RoutedEncoder(Protocol):
    """An encoder of a model that may have several routes, such as for queries and documents."""

    @property
    def route(self) -> Route | None:
        """The route that texts take; None for a model without routes."""


def _parts(*kinds: type) -> tuple[str, ...]:
    return tuple(part for kind in kinds for part in vars(kind) if not part.startswith("_"))


_TEXT_PARTS, _WORD_PARTS = _parts(Encoder), _parts(WordEncoder)
_ID_PARTS = _parts(WordEncoder, IdReader, IdEncoder)


def is_encoder(model: object) -> TypeGuard[Encoder]:
    """Check for the members of `Encoder` without computing any of them, as `isinstance` would."""
    return all(_has(model, part) for part in _TEXT_PARTS)


def reads_ids(encoder: Encoder) -> TypeGuard[IdEncoder]:
    return all(_has(encoder, part) for part in _ID_PARTS)


def require_words(encoder: Encoder, purpose: str) -> WordEncoder:
    if all(_has(encoder, part) for part in _WORD_PARTS):
        words: WordEncoder = encoder  # type: ignore[assignment]
        return words
    raise ModelError(
        f"{purpose} needs the tokens of texts, and {encoder.name} (a {type(encoder).__name__}) has no method "
        "tokenize: give it one, or pass an object with `encode` and a `tokenizer`"
    )


def require_ids(encoder: Encoder, purpose: str, instead: str | None = None) -> IdEncoder:
    """``purpose`` is the subject of the message, ``instead`` what the caller can do without token ids."""
    if reads_ids(encoder):
        return encoder
    if encoder.device == "endpoint":
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


def content_limit(encoder: Encoder) -> int | None:
    limit = encoder.max_length
    if limit is None:
        return None
    while limit > 0 and not encoder.fits((0,) * limit):
        limit -= 1
    return limit


_SHOWN_CHARACTERS = 80


def texts_of(texts: object) -> list[str]:
    if isinstance(texts, str):
        raise InputError(f"encode takes a list of texts, got the text {shown(texts)}: put it in a list")
    found: list[str] = list_of("texts", "the argument of encode", texts)
    for place, text in enumerate(found):
        if not isinstance(text, str):
            raise InputError(f"encode takes a list of texts, but item {place + 1} is {described(text)}")
    return found


def has_vector(vectors: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Return which rows are vectors with a direction: finite and not zero."""
    return np.asarray(np.isfinite(vectors).all(axis=1) & vectors.any(axis=1))


def require_usable(
    vectors: NDArray[np.float32], name: str, label: Callable[[int], str], *, allow_zero: bool
) -> None:
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        row = int(np.flatnonzero(~finite)[0])
        raise EncodingError(
            f"{name}: the vector of the text {label(row)} is not finite: "
            "the weights are damaged or the precision is too low"
        )
    if not allow_zero and not (nonzero := vectors.any(axis=1)).all():
        row = int(np.flatnonzero(~nonzero)[0])
        raise EncodingError(
            f"{name}: the vector of the text {label(row)} is zero: it has no similarity to anything"
        )


def shown(text: str, characters: int = _SHOWN_CHARACTERS) -> str:
    return repr(text if len(text) <= characters else text[: characters - 1] + "…")


# Kernels are fastest with multiples of this, and with few distinct numbers of tokens.
TOKEN_MULTIPLE = 64


def equal_length_batches(lengths: Sequence[int], token_budget: int) -> list[NDArray[np.intp]]:
    sizes = np.asarray(lengths, dtype=np.intp)
    batches: list[NDArray[np.intp]] = []
    for length in sorted(set(sizes.tolist()), reverse=True):
        members = np.flatnonzero(sizes == length)
        rows = max(1, token_budget // max(1, length))
        step = TOKEN_MULTIPLE // math.gcd(length, TOKEN_MULTIPLE)
        rows -= rows % step if rows >= step else 0  # so that tokens are a multiple, if possible
        batches.extend(members[start : start + rows] for start in range(0, len(members), rows))
    return batches


class LayerChoice(StrEnum):  # of a prompted language model
    GIVEN = "chosen by the user"
    PUBLISHED = "published preset"
    SAVED = "saved with the model"
    LAST = "default: the last layer"
    SCALED = "default guess, scaled from Llama 2 7B"


@dataclass(frozen=True, slots=True)
class Prompting:
    """A prompt, and how vectors are read from a prompted language model.

    Attributes:
        prompt: text put before every input; None is the model's default prompt. For a language model
            that is not a SentenceTransformer: ``prompteol``, ``cot``, ``ke``, ``ck``, ``metaeol``, ``echo``,
            or a text with ``{sentence}`` in it.
        prompt_name: name of one of the model's own prompts, instead of ``prompt``.
        token_prepending: let every token of the sentence attend to the whole sentence (Fu et al., ACL 2025).
            This option and the following ones, except ``layer``, need a prompted language model.
        start: first layer of token prepending, from 0; None is the preset's.
        exit: first later layer without it; None is the preset's.
        layer: layer to read. Of a SentenceTransformer, the number of layers that run, from 1. Of a prompted
            language model, an index into the embedding and the outputs of all layers; -1 is after the
            final norm. None is the published preset's; without one, a plain prompt reads the last layer, and
            token prepending and contrast the layer at the same relative depth as for Llama 2 7B.
        contrast: subtract what an auxiliary prompt attends to (Cheng et al., ACL 2025).
        contrast_layer: layer whose attention it changes, from 0; None is the preset's.
        contrast_strength: factor of the difference, from 0; None is the preset's.
        contrast_rule: ``scaled``, ``norm``, ``scaled_norm`` or ``sub_head_norm``; None is ``scaled``.
    """

    prompt: str | None = None
    prompt_name: str | None = None
    token_prepending: bool = False
    start: int | None = None
    exit: int | None = None
    layer: int | None = None
    contrast: bool = False
    contrast_layer: int | None = None
    contrast_strength: float | None = None
    contrast_rule: str | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The given options that only a prompted language model supports."""
        values = {
            key: value
            for key, value in asdict(self).items()
            if key != "layer" and not key.startswith("prompt")
        }
        return {key: value for key, value in values.items() if value is not None and value is not False}


Whole_co = TypeVar("Whole_co", bound=WordEncoder, covariant=True)


class EncoderWrapper(Generic[Whole_co]):  # subclasses encode the texts of another encoder differently
    def __init__(self, encoder: Whole_co) -> None:
        self._encoder = encoder
        self.name = encoder.name
        self.device = encoder.device
        self.tokenizer: RoundTripTokenizer = encoder.tokenizer
        self.noise = float(getattr(encoder, "noise", 0.0))

    @property
    def refused_texts(self) -> Collection[str]:
        return refused_texts(self._encoder)

    @cached_property
    def identity(self) -> EncoderIdentity:
        return self._encoder.identity

    @property
    def max_length(self) -> int | None:
        return self._encoder.max_length

    @property
    def dimension(self) -> int:
        return self._encoder.dimension

    @property
    def similarity(self) -> Similarity:
        return similarity_of(self._encoder)

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        return self._encoder.tokenize(texts)

    def content_ids(self, texts: Sequence[str]) -> list[list[int]]:
        return self._encoder.content_ids(texts)

    def fits(self, ids: Sequence[int]) -> bool:
        return self._encoder.fits(ids)
