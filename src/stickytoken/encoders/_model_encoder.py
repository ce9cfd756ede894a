"""Base class of encoders of torch models: tracks changes of the model, and checks inputs."""

from __future__ import annotations

import copy
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders._tokenizer import HuggingFaceTokenizer, vocabulary_size
from stickytoken.encoders.compute import batches, linear
from stickytoken.encoders.compute.model_state import computing, exclusive, weight_mark, weights_fingerprint
from stickytoken.encoders.protocol import EncoderIdentity, require_usable, shown, texts_of
from stickytoken.errors import InputError
from stickytoken.machine import Precision
from stickytoken.unit_vectors import unit_vectors

if TYPE_CHECKING:
    from stickytoken.encoders.loading.resolution import EncoderSpec

Content = tuple[int, ...]
_LOG = logging.getLogger(__name__)
_SAMPLED, _IN_A_ROW, _COPIES = 512, 8, 8


class ModelEncoder(ABC):
    """An encoder of a torch model that belongs to the user, who may change it at any time.

    The encoder keeps what it has read from the model (tokenizer, special tokens, lengths) and what it has
    computed from the weights (lower precisions, trials). Every `encode` compares cheap marks:
    versions and addresses of the weights, the size of the vocabulary, prompt and longest input. `identity`
    compares everything, so each run begins with the model as it is.
    """

    # What `_read` sets.
    own_tokenizer: HuggingFaceTokenizer  # a copy of the user's
    entries_tokenizer: HuggingFaceTokenizer  # the same, or one that encodes entries as in a prompt
    max_length: int | None  # in tokens, including special tokens
    dimension: Any

    normalizes = False  # whether vectors are scaled to length 1
    _from_weights: ClassVar[tuple[str, ...]] = ("dimension", "_samples")

    def __init__(
        self, network: torch.nn.Module, name: str, precision: Precision | None, packed_layers: bool | None
    ) -> None:
        if precision is not None:
            batches.require_precision(network, precision, name)
        self.name = name
        self.spec: EncoderSpec | None = None  # of a model that was loaded by name
        self._network, self._precision, self._packed_layers = network, precision, packed_layers
        self._lower: dict[Precision, Self] = {}
        self._weights_hash: str | None = None
        self._weights_marks = self._marks_of_weights()
        self._read()
        self._input_marks = self._marks_of_inputs()
        if precision is None:
            with exclusive(network):
                _ = self._arithmetic  # now, so that a warning comes when the model is loaded

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name} on {self.device}>"

    # What subclasses provide, beside the parts of `IdEncoder`.

    device: Any
    dtype: Any  # of the weights
    user_tokenizer: Any

    @abstractmethod
    def _read(self) -> None:
        """Read the tokenizer, the special tokens and the lengths from the user's model."""

    @abstractmethod
    def _settings(self) -> tuple[object, ...]:
        """List settings of the user's model that `_read` depends on; cheap."""

    @abstractmethod
    def _modules_and_prompt(self) -> tuple[str, str]: ...  # a hash of the modules, for the identity

    @abstractmethod
    def _vectors(self, contents: Sequence[Content]) -> NDArray[np.float32]: ...  # of distinct contents

    @abstractmethod
    def _run(self, contents: Sequence[Content]) -> None: ...  # every layer on every token

    @abstractmethod
    def content_ids(self, texts: Sequence[str]) -> list[list[int]]: ...

    @abstractmethod
    def fits(self, ids: Sequence[int]) -> bool: ...

    @abstractmethod
    def check_input(self, content: Content, label: Callable[[], str]) -> None:
        """Raise `EncodingError` where the model does not read these ids in full; ``label`` names the text."""

    @abstractmethod
    def usable_entries(self) -> list[int]: ...

    # What is the same for all.

    @property
    def tokenizer(self) -> HuggingFaceTokenizer:
        self._follow()
        return self.entries_tokenizer

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self._network.parameters())

    @property
    def identity(self) -> EncoderIdentity:
        with exclusive(self._network):
            weights = weights_fingerprint(self._network)
            if weights != self._weights_hash:
                self._forget()
                self._weights_hash = weights
            if HuggingFaceTokenizer(self.user_tokenizer).fingerprint != self.own_tokenizer.fingerprint:
                self._read_again()
            self._follow()
            modules, prompt = self._modules_and_prompt()
            return EncoderIdentity(
                weights=weights,
                tokenizer=self.own_tokenizer.fingerprint,
                modules=modules,
                prompt=prompt,
                dtype=self._precision or str(self.dtype).removeprefix("torch."),
                max_length=self.max_length,
                dimension=self.dimension,
            )

    def at(self, precision: Precision | None) -> Self:
        if precision is None or precision is self._precision:
            return self
        with exclusive(self._network):
            self._follow()
            if precision not in self._lower:
                batches.require_precision(self._network, precision, self.name)
                if not self._samples:
                    raise InputError(
                        f"{self.name} reads too few tokens to compare {precision} with its own: leave the "
                        "precision out"
                    )
                lower = self._changed(_precision=precision)
                exact, found = (each._vectors(self._samples) for each in (self, lower))
                center = self._center(exact)
                linear.require_agreement(exact - center, found - center, precision, self.name)
                self._lower[precision] = lower
            return self._lower[precision]

    def _changed(self, **settings: Any) -> Self:
        other = copy.copy(self)
        vars(other).update(settings, spec=None, _lower={}, _weights_hash=None)
        other._read()
        other._forget()
        other._input_marks = other._marks_of_inputs()
        if other._precision is not self._precision:
            vars(other).pop("_arithmetic", None)
        return other

    def encode(self, texts: Sequence[str], *, allow_zero: bool = False) -> NDArray[np.float32]:
        texts = texts_of(texts)
        return self._encode(self.content_ids(texts), texts, allow_zero=allow_zero)

    def encode_ids(self, ids: Sequence[Sequence[int]], *, allow_zero: bool = False) -> NDArray[np.float32]:
        return self._encode(ids, None, allow_zero=allow_zero)

    def _encode(
        self, ids: Sequence[Sequence[int]], texts: Sequence[str] | None, *, allow_zero: bool
    ) -> NDArray[np.float32]:
        # Equal inputs share one row: less work, and exactly equal vectors.
        rows: dict[Content, int] = {}
        places = [rows.setdefault(tuple(content), len(rows)) for content in ids]
        contents = list(rows)
        first = dict(zip(reversed(places), reversed(range(len(places))), strict=True))

        def label(row: int) -> str:
            return shown(texts[first[row]] if texts else self.own_tokenizer.decode_many([contents[row]])[0])

        self._follow()
        if not contents:
            return np.empty((0, self.dimension), np.float32)
        for row, content in enumerate(contents):
            self.check_input(content, partial(label, row))
        vectors = self._vectors(contents)
        require_usable(vectors, self.name, label, allow_zero=allow_zero)
        return (unit_vectors(vectors) if self.normalizes else vectors)[places]

    def _center(self, exact: NDArray[np.float32]) -> Any:  # a comparison of precisions must not count it
        del exact
        return np.float32(0)

    @cached_property
    def _arithmetic(self) -> batches.Arithmetic:
        wanted = self._packed_layers
        if wanted is None and (said := os.environ.get(linear.SWITCH, "").strip().lower()):
            wanted = said not in ("0", "false", "no", "off")
        packed = batches.arithmetic(self._network, self._precision, packed=wanted is not False)
        if wanted is not None or self._precision is not None:
            return packed
        contents = linear.trial_inputs(self._network, self._samples)
        if not contents:
            return packed
        # Linear layers are packed if that is faster here.
        plain = batches.arithmetic(self._network, None, packed=False)

        def trial(arithmetic: batches.Arithmetic) -> None:
            with computing(self._network), arithmetic():
                self._run(contents)

        trials = {"plain": partial(trial, plain), "packed": partial(trial, packed)}
        found = linear.measured(self._network, trials, batches.worker_count(self._network))
        pays = found["packed"] <= found["plain"]
        _LOG.info(
            "%s: linear layers %s, measured on this machine (%.3f s, otherwise %.3f s)",
            self.name,
            "have packed weights" if pays else "are torch's own",
            min(found.values()),
            max(found.values()),
        )
        return packed if pays else plain

    @cached_property
    def _samples(self) -> list[Content]:
        """Entries spread over the vocabulary in rows, alone and with copies of one, or of a special one."""
        entries = self.usable_entries()
        special = sorted(self.own_tokenizer.special_ids.intersection(entries))
        spread = entries[:: max(1, len(entries) // _SAMPLED)]
        rows = [tuple(spread[start : start + _IN_A_ROW]) for start in range(0, len(spread), _IN_A_ROW)]
        copied = [*(row[0] for row in rows), *special]
        copies = [(*rows[k % len(rows)], *(entry,) * _COPIES) for k, entry in enumerate(copied)]
        return [content for content in (*rows, *copies) if self.fits(content)]

    @property
    def _rounding(self) -> float:
        return torch.finfo(self.dtype).eps if self._precision is None else batches.ROUNDING[self._precision]

    # Changes of the user's model.

    def _follow(self) -> None:
        """Drop what was made of an earlier state of the model, where cheap marks show a change."""
        marks = self._marks_of_weights()
        if marks != self._weights_marks:
            with exclusive(self._network):
                self._weights_marks = marks
                self._forget()
        if self._marks_of_inputs() != self._input_marks:
            self._read_again()

    def _read_again(self) -> None:
        with exclusive(self._network):
            self._read()
            self._forget()
            self._input_marks = self._marks_of_inputs()

    def _forget(self) -> None:
        self._lower.clear()
        for name in self._from_weights:
            vars(self).pop(name, None)

    def _marks_of_weights(self) -> list[tuple[int, int]]:
        return [weight_mark(weight) for weight in self._network.parameters()]

    def _marks_of_inputs(self) -> tuple[object, ...]:
        tokenizer = self.user_tokenizer
        return (id(tokenizer), vocabulary_size(tokenizer), *self._settings())
