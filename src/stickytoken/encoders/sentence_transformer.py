"""A SentenceTransformer as an encoder: equal-length batches through all its modules."""

from __future__ import annotations

import copy
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.arithmetic import ROUNDING, Arithmetic, arithmetic, require_precision
from stickytoken.encoders.batch_runner import BatchRunner
from stickytoken.encoders.checks import require_list, require_usable, shown
from stickytoken.encoders.cpu.calibration import calibration_inputs, require_agreement
from stickytoken.encoders.fingerprint import modules_fingerprint, weights_fingerprint
from stickytoken.encoders.lengths import maximum_length, set_maximum_length
from stickytoken.encoders.model_state import bounded_memory, evaluating
from stickytoken.encoders.prefixes.last_token_pooling import reads_last_token, tree_model
from stickytoken.encoders.prefixes.reuse import PrefixReuse, agree
from stickytoken.encoders.protocol import EncoderIdentity
from stickytoken.encoders.template import InputTemplate, read_template
from stickytoken.encoders.tokenizing.tokenizer import HuggingFaceTokenizer
from stickytoken.errors import EncodingError, ModelError
from stickytoken.insertion import TokenizedText
from stickytoken.precision import Precision

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from stickytoken.encoders.loading.spec import EncoderSpec

_LOG = logging.getLogger(__name__)


