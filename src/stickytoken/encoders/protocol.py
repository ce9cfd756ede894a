"""The interfaces (protocols) of encoders, and checks of what an encoder supports."""

from __future__ import annotations

import inspect
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeGuard, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import EncodingError, InputError, ModelError
from stickytoken.insertion import TokenizedText
from stickytoken.machine import Precision
from stickytoken.unit_vectors import Similarity
from stickytoken.validation import list_of, shown
from stickytoken.vocabulary import RoundTripTokenizer

if TYPE_CHECKING:
    from stickytoken.encoders.files.spec import EncoderSpec


@dataclass(frozen=True, slots=True)
class EncoderIdentity:
    """Hashes and settings that identify an encoder; they cover everything that can change its vectors.

    Attributes:
        weights: sha256 of all parameters and buffers.
        tokenizer: sha256 of the tokenizer's pipeline and vocabulary.
        modules: sha256 of the types and settings of the modules (pooling, dense, ...).
        prompt: text put before every input.
        dtype: precision of the weights, or of the arithmetic if that is lower.
        max_length: maximum input length in tokens, including special tokens; None if there is no limit.
        dimension: number of components in each vector.

    Examples:
        >>> model.identify().dtype, model.identify().dimension
        ('float32', 384)
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

    Detection with text insertion needs only these members. `stickytoken.load_encoder` turns an object that
    has only `encode` into an encoder.

    Examples:
        >>> model.name
        'all-MiniLM-L6-v2'
        >>> model.encode(["the river", "a boat"]).shape
        (2, 384)
    """

    @property
    def name(self) -> str:
        """Name of the model, as the user gave it."""

    @property
    def device(self) -> str:
        """The device on which the model computes, such as ``cpu``, ``cuda:0`` or ``endpoint``."""

    def identify(self) -> EncoderIdentity:
        """Return the identity of the current model, which covers everything that can change its vectors.

        Each call hashes all weights or, for a model without weights and a fingerprint, encodes six texts. So
        store the result if you need it repeatedly. The properties
        `max_length` and `dimension` are cheap.
        """

    @property
    def max_length(self) -> int | None:
        """Maximum input length in tokens, including special tokens; None if there is no limit."""

    @property
    def dimension(self) -> int:
        """Number of components in each vector."""

    @property
    def tokenizer(self) -> RoundTripTokenizer:
        """The tokenizer, which also gives the vocabulary.

        Raises:
            ModelError: The encoder has no tokenizer.
        """

    def content_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids that `encode` uses for the prompt and each text, without special tokens."""

    def fits(self, ids: Sequence[int]) -> bool:
        """Whether the model reads these content ids without truncation and has an embedding for every id."""

    def encode(self, texts: Sequence[str], *, allow_zero: bool = False) -> NDArray[np.float32]:
        """Return the vectors of texts; the prompt is put before each text.

        Args:
            texts: n texts.
            allow_zero: whether to return unusable rows instead of raising an error: zeros if the model gives
                zeros, NaN if a server gives no vector. `has_vector` says which rows are usable.

        Returns:
            float32 array of shape (n, d).

        Raises:
            EncodingError: A text is too long or has no tokens, or its vector is zero or not finite. The
                error message names the text.
        """


@runtime_checkable
class WordEncoder(Encoder, Protocol):
    """An encoder that also says which content ids belong to each word of a text."""

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Return the content ids of each text, grouped by word; the ids of the prompt are in the head."""


@runtime_checkable
class IdReader(WordEncoder, Protocol):
    """An encoder that also reads token ids."""

    def encode_ids(self, ids: Sequence[Sequence[int]], *, allow_zero: bool = False) -> NDArray[np.float32]:
        """Encode lists of content ids, after adding the model's special tokens.

        Args:
            ids: n lists like `TokenizedText.ids`, including the ids of the prompt.
            allow_zero: as for `encode`.

        Returns:
            float32 array of shape (n, d), equal to what `encode` returns for texts with these ids.

        Raises:
            EncodingError: As for `encode`.
        """


@runtime_checkable
class IdEncoder(IdReader, Protocol):
    """An encoder of a model in this process, which reads token ids and can compute at another precision.

    Examples:
        >>> river = model.content_ids(["the river"])
        >>> river
        [[1996, 2314]]
        >>> model.encode_ids(river).shape
        (1, 384)
    """

    def at(self, precision: Precision | None) -> IdEncoder:
        """Return an encoder of the same model that computes faster, but less exactly.

        If ``precision`` is None, the result is this encoder itself.

        Raises:
            InputError: The device or the model does not support the precision.
        """


@runtime_checkable
class ServedEncoder(Protocol):
    """An encoder whose server gives no vector for some texts, and could start to serve another model."""

    @property
    def refused_texts(self) -> Collection[str]:
        """Texts, without the prompt, that the server has given no vector for in this session."""

    def confirm_answers(self) -> None:
        """Raise a ModelError if the server serves another model now.

        If nothing was sent since the last check, the server is not asked.
        """


