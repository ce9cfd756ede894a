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
    samples_of,
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
from stickytoken.encoders.text_encoder import maximum_length, read_template, set_maximum_length
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
        layers: tuple[int, ...] = (),
    ) -> None:
        if len(model) == 0 or getattr(model, "tokenizer", None) is None:
            raise ModelError(f"{name}: the model has no tokenizer, so it does not read text")
        self._model = model
        self._asked_prompt = prompt
        self._token_budget = token_budget
        self._reuse_limits = None if layers else reuse  # trees give vectors of the last layer alone
        self._layers = layers
        self._reader = LayerReader(model, layers, name) if layers else None
        super().__init__(model, name, precision, packed_layers, shared)
        if max_length is not None:
            taken = self.template.overhead + len(self.own_tokenizer.encode_many([self.prompt])[0])
            set_maximum_length(model, max_length, name, taken=taken)
            self._read_again()

    def _read(self) -> None:
        try:
            self.own_tokenizer = self.entries_tokenizer = HuggingFaceTokenizer(self._model.tokenizer)
        except ModelError as error:
            raise ModelError(f"{self.name!r} has no usable tokenizer: {error}") from error
        self.template = read_template(self._model, self.own_tokenizer, self.prompt, self.name)
        self.max_length = maximum_length(self._model)
        self._rows = self._embedding_rows()
        self._runner = BatchRunner(self._model, self.template, self.name, self._token_budget, self._reader)

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
        if self._asked_prompt is not None:
            return self._asked_prompt
        name = self._model.default_prompt_name
        return "" if name is None else str(self._model.prompts.get(name) or "")

    @property
    def user_tokenizer(self) -> Any:
        return self._model.tokenizer

    @property
    def model(self) -> SentenceTransformer:
        return self._model

    @property
    def dtype(self) -> torch.dtype:
        return next(self._model.parameters()).dtype

    @property
    def layer_count(self) -> int | None:
        """Number of layers, if vectors of some of them follow the model's own; else None."""
        return None if self._reader is None else self._reader.count

    def _identity(self, weights: str) -> EncoderIdentity:
        return EncoderIdentity(
            weights=weights,
            tokenizer=self.own_tokenizer.fingerprint,
            modules=modules_fingerprint(self._model),
            prompt=self.prompt,
            dtype=self._dtype_name,
            max_length=self.max_length,
            dimension=self.dimension,
        )

    @cached_property
    def dimension(self) -> int:
        """Number of components of a vector, taken from the vector of one token."""
        with self._computing():
            return int(self._runner.vectors([(self.usable_entries()[0],)]).shape[1])

    def whole(self, layers: tuple[int, ...] = ()) -> SentenceTransformerEncoder:
        if layers in ((), self._layers) and self._model.truncate_dim is None:
            return self
        self._follow()
        if layers not in self._wholes:
            untruncated = copy.copy(self._model)
            untruncated.truncate_dim = None
            options = self._options(self._precision) | {"layers": layers, "shared": self._arithmetic}
            self._wholes[layers] = SentenceTransformerEncoder(untruncated, self.name, **options)
        return self._wholes[layers]

    @cached_property
    def _wholes(self) -> dict[tuple[int, ...], SentenceTransformerEncoder]:
        return {}

    def _built(self, precision: Precision) -> SentenceTransformerEncoder:
        return SentenceTransformerEncoder(self._model, self.name, **self._options(precision))

    def _options(self, precision: Precision | None) -> dict[str, Any]:
        return {
            "prompt": self._asked_prompt,
            "token_budget": self._token_budget,
            "reuse": self._reuse_limits,
            "precision": precision,
            "packed_layers": self._packed_layers,
            "layers": self._layers,
        }

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        self._follow()
        return self.own_tokenizer.tokenize(texts, self.prompt)

    def content_ids(self, texts: Sequence[str]) -> list[list[int]]:
        self._follow()
        return self.own_tokenizer.encode_many([self.prompt + text for text in texts])

    def fits(self, ids: Sequence[int]) -> bool:
        short = self.max_length is None or len(ids) + self.template.overhead <= self.max_length
        return short and (self._rows is None or max(ids, default=0) < self._rows)

    def usable_entries(self) -> list[int]:
        return [entry for entry in self.own_tokenizer.entries if entry < (self._rows or math.inf)]

    def _run(self, contents: Sequence[Content]) -> None:
        self._runner.vectors(contents)

    @cached_property
    def _reuse(self) -> PrefixReuse | None:
        """Reuse of common beginnings, if the model allows it."""
        if self._reuse_limits is None or not reads_last_token(self._model, self.template):
            return None
        *carrier, other, token = itertools.islice(self.usable_entries(), 5)
        samples = samples_of(tuple(carrier), (other, token))
        if not all(map(self.fits, samples)):
            return None
        tree, plain = tree_model(self._model, self.template), self._runner.vectors
        return PrefixReuse(tree, self._runner, self._reuse_limits, samples, plain, self._rounding)

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
            shared = None if self._reuse is None else self._reuse.shared(contents)
            return self._forward_batches(contents) if shared is None else shared

    @cached_property
    def _compiled(self) -> CompiledBackbone | None:
        """The backbone compiled by OpenVINO, if that is installed and faster."""
        backbone, threads = compilable(self._model), worker_count(self._model)
        known = earlier("openvino", self._model, ("openvino", "own"), threads)
        if (
            backbone is None
            or self._reader is not None
            or (known is not None and known["openvino"] >= known["own"])
        ):
            return None
        try:
            with evaluating(self._model):
                made = CompiledBackbone(backbone, self.template.token_types is not None, threads)
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
        return self._runner.vectors(contents) if contents else np.empty((0, self.dimension), np.float32)

    def features(self, contents: Sequence[Content]) -> dict[str, Any]:
        return self._runner.features(contents)

    def check_input(self, content: Content, label: Callable[[], str]) -> None:
        length = len(content) + self.template.overhead
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
                f"{self.max_length}: use shorter sentences or fewer copies"
            )