class SentenceTransformerEncoder:
    """Encodes through a loaded SentenceTransformer, which is left as it was.

    Args:
        model: the model, on its device.
        name: how messages call it.
        prompt: text put in front of every input; None is the model's default prompt.
        token_budget: tokens of a batch; None chooses by device.
        max_length: the model's longest input from now on; None leaves it as it is.
        reuse: compute common beginnings once where the model allows it.
        precision: of matrix products; None is that of the weights.

    Raises:
        ModelError: the model does not read text, or its tokenizer cannot be used.
        InputError: a longest input or a precision that the model cannot have.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        name: str,
        *,
        prompt: str | None = None,
        token_budget: int | None = None,
        max_length: int | None = None,
        reuse: bool = True,
        precision: Precision | None = None,
    ) -> None:
        if len(model) == 0 or getattr(model, "tokenizer", None) is None:
            raise ModelError(f"{name}: the model has no tokenizer, so it does not read text")
        self.name = name
        self.spec: EncoderSpec | None = None  # of a model that was loaded by name
        self.prompt = _default_prompt(model) if prompt is None else prompt
        self._model = model
        self._wants_reuse = reuse
        try:
            self._tokenizer = HuggingFaceTokenizer(model.tokenizer)
        except ModelError as error:
            raise ModelError(f"{name!r} holds no tokenizer that can be used: {error}") from error
        self._template = read_template(model, self._tokenizer, self.prompt, name)
        if max_length is not None:
            taken = self._template.overhead + len(self._tokenizer.encode_many([self.prompt])[0])
            set_maximum_length(model, max_length, name, taken=taken)
        self._max_length = maximum_length(model)
        self._rows = _embedding_rows(model)
        if precision is not None:
            require_precision(model, precision, name)
        self._precision = precision
        self._runner = BatchRunner(model, self._template, name, token_budget)
        self._lower: dict[Precision, SentenceTransformerEncoder] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name} on {self.device}>"

    @property
    def device(self) -> str:
        """Where the model computes."""
        return str(self._model.device)

    @property
    def tokenizer(self) -> HuggingFaceTokenizer:
        """The tokenizer, for the vocabulary."""
        return self._tokenizer

    @property
    def model(self) -> SentenceTransformer:
        """The model itself, for the encoders' own modules."""
        return self._model

    @property
    def max_length(self) -> int | None:
        """Longest input in tokens, special tokens included; None is no limit."""
        return self._max_length

    @property
    def template(self) -> InputTemplate:
        """The special tokens around the content."""
        return self._template

    @property
    def parameters(self) -> int:
        """Number of parameters of the model."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    @cached_property
    def identity(self) -> EncoderIdentity:
        """What can change the vectors."""
        return EncoderIdentity(
            weights=weights_fingerprint(self._model),
            tokenizer=self._tokenizer.fingerprint,
            modules=modules_fingerprint(self._model),
            prompt=self.prompt,
            dtype=self._precision or str(next(self._model.parameters()).dtype).removeprefix("torch."),
            max_length=self._max_length,
            dimension=self.dimension,
        )

    @cached_property
    def dimension(self) -> int:
        """Components of a vector, read off the vector of one token."""
        entry = next(token_id for token_id in self._tokenizer.entries if token_id < (self._rows or math.inf))
        with evaluating(self._model), torch.inference_mode():
            return int(self._runner.launch([(entry,)]).shape[1])

    def at(self, precision: Precision | None) -> SentenceTransformerEncoder:
        """The same encoder in a lower precision; see `Encoder.at`."""
        if precision is None or precision is self._precision:
            return self
        if precision not in self._lower:
            self._lower[precision] = self._lowered(precision)
        return self._lower[precision]

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Content ids of each text (prompt in the head), without special tokens."""
        return self._tokenizer.tokenize(texts, self.prompt)

    def content_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Content ids of each text, the prompt's included."""
        return self._tokenizer.encode_many([self.prompt + text for text in texts])

    def fits(self, ids: Sequence[int]) -> bool:
        """Whether the model reads these ids whole, special tokens added, and has rows for all of them."""
        short = self._max_length is None or len(ids) + self._template.overhead <= self._max_length
        return short and (self._rows is None or max(ids, default=0) < self._rows)

    def encode(self, texts: Sequence[str], *, allow_zero: bool = False) -> NDArray[np.float32]:
        """Encode texts, the prompt put in front; see `Encoder.encode`."""
        require_list(texts)
        return self._encode(self.content_ids(texts), texts, allow_zero=allow_zero)

    def encode_ids(self, ids: Sequence[Sequence[int]], *, allow_zero: bool = False) -> NDArray[np.float32]:
        """Encode lists of content ids; see `Encoder.encode_ids`."""
        return self._encode(ids, None, allow_zero=allow_zero)

    def _encode(
        self, ids: Sequence[Sequence[int]], texts: Sequence[str] | None, *, allow_zero: bool
    ) -> NDArray[np.float32]:
        # Equal inputs share one row: less work, and exactly equal vectors.
        rows: dict[tuple[int, ...], int] = {}
        places = [rows.setdefault(tuple(content), len(rows)) for content in ids]
        contents = list(rows)
        first = dict(zip(reversed(places), reversed(range(len(places))), strict=True))

        def label(row: int) -> str:
            return shown(texts[first[row]] if texts else self._tokenizer.decode_many([contents[row]])[0])

        for row, content in enumerate(contents):
            self.check_input(content, row, label)
        vectors = self._forward_all(contents)
        require_usable(vectors, self.name, label, allow_zero=allow_zero)
        return vectors[places]

    def _lowered(self, precision: Precision) -> SentenceTransformerEncoder:
        require_precision(self._model, precision, self.name)
        lower = copy.copy(self)
        lower._precision = precision
        for derived in ("_reuse", "_reuse_agrees", "_arithmetic"):
            vars(lower).pop(derived, None)
        exact, found = self._forward_all(self._calibration), lower._forward_all(self._calibration)
        require_agreement(exact, found, precision, self.name)
        return lower

    @cached_property
    def _calibration(self) -> list[tuple[int, ...]]:
        return [
            content
            for content in calibration_inputs([*self._usable_entries()], sorted(self._tokenizer.special_ids))
            if self.fits(content)
        ]

    def _usable_entries(self) -> Iterator[int]:
        return (entry for entry in self._tokenizer.entries if entry < (self._rows or math.inf))

    @cached_property
    def _arithmetic(self) -> Arithmetic:
        return arithmetic(self._model, self._precision, lambda: self._runner.vectors(self._calibration))

    @cached_property
    def _reuse(self) -> PrefixReuse | None:
        """Reuse of common beginnings, where the kind of model allows it."""
        if not self._wants_reuse or not reads_last_token(self._model, self._template):
            return None
        return PrefixReuse(tree_model(self._model, self._template), self._runner.token_budget)

    @cached_property
    def _reuse_agrees(self) -> bool:
        """Whether reuse gives the vectors of the plain path on a few inputs.

        A model can be of a causal kind and yet look both ways.
        """
        *carrier, other, token = itertools.islice(self._usable_entries(), 5)
        samples = [
            content
            for count in (1, 2, 3)
            for content in (
                (*carrier, *(token,) * count),
                (*carrier, *(other,) * count),
                (*(token,) * count, *carrier),
            )
        ]
        if self._reuse is None or not all(self.fits(content) for content in samples):
            return False
        roots = self._reuse.trees(samples)
        if roots is None:
            return False
        found, plain = self._reuse.vectors(roots, len(samples)), self._forward_batches(samples)
        own = torch.finfo(next(self._model.parameters()).dtype).eps
        rounding = own if self._precision is None else ROUNDING[self._precision]
        return agree(found, plain, rounding)

    def _forward_all(self, contents: Sequence[tuple[int, ...]]) -> NDArray[np.float32]:
        with (
            evaluating(self._model),
            torch.inference_mode(),
            bounded_memory(self._model),
            self._arithmetic(),
        ):
            if self._reuse is not None and (roots := self._reuse.trees(contents)) and self._reuse_agrees:
                try:
                    return self._reuse.vectors(roots, len(contents))
                except torch.OutOfMemoryError:
                    # Keys and values need memory of their own; the plain path can do with less.
                    self._reuse = None
                    _LOG.warning("%s: out of memory on %s, going on without reuse", self.name, self.device)
            return self._forward_batches(contents)

    def _forward_batches(self, contents: Sequence[tuple[int, ...]]) -> NDArray[np.float32]:
        vectors = self._runner.vectors(contents)
        return np.empty((0, self.dimension), np.float32) if vectors is None else vectors

    def features(self, contents: Sequence[tuple[int, ...]]) -> dict[str, Any]:
        """Model input for contents of one length, special tokens added; for the encoders' own modules."""
        return self._runner.features(contents)

    def check_input(self, content: tuple[int, ...], row: int, label: Callable[[int], str]) -> None:
        """Raise `EncodingError` where the model does not read these ids whole; ``label`` names a row."""
        length = len(content) + self._template.overhead
        if length == 0:
            raise EncodingError(f"{self.name}: the text {label(row)} has no tokens")
        if min(content, default=0) < 0:
            raise EncodingError(f"{self.name}: {min(content)} is no token id")
        if self._rows is not None and max(content, default=0) >= self._rows:
            raise EncodingError(
                f"{self.name}: the text {label(row)} has token id {max(content)}, "
                f"but the model embeds only ids below {self._rows}"
            )
        if not self.fits(content):
            raise EncodingError(
                f"{self.name}: the text {label(row)} has {length} tokens, the model reads "
                f"{self._max_length}: use shorter sentences or fewer copies"
            )


def _default_prompt(model: SentenceTransformer) -> str:
    name = model.default_prompt_name
    return "" if name is None else str(model.prompts.get(name) or "")


def _embedding_rows(model: SentenceTransformer) -> int | None:
    module: Any = model[0]
    if hasattr(module, "num_embeddings"):
        return int(module.num_embeddings)
    backbone = getattr(module, "model", None)
    if backbone is None or not hasattr(backbone, "get_input_embeddings"):
        return None
    return getattr(backbone.get_input_embeddings(), "num_embeddings", None)
