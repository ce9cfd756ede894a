"""The base class of encoders of torch models, which belong to the user and may change at any time."""

from __future__ import annotations

import copy
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders import compute
from stickytoken.encoders.compute import precisions
from stickytoken.encoders.inputs.tokenizer import HuggingFaceTokenizer, vocabulary_size
from stickytoken.encoders.protocol import Capabilities, EncoderIdentity, quote_text, require_usable, texts_of
from stickytoken.errors import EncodingError, InputError
from stickytoken.insertion import TokenizedText
from stickytoken.machine import Precision
from stickytoken.unit_vectors import unit_vectors

if TYPE_CHECKING:
    from stickytoken.encoders.files.spec import EncoderSpec

Content = tuple[int, ...]
Derived = TypeVar("Derived")

# Sample inputs show whether a faster way to compute gives the same vectors. The three constants are the
# number of vocabulary entries in the sample, the number of entries per input, and the number of copies that
# are added to some inputs.
_SAMPLED_ENTRIES = 512
_ENTRIES_IN_A_ROW = 8
_COPIES = 8


class ModelEncoder(ABC):
    """An encoder of a torch model that belongs to the user, who may change it at any time.

    The encoder caches what it reads from the model (tokenizer, special tokens, lengths) and what depends on
    the weights (dimension, encoders at lower precisions, whether faster ways to compute are exact). Every
    call of `encode` checks for changes that are cheap to detect: addresses and versions of the weights, the
    size of the vocabulary, the prompt, the maximum input length and the pooling. `identify`, which every run
    calls, detects all changes to the model that can change the vectors.

    Attributes:
        user_tokenizer: the tokenizer that the user's model has now.
        own_tokenizer: a copy of the tokenizer that the user's model had when it was last read.
        entries_tokenizer: `own_tokenizer`, or a tokenizer that encodes vocabulary entries as part of a
            prompt.
        max_length: maximum input length in tokens, including special tokens; None if there is no limit.
        normalizes: whether vectors are scaled to length 1.
        spec: the model name and options needed to load the encoder again; None if it was made from a
            model object or another encoder.
    """

    own_tokenizer: HuggingFaceTokenizer
    entries_tokenizer: HuggingFaceTokenizer
    max_length: int | None
    user_tokenizer: Any
    normalizes = False

    def __init__(self, network: torch.nn.Module, name: str, precision: Precision | None) -> None:
        """Read the model's tokenizer, template and maximum input length, and choose the arithmetic.

        Args:
            network: the torch model.
            name: name of the model, as the user gave it.
            precision: precision of the arithmetic, which must be lower than the precision of the weights; if
                None, the precision of the weights.
        """
        if precision is not None:
            precisions.require_precision(network, precision, name)
        self.name = name
        self.spec: EncoderSpec | None = None
        self._network = network
        self._precision = precision
        # Cached values that depend on the weights, keyed by name. A new dict replaces this one when the
        # weights change.
        self._derived: dict[str, Any] = {}
        self._weights_hash: str | None = None
        # The state of the model when it was last read. Later calls compare this with the current state, to
        # find out whether the user has changed the model.
        self._known_weight_versions = self._weight_versions()
        self._configure()
        self._known_input_settings = self._input_settings()
        self._arithmetic = precisions.arithmetic(network, precision)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name} on {self.device}>"

    # Abstract members, which subclasses provide.

    @property
    @abstractmethod
    def device(self) -> str: ...

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Data type of the weights."""

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]: ...

    @abstractmethod
    def content_ids(self, texts: Sequence[str]) -> list[list[int]]: ...

    @abstractmethod
    def fits(self, ids: Sequence[int]) -> bool: ...

    @abstractmethod
    def check_input(self, content: Content, label: Callable[[], str]) -> None:
        """Raise an `EncodingError` if the model cannot read these content ids; `label` returns their text."""

    @abstractmethod
    def usable_entries(self) -> list[int]:
        """Return the ids of the vocabulary entries that the model has an embedding for."""

    @abstractmethod
    def _configure(self) -> None:
        """Set `own_tokenizer`, `entries_tokenizer`, `max_length` and private state from the user's model."""

    @abstractmethod
    def _settings(self) -> tuple[object, ...]:
        """Return the settings that `_configure` reads from the user's model and that are cheap to compare."""

    @abstractmethod
    def _modules_hash_and_prompt(self) -> tuple[str, str]:
        """Return a hash of the modules, and the text of the prompt, for the identity."""

    @abstractmethod
    def _measure_dimension(self) -> int:
        """Return the number of components in each vector."""

    @abstractmethod
    def _vectors(self, contents: Sequence[Content]) -> NDArray[np.float32]:
        """Return the vectors of distinct inputs, shape (n, d), computed in the fastest available way."""

    # Members that all subclasses share.

    @property
    def tokenizer(self) -> HuggingFaceTokenizer:
        self._apply_model_changes()
        return self.entries_tokenizer

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(spec=self.spec, parameters=self.parameters)

    @property
    def dimension(self) -> int:
        return self._derive_once("dimension", self._measure_dimension)

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(parameter.numel() for parameter in self._network.parameters())

    def identify(self) -> EncoderIdentity:
        """Fingerprint the user's model as it is now: everything that can change its vectors."""
        with compute.model_lock(self._network):
            weights_hash = self._apply_all_model_changes()
            modules, prompt = self._modules_hash_and_prompt()
            return EncoderIdentity(
                weights=weights_hash,
                tokenizer=self.own_tokenizer.fingerprint,
                modules=modules,
                prompt=prompt,
                dtype=self._precision or str(self.dtype).removeprefix("torch."),
                max_length=self.max_length,
                dimension=self.dimension,
            )

    def at(self, precision: Precision | None) -> Self:
        """Return an encoder that computes at a lower precision; it is made once and then kept."""
        if precision is None or precision is self._precision:
            return self
        with compute.model_lock(self._network):
            self._apply_model_changes()
            return self._derive_once(f"at {precision}", partial(self._make_at_lower_precision, precision))

    def _make_at_lower_precision(self, precision: Precision) -> Self:
        precisions.require_precision(self._network, precision, self.name)
        if not self._samples:
            raise InputError(
                f"{self.name} reads too few tokens to compare {precision} with its own precision: leave the "
                "precision out"
            )
        lower = self._copy()
        lower._precision = precision
        lower._arithmetic = precisions.arithmetic(self._network, precision)
        lower._reset()  # makes a runner for `lower`, because its copy has the runner of `self`
        exact_vectors = self._vectors(self._samples)
        lower_vectors = lower._vectors(self._samples)
        center = self._center(exact_vectors)
        precisions.require_agreement(exact_vectors - center, lower_vectors - center, precision, self.name)
        return lower

    def _copy(self) -> Self:
        other = copy.copy(self)
        other.spec = None  # the spec would load this encoder, not one with a lower precision
        other._weights_hash = None
        other._derived = {}
        return other

    def _reset(self) -> None:
        self._configure()
        self._forget_derived()
        self._known_input_settings = self._input_settings()

    def encode(self, texts: Sequence[str], *, allow_zero: bool = False) -> NDArray[np.float32]:
        texts = texts_of(texts)
        return self._encode(self.content_ids(texts), texts, allow_zero=allow_zero)

    def encode_ids(self, ids: Sequence[Sequence[int]], *, allow_zero: bool = False) -> NDArray[np.float32]:
        return self._encode(ids, None, allow_zero=allow_zero)

    def _encode(
        self, ids: Sequence[Sequence[int]], texts: Sequence[str] | None, *, allow_zero: bool
    ) -> NDArray[np.float32]:
        """Return the vectors of inputs, shape (n, d).

        ``ids`` has the content ids of each input, and ``texts`` its text, for messages; None if the caller
        passed only ids.
        """
        # Equal inputs share one row, which saves work and makes their vectors exactly equal. Each input that
        # did not occur before gets the next row.
        row_of: dict[Content, int] = {}
        rows = [row_of.setdefault(tuple(content), len(row_of)) for content in ids]
        contents = list(row_of)  # the distinct inputs, in the order of the rows

        def label(row: int) -> str:
            """Return the text of a row, for a message; if only ids were passed, the decoded ids."""
            if texts:
                return quote_text(texts[rows.index(row)])
            return quote_text(self.own_tokenizer.decode_many([contents[row]])[0])

        self._apply_model_changes()
        if not contents:
            return np.empty((0, self.dimension), np.float32)
        self._check_inputs(contents, label)
        vectors = self._vectors(contents)
        require_usable(vectors, self.name, label, allow_zero=allow_zero)
        if self.normalizes:
            vectors = unit_vectors(vectors)
        return vectors[rows]

    def _check_inputs(self, contents: Sequence[Content], label: Callable[[int], str]) -> None:
        """Raise an `EncodingError` if the model cannot read one of the inputs.

        Whether the model can read an input depends only on the length of the input, and on its smallest and
        largest id. So the inputs with the smallest and largest length and id are checked in place of all
        inputs, because a loop over all of them is slow while a GPU waits.
        """
        lengths = np.fromiter(map(len, contents), np.intp, len(contents))
        extreme_rows = {int(lengths.argmin()), int(lengths.argmax())}
        ids = np.fromiter(itertools.chain.from_iterable(contents), np.int64, int(lengths.sum()))
        if ids.size:
            ends = lengths.cumsum()  # index in `ids` after the last id of each input
            for index in (ids.argmin(), ids.argmax()):
                extreme_rows.add(int(np.searchsorted(ends, index, side="right")))
        try:
            for row in extreme_rows:
                self.check_input(contents[row], partial(label, row))
        except EncodingError:  # at least one input is unreadable: name the first of them
            for row, content in enumerate(contents):
                self.check_input(content, partial(label, row))
            raise

    def _center(self, exact_vectors: NDArray[np.float32]) -> Any:
        """Return what to subtract from all vectors before the vectors of two precisions are compared.

        It is 0 here. An encoder whose vectors are all nearly the same returns their mean, because what all
        vectors share agrees at every precision.
        """
        del exact_vectors
        return np.float32(0)

    @property
    def _samples(self) -> list[Content]:
        return self._derive_once("samples", self._choose_samples)

    def _choose_samples(self) -> list[Content]:
        """Return content ids of sample inputs, on which two ways to compute vectors are compared.

        They are rows of vocabulary entries, without copies and followed by copies of one entry.
        """
        entries = self.usable_entries()
        special = sorted(self.own_tokenizer.special_ids.intersection(entries))
        sampled_entries = entries[:: max(1, len(entries) // _SAMPLED_ENTRIES)]
        plain_inputs = [
            tuple(sampled_entries[start : start + _ENTRIES_IN_A_ROW])
            for start in range(0, len(sampled_entries), _ENTRIES_IN_A_ROW)
        ]
        # First, each plain input is followed by copies of its own first entry. Then, the plain inputs are
        # used again, from the first on, each followed by copies of one special token.
        copied_entries = [content[0] for content in plain_inputs] + special
        inputs_with_copies = []
        for content, entry in zip(itertools.cycle(plain_inputs), copied_entries, strict=False):
            inputs_with_copies.append(content + (entry,) * _COPIES)
        return [content for content in plain_inputs + inputs_with_copies if self.fits(content)]

    @property
    def _machine_epsilon(self) -> float:
        if self._precision is None:
            return torch.finfo(self.dtype).eps
        return precisions.ROUNDING[self._precision]

    # Detection of changes that the user makes to the model.

    def _derive_once(self, name: str, compute_value: Callable[[], Derived]) -> Derived:
        # Computes a value once for the current weights; `_forget_derived` drops it when the weights change.
        derived = self._derived  # a local name, since another thread may replace the attribute
        if name not in derived:
            derived[name] = compute_value()
        value: Derived = derived[name]
        return value

    def _apply_model_changes(self) -> None:
        """Drop cached values that changes of the user's model, if cheap to detect, have made obsolete.

        Every use of the model begins with this call.
        """
        weight_versions = self._weight_versions()
        if weight_versions != self._known_weight_versions:
            with compute.model_lock(self._network):
                self._known_weight_versions = weight_versions
                self._forget_derived()
        if self._input_settings() != self._known_input_settings:
            self._reconfigure()  # takes the lock, and sets `_known_input_settings`

    def _apply_all_model_changes(self) -> str:
        """Drop cached values that any change of the user's model has made obsolete.

        Return the fingerprint of the current weights.
        """
        weights_hash = compute.weights_fingerprint(self._network)
        if weights_hash != self._weights_hash:
            self._forget_derived()
            self._weights_hash = weights_hash
        # `_apply_model_changes` notices if the tokenizer has been replaced or its vocabulary size has
        # changed. Every change of the tokenizer shows in the fingerprints of `user_tokenizer`, which the
        # user's model has now, and of `own_tokenizer`, which was copied from it earlier.
        if HuggingFaceTokenizer(self.user_tokenizer).fingerprint != self.own_tokenizer.fingerprint:
            self._reconfigure()
        self._apply_model_changes()
        return weights_hash

    def _reconfigure(self) -> None:
        with compute.model_lock(self._network):
            self._reset()

    def _forget_derived(self) -> None:
        self._derived = {}

    def _weight_versions(self) -> list[tuple[int, int]]:
        return [compute.weight_version(weight) for weight in self._network.parameters()]

    def _input_settings(self) -> tuple[object, ...]:
        tokenizer = self.user_tokenizer
        return (id(tokenizer), vocabulary_size(tokenizer), *self._settings())
