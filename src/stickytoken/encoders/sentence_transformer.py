"""Encoders of torch models, and a SentenceTransformer as one, in batches of equal length."""

from __future__ import annotations

import copy
import itertools
import logging
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders import compute
from stickytoken.encoders._tokenizer import HuggingFaceTokenizer, vocabulary_size
from stickytoken.encoders.compute import batches, layers, linear, prefixes
from stickytoken.encoders.protocol import EncoderIdentity, require_usable, shown, texts_of
from stickytoken.encoders.text_encoder import (
    NO_LIMIT,
    learned_positions,
    read_template,
    readable_positions,
    require_components,
)
from stickytoken.encoders.token_table import table_rows
from stickytoken.errors import EncodingError, InputError, ModelError
from stickytoken.insertion import TokenizedText
from stickytoken.machine import Precision
from stickytoken.unit_vectors import Similarity, unit_vectors

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from stickytoken.encoders._routes import RoutedModel
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
            with compute.exclusive(network):
                _ = self._arithmetic  # now, so that a warning comes when the model is loaded

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name} on {self.device}>"

    # What subclasses provide, beside the parts of `IdEncoder`.

    dimension: Any
    device: Any
    dtype: Any  # of the weights
    user_tokenizer: Any

    @abstractmethod
    def _read(self) -> None: ...  # tokenizer, special tokens and lengths, from the user's model

    @abstractmethod
    def _settings(self) -> tuple[object, ...]: ...  # of the user's model that `_read` depends on; cheap

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
    def check_input(self, content: Content, label: Callable[[], str]) -> None: ...  # label names the text

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
        with compute.exclusive(self._network):
            weights = compute.weights_fingerprint(self._network)
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
        with compute.exclusive(self._network):
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
        self._check_inputs(contents, label)
        vectors = self._vectors(contents)
        require_usable(vectors, self.name, label, allow_zero=allow_zero)
        return (unit_vectors(vectors) if self.normalizes else vectors)[places]

    def _check_inputs(self, contents: Sequence[Content], label: Callable[[int], str]) -> None:
        """Check every content; the error names the first one that the model cannot read.

        Whether a content is readable depends on its length and on its smallest and largest id. If the
        extreme contents are readable, so are all others, and a GPU does not wait for a loop over texts.
        """
        lengths = np.fromiter(map(len, contents), np.intp, len(contents))
        extreme_rows = {int(lengths.argmin()), int(lengths.argmax())}
        ids = np.fromiter(itertools.chain.from_iterable(contents), np.int64, int(lengths.sum()))
        if ids.size:
            ends = lengths.cumsum()
            for place in (ids.argmin(), ids.argmax()):
                extreme_rows.add(int(np.searchsorted(ends, place, side="right")))
        try:
            for row in extreme_rows:
                self.check_input(contents[row], partial(label, row))
        except EncodingError:
            for row, content in enumerate(contents):
                self.check_input(content, partial(label, row))
            raise

    # What all vectors share, to be subtracted before precisions are compared.
    def _center(self, exact: NDArray[np.float32]) -> Any:
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
            with compute.computing(self._network), arithmetic():
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
        marks = self._marks_of_weights()
        if marks != self._weights_marks:
            with compute.exclusive(self._network):
                self._weights_marks = marks
                self._forget()
        if self._marks_of_inputs() != self._input_marks:
            self._read_again()

    def _read_again(self) -> None:
        with compute.exclusive(self._network):
            self._read()
            self._forget()
            self._input_marks = self._marks_of_inputs()

    def _forget(self) -> None:
        self._lower.clear()
        for name in self._from_weights:
            vars(self).pop(name, None)

    def _marks_of_weights(self) -> list[tuple[int, int]]:
        return [compute.weight_mark(weight) for weight in self._network.parameters()]

    def _marks_of_inputs(self) -> tuple[object, ...]:
        tokenizer = self.user_tokenizer
        return (id(tokenizer), vocabulary_size(tokenizer), *self._settings())


# Of BERT's layer and those built like it: attention with residual and norm, then what works token by token.
_PARTS = {"attention", "intermediate", "output"}


