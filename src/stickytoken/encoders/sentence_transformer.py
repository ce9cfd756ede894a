"""The encoder of a SentenceTransformer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders import compute
from stickytoken.encoders.compute import batches, first_token, layers, prefixes
from stickytoken.encoders.inputs.lengths import NO_LIMIT, find_learned_positions, readable_positions
from stickytoken.encoders.inputs.template import read_template
from stickytoken.encoders.inputs.token_table import table_rows
from stickytoken.encoders.inputs.tokenizer import HuggingFaceTokenizer
from stickytoken.encoders.model_encoder import Content, ModelEncoder
from stickytoken.encoders.protocol import Capabilities
from stickytoken.encoders.roles import Role
from stickytoken.encoders.text_encoder import require_components
from stickytoken.errors import EncodingError, InputError, ModelError, warn
from stickytoken.insertion import TokenizedText
from stickytoken.machine import Precision
from stickytoken.unit_vectors import Similarity

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from stickytoken.encoders.files.spec import EncoderSpec
    from stickytoken.encoders.inputs.routes import RoutedModel

# Number of sample inputs used to test whether the last layer can be computed for the first token only.
_FIRST_TOKEN_SAMPLES = 4


class SentenceTransformerEncoder(ModelEncoder):
    """Encodes texts with the user's SentenceTransformer.

    The encoder changes only one setting of the user's model: the maximum input length, if `max_length` is
    passed.

    Attributes:
        options: the options in use; a layer and a dimension that are the model's own are None.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        name: str,
        options: EncoderSpec,
        *,
        precision: Precision | None = None,
        reuse: prefixes.ReuseLimits | None = prefixes.REUSE,
    ) -> None:
        """Read the model.

        Args:
            model: the user's model.
            name: name of the model, as the user gave it.
            options: how to read the model. The prompts in it are texts, not names of prompts. If it has no
                query prompt, queries get the model's query prompt if ``options.prompting.prompt`` is one of
                the model's document prompts, and else the same prompt as documents. If it has a maximum
                length, the user's model is set to it.
            precision: precision of the arithmetic, which must be lower than the precision of the weights; if
                None, the precision in ``options``.
            reuse: limits within which common prefixes of inputs are computed only once; if None, nothing is
                reused.
        """
        from stickytoken.encoders.inputs.routes import follow_route, has_roles, query_prompt_beside

        if len(model) == 0:
            raise ModelError(f"{name}: the model has no modules, so it does not read text")
        prompting = options.prompting
        route = options.route
        role = options.role
        self.options = options
        self.role = role
        self._in_roles: dict[Role | None, SentenceTransformerEncoder] = {}
        self._model_of_all_roles = model
        # Queries take the model's query route, and documents its document route. If the user names another
        # route than that of documents, all texts take the named route.
        self._follows_routes = route in (None, Role.DOCUMENT) and has_roles(model, name)
        self._route_taken = route
        if role is not None and self._follows_routes:
            self._route_taken = role.value
        self.model = follow_route(model, self._route_taken, name)
        # The user's model, if `self.model` is a copy that contains only one of its routes; otherwise None.
        self._routed_from = None if self.model is model else model
        if getattr(self.model, "tokenizer", None) is None:
            raise ModelError(f"{name}: the model has no tokenizer, so it does not read text")
        # The attributes `truncate_dim` and `layer` stay None if the requested values are the model's own
        # values, and thus have no effect.
        self.truncate_dim: int | None = None
        self.layer: int | None = None
        if prompting.layer is not None:
            self._run_first_layers(prompting.layer, name)
        self._asked_prompt = prompting.prompt
        self._query_prompt = prompting.query_prompt
        if self._query_prompt is None:
            self._query_prompt = query_prompt_beside(model, prompting.prompt)
        self._reuse_limits = reuse
        super().__init__(self.model, name, precision or options.precision)
        if options.truncate_dim is not None:
            self._truncate(options.truncate_dim)
        if options.max_length is not None:
            self._limit(options.max_length)
        prompting = replace(prompting, layer=self.layer)
        self.options = replace(options, prompting=prompting, truncate_dim=self.truncate_dim)

    def _run_first_layers(self, layer: int, name: str) -> None:
        shorter = layers.first_layers(self.model, layer, name)
        if shorter is self.model:
            return
        self.layer = layer
        self.model = shorter  # a copy: the user's model is unchanged
        self._routed_from = None  # the copy does not reflect later changes to the user's model

    def _truncate(self, dimension: int) -> None:
        require_components(dimension, self.dimension, self.name)
        if dimension == self.dimension:
            return
        self.truncate_dim = dimension
        self.model = copy.copy(self.model)  # shallow: it shares the modules with the user's model
        self.model.truncate_dim = dimension
        self._network = self.model
        self._reconfigure()

    def _limit(self, max_length: int) -> None:
        """Set the maximum input length of the user's model.

        Raises:
            InputError: the model cannot read ``max_length`` tokens, it has no limit to set, or the limit
                leaves no room for a text.
        """
        # Raises an error if the model cannot read ``max_length`` tokens.
        readable_positions(self.model, max_length, self.name)
        prompt_tokens = len(self.own_tokenizer.encode_many([self.prompt])[0])
        tokens_around_text = self.template.overhead + prompt_tokens
        if max_length <= tokens_around_text:
            raise InputError(
                f"max_length is {max_length}: the special tokens and the prompt of {self.name!r} take "
                f"{tokens_around_text} tokens, which leaves no room for a text; pass a larger limit"
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
        """Read everything about tokens from the user's model, and make a new runner for it.

        Sets the tokenizers, the template, the maximum length and the number of token vectors (`_rows`).
        """
        if self._routed_from is not None:  # the user may have changed the model after the route was copied
            from stickytoken.encoders.inputs.routes import follow_route

            self.model = follow_route(self._routed_from, self._route_taken, self.name)
            if self.truncate_dim is not None:
                self.model.truncate_dim = self.truncate_dim
        try:
            self.own_tokenizer = HuggingFaceTokenizer(self.model.tokenizer)
        except ModelError as error:
            raise ModelError(f"{self.name!r} has no usable tokenizer: {error}") from error
        self.entries_tokenizer = self.own_tokenizer  # entries are encoded like any other text
        self.max_length = self._find_max_length()
        if self.max_length is not None and self._find_truncation_side() == "left":
            raise ModelError(
                f"{self.name!r} keeps the end of a long text, because its tokenizer truncates on the left: "
                "load it as a SentenceTransformer, let the tokenizer truncate on the right instead "
                "(tokenizer.truncation_side = 'right'), and pass or save that model"
            )
        self.template = read_template(self.model, self.own_tokenizer, self.prompt, self.max_length, self.name)
        self._rows = table_rows(self.model)
        self.own_tokenizer.rows = self._rows
        self._runner = batches.BatchRunner(self.model, self.template, self.name, self.options.token_budget)

    def _find_max_length(self) -> int | None:
        truncation = getattr(self.model.tokenizer, "truncation", None)  # of the tokenizers library
        limits = [
            self.model.max_seq_length,
            truncation["max_length"] if truncation else None,
            self._find_task_limit(),
            *self._find_processing_limits(),
            *find_learned_positions(self.model),
        ]
        # A tokenizer without a limit may declare a huge number.
        real_limits = [int(limit) for limit in limits if limit is not None and limit < NO_LIMIT]
        return min(real_limits, default=None)

    def _find_truncation_side(self) -> str:
        # On which side the model cuts long texts; texts are cut on the right everywhere here.
        tokenizer = self.model.tokenizer
        truncation = getattr(tokenizer, "truncation", None)  # of the tokenizers library
        if truncation:
            return str(truncation["direction"])
        return str(getattr(tokenizer, "truncation_side", "right"))

    def _find_task_limit(self) -> int | None:
        # A module may have limits for queries and documents, in attributes such as `query_length`.
        if self.route is None or self.route.task is None:
            return None
        limit: int | None = getattr(self.model[0], f"{self.route.task}_length", None)
        return limit

    def _find_processing_limits(self) -> list[int | None]:
        # The first module may pass limits of its own to the tokenizer, of texts and of all kinds of inputs.
        processing: Any = getattr(self.model[0], "processing_kwargs", None) or {}
        return [(processing.get(kind) or {}).get("max_length") for kind in ("text", "common")]

    def _settings(self) -> tuple[object, ...]:
        # If one of these settings changes, the user has changed the model, and `_configure` reads it again.
        model = self.model
        settings: tuple[object, ...] = (
            self.prompt,
            model.max_seq_length,
            model.truncate_dim,
            table_rows(model),
            *self._find_processing_limits(),
            self._find_truncation_side(),
        )
        # Faster ways to compute, and the dimension, depend on the chain of modules and on the pooling.
        for module in model:
            pooling = (getattr(module, "pooling_mode", None), getattr(module, "include_prompt", None))
            settings += (module, *pooling)
        users_model = self._routed_from
        if users_model is not None:  # `self.model` is a copy, which doesn't show changes of the user's model
            prompts = tuple(users_model.prompts.items())
            settings += (users_model.default_prompt_name, prompts, users_model.truncate_dim)
            settings += tuple(users_model)
        return settings

    def _copy(self) -> Self:
        other = super()._copy()
        other._in_roles = {}  # the encoders in `self._in_roles` have the precision of `self`
        return other

    @property
    def capabilities(self) -> Capabilities:
        declared = replace(
            super().capabilities, prompt=self.prompt, leaves_out_prompt=self._leaves_out_prompt
        )
        route = self.route
        if route is None:
            return declared
        return replace(declared, route=route.route, route_in_words=route.description)

    @property
    def _leaves_out_prompt(self) -> bool:
        pools_prompt = all(getattr(module, "include_prompt", True) for module in self.model)
        return not pools_prompt and "prompt_length" in self.template.features

    @property
    def similarity(self) -> Similarity:
        return Similarity(self.model.similarity_fn_name)

    @property
    def route(self) -> RoutedModel | None:
        """The route that texts take; None for a model without routes."""
        from stickytoken.encoders.inputs.routes import RoutedModel

        return self.model if isinstance(self.model, RoutedModel) else None

    @property
    def device(self) -> str:
        return str(self.model.device)

    @property
    def prompt(self) -> str:
        """The text that is put before every input."""
        if self.role is Role.QUERY and self._query_prompt is not None:
            return self._query_prompt
        if self._asked_prompt is not None:  # the user has named a prompt
            return self._asked_prompt
        default_name = self.model.default_prompt_name
        if default_name is None:
            return ""
        return str(self.model.prompts.get(default_name) or "")

    def in_role(self, role: Role | None) -> SentenceTransformerEncoder:
        """Return the encoder of texts in a role, which shares its weights with this encoder.

        It encodes queries as `encode_query` of sentence-transformers does, documents as `encode_document`,
        and texts without a role as `encode`. A prompt that the user names is put before texts in every role,
        with one exception: if it is one of the model's document prompts, queries keep the model's query
        prompt.
        """
        if role is self.role or not self._distinguishes_roles:
            return self
        if role not in self._in_roles:
            self._in_roles[role] = self._make_encoder_for(role)
        return self._in_roles[role]

    @property
    def _distinguishes_roles(self) -> bool:
        if self._query_prompt is not None:
            return True
        if self._asked_prompt is not None:  # the prompt is the same in all roles, so only routes may differ
            return self._routes_matter
        return self._follows_routes

    @property
    def _routes_matter(self) -> bool:
        from stickytoken.encoders.inputs.routes import uses_more_than_prompts

        return self._follows_routes and uses_more_than_prompts(self._model_of_all_roles)

    def library_model(self) -> SentenceTransformer:
        """Return a SentenceTransformer for code that calls `encode_query` or `encode_document` of it.

        These methods give the same vectors as this encoder in each role: the prompts and the route that the
        user named replace those of the model.

        Raises:
            InputError: only the first layers of the model are run, and queries and documents take different
                routes. Each encoder then has a copy of the model with one route, so no model has both.
        """
        plain = self.in_role(None)  # the encoder of texts that are neither queries nor documents
        if plain.layer is not None and plain.route is not None and self._routes_matter:
            raise InputError(
                f"{self.name} sends queries and documents through different modules, which code that calls "
                "encode_query and encode_document itself can use only with all layers: leave out the option "
                "layer, or name the route query"
            )
        model = plain.model
        replaces_prompts = self._asked_prompt is not None or self._query_prompt is not None
        if plain._routed_from is not None and self._follows_routes:
            # The model must choose the route of queries and of documents itself, so it needs all routes.
            model = copy.copy(self._model_of_all_roles)
            model.truncate_dim = plain.model.truncate_dim
        elif plain.route is not None:
            # All texts take one route, so the prompts are those of this route.
            replaces_prompts = True
        if replaces_prompts:
            # `encode_query` looks for a prompt named "query", `encode_document` for a prompt named
            # "document", and `encode` for the default prompt.
            prompts: dict[str, str | None] = {role.value: self.in_role(role).prompt for role in Role}
            names_of_plain = [name for name, text in prompts.items() if text == plain.prompt]
            default_name = names_of_plain[0] if names_of_plain else "text"
            model = copy.copy(model)
            model.prompts = prompts | {default_name: plain.prompt}
            model.default_prompt_name = default_name
        return model

    def _make_encoder_for(self, role: Role | None) -> SentenceTransformerEncoder:
        """Return an encoder for texts in another role, with the same options.

        Warn if it ignores a document prompt of the model.
        """
        from stickytoken.encoders.inputs.routes import unused_document_prompt

        unused_prompt = unused_document_prompt(self._model_of_all_roles)
        if role is Role.DOCUMENT and self._asked_prompt is None and unused_prompt is not None:
            warn(
                f"the prompt {unused_prompt!r} of {self.name} is not put before documents, because "
                "encode_document of sentence-transformers takes the one named 'document', which is empty: to "
                f"use it, pass the prompt {unused_prompt!r}"
            )
        encoder = SentenceTransformerEncoder(
            self._model_of_all_roles,
            self.name,
            replace(self.options, max_length=None, role=role),
            precision=self._precision,
            reuse=self._reuse_limits,
        )
        # The other route may begin with another module, which does not have the maximum length yet. If that
        # module reads fewer tokens, or texts of any length, it stays as it is.
        max_length = self.options.max_length
        if max_length is not None and encoder.max_length is not None and encoder.max_length > max_length:
            encoder._limit(max_length)
        encoder.options = replace(encoder.options, max_length=max_length)
        if self.spec is not None:
            encoder.spec = replace(self.spec, role=role)
        return encoder

    @property
    def user_tokenizer(self) -> Any:
        return self.model.tokenizer

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    def _modules_hash_and_prompt(self) -> tuple[str, str]:
        return compute.modules_fingerprint(self.model), self.prompt

    def _measure_dimension(self) -> int:
        content = (self.usable_entries()[0],)  # any input will do
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
        have_vectors = self._rows is None or max(ids, default=0) < self._rows
        return is_short and have_vectors

    def usable_entries(self) -> list[int]:
        rows = self._rows or math.inf
        return [entry for entry in self.own_tokenizer.entries if entry < rows]

    def _vectors(self, contents: Sequence[Content]) -> NDArray[np.float32]:
        with compute.computing(self._network), self._arithmetic():
            # If a vector is the state of the first token, the last layer can skip all other tokens.
            last_attention = self._derive_once("last attention", self._find_skippable_attention)
            if last_attention is not None:
                with first_token.first_token_only(last_attention):
                    return self._runner.vectors(contents)
            # If a vector is the state of the last token, a prefix that inputs share is computed only once.
            reuse = self._derive_once("reuse", self._prepare_prefix_reuse)
            if reuse is not None:
                vectors = reuse.vectors_if_cheaper(contents)
                if vectors is not None:
                    return vectors
            return self._runner.vectors(contents)

    def _prepare_prefix_reuse(self) -> prefixes.PrefixReuse | None:
        """Return an object that computes common prefixes of inputs only once.

        Return None if reuse is off, or the vector is not the state of the last token of a simple model.
        """
        if self._reuse_limits is None or not batches.pools_by(self.model, "lasttoken"):
            return None
        # `PrefixReuse` compares the vectors of these samples with and without reuse. A sample is a text with
        # copies of a token: the text consists of three entries, and two other entries are copied.
        entries = tuple(self.usable_entries()[:5])
        samples = prefixes.samples_with_copies(carrier=entries[:-2], tokens=entries[-2:])
        if not all(map(self.fits, samples)) or not self._has_plain_inputs():
            return None
        model = self.model
        template = self.template
        first, *later_modules = list[Any](model)
        backbone = first.model

        def compute_vectors(last_states: torch.Tensor) -> torch.Tensor:
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
            vectors_of_states=compute_vectors,
            engine=self._runner,
            limits=self._reuse_limits,
            samples=samples,
            plain_vectors=self._runner.vectors,
            rounding=self._machine_epsilon,
        )

    def _has_plain_inputs(self) -> bool:
        """Whether inputs and pooling are so simple that common prefixes can be reused."""
        first: Any = self.model[0]
        text_settings = first.modality_config.get("text", {})
        reads_forward = text_settings.get("method") == "forward"
        output_name = text_settings.get("method_output_name")
        gives_states = output_name in ("last_hidden_state", ["last_hidden_state"])
        return (
            prefixes.is_known_kind(first.model)
            and reads_forward
            and gives_states
            and self.template.token_types is None
            and not self.template.flat  # one row per text
            and not self._leaves_out_prompt
        )

    def _find_skippable_attention(self) -> torch.nn.Module | None:
        """Return the attention module of the last layer, if it can skip all tokens except the first.

        Return None if this would change the vectors of a few samples.
        """
        attention = first_token.attention_of_last_layer(self.model)  # None for most models
        # A few evenly spaced samples are enough.
        samples = self._samples[:: max(1, len(self._samples) // _FIRST_TOKEN_SAMPLES)]
        if attention is None or not samples:
            return None
        plain_vectors = self._runner.vectors(samples)
        try:
            with first_token.first_token_only(attention):
                vectors = self._runner.vectors(samples)
        except ModelError:
            return None  # this version of transformers or a later module needs the states of all tokens
        return attention if prefixes.agree(vectors, plain_vectors, self._machine_epsilon) else None

    def features(self, contents: Sequence[Content]) -> dict[str, Any]:
        """Return the inputs of the first module for equally long sequences of content ids."""
        return self._runner.features(contents)

    def check_input(self, content: Content, label: Callable[[], str]) -> None:
        """Raise an `EncodingError` that says why the model cannot read these content ids, if it cannot."""
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
