"""Use a SentenceTransformer as an encoder, in batches of equal length."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders._model_encoder import Content, ModelEncoder
from stickytoken.encoders._tokenizer import HuggingFaceTokenizer
from stickytoken.encoders.compute import batches, prefixes
from stickytoken.encoders.compute.model_state import computing, modules_fingerprint
from stickytoken.encoders.text_encoder import NO_LIMIT, learned_positions, read_template, readable_positions
from stickytoken.errors import EncodingError, InputError, ModelError
from stickytoken.insertion import TokenizedText
from stickytoken.machine import Precision

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


# Of BERT's layer and those built like it: attention with residual and norm, then what works token by token.
_PARTS = {"attention", "intermediate", "output"}


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
        self.model, self._asked_prompt = model, prompt
        self._token_budget, self._reuse_limits = token_budget, reuse
        self._layers: tuple[int, ...] = ()
        self._reader: batches.LayerReader | None = None
        super().__init__(model, name, precision, packed_layers)
        if max_length is None:
            return
        readable_positions(model, max_length, name)
        taken = self.template.overhead + len(self.own_tokenizer.encode_many([self.prompt])[0])
        if max_length <= taken:
            raise InputError(
                f"max_length is {max_length}: the special tokens and the prompt of {name!r} take {taken} "
                "tokens, which leaves no room for a text; pass more"
            )
        with suppress(AttributeError):  # a static embedding has the property without a setter
            model.max_seq_length = max_length
        if model.max_seq_length != max_length:
            raise InputError(
                f"max_length is {max_length}: {name!r} reads texts of any length and has no limit to set; "
                "leave max_length out"
            )
        self._read_again()

    def _read(self) -> None:
        try:
            self.own_tokenizer = self.entries_tokenizer = HuggingFaceTokenizer(self.model.tokenizer)
        except ModelError as error:
            raise ModelError(f"{self.name!r} has no usable tokenizer: {error}") from error
        self.template = read_template(self.model, self.own_tokenizer, self.prompt, self.name)
        # The smallest of the truncation limits and the number of positions.
        truncation = getattr(self.model.tokenizer, "truncation", None)
        cut = truncation["max_length"] if truncation else None
        limits = [self.model.max_seq_length, cut, *learned_positions(self.model)]
        known = [int(limit) for limit in limits if limit is not None and limit < NO_LIMIT]
        self.max_length = min(known, default=None)
        self._rows = self._embedding_rows()
        self._runner = batches.BatchRunner(
            self.model, self.template, self.name, self._token_budget, self._reader
        )

    def _settings(self) -> tuple[object, ...]:
        model = self.model
        return (self.prompt, model.max_seq_length, model.truncate_dim, self._embedding_rows())

    def _embedding_rows(self) -> int | None:
        module: Any = self.model[0]
        if hasattr(module, "num_embeddings"):
            return int(module.num_embeddings)
        embeddings = getattr(getattr(module, "model", None), "get_input_embeddings", lambda: None)()
        return getattr(embeddings, "num_embeddings", None)

    @property
    def device(self) -> str:
        return str(self.model.device)

    @property
    def prompt(self) -> str:
        if self._asked_prompt is not None:
            return self._asked_prompt
        name = self.model.default_prompt_name
        return "" if name is None else str(self.model.prompts.get(name) or "")

    @property
    def user_tokenizer(self) -> Any:
        return self.model.tokenizer

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    @property
    def layer_count(self) -> int | None:
        return None if self._reader is None else self._reader.count

    def _modules_and_prompt(self) -> tuple[str, str]:
        return modules_fingerprint(self.model), self.prompt

    @cached_property
    def dimension(self) -> int:
        with computing(self._network):
            return int(self._runner.vectors([(self.usable_entries()[0],)]).shape[1])

    def whole(self, layers: tuple[int, ...] = ()) -> SentenceTransformerEncoder:
        if layers in ((), self._layers) and self.model.truncate_dim is None:
            return self
        self._follow()
        if layers not in self._wholes:
            untruncated = copy.copy(self.model)
            untruncated.truncate_dim = None
            settings: dict[str, Any] = {"model": untruncated, "_network": untruncated, "_layers": layers}
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
        if self._reuse_limits is None or not batches.pools_by(self.model, "lasttoken"):
            return None
        *carrier, other, token = itertools.islice(self.usable_entries(), 5)
        samples = prefixes.samples_of(tuple(carrier), (other, token))
        first, pooling, *_ = modules = list[Any](self.model)
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
            return vectors[:, : self.model.truncate_dim]

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
        if not batches.pools_by(self.model, "cls"):
            return None
        layers = getattr(getattr(self.model[0].model, "encoder", None), "layer", None)
        last: Any = layers[-1] if isinstance(layers, torch.nn.ModuleList) and len(layers) else None
        samples = self._samples[:: max(1, len(self._samples) // 4)]
        if (
            not samples
            or not type(last).__module__.startswith("transformers.models.")
            or getattr(last, "is_decoder", False)
            or getattr(last, "chunk_size_feed_forward", 0)
            or {name for name, _ in last.named_children()} != _PARTS
        ):
            return None
        attention: torch.nn.Module = last.attention
        plain = self._runner.vectors(samples)
        try:
            with batches.first_token_only(attention):
                found = self._runner.vectors(samples)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
            return None  # another version of transformers, or a module that reads more
        return attention if prefixes.agree(found, plain, self._rounding) else None

    def _vectors(self, contents: Sequence[Content]) -> NDArray[np.float32]:
        with computing(self._network), self._arithmetic():
            if self._first_token is not None:
                with batches.first_token_only(self._first_token):
                    return self._runner.vectors(contents)
            shared = None if self._reuse is None else self._reuse.shared(contents)
            return self._runner.vectors(contents) if shared is None else shared

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
