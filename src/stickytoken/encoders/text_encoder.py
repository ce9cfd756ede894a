"""Encoders for objects that have an ``encode(texts)`` method."""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders import protocol
from stickytoken.encoders.inputs.lengths import NO_LIMIT
from stickytoken.encoders.inputs.tokenizer import adapt
from stickytoken.encoders.protocol import Encoder, EncoderIdentity, IdReader, WordEncoder, quote_text
from stickytoken.encoders.roles import Role, in_role
from stickytoken.errors import EncodingError, InputError, ModelError
from stickytoken.insertion import TokenizedText
from stickytoken.unit_vectors import exact_unit_vectors
from stickytoken.vocabulary import CandidateTokenizer, RoundTripTokenizer

# The fixed texts whose vectors identify a model that has no fingerprint.
SENTINELS = (
    "a",
    "The river is cold in winter.",
    "She paid 42.50 for two tickets!",
    "Ein alter Baum steht am Ufer.",
    "https://example.org/a?b=c",
    "the the the the the the the the",
)


def fingerprint_of(vectors: NDArray[np.float32]) -> str:
    """Return a hash of the vectors, scaled to length 1 and rounded to four decimals."""
    rounded = exact_unit_vectors(vectors).round(4)
    positive_zeros = rounded + 0.0  # -0.0 and 0.0 have different bytes
    return hashlib.sha256(positive_zeros.tobytes()).hexdigest()


class TextModel(Protocol):
    """An object that `load_encoder` accepts as a model. Only the `encode` method is required.

    Optional attributes:

    - ``name``: name of the model in messages and run folders; the default is the name of the class.
    - ``tokenizer``: a tokenizer of transformers or the tokenizers library, or a `RoundTripTokenizer`. Without
      a tokenizer, the vocabulary is unknown, so there are no tokens to examine.
    - ``max_length``: maximum input length in tokens, including special tokens; a longer text is an error. The
      default is the ``model_max_length`` of the tokenizer, if it has one.
    - ``device``: device on which the model computes.
    - ``encode_query`` and ``encode_document``: encode queries and documents, if they differ from other texts.
      One without the other is enough.
    - ``fingerprint``: a string that changes whenever the vectors change, such as a version or a hash of the
      weights. A run records the fingerprint of its model, and can be resumed only with the same fingerprint.
      If the model has no fingerprint, a hash of the vectors of six fixed texts, rounded to four decimals, is
      used as its fingerprint. The vectors of a model can differ between machines, so a run without a
      fingerprint may not be resumable on another machine.
    """

    def encode(self, texts: Sequence[str]) -> Any: ...


TextFunction: TypeAlias = Callable[[list[str]], Any]
"""A function from n texts to n vectors."""


class FunctionModel:
    """Wraps a function from texts to vectors as a `TextModel`."""

    def __init__(self, function: TextFunction, tokenizer: Any = None, max_length: int | None = None) -> None:
        self._function = function
        self.name = str(getattr(function, "__name__", None) or type(function).__name__)
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.fingerprint = getattr(function, "fingerprint", None)

    def encode(self, texts: Sequence[str]) -> Any:
        return self._function(list(texts))


