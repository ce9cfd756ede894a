"""Use a SentenceTransformer as an encoder, in batches of equal length."""

from __future__ import annotations

import copy
import itertools
import logging
import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders._model_encoder import Content, ModelEncoder
from stickytoken.encoders._tokenizer import HuggingFaceTokenizer
from stickytoken.encoders.compute.batches import (
    Arithmetic,
    BatchRunner,
    LayerReader,
    first_token_only,
    last_attention,
)
from stickytoken.encoders.compute.linear import packed_layers_wanted
from stickytoken.encoders.compute.model_state import evaluating, exclusive, modules_fingerprint
from stickytoken.encoders.compute.prefixes import (
    REUSE,
    PrefixReuse,
    ReuseLimits,
    agree,
    reads_last_token,
    tree_model,
)
from stickytoken.encoders.compute.workers import (
    CompiledBackbone,
    compilable,
    earlier,
    measured,
    trial_inputs,
    worker_count,
)
from stickytoken.encoders.protocol import EncoderIdentity
from stickytoken.encoders.text_encoder import InputTemplate, maximum_length, read_template, set_maximum_length
from stickytoken.errors import EncodingError, ModelError
from stickytoken.insertion import TokenizedText
from stickytoken.machine import Precision

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


_LOG = logging.getLogger(__name__)
# A call that takes longer than compiling a model, on a few cores.
_ENOUGH_TEXTS = 2000
# Largest difference of a component that the order of sums explains, as a share of a vector's norm.
_SAME = 1e-5


