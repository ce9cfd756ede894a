"""Use a SentenceTransformer as an encoder, in batches of equal length."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders._model_encoder import Content, ModelEncoder
from stickytoken.encoders._tokenizer import HuggingFaceTokenizer
from stickytoken.encoders.compute import batches, prefixes
from stickytoken.encoders.compute.model_state import computing, modules_fingerprint
from stickytoken.encoders.text_encoder import maximum_length, read_template, set_maximum_length
from stickytoken.errors import EncodingError, ModelError
from stickytoken.insertion import TokenizedText
from stickytoken.machine import Precision

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class SentenceTransformerEncoder(ModelEncoder):
    """Encode with a loaded SentenceTransformer, which is not changed except for ``max_length``."""

    _from_weights: ClassVar = (*ModelEncoder._from_weights, "_reuse", "_wholes", "_first_token")

    def __init__(
        self,
        model: SentenceTransformer,
        name: str,
        *,
        prompt: str | None = None,
        token_budget: int | None = None,
        max_length: int | None = None,
        reuse: prefixes.ReuseLimits | None = prefixes.REUSE,
        precision: Precision | None = None,
        packed_layers: bool | None = None,
    ) -> None:
        if len(model) == 0 or getattr(model, "tokenizer", None) is None:
            raise ModelError(f"{name}: the model has no tokenizer, so it does not read text")
        self._model, self._asked_prompt = model, prompt
        self._token_budget, self._reuse_limits = token_budget, reuse
        self._layers: tuple[int, ...] = ()
        self._reader: batches.LayerReader | None = None
        super().__init__(model, name, precision, packed_layers)
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
        self._runner = batches.BatchRunner(
            self._model, self.template, self.name, self._token_budget, self._reader
        )

    def _settings(self) -> tuple[object, ...]:
        model = self._model
        return (self.prompt, model.max_seq_length, model.truncate_dim, self._embedding_rows())

    def _embedding_rows(self) -> int | None:
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
        return None if self._reader is None else self._reader.count

    def _modules_and_prompt(self) -> tuple[str, str]:
        return modules_fingerprint(self._model), self.prompt

    @cached_property
    def dimension(self) -> int:
        with computing(self._network):
            return int(self._runner.vectors([(self.usable_entries()[0],)]).shape[1])

    def whole(self, layers: tuple[int, ...] = ()) -> SentenceTransformerEncoder:
        if layers in ((), self._layers) and self._model.truncate_dim is None:
            return self
        self._follow()
        if layers not in self._wholes:
            untruncated = copy.copy(self._model)
            untruncated.truncate_dim = None
            settings: dict[str, Any] = {"_model": untruncated, "_network": untruncated, "_layers": layers}
            if layers:  # trees give vectors of the last layer alone
                settings["_reuse_limits"] = None
                settings["_reader"] = batches.LayerReader(untruncated, layers, self.name)
            self._wholes[layers] = self._changed(**settings)
        return self._wholes[layers]

    @cached_property
    def _wholes(self) -> dict[tuple[int, ...], SentenceTransformerEncoder]:
        return {}

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
    def _reuse(self) -> prefixes.PrefixReuse | None:
        if self._reuse_limits is None or not batches.pools_by(self._model, "lasttoken"):
            return None
        *carrier, other, token = itertools.islice(self.usable_entries(), 5)
        samples = prefixes.samples_of(tuple(carrier), (other, token))
        first, pooling, *_ = modules = list[Any](self._model)
        backbone, text, template = first.model, first.modality_config.get("text", {}), self.template
        if not (
            all(map(self.fits, samples))
            and prefixes.known_kind(backbone)
            and text.get("method") == "forward"
            and text.get("method_output_name") in ("last_hidden_state", ["last_hidden_state"])
            and template.token_types is None
            and not template.flat
            and (pooling.include_prompt or "prompt_length" not in template.features)
        ):
            return None

        def finish(picked: torch.Tensor) -> torch.Tensor:
            features = dict(template.features)
            features["token_embeddings"] = picked
            features["attention_mask"] = torch.ones(picked.shape[:2], dtype=torch.long, device=picked.device)
            for module in modules[1:]:
                features = module(features)
            vectors: torch.Tensor = features["sentence_embedding"]
            return vectors[:, : self._model.truncate_dim]

        return prefixes.PrefixReuse(
            backbone,
            template.before,
            template.after,
            states=lambda inputs: backbone(**inputs).last_hidden_state,
            finish=finish,
            engine=self._runner,
            limits=self._reuse_limits,
            samples=samples,
            plain=self._runner.vectors,
            rounding=self._rounding,
        )

    @cached_property
    def _first_token(self) -> torch.nn.Module | None:
        """The last layer's attention, if what follows it is needed for the first token only."""
        attention = batches.last_attention(self._model)
        samples = self._samples[:: max(1, len(self._samples) // 4)]
        if attention is None or not samples:
            return None
        plain = self._forward_batches(samples)
        try:
            with batches.first_token_only(attention):
                found = self._forward_batches(samples)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
            return None  # another version of transformers, or a module that reads more
        return attention if prefixes.agree(found, plain, self._rounding) else None

    def _vectors(self, contents: Sequence[Content]) -> NDArray[np.float32]:
        with computing(self._network), self._arithmetic():
            if self._first_token is not None:
                with batches.first_token_only(self._first_token):
                    return self._forward_batches(contents)
            shared = None if self._reuse is None else self._reuse.shared(contents)
            return self._forward_batches(contents) if shared is None else shared

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
