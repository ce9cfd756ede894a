"""Use any object with a method ``encode(texts)`` as an encoder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders._sentinels import SENTINELS, fingerprint_of
from stickytoken.encoders.checks import require_list, require_usable, shown
from stickytoken.encoders.protocol import EncoderIdentity
from stickytoken.encoders.tokenizing.tokenizer import adapted
from stickytoken.errors import EncodingError, ModelError
from stickytoken.insertion import TokenizedText
from stickytoken.vocabulary.categories import RoundTripTokenizer


class TextModel(Protocol):
    """What `load_encoder` accepts besides models: a class with this one method.

    Optional attributes:

    - ``name``: name used in messages and run folders; the default is the name of its class.
    - ``tokenizer``: of transformers or the tokenizers library, or a `RoundTripTokenizer`. Without one the
      vocabulary is unknown, so there is nothing to look for sticky tokens in.
    - ``max_length``: longest input in tokens, special tokens included; texts beyond it are refused.
    - ``device``: where it computes.
    - ``fingerprint``: a string that changes whenever the vectors change, such as a version or a hash of the
      weights; it identifies runs. Without one, the vectors of six fixed texts do, rounded to four decimals.
      These can differ between machines, and then a run cannot be continued on another one.
    """

    def encode(self, texts: Sequence[str]) -> Any:
        """Return one vector per text: an array of shape (n, d), or rows that NumPy can stack."""


TextFunction: TypeAlias = Callable[[list[str]], Any]
"""Takes n texts, returns n vectors."""


class FunctionModel:
    """A function from texts to vectors as a `TextModel`.

    Args:
        function: takes a list of n texts, returns n vectors.
        tokenizer: see `TextModel`.
        max_length: see `TextModel`.
    """

    def __init__(self, function: TextFunction, tokenizer: Any = None, max_length: int | None = None) -> None:
        self._function = function
        self.name = str(getattr(function, "__name__", None) or type(function).__name__)
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.fingerprint = getattr(function, "fingerprint", None)

    def encode(self, texts: Sequence[str]) -> Any:
        """Return one vector per text."""
        return self._function(list(texts))


class TextEncoder:
    """Encodes through a `TextModel`.

    Args:
        model: any object with ``encode(texts)``.
    """

    def __init__(self, model: Any) -> None:
        _require_encode(model)
        self._model = model
        self.name = str(getattr(model, "name", None) or type(model).__name__)
        self.device = str(getattr(model, "device", None) or "cpu")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name} on {self.device}>"

    @property
    def model(self) -> Any:
        """The user's object."""
        return self._model

    @property
    def max_length(self) -> int | None:
        """Longest input in tokens, special tokens included; None is no limit."""
        length = getattr(self._model, "max_length", None)
        return None if length is None else int(length)

    @cached_property
    def dimension(self) -> int:
        """Number of components of a vector."""
        return int(self._vectors(SENTINELS[:1]).shape[1])

    @property
    def identity(self) -> EncoderIdentity:
        """What can change the vectors, as far as the object reveals it."""
        for derived in ("dimension", "tokenizer", "_special_tokens"):
            vars(self).pop(derived, None)  # the user's object may have changed
        kind = type(self._model)
        tokenizer = None if self._given_tokenizer is None else self.tokenizer
        return EncoderIdentity(
            weights=self._fingerprint(),
            tokenizer=vocabulary_hash(tokenizer),
            modules=_sha256(f"{kind.__module__}.{kind.__qualname__}"),
            prompt="",
            dtype="float32",
            max_length=self.max_length,
            dimension=self.dimension,
        )

    @cached_property
    def tokenizer(self) -> RoundTripTokenizer:
        """The tokenizer, for the vocabulary."""
        if self._given_tokenizer is None:
            raise ModelError(
                f"{self.name} has no tokenizer, so its vocabulary is unknown: give the "
                f"{type(self._model).__name__} an attribute `tokenizer` (of transformers or tokenizers)"
            )
        try:
            return adapted(self._given_tokenizer)
        except ModelError as error:
            raise ModelError(f"the tokenizer of {self.name} cannot be used: {error}") from error

    def content_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text without special tokens."""
        return self.tokenizer.encode_many(texts)

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Return the content ids of each text by word; without offsets, each id is a word."""
        split = getattr(self.tokenizer, "tokenize", None)
        if split is not None:
            found: list[TokenizedText] = split(texts)
            return found
        return [TokenizedText((), tuple((token_id,) for token_id in ids)) for ids in self.content_ids(texts)]

    def fits(self, ids: Sequence[int]) -> bool:
        """Return whether the ids and the special tokens fit into the longest input."""
        return self.max_length is None or len(ids) + self._special_tokens <= self.max_length

    def encode(self, texts: Sequence[str], *, allow_zero: bool = False) -> NDArray[np.float32]:
        """Encode texts; see `Encoder.encode`."""
        require_list(texts)
        # Equal texts share one row: less work, and exactly equal vectors.
        rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        distinct = list(rows)
        if not distinct:
            return np.empty((0, self.dimension), np.float32)
        self._require_fitting(distinct)
        vectors = self._vectors(distinct)
        require_usable(vectors, self.name, lambda row: shown(distinct[row]), allow_zero=allow_zero)
        return vectors[[rows[text] for text in texts]]

    def _require_fitting(self, texts: Sequence[str]) -> None:
        if self.max_length is None or self._given_tokenizer is None:
            return
        if getattr(self.tokenizer, "estimates", False):  # the server knows better what it reads
            return
        for text, ids in zip(texts, self.content_ids(texts), strict=True):
            if not self.fits(ids):
                raise EncodingError(
                    f"{self.name}: the text {shown(text)} has {len(ids) + self._special_tokens} tokens, the "
                    f"model reads {self.max_length}: use shorter sentences or fewer copies"
                )

    def _vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Call the user's method and return its vectors, shape (n, d)."""
        found = self._model.encode(list(texts))
        if hasattr(found, "detach"):  # a torch tensor, which may have a gradient or be on a GPU
            found = found.detach().float().cpu()
        try:
            vectors = np.asarray(found, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise EncodingError(
                f"{self.name}: encode returned a {type(found).__name__} that is not an array of numbers "
                f"({error}): return one vector per text, all of the same length"
            ) from error
        if vectors.ndim != 2 or len(vectors) != len(texts) or not vectors.shape[1]:
            raise EncodingError(
                f"{self.name}: encode returned an array of shape {vectors.shape} for {len(texts)} texts: "
                "return one vector per text, shape (n, d)"
            )
        return vectors

    def _fingerprint(self) -> str:
        given = getattr(self._model, "fingerprint", None)
        if given is not None:
            return _sha256(str(given() if callable(given) else given))
        return fingerprint_of(self._vectors(SENTINELS))

    @property
    def _given_tokenizer(self) -> Any:
        return getattr(self._model, "tokenizer", None)

    @cached_property
    def _special_tokens(self) -> int:
        """Number of special tokens around a text; 0 if the tokenizer does not report it."""
        added = getattr(self._given_tokenizer, "num_special_tokens_to_add", None)
        if added is None:
            return 0
        try:
            return int(added())
        except TypeError:  # that of the tokenizers library asks whether it is for a pair
            return int(added(False))


def _require_encode(model: Any) -> None:
    if isinstance(model, type):
        raise ModelError(f"{model.__name__} is a class: pass an object of it, {model.__name__}(...)")
    if not callable(getattr(model, "encode", None)):
        raise ModelError(
            f"an object of type {type(model).__name__} is not an encoder: it lacks the method encode(texts). "
            "Pass the name of a model, a SentenceTransformer, or an object with that method"
        )


def vocabulary_hash(tokenizer: RoundTripTokenizer | None) -> str:
    """Return the fingerprint of a tokenizer; of one without, the hash of its vocabulary."""
    given: str = getattr(tokenizer, "fingerprint", "")
    return given or _sha256("" if tokenizer is None else repr(sorted(tokenizer.entries.items())))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