class SentenceTransformerEncoder(ModelEncoder):
    """Encode with a loaded SentenceTransformer, which is not changed except for ``max_length``."""

    _from_weights: ClassVar[tuple[str, ...]] = (
        *ModelEncoder._from_weights,
        "_reuse",
        "_reuse_agrees",
        "_wholes",
        "_first_token",
        "_compiled",
    )

    def __init__(
        self,
        model: SentenceTransformer,
        name: str,
        *,
        prompt: str | None = None,
        token_budget: int | None = None,
        max_length: int | None = None,
        reuse: ReuseLimits | None = REUSE,
        precision: Precision | None = None,
        packed_layers: bool | None = None,
        shared: Arithmetic | None = None,
    ) -> None:
        if len(model) == 0 or getattr(model, "tokenizer", None) is None:
            raise ModelError(f"{name}: the model has no tokenizer, so it does not read text")
        self._model = model
        self._asked_prompt = prompt
        self._token_budget = token_budget
        self._reuse_limits = reuse
        super().__init__(model, name, precision, packed_layers, shared)
        if max_length is not None:
            taken = self._template.overhead + len(self._tokenizer.encode_many([self.prompt])[0])
            set_maximum_length(model, max_length, name, taken=taken)
            self._read_again()

    def _read(self) -> None:
        try:
            self._tokenizer = HuggingFaceTokenizer(self._model.tokenizer)
        except ModelError as error:
            raise ModelError(f"{self.name!r} has no usable tokenizer: {error}") from error
        self._template = read_template(self._model, self._tokenizer, self.prompt, self.name)
        self._max_length = maximum_length(self._model)
        self._rows = self._embedding_rows()
        self._runner = BatchRunner(self._model, self._template, self.name, self._token_budget)

    def _settings(self) -> tuple[object, ...]:
        model = self._model
        return (self.prompt, model.max_seq_length, model.truncate_dim, self._embedding_rows())

    def _embedding_rows(self) -> int | None:
        """Return the number of ids that the model embeds; None if it does not say."""
        module: Any = self._model[0]
        if hasattr(module, "num_embeddings"):
            return int(module.num_embeddings)
        backbone = getattr(module, "model", None)
        if backbone is None or not hasattr(backbone, "get_input_embeddings"):
            return None
        return getattr(backbone.get_input_embeddings(), "num_embeddings", None)

    @property
    def device(self) -> str:
        return str(self._model.device)

    @property
    def prompt(self) -> str:
        """The text put before every input."""
        if self._asked_prompt is not None:
            return self._asked_prompt
        name = self._model.default_prompt_name
        return "" if name is None else str(self._model.prompts.get(name) or "")

    @property
    def user_tokenizer(self) -> Any:
        return self._model.tokenizer

    @property
    def own_tokenizer(self) -> HuggingFaceTokenizer:
        return self._tokenizer

    @property
    def tokenizer(self) -> HuggingFaceTokenizer:
        self._follow()
        return self._tokenizer

    @property
    def model(self) -> SentenceTransformer:
        return self._model

    @property
    def max_length(self) -> int | None:
        """Longest input in tokens, including special tokens; None is no limit."""
        return self._max_length

    @property
    def dtype(self) -> torch.dtype:
        return next(self._model.parameters()).dtype

    @property
    def template(self) -> InputTemplate:
        """The special tokens around the content."""
        return self._template

    def _identity(self, weights: str) -> EncoderIdentity:
        return EncoderIdentity(
            weights=weights,
            tokenizer=self._tokenizer.fingerprint,
            modules=modules_fingerprint(self._model),
            prompt=self.prompt,
            dtype=self._dtype_name,
            max_length=self._max_length,
            dimension=self.dimension,
        )

    @cached_property
    def dimension(self) -> int:
        """Number of components of a vector, taken from the vector of one token."""
        with self._computing():
            return int(self._runner.launch([(self.usable_entries()[0],)]).shape[1])

    def whole(self, layers: tuple[int, ...] = ()) -> SentenceTransformerEncoder:
        """Return an encoder of whole vectors; see `whole_vectors`."""
        if not layers and self._model.truncate_dim is None:
            return self
        self._follow()
        if layers not in self._wholes:
            self._wholes[layers] = WholeEncoder(
                self._model,
                self.name,
                layers=layers,
                shared=self._arithmetic,
                **self._options(self._precision),
            )
        return self._wholes[layers]

    @cached_property
    def _wholes(self) -> dict[tuple[int, ...], SentenceTransformerEncoder]:
        return {}

    def _built(self, precision: Precision) -> SentenceTransformerEncoder:
        return SentenceTransformerEncoder(self._model, self.name, **self._options(precision))

    def _options(self, precision: Precision | None) -> dict[str, Any]:
        """Return the options of this encoder, for another one of the same model."""
        return {
            "prompt": self._asked_prompt,
            "token_budget": self._token_budget,
            "reuse": self._reuse_limits,
            "precision": precision,
            "packed_layers": self._packed_layers,
        }

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Return the content ids of each text by word, prompt in the head, without special tokens."""
        self._follow()
        return self._tokenizer.tokenize(texts, self.prompt)

    def content_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the content ids of each text, including the prompt."""
        self._follow()
        return self._tokenizer.encode_many([self.prompt + text for text in texts])

    def fits(self, ids: Sequence[int]) -> bool:
        """Check that the model reads these ids and its special tokens in full, and embeds all of them."""
        short = self._max_length is None or len(ids) + self._template.overhead <= self._max_length
        return short and (self._rows is None or max(ids, default=0) < self._rows)

    def usable_entries(self) -> list[int]:
        """List the vocabulary entries that the model embeds."""
        return [entry for entry in self._tokenizer.entries if entry < (self._rows or math.inf)]

    def _centered(self, exact: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.zeros((1, exact.shape[1]), np.float32)

    def _run(self, contents: Sequence[Content]) -> None:
        self._runner.vectors(contents)

    @cached_property
    def _reuse(self) -> PrefixReuse | None:
        """Reuse of common beginnings, if the model allows it."""
        if self._reuse_limits is None or not reads_last_token(self._model, self._template):
            return None
        tree = tree_model(self._model, self._template)
        return PrefixReuse(tree, self._runner.token_budget, self._reuse_limits)

    @cached_property
    def _first_token(self) -> torch.nn.Module | None:
        """The last layer's attention, if the rest of that layer is needed for the first token alone."""
        attention = last_attention(self._model)
        samples = self._samples[:: max(1, len(self._samples) // 4)]
        if attention is None or not samples:
            return None
        plain = self._forward_batches(samples)
        try:
            with first_token_only(attention):
                found = self._forward_batches(samples)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
            return None  # another version of transformers, or a module that reads more
        return attention if agree(found, plain, self._rounding) else None

    @cached_property
    def _reuse_agrees(self) -> bool:
        """Whether reuse gives the vectors of the plain path on a few inputs."""
        *carrier, other, token = itertools.islice(self.usable_entries(), 5)
        samples: list[Content] = []
        for count in (1, 2, 3):
            copies = (token,) * count
            samples += [(*carrier, *copies), (*carrier, *(other,) * count), (*copies, *carrier)]
        if self._reuse is None or not all(map(self.fits, samples)):
            return False
        roots = self._reuse.trees(samples)
        if roots is None:
            return False
        found, plain = self._reuse.vectors(roots, len(samples)), self._forward_batches(samples)
        return agree(found, plain, self._rounding)

    def _vectors(self, contents: Sequence[Content]) -> NDArray[np.float32]:
        free = self._precision is None and packed_layers_wanted(self._packed_layers) is None
        if free and len(contents) >= _ENOUGH_TEXTS:
            with exclusive(self._model):
                if self._compiled is not None and not self._compiled.current:
                    self._compiled = None  # weights that change again and again are not compiled each time
                compiled = self._compiled
            if compiled is not None:
                with self._computing(), compiled.active():
                    return self._forward_batches(contents)
        with self._computing(), self._arithmetic():
            if self._first_token is not None:
                with first_token_only(self._first_token):
                    return self._forward_batches(contents)
            if self._reuse is not None and (roots := self._reuse.trees(contents)) and self._reuse_agrees:
                try:
                    return self._reuse.vectors(roots, len(contents))
                except torch.OutOfMemoryError:
                    # Keys and values take extra memory, which the plain path does not need.
                    self._reuse_limits = None
                    self._reuse = None
                    _LOG.warning("%s: out of memory on %s, continuing without reuse", self.name, self.device)
            return self._forward_batches(contents)

    @cached_property
    def _compiled(self) -> CompiledBackbone | None:
        """The backbone compiled by OpenVINO, if that is installed and faster."""
        backbone, threads = compilable(self._model), worker_count(self._model)
        known = earlier("openvino", self._model, ("openvino", "own"), threads)
        if backbone is None or (known is not None and known["openvino"] >= known["own"]):
            return None
        try:
            with evaluating(self._model):
                made = CompiledBackbone(backbone, self._template.token_types is not None, threads)
            with self._computing(), made.active():
                found = self._forward_batches(self._samples)
        except Exception as error:  # noqa: BLE001 - a library's own failures, and the model works without it
            _LOG.info("%s: OpenVINO does not compile it: %s", self.name, error)
            return None
        with self._computing(), self._arithmetic():
            plain = self._forward_batches(self._samples)
        contents = trial_inputs(self._model, self._samples)
        if not contents or np.abs(found - plain).max() > _SAME * np.linalg.norm(plain, axis=1).max():
            return None
        ways = {
            way: partial(self._try, contents, each)
            for way, each in (("own", self._arithmetic), ("openvino", made.active))
        }
        seconds = measured("openvino", self._model, ways, threads)
        faster = seconds["openvino"] < seconds["own"]
        _LOG.info(
            "%s: OpenVINO %s, measured on this machine (%.3f s, own layers %.3f s)",
            self.name,
            "computes calls of many texts" if faster else "is not faster",
            seconds["openvino"],
            seconds["own"],
        )
        return made if faster else None

    def _forward_batches(self, contents: Sequence[Content]) -> NDArray[np.float32]:
        vectors = self._runner.vectors(contents)
        return np.empty((0, self.dimension), np.float32) if vectors is None else vectors

    def features(self, contents: Sequence[Content]) -> dict[str, Any]:
        """Return the model input for contents of equal length, including special tokens."""
        return self._runner.features(contents)

    def check_input(self, content: Content, label: Callable[[], str]) -> None:
        """Raise `EncodingError` if the model cannot read these ids in full; ``label`` returns the text."""
        length = len(content) + self._template.overhead
        if length == 0:
            raise EncodingError(f"{self.name}: the text {label()} has no tokens")
        if min(content, default=0) < 0:
            raise EncodingError(f"{self.name}: {min(content)} is not a token id")
        if self._rows is not None and max(content, default=0) >= self._rows:
            raise EncodingError(
                f"{self.name}: the text {label()} has token id {max(content)}, "
                f"but the model embeds only ids below {self._rows}"
            )
        if not self.fits(content):
            raise EncodingError(
                f"{self.name}: the text {label()} has {length} tokens, the model reads "
                f"{self._max_length}: use shorter sentences or fewer copies"
            )


class WholeEncoder(SentenceTransformerEncoder):
    """Encodes with the modules of a SentenceTransformer, without truncation."""

    def __init__(
        self, model: SentenceTransformer, name: str, *, layers: Sequence[int], **options: Any
    ) -> None:
        untruncated = copy.copy(model)
        untruncated.truncate_dim = None
        self._reader = LayerReader(untruncated, tuple(layers), name) if layers else None
        if layers:  # shared beginnings are computed for the last layer alone
            options["reuse"] = None
        super().__init__(untruncated, name, **options)

    @property
    def layer_count(self) -> int | None:
        """Number of layers; None where none are read."""
        return None if self._reader is None else self._reader.count

    def whole(self, layers: tuple[int, ...] = ()) -> SentenceTransformerEncoder:
        same = layers == (() if self._reader is None else self._reader.layers)
        return self if same else super().whole(layers)

    @cached_property
    def dimension(self) -> int:
        if self._reader is None:
            return super().dimension
        with self._reader.keeping_states():
            return super().dimension

    @cached_property
    def _compiled(self) -> CompiledBackbone | None:
        return None if self._reader is not None else super()._compiled  # it returns the last layer alone

    def _read(self) -> None:
        super()._read()
        if self._reader is not None:
            self._runner = _LayerRunner(
                self._model, self._template, self.name, self._token_budget, reader=self._reader
            )

    def _built(self, precision: Precision) -> WholeEncoder:
        layers = () if self._reader is None else self._reader.layers
        return WholeEncoder(self._model, self.name, layers=layers, **self._options(precision))


class _LayerRunner(BatchRunner):
    """Runs contents through a model, and keeps the vectors after some layers."""

    def __init__(self, *arguments: Any, reader: LayerReader) -> None:
        super().__init__(*arguments)
        self._reader = reader

    def vectors(self, contents: Sequence[tuple[int, ...]]) -> NDArray[np.float32] | None:
        with self._reader.keeping_states():
            return super().vectors(contents)

    def launch(self, contents: Sequence[tuple[int, ...]]) -> torch.Tensor:
        return self._reader.vectors(self.features(contents))