class TextEncoderBase(ABC):
    """What the encoders of objects and of endpoints share. They differ in where the vectors come from.

    Attributes:
        name: name of the model.
        device: where the model computes.
        truncate_dim: keep only this many leading components of each vector; if None, keep all.
    """

    def __init__(self, name: str, device: str, truncate_dim: int | None) -> None:
        self.name = name
        self.device = device
        self.truncate_dim = truncate_dim

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name} on {self.device}>"

    @property
    @abstractmethod
    def max_length(self) -> int | None: ...

    @property
    @abstractmethod
    def dimension(self) -> int: ...

    @property
    @abstractmethod
    def tokenizer(self) -> RoundTripTokenizer: ...

    @property
    @abstractmethod
    def _model_tokenizer(self) -> Any:
        """The tokenizer as the user passed it; None if there is none."""

    @abstractmethod
    def _vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of distinct texts before truncation, shape (n, components)."""

    def content_ids(self, texts: Sequence[str]) -> list[list[int]]:
        return self.tokenizer.encode_many(texts)

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        if hasattr(self.tokenizer, "tokenize"):  # as `HuggingFaceTokenizer` has
            tokenized: list[TokenizedText] = self.tokenizer.tokenize(texts)
            return tokenized
        # The tokenizer does not report words, so every token counts as a word.
        tokenized = []
        for ids in self.content_ids(texts):
            words = tuple((token_id,) for token_id in ids)
            tokenized.append(TokenizedText(head=(), words=words))
        return tokenized

    def fits(self, ids: Sequence[int]) -> bool:
        return self.max_length is None or len(ids) + self._special_token_count <= self.max_length

    def encode(self, texts: Sequence[str], *, allow_zero: bool = False) -> NDArray[np.float32]:
        texts = protocol.texts_of(texts)
        # Equal texts share one row, which saves work and makes their vectors exactly equal.
        distinct_texts = list(dict.fromkeys(texts))
        if not distinct_texts:
            return np.empty((0, self.dimension), np.float32)
        self._require_fitting(distinct_texts)
        vectors = self._vectors(distinct_texts)[:, : self.truncate_dim]
        self._require_usable(vectors, distinct_texts, allow_zero=allow_zero)
        row_of = {text: row for row, text in enumerate(distinct_texts)}
        return vectors[[row_of[text] for text in texts]]

    def _require_fitting(self, texts: Sequence[str]) -> None:
        if self.max_length is None or self._model_tokenizer is None:  # there is no limit, or no way to count
            return
        if isinstance(self.tokenizer, CandidateTokenizer):  # this tokenizer only estimates numbers of tokens
            return
        for text, ids in zip(texts, self.content_ids(texts), strict=True):
            if not self.fits(ids):
                length = len(ids) + self._special_token_count
                raise EncodingError(
                    f"{self.name}: the text {quote_text(text)} has {length} tokens, "
                    f"but the model reads {self.max_length} (max_length): use shorter sentences or fewer "
                    "copies"
                )

    def _require_usable(
        self, vectors: NDArray[np.float32], texts: Sequence[str], *, allow_zero: bool
    ) -> None:
        protocol.require_usable(vectors, self.name, lambda row: quote_text(texts[row]), allow_zero=allow_zero)

    @cached_property
    def _special_token_count(self) -> int:
        count_special_tokens = getattr(self._model_tokenizer, "num_special_tokens_to_add", None)
        if count_special_tokens is None:
            return 0  # unknown
        try:
            return int(count_special_tokens())
        except TypeError:  # the tokenizers library requires an argument, whether the input is a pair
            return int(count_special_tokens(False))


# If no component of two unit vectors differs by more, they differ only by rounding errors.
_ROUNDING = 1e-6

# Methods of a user's object, keyed by role.
_ENCODE_METHODS = {None: "encode", Role.QUERY: "encode_query", Role.DOCUMENT: "encode_document"}


class TextEncoder(TextEncoderBase):
    """The encoder of a `TextModel`."""

    def __init__(self, model: Any, truncate_dim: int | None = None) -> None:
        """Wrap an object that has an `encode` method.

        Args:
            model: the object; see `TextModel`.
            truncate_dim: keep only this many leading components of each vector; if None, keep all.

        Raises:
            ModelError: the model is a class, or has no `encode` method.
            InputError: the model's vectors have fewer components than `truncate_dim`.
        """
        if isinstance(model, type):
            raise ModelError(f"{model.__name__} is a class: pass an instance of it, {model.__name__}(...)")
        if not callable(getattr(model, "encode", None)):
            raise ModelError(
                f"an object of type {type(model).__name__} is not an encoder: it lacks the method "
                "encode(texts). Pass the name of a model, a SentenceTransformer, or an object with that "
                "method"
            )
        name = str(getattr(model, "name", None) or type(model).__name__)
        device = str(getattr(model, "device", None) or "cpu")
        super().__init__(name, device, truncate_dim)
        self.model = model
        self.role: Role | None = None
        if truncate_dim is not None:
            require_components(truncate_dim, self._vectors(SENTINELS[:1]).shape[1], self.name)

    def in_role(self, role: Role | None) -> Encoder:
        """Return the encoder of texts in a role, if the object encodes them by a method of their own."""
        if not callable(getattr(self.model, _ENCODE_METHODS[role], None)):
            role = None
        if role is self.role:
            return self
        other = copy.copy(self)
        other.role = role
        return other

    @property
    def max_length(self) -> int | None:
        length = getattr(self.model, "max_length", None)
        if length is None:
            length = getattr(self._model_tokenizer, "model_max_length", None)
        return None if length is None or length >= NO_LIMIT else int(length)

    @cached_property
    def dimension(self) -> int:
        return int(self._vectors(SENTINELS[:1])[:, : self.truncate_dim].shape[1])

    def identify(self) -> EncoderIdentity:
        self._forget_derived()  # the user's object may have changed
        model_type = type(self.model)
        # If the model has no tokenizer, the identity has the hash of no tokenizer.
        tokenizer = None if self._model_tokenizer is None else self.tokenizer
        return EncoderIdentity(
            weights=self._weights_hash(),
            tokenizer=vocabulary_hash(tokenizer),
            modules=_sha256(f"{model_type.__module__}.{model_type.__qualname__}{self.role or ''}"),
            prompt="",
            dtype="float32",
            max_length=self.max_length,
            dimension=self.dimension,
        )

    def _weights_hash(self) -> str:
        fingerprint = getattr(self.model, "fingerprint", None)
        if fingerprint is None:  # a hash of the vectors of fixed texts is used instead
            return fingerprint_of(self._vectors(SENTINELS))
        if callable(fingerprint):
            fingerprint = fingerprint()
        return _sha256(str(fingerprint))

    def _forget_derived(self) -> None:
        # Cached properties, which are computed again from the user's object.
        for name in ("dimension", "tokenizer", "_special_token_count"):
            vars(self).pop(name, None)

    @cached_property
    def tokenizer(self) -> RoundTripTokenizer:
        if self._model_tokenizer is None:
            raise ModelError(
                f"{self.name} has no tokenizer, so its vocabulary is unknown: give the "
                f"{type(self.model).__name__} a `tokenizer` attribute (of transformers or tokenizers)"
            )
        try:
            return adapt(self._model_tokenizer)
        except ModelError as error:
            raise ModelError(f"the tokenizer of {self.name} cannot be used: {error}") from error

    def _vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of the given texts before truncation, shape (n, components).

        Raises:
            EncodingError: the model's `encode` does not return exactly one vector per text.
        """
        encode = getattr(self.model, _ENCODE_METHODS[self.role])
        output = encode(list(texts))
        if hasattr(output, "detach"):  # a torch tensor, which may have a gradient or be on a GPU
            output = output.detach().float().cpu()
        try:
            vectors = np.asarray(output, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise EncodingError(
                f"{self.name}: encode returned a {type(output).__name__} that is not an array of numbers "
                f"({error}): return one vector per text, all of the same length"
            ) from error
        if vectors.ndim != 2 or len(vectors) != len(texts) or not vectors.shape[1]:
            raise EncodingError(
                f"{self.name}: encode returned an array of shape {vectors.shape} for {len(texts)} texts: "
                "return one vector per text, shape (n, d)"
            )
        return vectors

    @property
    def _model_tokenizer(self) -> Any:
        return getattr(self.model, "tokenizer", None)


def require_components(truncate_dim: int, components: int, name: str) -> None:
    """Check that vectors have at least `truncate_dim` components.

    Raises:
        InputError: `truncate_dim` exceeds the number of components.
    """
    if truncate_dim > components:
        raise InputError(
            f"truncate_dim is {truncate_dim}, but the vectors of {name} have {components} components: pass 1 "
            f"to {components}"
        )


# Number of words that are appended to the longest text to see whether the model reads them.
_APPENDED_WORDS = 8


def require_whole_texts_read(encoder: Encoder, texts: Sequence[str]) -> None:
    """Check that a user's object reads the longest of some texts to its end, where copies may stand.

    A server isn't asked, because it may charge for each text.

    Raises:
        ModelError: appended words do not change the vector of the longest text.
    """
    distinct_texts = sorted(set(texts), key=len)
    if not isinstance(encoder, TextEncoder) or len(distinct_texts) < 2:
        return
    *_, other, longest = distinct_texts
    # Words of another text, because those of a fixed one may be unknown to the model.
    longer = " ".join([longest, *other.split()[:_APPENDED_WORDS]])
    if not encoder.fits(encoder.content_ids([longer])[0]):
        return
    vectors = exact_unit_vectors(encoder.encode([longest, longer]))
    if np.abs(vectors[0] - vectors[1]).max() > _ROUNDING:
        return
    raise ModelError(
        f"{encoder.name} reads only the beginning of a long text, so it would not see copies behind one: say "
        "how many tokens it reads, as max_length of load_encoder or of the object"
    )


def vocabulary_hash(tokenizer: RoundTripTokenizer | None) -> str:
    """Return the tokenizer's own fingerprint, or else a hash of its entries.

    If there is no tokenizer, the result is always the same hash.
    """
    if tokenizer is None:
        return _sha256("")
    fingerprint: str = getattr(tokenizer, "fingerprint", "")
    if fingerprint:
        return fingerprint
    return _sha256(repr(sorted(tokenizer.entries.items())))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def as_id_reader(encoder: Encoder, purpose: str) -> IdReader:
    """Return the encoder if it reads token ids; otherwise wrap it so that ids are decoded to text.

    Args:
        encoder: any encoder.
        purpose: name of the command or analysis that needs token ids, as the subject of error messages.

    Raises:
        ModelError: the encoder has only candidates instead of a tokenizer, or no `tokenize` method.
    """
    if protocol.reads_ids(encoder):
        return encoder
    if isinstance(encoder.tokenizer, CandidateTokenizer):
        raise ModelError(
            f"{purpose} needs to tokenize texts, but {encoder.name} was loaded with candidates instead of a "
            "tokenizer: load it with its tokenizer"
        )
    return DecodedEncoder(protocol.require_words(encoder, purpose))


class DecodedEncoder(protocol.EncoderWrapper[WordEncoder]):
    """Makes an encoder of texts accept token ids, by decoding them to text.

    In rare cases, the decoded text is tokenized to ids that differ from the ids that were passed.
    """

    def in_role(self, role: Role | None) -> DecodedEncoder:
        of_role = in_role(self._encoder, role)
        return self if of_role is self._encoder else DecodedEncoder(of_role)

    def encode(self, texts: Sequence[str], *, allow_zero: bool = False) -> NDArray[np.float32]:
        return self._encoder.encode(texts, allow_zero=allow_zero)

    def encode_ids(self, ids: Sequence[Sequence[int]], *, allow_zero: bool = False) -> NDArray[np.float32]:
        texts = [self._decode_without_prompt(content) for content in ids]
        return self._encoder.encode(texts, allow_zero=allow_zero)

    @cached_property
    def _prompt_ids(self) -> list[int]:
        return self._encoder.content_ids([""])[0]  # the content of an empty text is the prompt

    def _decode_without_prompt(self, content: Sequence[int]) -> str:
        # Returns the text of content ids without the prompt, which the wrapped encoder adds itself. If the
        # last token of the prompt has merged with the start of the text, it counts as part of the text.
        prompt_length = 0  # number of ids that belong to the prompt
        for content_id, prompt_id in zip(content, self._prompt_ids, strict=False):
            if content_id != prompt_id:
                break
            prompt_length += 1
        # The decoded text may be tokenized to more ids than the model reads. So ids are left out at the end
        # until the text fits.
        for end in range(len(content), prompt_length, -1):
            (text,) = self.tokenizer.decode_many([list(content[prompt_length:end])])
            if prompt_length > 0:  # the space between prompt and text belongs to the prompt
                text = text.lstrip()
            if self.fits(self.content_ids([text])[0]):
                return text
        return ""
