"""Encoders of torch models: the base class, and the encoder of a SentenceTransformer."""

from __future__ import annotations

import copy
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders import compute
from stickytoken.encoders._template import read_template
from stickytoken.encoders._tokenizer import HuggingFaceTokenizer, vocabulary_size
from stickytoken.encoders.compute import batches, layers, precisions, prefixes
from stickytoken.encoders.lengths import NO_LIMIT, learned_positions, readable_positions
from stickytoken.encoders.protocol import Capabilities, EncoderIdentity, require_usable, shown, texts_of
from stickytoken.encoders.text_encoder import require_components
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
Derived = TypeVar("Derived")

# Sample inputs show whether a faster way to compute gives the same vectors. The three constants are the
# number of vocabulary entries in the sample, the number of entries per input, and the number of copies that
# are added to some inputs.
_SAMPLED_ENTRIES = 512
_ENTRIES_IN_A_ROW = 8
_COPIES = 8
# Number of sample inputs used to test whether the last layer can be computed for the first token only.
_FIRST_TOKEN_SAMPLES = 4
# Names of the child modules in a BERT layer, and in layers with the same structure: attention with residual
# and norm, followed by modules that process each token separately.
_BERT_LAYER_CHILDREN = {"attention", "intermediate", "output"}


class ModelEncoder(ABC):
    """An encoder of a torch model that belongs to the user, who may change it at any time.

    The encoder caches what it reads from the model (tokenizer, special tokens, lengths) and what depends on
    the weights (dimension, encoders at lower precisions, whether faster ways to compute are exact). Every
    call of `encode` checks for changes that are cheap to detect: addresses and versions of the weights, the
    size of the vocabulary, the prompt and the maximum input length. `identity`, which every run reads,
    detects all changes to the model that can change the vectors.

    Attributes:
        own_tokenizer: a copy of the user's tokenizer.
        entries_tokenizer: `own_tokenizer`, or a tokenizer that encodes entries as part of a prompt.
        max_length: maximum input length in tokens, including special tokens; None if there is no limit.
        user_tokenizer: the tokenizer of the user's model.
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
        # The state of the model when the encoder was made. Later calls compare the stored state with the
        # model's current state, to find out whether the user has changed the model.
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
    def _measured_dimension(self) -> int:
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
        return self._derived_once("dimension", self._measured_dimension)

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(parameter.numel() for parameter in self._network.parameters())

    @property
    def identity(self) -> EncoderIdentity:
        """Fingerprints of everything that can change the vectors, computed from the user's current model.

        If the weights have changed, cached values are dropped. If the tokenizer or the input settings have
        changed, the model is also read again.
        """
        with compute.model_lock(self._network):
            weights = compute.weights_fingerprint(self._network)
            if weights != self._weights_hash:
                self._forget_derived()
                self._weights_hash = weights
            # `_apply_model_changes` notices if the tokenizer has been replaced or its vocabulary size has
            # changed, but only the fingerprint reveals every change to the tokenizer.
            if HuggingFaceTokenizer(self.user_tokenizer).fingerprint != self.own_tokenizer.fingerprint:
                self._reconfigure()
            self._apply_model_changes()
            modules, prompt = self._modules_hash_and_prompt()
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
        with compute.model_lock(self._network):
            self._apply_model_changes()
            return self._derived_once(f"at {precision}", partial(self._lowered, precision))

    def _lowered(self, precision: Precision) -> Self:
        """Return an encoder that computes at a lower precision; check that its vectors are close enough.

        Raises:
            InputError: the vectors differ too much, or the model reads too few tokens for a comparison.
        """
        precisions.require_precision(self._network, precision, self.name)
        if not self._samples:
            raise InputError(
                f"{self.name} reads too few tokens to compare {precision} with its own precision: leave the "
                "precision out"
            )
        lower = self._copy()
        lower._precision = precision
        lower._arithmetic = precisions.arithmetic(self._network, precision)
        lower._reset()
        exact = self._vectors(self._samples)
        lowered = lower._vectors(self._samples)
        center = self._center(exact)
        precisions.require_agreement(exact - center, lowered - center, precision, self.name)
        return lower

    def _copy(self) -> Self:
        """Return a copy of this encoder that shares its model; call `_reset` after changing the copy."""
        other = copy.copy(self)
        other.spec = None
        other._weights_hash = None
        other._derived = {}
        return other

    def _reset(self) -> None:
        """Read the model again and drop all cached values."""
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

        Args:
            ids: content ids of each input.
            texts: the texts of the inputs, for error messages; if None, messages show the decoded ids.
            allow_zero: as for `encode`.
        """
        # Equal inputs share one row, which saves work and makes their vectors exactly equal.
        row_of: dict[Content, int] = {}
        rows = [row_of.setdefault(tuple(content), len(row_of)) for content in ids]
        contents = list(row_of)

        def label(row: int) -> str:
            if texts:
                return shown(texts[rows.index(row)])
            return shown(self.own_tokenizer.decode_many([contents[row]])[0])

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
        """Raise an `EncodingError` that names the first input that the model cannot read, if any.

        Whether an input is readable depends on its length and on its smallest and largest id. All inputs are
        readable if the shortest and the longest input are readable, and so are the inputs with the smallest
        and the largest id. Checking only these four inputs avoids a slow loop over all inputs while a GPU
        waits.
        """
        lengths = np.fromiter(map(len, contents), np.intp, len(contents))
        extreme_rows = {int(lengths.argmin()), int(lengths.argmax())}
        ids = np.fromiter(itertools.chain.from_iterable(contents), np.int64, int(lengths.sum()))
        if ids.size:
            ends = lengths.cumsum()
            for position in (ids.argmin(), ids.argmax()):
                extreme_rows.add(int(np.searchsorted(ends, position, side="right")))
        try:
            for row in extreme_rows:
                self.check_input(contents[row], partial(label, row))
        except EncodingError:
            for row, content in enumerate(contents):
                self.check_input(content, partial(label, row))
            raise

    def _center(self, exact: NDArray[np.float32]) -> Any:
        """Return the part that all vectors share, which is subtracted before precisions are compared."""
        del exact
        return np.float32(0)

    @property
    def _samples(self) -> list[Content]:
        """Content ids of the inputs on which faster ways to compute are compared with the plain way."""
        return self._derived_once("samples", self._new_samples)

    def _new_samples(self) -> list[Content]:
        """Return sample inputs, as sequences of content ids.

        The first inputs consist of different entries from all parts of the vocabulary. Each further input is
        one of the first inputs, with copies of a single entry or special token at its end. Inputs that the
        model cannot read are left out.
        """
        entries = self.usable_entries()
        special = sorted(self.own_tokenizer.special_ids.intersection(entries))
        spread = entries[:: max(1, len(entries) // _SAMPLED_ENTRIES)]
        rows = [
            tuple(spread[start : start + _ENTRIES_IN_A_ROW])
            for start in range(0, len(spread), _ENTRIES_IN_A_ROW)
        ]
        # Each input is followed by copies of its own first entry. Special tokens are distributed over the
        # inputs.
        copied_entries = [row[0] for row in rows] + special
        rows_with_copies = []
        for number, entry in enumerate(copied_entries):
            copies = (entry,) * _COPIES
            rows_with_copies.append(rows[number % len(rows)] + copies)
        return [content for content in rows + rows_with_copies if self.fits(content)]

    @property
    def _rounding(self) -> float:
        """Machine epsilon of the arithmetic."""
        if self._precision is None:
            return torch.finfo(self.dtype).eps
        return precisions.ROUNDING[self._precision]

    # Detection of changes that the user makes to the model.

    def _derived_once(self, name: str, compute_value: Callable[[], Derived]) -> Derived:
        """Return the value cached under this name; if there is none, compute it and cache it."""
        derived = self._derived  # a local name, since another thread may replace the attribute
        if name not in derived:
            derived[name] = compute_value()
        value: Derived = derived[name]
        return value

    def _apply_model_changes(self) -> None:
        """Read the model again and drop cached values if the user has changed the model."""
        weight_versions = self._weight_versions()
        if weight_versions != self._known_weight_versions:
            with compute.model_lock(self._network):
                self._known_weight_versions = weight_versions
                self._forget_derived()
        if self._input_settings() != self._known_input_settings:
            self._reconfigure()

    def _reconfigure(self) -> None:
        """Read the model again and drop all cached values, while no other call uses the model."""
        with compute.model_lock(self._network):
            self._reset()

    def _forget_derived(self) -> None:
        """Drop the cached values that depend on the weights."""
        self._derived = {}

    def _weight_versions(self) -> list[tuple[int, int]]:
        """Return the address and version of each weight, which change when the weight changes."""
        return [compute.weight_version(weight) for weight in self._network.parameters()]

    def _input_settings(self) -> tuple[object, ...]:
        """Return everything that determines how a text becomes token ids and that is cheap to compare."""
        tokenizer = self.user_tokenizer
        return (id(tokenizer), vocabulary_size(tokenizer), *self._settings())


class SentenceTransformerEncoder(ModelEncoder):
    """Encodes texts with the user's SentenceTransformer.

    The encoder changes only one setting of the user's model: the maximum input length, if `max_length` is
    passed.
    """

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
        truncate_dim: int | None = None,
        layer: int | None = None,
        route: str | None = None,
    ) -> None:
        """Read the model. Most arguments are options of `load_encoder`.

        Args:
            model: the user's model.
            name: name of the model, as the user gave it.
            prompt: text put before every input; if None, the model's default prompt.
            token_budget: maximum number of tokens per batch; if None, a number that suits the device.
            max_length: maximum input length, in tokens; the user's model is set to this limit.
            reuse: limits within which common prefixes of inputs are computed only once; if None, nothing is
                reused.
            precision: precision of the arithmetic, which must be lower than the precision of the weights; if
                None, the precision of the weights.
            truncate_dim: keep only this many leading components of each vector; if None, keep all.
            layer: number of layers to run (at least 1); if None, all are run.
            route: route that texts take, such as ``query``; if None, the model's default route.
        """
        from stickytoken.encoders._routes import routed

        if len(model) == 0:
            raise ModelError(f"{name}: the model has no modules, so it does not read text")
        self.model = routed(model, route, name)
        # The user's model, if `self.model` is a copy that contains only one of its routes; otherwise None.
        self._routed_from = None if self.model is model else model
        self._asked_route = route
        if getattr(self.model, "tokenizer", None) is None:
            raise ModelError(f"{name}: the model has no tokenizer, so it does not read text")
        # The attributes `truncate_dim` and `layer` stay None if the requested values are the model's own
        # values, and thus have no effect.
        self.truncate_dim: int | None = None
        self.layer: int | None = None
        if layer is not None:
            self._run_first_layers(layer, name)
        self._asked_prompt = prompt
        self._token_budget = token_budget
        self._reuse_limits = reuse
        super().__init__(self.model, name, precision)
        if truncate_dim is not None:
            self._truncate(truncate_dim)
        if max_length is not None:
            self._limit(max_length)

    def _run_first_layers(self, layer: int, name: str) -> None:
        """Replace `self.model` with a copy that runs only the first layers. The user's model is unchanged."""
        shorter = layers.first_layers(self.model, layer, name)
        if shorter is self.model:
            return
        self.layer = layer
        self.model = shorter
        self._routed_from = None  # the copy does not reflect later changes to the user's model

    def _truncate(self, dimension: int) -> None:
        """Keep only the first `dimension` components from now on; the user's model stays unchanged."""
        require_components(dimension, self.dimension, self.name)
        if dimension == self.dimension:
            return
        self.truncate_dim = dimension
        self.model = copy.copy(self.model)
        self.model.truncate_dim = dimension
        self._network = self.model
        self._reconfigure()

    def _limit(self, max_length: int) -> None:
        """Set the maximum input length of the user's model.

        Raises:
            InputError: the model cannot read ``max_length`` tokens, it has no limit to set, or the limit
                leaves no room for a text.
        """
        readable_positions(self.model, max_length, self.name)
        prompt_tokens = len(self.own_tokenizer.encode_many([self.prompt])[0])
        taken = self.template.overhead + prompt_tokens
        if max_length <= taken:
            raise InputError(
                f"max_length is {max_length}: the special tokens and the prompt of {self.name!r} take "
                f"{taken} tokens, which leaves no room for a text; pass a larger limit"
            )
        with suppress(AttributeError):  # in a static embedding, `max_seq_length` has no setter
            self.model.max_seq_length = max_length
        if self.model.max_seq_length != max_length:
            raise InputError(
                f"max_length is {max_length}: {self.name!r} reads texts of any length and has no limit to "
                "set; leave max_length out"
            )
        self._reconfigure()

    def _configure(self) -> None:
        """Read everything about tokens from the user's model, and create a new runner.

        The method sets the tokenizers, the template, the maximum length and the number of embedding rows.
        """
        if self._routed_from is not None:  # the user may have changed the model after the route was copied
            from stickytoken.encoders._routes import routed

            self.model = routed(self._routed_from, self._asked_route, self.name)
            if self.truncate_dim is not None:
                self.model.truncate_dim = self.truncate_dim
        try:
            self.own_tokenizer = HuggingFaceTokenizer(self.model.tokenizer)
        except ModelError as error:
            raise ModelError(f"{self.name!r} has no usable tokenizer: {error}") from error
        self.entries_tokenizer = self.own_tokenizer  # entries are encoded like any other text
        self.template = read_template(self.model, self.own_tokenizer, self.prompt, self.name)
        self.max_length = self._longest_input()
        self._rows = table_rows(self.model)
        self.own_tokenizer.rows = self._rows
        self._runner = batches.BatchRunner(self.model, self.template, self.name, self._token_budget)

    def _longest_input(self) -> int | None:
        """Return the smallest of the token limits that the tokenizer, the model and its positions set.

        Return None if there is no limit.
        """
        truncation = getattr(self.model.tokenizer, "truncation", None)
        limits = [
            self.model.max_seq_length,
            truncation["max_length"] if truncation else None,
            self._limit_of_task(),
            *learned_positions(self.model),
        ]
        return min((int(limit) for limit in limits if limit is not None and limit < NO_LIMIT), default=None)

    def _limit_of_task(self) -> int | None:
        """Return the maximum number of tokens that the first module declares for the task of the route.

        Returns:
            The limit; None if there is no task, or the module declares no limit for this task.
        """
        if self.route is None or self.route.task is None:
            return None
        limit: int | None = getattr(self.model[0], f"{self.route.task}_length", None)
        return limit

    def _settings(self) -> tuple[object, ...]:
        """Return the settings that `_configure` reads, to detect that the user has changed the model.

        The settings include the number of embedding rows and, if `model` is a copy that contains only one
        route, the settings of the user's model.
        """
        model = self.model
        settings: tuple[object, ...] = (
            self.prompt,
            model.max_seq_length,
            model.truncate_dim,
            table_rows(model),
        )
        users_model = self._routed_from
        if users_model is not None:
            prompts = tuple(users_model.prompts.items())
            settings += (users_model.default_prompt_name, prompts, users_model.truncate_dim)
        return settings

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
        """The text that is put before every input."""
        if self._asked_prompt is not None:
            return self._asked_prompt
        default = self.model.default_prompt_name
        if default is None:
            return ""
        return str(self.model.prompts.get(default) or "")

    @property
    def user_tokenizer(self) -> Any:
        return self.model.tokenizer

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    def _modules_hash_and_prompt(self) -> tuple[str, str]:
        return compute.modules_fingerprint(self.model), self.prompt

    def _measured_dimension(self) -> int:
        content = (self.usable_entries()[0],)
        with compute.computing(self._network):
            return int(self._runner.vectors([content]).shape[1])

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        self._apply_model_changes()
        return self.own_tokenizer.tokenize(texts, self.prompt)

    def content_ids(self, texts: Sequence[str]) -> list[list[int]]:
        self._apply_model_changes()
        return self.own_tokenizer.encode_many([self.prompt + text for text in texts])

    def fits(self, ids: Sequence[int]) -> bool:
        is_short = self.max_length is None or len(ids) + self.template.overhead <= self.max_length
        return is_short and (self._rows is None or max(ids, default=0) < self._rows)

    def usable_entries(self) -> list[int]:
        rows = self._rows or math.inf
        return [entry for entry in self.own_tokenizer.entries if entry < rows]

    def _vectors(self, contents: Sequence[Content]) -> NDArray[np.float32]:
        """Return the vectors of contents, and save computation if the model allows it.

        There are two ways to save computation. If a model's vector is the state of the first token, its last
        layer can skip all other tokens. If the vector is the state of the last token, a prefix that several
        inputs share needs to be computed only once. No model allows both.
        """
        with compute.computing(self._network), self._arithmetic():
            last_attention = self._derived_once("last attention", self._skippable_attention)
            if last_attention is not None:
                with batches.first_token_only(last_attention):
                    return self._runner.vectors(contents)
            reuse = self._derived_once("reuse", self._prefix_reuse)
            if reuse is not None:
                vectors = reuse.vectors_if_cheaper(contents)
                if vectors is not None:
                    return vectors
            return self._runner.vectors(contents)

    def _prefix_reuse(self) -> prefixes.PrefixReuse | None:
        """Return an object that computes common prefixes of inputs only once.

        Returns:
            The object that computes prefixes once; None if reuse is off or the model does not allow reuse.
        """
        if self._reuse_limits is None or not batches.pools_by(self.model, "lasttoken"):
            return None
        # Samples of the inputs for which prefixes are reused: copies of a token before or after a text. The
        # text consists of three entries, and two other entries are copied.
        entries = tuple(itertools.islice(self.usable_entries(), 5))
        samples = prefixes.samples_with_copies(carrier=entries[:-2], tokens=entries[-2:])
        if not all(map(self.fits, samples)) or not self._has_plain_inputs():
            return None
        model = self.model
        template = self.template
        first, *later_modules = list[Any](model)
        backbone = first.model

        def finish(last_states: torch.Tensor) -> torch.Tensor:
            """Return the vectors of inputs, shape (n, d), from the states of their last tokens."""
            features = dict(template.features)
            features["token_embeddings"] = last_states
            # The pooling module sees one token for each input.
            features["attention_mask"] = torch.ones(
                last_states.shape[:2], dtype=torch.long, device=last_states.device
            )
            for module in later_modules:
                features = module(features)
            vectors: torch.Tensor = features["sentence_embedding"]
            return vectors[:, : model.truncate_dim]

        return prefixes.PrefixReuse(
            backbone,
            template.before,
            template.after,
            states_of=lambda inputs: backbone(**inputs).last_hidden_state,
            vectors_of_states=finish,
            engine=self._runner,
            limits=self._reuse_limits,
            samples=samples,
            plain_vectors=self._runner.vectors,
            rounding=self._rounding,
        )

    def _has_plain_inputs(self) -> bool:
        """Whether the model's inputs and pooling are so simple that common prefixes can be reused.

        The backbone must take only ids and a known kind of attention mask, and return its last hidden states.
        The pooling must not skip the prompt.
        """
        first: Any = self.model[0]
        pooling: Any = self.model[1]
        text_settings = first.modality_config.get("text", {})
        reads_forward = text_settings.get("method") == "forward"
        output_name = text_settings.get("method_output_name")
        gives_states = output_name in ("last_hidden_state", ["last_hidden_state"])
        skips_prompt = not pooling.include_prompt and "prompt_length" in self.template.features
        return (
            prefixes.known_kind(first.model)
            and reads_forward
            and gives_states
            and self.template.token_types is None
            and not self.template.flat
            and not skips_prompt
        )

    def _skippable_attention(self) -> torch.nn.Module | None:
        """Return the last layer's attention module if its output can be limited to the first token.

        If the output is limited, the feed-forward part of the layer skips all tokens but the first. A few
        sample inputs show whether skipping the other tokens changes the vectors.

        Returns:
            The attention module; None if the vectors change, or if the model is not of a suitable type.
        """
        if not batches.pools_by(self.model, "cls"):
            return None
        backbone: Any = self.model[0].model
        stack = getattr(getattr(backbone, "encoder", None), "layer", None)
        if not isinstance(stack, torch.nn.ModuleList) or len(stack) == 0:
            return None
        last_layer: Any = stack[-1]
        samples = self._samples[:: max(1, len(self._samples) // _FIRST_TOKEN_SAMPLES)]
        if not samples or not _is_bert_layer(last_layer):
            return None
        attention: torch.nn.Module = last_layer.attention
        plain_vectors = self._runner.vectors(samples)
        try:
            with batches.first_token_only(attention):
                vectors = self._runner.vectors(samples)
        except ModelError:
            return None  # this version of transformers or a later module needs the states of all tokens
        return attention if prefixes.agree(vectors, plain_vectors, self._rounding) else None

    def features(self, contents: Sequence[Content]) -> dict[str, Any]:
        """Return the inputs of the first module for equally long sequences of content ids."""
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
                f"{self.name}: the text {label()} has {length} tokens, but the model reads "
                f"{self.max_length}: use shorter sentences or fewer copies"
            )


def _is_bert_layer(layer: Any) -> bool:
    """Whether a layer has the structure of BERT's layers, which process tokens separately after attention."""
    children = {name for name, _ in layer.named_children()}
    is_of_transformers = type(layer).__module__.startswith("transformers.models.")
    is_decoder = getattr(layer, "is_decoder", False)
    is_chunked = getattr(layer, "chunk_size_feed_forward", 0)
    return is_of_transformers and not is_decoder and not is_chunked and children == _BERT_LAYER_CHILDREN
