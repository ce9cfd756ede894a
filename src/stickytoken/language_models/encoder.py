"""Use a decoder-only language model as a sentence encoder, through a prompt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.compute import computing, config_of, prefixes
from stickytoken.encoders.model_encoder import Content, ModelEncoder
from stickytoken.encoders.protocol import quote_text
from stickytoken.errors import EncodingError
from stickytoken.insertion import TokenizedText
from stickytoken.language_models.reading import Reading
from stickytoken.language_models.running.decoder import find_decoder
from stickytoken.language_models.running.model import PromptedModel, PromptRow
from stickytoken.language_models.running.runner import PromptRunner
from stickytoken.language_models.running.tokenization import OwnTokenizer, PromptVocabulary, copy_tokenizer
from stickytoken.machine import Precision

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from stickytoken.inspection.module_embedding import Inspector


class CausalPromptEncoder(ModelEncoder):
    """Encodes sentences with a language model, through the prompt of a `Reading`.

    Attributes:
        reading: the settings: prompt, token prepending and layer.
        prompted: the decoder with the prompt.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        name: str,
        reading: Reading,
        *,
        token_budget: int | None = None,
        max_length: int | None = None,
        reuse: prefixes.ReuseLimits | None = prefixes.REUSE,
        normalize: bool = False,
        precision: Precision | None = None,
    ) -> None:
        """Read the model.

        Args:
            model: a decoder-only transformers model.
            tokenizer: the model's transformers tokenizer.
            name: name of the model, as the user gave it.
            reading: the settings: prompt, token prepending and layer.
            token_budget: maximum number of tokens per batch; if None, a number that suits the device.
            max_length: maximum number of tokens in a prompt with its text filled in; if None, the model's own
                limit.
            reuse: limits within which common prefixes of prompts and sentences are computed only once; if
                None, nothing is reused.
            normalize: whether to scale vectors to length 1.
            precision: precision of the arithmetic, which must be lower than the precision of the weights; if
                None, the precision of the weights.

        Raises:
            ModelError: the model or its tokenizer cannot be used with prompts.
            InputError: the model does not support one of the options.
        """
        self.normalizes = normalize
        self.reading = reading
        self._model = model
        self.user_tokenizer = tokenizer
        self._token_budget = token_budget
        self._requested_length = max_length
        self._reuse_limits = reuse
        self._decoder = find_decoder(model, name)
        # Copies of the user's tokenizer, keyed by whether the placeholder of token prepending was added to
        # the copy. The copy without the placeholder has the vocabulary that is searched for sticky tokens.
        self._tokenizers: dict[bool, OwnTokenizer] = {}
        super().__init__(self._decoder.model, name, precision)

    def _configure(self) -> None:
        with_placeholder = self.reading.prepending is not None
        self.prompted = PromptedModel(self._decoder, self.reading, self._get_tokenizer_copy(with_placeholder))
        self.own_tokenizer = self._get_tokenizer_copy(with_placeholder=False).tokenizer
        self.own_tokenizer.rows = self._decoder.rows
        # A `PromptVocabulary` encodes an entry as part of a sentence in the prompt.
        self.entries_tokenizer = PromptVocabulary(self.own_tokenizer, quoted=self.reading.prompt.quoted)
        self.max_length = self.prompted.find_max_length(self.user_tokenizer, self._requested_length)
        self._runner = self._make_runner()

    def _get_tokenizer_copy(self, with_placeholder: bool) -> OwnTokenizer:
        # Copying takes seconds, so each copy is made only once.
        if with_placeholder not in self._tokenizers:
            copied = copy_tokenizer(self.user_tokenizer, self.name, with_placeholder)
            self._tokenizers[with_placeholder] = copied
        return self._tokenizers[with_placeholder]

    def _make_runner(self) -> PromptRunner:
        return PromptRunner(
            self.prompted, self._token_budget, reuse=self._reuse_limits, rounding=self._machine_epsilon
        )

    def _settings(self) -> tuple[object, ...]:
        # These settings decide the maximum length and which ids can be read.
        return (getattr(self.user_tokenizer, "model_max_length", None), self._decoder.rows)

    def _reconfigure(self) -> None:
        self._tokenizers = {}  # the user's tokenizer may have changed
        super()._reconfigure()

    def _forget_derived(self) -> None:
        super()._forget_derived()
        self.prompted.forget_derived_values()
        self._runner = self._make_runner()

    @property
    def layers(self) -> int:
        return len(self._decoder.layers)

    @property
    def device(self) -> str:
        return str(self._decoder.device)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self._decoder.embedding.weight.dtype
        return dtype

    def _measure_dimension(self) -> int:
        any_row = PromptRow(prompt=0, content=(0,))
        with computing(self._network):
            states = self._runner.forward([any_row], cache=None, layer_counts=[self.prompted.layers_run])
            return int(states.shape[-1])

    def _modules_hash_and_prompt(self) -> tuple[str, str]:
        """Return the sha256 of all settings that affect states or vectors, and the templates as JSON."""
        prepending = self.reading.prepending
        placeholder = self.prompted.placeholder
        placeholder_hash = None
        if placeholder is not None:
            placeholder_hash = hashlib.sha256(placeholder.numpy().tobytes()).hexdigest()
        layers_overwritten = None
        if prepending is not None:
            # All exits beyond the last layer give the same vectors.
            layers_overwritten = [prepending.start, min(prepending.exit, self.layers)]
        description: dict[str, Any] = {
            "model": type(self._decoder.model).__name__,
            "config": config_of(self._decoder.model),
            "layer": self.prompted.layers_run,
            "normalize": self.normalizes,
            "prepending": layers_overwritten,
            "placeholder": placeholder_hash,
        }
        prompt = self.reading.prompt
        templates = [
            prompt.split_template(template, prepending=prepending is not None)
            for template in prompt.templates
        ]
        text = json.dumps(description, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest(), json.dumps(templates)

    def reread(self, reading: Reading) -> CausalPromptEncoder:
        """Return an encoder that uses the same model with another `Reading`."""
        self._apply_model_changes()
        other = self._copy()
        other.reading = reading
        other._token_budget = self._runner.token_budget  # may have been reduced to fit into memory
        other._reset()  # computes again what depends on the reading
        return other

    def sentence_transformer(self) -> SentenceTransformer:
        """Return a SentenceTransformer that gives the same vectors and shares the weights."""
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Normalize

        from stickytoken.language_models.module import CausalPrompt

        # The user's options name a prompt, or have one template. The complete prompt takes its place: it may
        # have several templates.
        options = self.reading.prompting.as_options() | {"prompt": self.reading.prompt}
        module = CausalPrompt(self._model, self.user_tokenizer, **options)
        later_modules = [Normalize()] if self.normalizes else []
        return SentenceTransformer(modules=[module, *later_modules], device=str(module.model.device))

    def inspector(self) -> Inspector:
        """Return access to the internal states of the model; see `stickytoken.inspection.inspector_of`."""
        from stickytoken.language_models._inspector import PromptInspector

        return PromptInspector(self)

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        self._apply_model_changes()
        return self.prompted.tokenize(texts)

    def content_ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(text.ids) for text in self.tokenize(texts)]

    def fits(self, ids: Sequence[int]) -> bool:
        if self.max_length is not None and self.prompted.length(len(ids)) > self.max_length:
            return False
        # Apart from the placeholder, the known ids are consecutive, so it is enough to check the smallest and
        # the largest id.
        return self.prompted.knows(min(ids, default=0)) and self.prompted.knows(max(ids, default=0))

    def encode_layers(self, texts: Sequence[str], layers: Sequence[int]) -> NDArray[np.float32]:
        """Return the vectors after each of several layers, shape (texts, layers, d), computed in one pass."""
        layer_counts = [self._decoder.count_layers_until(layer) for layer in layers]
        contents = [text.ids for text in self.tokenize(texts)]
        for text, content in zip(texts, contents, strict=True):
            self.check_input(content, partial(quote_text, text))
        if not contents:  # the runner needs at least one input
            return np.empty((0, len(layer_counts), self.dimension), np.float32)
        return self._forward_all(contents, layer_counts)

    def _vectors(self, contents: Sequence[Content]) -> NDArray[np.float32]:
        return self._forward_all(contents, [self.prompted.layers_run])[:, 0]

    def _forward_all(self, contents: Sequence[Content], layer_counts: Sequence[int]) -> NDArray[np.float32]:
        # Returns the vectors after each number of layers, shape (texts, layer counts, d).
        with computing(self._network), self._arithmetic():
            return self._runner.vectors(contents, layer_counts)

    def usable_entries(self) -> list[int]:
        return [entry for entry in self.entries_tokenizer.entries if self.prompted.knows(entry)]

    def _center(self, exact_vectors: NDArray[np.float32]) -> Any:
        # All vectors of one prompt share a direction that says nothing about their texts.
        return exact_vectors.mean(axis=0, keepdims=True)

    def check_input(self, content: Content, label: Callable[[], str]) -> None:
        """Raise an error if the model cannot read the content of a text in the prompt."""
        unknown_ids = [token_id for token_id in content if not self.prompted.knows(token_id)]
        if unknown_ids:
            raise EncodingError(
                f"{self.name}: a text has token id {unknown_ids[0]}, "
                f"but the model embeds only ids from 0 to {self._decoder.rows - 1}"
            )
        if not content and self.reading.prompt.echoes:
            raise EncodingError(
                f"{self.name}: the text {label()} has no tokens, but an echo prompt reads only the tokens of "
                "the text: leave the text out, or use another prompt"
            )
        if not self.fits(content):
            raise EncodingError(
                f"{self.name}: the text {label()} makes a prompt of {self.prompted.length(len(content))} "
                f"tokens, but the model reads {self.max_length}: use shorter sentences or fewer copies"
            )