def refused_texts(encoder: object) -> Collection[str]:
    """Return the texts that the encoder's server gave no vector for; empty without a server."""
    return encoder.refused_texts if isinstance(encoder, ServedEncoder) else frozenset()


def confirm_answers(encoder: object) -> None:
    """Make sure that all vectors so far come from the same model, before a measurement counts as finished.

    Raises:
        ModelError: the encoder's server serves another model now.
    """
    if isinstance(encoder, ServedEncoder):
        encoder.confirm_answers()


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an encoder declares about itself. The defaults apply to an encoder that declares nothing.

    Attributes:
        noise: standard deviation of the cosine between two fixed texts over repeated calls; 0 if every call
            gives the same vectors.
        spec: the name or folder and the options needed to load the encoder again; None if it was not
            loaded from a name or folder.
        parameters: number of weights; None if it is unknown.
        prompt: text put before every input.
        route: name of the route that texts take; None for a model without routes.
        route_in_words: the route; for the default route, also the names of the routes that are not measured.
        leaves_out_prompt: whether the pooling leaves out the tokens of the prompt.
    """

    noise: float = 0.0
    spec: EncoderSpec | None = None
    parameters: int | None = None
    prompt: str = ""
    route: str | None = None
    route_in_words: str | None = None
    leaves_out_prompt: bool = False


@runtime_checkable
class DeclaresCapabilities(Protocol):
    """An encoder that declares its capabilities."""

    @property
    def capabilities(self) -> Capabilities:
        """The current capabilities, which may change during a run."""


def capabilities_of(encoder: object) -> Capabilities:
    """Return the capabilities that an encoder declares, or else the defaults."""
    if isinstance(encoder, DeclaresCapabilities):
        return encoder.capabilities
    return Capabilities()


def find_kept_prompt(encoder: object, text: TokenizedText) -> tuple[int, ...]:
    """Return the ids of the prompt that must stay when ids of a text are deleted: those that aren't pooled.

    A pooling that leaves out the prompt skips a fixed number of tokens. If the prompt lost some, as many
    tokens of the text would be skipped in their place.
    """
    return text.head if capabilities_of(encoder).leaves_out_prompt else ()


@runtime_checkable
class DeclaresSimilarity(Protocol):
    """An encoder that declares how to compare its vectors."""

    @property
    def similarity(self) -> Similarity:
        """The similarity function that the model declares."""


def similarity_of(encoder: Encoder) -> Similarity:
    """Return the similarity function that the model declares, or else the cosine."""
    if isinstance(encoder, DeclaresSimilarity):
        return encoder.similarity
    return Similarity.COSINE


def _members(*protocols: type) -> tuple[str, ...]:
    names: list[str] = []
    for protocol in protocols:  # `vars` leaves out members that a protocol inherits from another protocol
        names += [name for name in vars(protocol) if not name.startswith("_")]
    return tuple(names)


_ENCODER_MEMBERS = _members(Encoder)
_WORD_MEMBERS = _members(WordEncoder)
_ID_MEMBERS = _members(WordEncoder, IdReader, IdEncoder)


def is_encoder(model: object) -> TypeGuard[Encoder]:
    """Whether the model has all members of `Encoder`.

    Unlike `isinstance`, this function does not compute the values of properties, which may be slow or fail.
    """
    return all(_has(model, member) for member in _ENCODER_MEMBERS)


def reads_ids(encoder: Encoder) -> TypeGuard[IdEncoder]:
    """Whether the encoder has all members of `IdEncoder`. The values of properties are not computed."""
    return all(_has(encoder, member) for member in _ID_MEMBERS)


ENDPOINT_DEVICE = "endpoint"
"""The device of an encoder that sends its texts to a server."""


def is_behind_endpoint(encoder: Encoder) -> bool:
    """Whether the model is behind an endpoint, where every text costs and nothing but its vector is known.

    So is the stand-in that only counts texts (`DryRun`). Only an `EndpointEncoder` can send requests.
    """
    return encoder.device == ENDPOINT_DEVICE


def require_words(encoder: Encoder, purpose: str) -> WordEncoder:
    """Return the encoder itself, typed as a `WordEncoder`.

    Args:
        encoder: any encoder.
        purpose: name of the command or analysis that needs tokens, as the subject of the error message.

    Raises:
        ModelError: The encoder has no `tokenize` method.
    """
    if all(_has(encoder, member) for member in _WORD_MEMBERS):
        word_encoder: WordEncoder = encoder  # type: ignore[assignment]
        return word_encoder
    raise ModelError(
        f"{purpose} needs to tokenize texts, but {encoder.name} (a {type(encoder).__name__}) has no "
        "`tokenize` method: add one, or pass an object with `encode` and a `tokenizer`"
    )


def require_ids(encoder: Encoder, purpose: str, instead: str | None = None) -> IdEncoder:
    """Return the encoder itself, typed as an `IdEncoder`.

    Args:
        encoder: any encoder.
        purpose: name of the command or analysis that needs token ids, as the subject of the error message.
        instead: advice for the error message, on what to do without token ids.

    Raises:
        ModelError: The encoder reads texts only.
    """
    if reads_ids(encoder):
        return encoder
    if is_behind_endpoint(encoder):
        raise ModelError(
            f"{purpose} needs the model itself, but {encoder.name} is behind an endpoint, which returns only "
            f"the vectors of texts: {instead or 'pass a model that is on this machine'}"
        )
    missing = ", ".join(member for member in _ID_MEMBERS if not _has(encoder, member))
    advice = "pass a SentenceTransformer or the name of a model"
    if instead is not None:
        advice = f"{instead}, or {advice}"
    raise ModelError(
        f"{purpose} needs token ids, but {encoder.name} encodes texts only (a {type(encoder).__name__} "
        f"without {missing}): {advice}"
    )


def _has(model: object, member: str) -> bool:
    # `hasattr` would compute the value of a property.
    missing: Any = object()
    if inspect.getattr_static(model, member, missing) is not missing:
        return True
    # Neither the object nor its class defines the member, so only __getattr__ could provide it.
    return hasattr(type(model), "__getattr__") and hasattr(model, member)


def content_limit(encoder: Encoder) -> int | None:
    """Return the maximum number of content ids that the encoder reads; None if there is no limit."""
    limit = encoder.max_length
    if limit is None:
        return None
    # The maximum length includes special tokens and may count a text twice, which only `fits` knows. So
    # `bisect_left` finds the first of the numbers 1, 2, ..., limit that does not fit, and returns its index.
    # The index is the largest number that fits, because it is one less than the number.
    return bisect_left(range(1, limit + 1), True, key=lambda count: not encoder.fits((0,) * count))


def texts_of(texts: object) -> list[str]:
    """Check the argument of `encode`, and return it as a list of texts.

    Raises:
        InputError: The argument is a single text, or one of its items is not a text.
    """
    if isinstance(texts, str):
        raise InputError(f"encode takes a list of texts, got the text {quote_text(texts)}: put it in a list")
    items: list[str] = list_of("texts", "the argument of encode", texts)
    for position, item in enumerate(items, start=1):
        if not isinstance(item, str):
            raise InputError(f"encode takes a list of texts, but item {position} is {shown(item)}")
    return items


def has_vector(vectors: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Return a boolean mask, shape (n,): true for rows that are finite and not zero."""
    return np.asarray(np.isfinite(vectors).all(axis=1) & vectors.any(axis=1))