class SentenceTransformerEncoder(ModelEncoder):
    """Encode with a loaded SentenceTransformer, which is not changed except for ``max_length``."""

    _from_weights: ClassVar = (*ModelEncoder._from_weights, "_reuse", "_first_token")

    def __init__(  # noqa: PLR0913 - all of them keyword-only, one decision each
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
        truncate_dim: int | None = None,
        layer: int | None = None,
        route: str | None = None,
    ) -> None:
        from stickytoken.encoders._routes import routed

        if len(model) == 0:
            raise ModelError(f"{name}: the model has no modules, so it does not read text")
        self.model = routed(model, route, name)
        # The user's model, where the encoder works with one route of it.
        self._whole_model = None if self.model is model else model
        self._asked_route = route
        if getattr(self.model, "tokenizer", None) is None:
            raise ModelError(f"{name}: the model has no tokenizer, so it does not read text")
        # How the model is read; None where that is as it was saved.
        self.truncate_dim: int | None = None
        self.layer: int | None = None
        if layer is not None:
            self._cut(layer, name)
        self._asked_prompt = prompt
        self._token_budget, self._reuse_limits = token_budget, reuse
        super().__init__(self.model, name, precision, packed_layers)
        if truncate_dim is not None:
            self._truncate(truncate_dim)
        if max_length is None:
            return
        readable_positions(self.model, max_length, name)
        taken = self.template.overhead + len(self.own_tokenizer.encode_many([self.prompt])[0])
        if max_length <= taken:
            raise InputError(
                f"max_length is {max_length}: the special tokens and the prompt of {name!r} take {taken} "
                "tokens, which leaves no room for a text; pass more"
            )
        with suppress(AttributeError):  # a static embedding has the property without a setter
            self.model.max_seq_length = max_length
        if self.model.max_seq_length != max_length:
            raise InputError(
                f"max_length is {max_length}: {name!r} reads texts of any length and has no limit to set; "
                "leave max_length out"
            )
        self._read_again()

    def _cut(self, layer: int, name: str) -> None:
        """Run only so many layers from now on, without a change to the user's model."""
        shorter = layers.first_layers(self.model, layer, name)
        if shorter is self.model:
            return
        self.layer = layer
        self.model = shorter
        self._whole_model = None  # the shorter model is a copy that no longer follows its routes

    def _truncate(self, dimension: int) -> None:
        """Read only so many components from now on, without a change to the user's model."""
        require_components(dimension, self.dimension, self.name)
        if dimension == self.dimension:
            return
        self.truncate_dim = dimension
        self.model = self._network = copy.copy(self.model)
        self.model.truncate_dim = dimension
        self._read_again()

    def _read(self) -> None:
        if self._whole_model is not None:
            from stickytoken.encoders._routes import routed

            self.model = routed(self._whole_model, self._asked_route, self.name)
            if self.truncate_dim is not None:
                self.model.truncate_dim = self.truncate_dim
        try:
            self.own_tokenizer = self.entries_tokenizer = HuggingFaceTokenizer(self.model.tokenizer)
        except ModelError as error:
            raise ModelError(f"{self.name!r} has no usable tokenizer: {error}") from error
        self.template = read_template(self.model, self.own_tokenizer, self.prompt, self.name)
        # The smallest of the truncation limits and the number of positions.
        truncation = getattr(self.model.tokenizer, "truncation", None)
        cut = truncation["max_length"] if truncation else None
        limits = [self.model.max_seq_length, cut, *learned_positions(self.model), *self._task_limits()]
        known = [int(limit) for limit in limits if limit is not None and limit < NO_LIMIT]
        self.max_length = min(known, default=None)
        self._rows = self.own_tokenizer.rows = table_rows(self.model)
        self._runner = batches.BatchRunner(self.model, self.template, self.name, self._token_budget)

    def _settings(self) -> tuple[object, ...]:
        model = self.model
        settings: tuple[object, ...] = (
            self.prompt,
            model.max_seq_length,
            model.truncate_dim,
            table_rows(model),
        )
        whole = self._whole_model
        if whole is not None:
            settings += (whole.default_prompt_name, tuple(whole.prompts.items()), whole.truncate_dim)
        return settings

    def _task_limits(self) -> list[int | None]:
        """Return the longest input that the first module declares for the task of the route."""
        if self.route is None or self.route.task is None:
            return []
        return [getattr(self.model[0], f"{self.route.task}_length", None)]

    @property
    def similarity(self) -> Similarity:
        return Similarity(self.model.similarity_fn_name)

    @property
    def route(self) -> RoutedModel | None:
        """The route that texts take; None for a model without routes."""
        from stickytoken.encoders._routes import RoutedModel

        return self.model if isinstance(self.model, RoutedModel) else None

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

    def _modules_and_prompt(self) -> tuple[str, str]:
        return compute.modules_fingerprint(self.model), self.prompt

    @cached_property
    def dimension(self) -> int:
        with compute.computing(self._network):
            return int(self._runner.vectors([(self.usable_entries()[0],)]).shape[1])

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
        if not batches.pools_by(self.model, "cls"):
            return None
        stack = getattr(getattr(self.model[0].model, "encoder", None), "layer", None)
        last: Any = stack[-1] if isinstance(stack, torch.nn.ModuleList) and len(stack) else None
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
        except ModelError:
            return None  # another version of transformers, or a module that reads more
        return attention if prefixes.agree(found, plain, self._rounding) else None

    def _vectors(self, contents: Sequence[Content]) -> NDArray[np.float32]:
        with compute.computing(self._network), self._arithmetic():
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