def require_usable(
    vectors: NDArray[np.float32], name: str, label: Callable[[int], str], *, allow_zero: bool
) -> None:
    """Check that every row is finite and, unless `allow_zero`, not zero.

    Args:
        vectors: one row per text.
        name: name of the model, for the error message.
        label: function that takes the index of a row and returns its text, as the error message shows it.
        allow_zero: whether to accept rows of zeros.

    Raises:
        EncodingError: A row is not finite, or is zero although `allow_zero` is false.
    """
    is_finite = np.isfinite(vectors).all(axis=1)
    if not is_finite.all():
        row = int(np.flatnonzero(~is_finite)[0])
        raise EncodingError(
            f"{name}: the vector of the text {label(row)} is not finite: "
            "the weights are damaged or the precision is too low"
        )
    if allow_zero:
        return
    is_nonzero = vectors.any(axis=1)
    if not is_nonzero.all():
        row = int(np.flatnonzero(~is_nonzero)[0])
        raise EncodingError(
            f"{name}: the vector of the text {label(row)} is zero, so its cosine similarity is undefined: "
            "leave the text out or, if it is an ordinary text, check that the model is loaded correctly"
        )


# Maximum number of characters to quote from a text in an error message.
_SHOWN_CHARACTERS = 80


def quote_text(text: str, characters: int = _SHOWN_CHARACTERS) -> str:
    """Return a text in quotation marks, for a message.

    A text with more than ``characters`` characters is cut, and ends with an ellipsis.
    """
    if len(text) > characters:
        text = text[: characters - 1] + "…"
    return repr(text)


Inner_co = TypeVar("Inner_co", bound=WordEncoder, covariant=True)


class EncoderWrapper(Generic[Inner_co]):
    """Base class of encoders that wrap another encoder and change only how texts are encoded."""

    def __init__(self, encoder: Inner_co) -> None:
        self._encoder = encoder
        self.name = encoder.name
        self.device = encoder.device
        self.tokenizer: RoundTripTokenizer = encoder.tokenizer

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the wrapped encoder, without its spec and its number of parameters.

        Loading an encoder from the spec would give the wrapped encoder, not this wrapper.
        """
        return replace(capabilities_of(self._encoder), spec=None, parameters=None)

    @property
    def refused_texts(self) -> Collection[str]:
        return refused_texts(self._encoder)

    def confirm_answers(self) -> None:
        confirm_answers(self._encoder)

    def identify(self) -> EncoderIdentity:
        return self._encoder.identify()

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

    def fits(self, ids: Sequence[int]) -> bool:  # whether the model reads these ids as they are
        return self._encoder.fits(ids)
