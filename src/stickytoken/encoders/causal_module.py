"""A prompted language model as a module of sentence-transformers.

Saved models contain the import path of this module, so it must not be moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sentence_transformers.base.modules import InputModule

from stickytoken.encoders import prompted as prompts
from stickytoken.encoders.inputs.lengths import context_length
from stickytoken.encoders.prompted.decoder import Decoder, find_decoder
from stickytoken.encoders.prompted.model import Features, PromptedModel, Reading
from stickytoken.encoders.prompted.steering import pool_states
from stickytoken.encoders.prompted.tokenization import own_tokenizer
from stickytoken.encoders.protocol import LayerChoice
from stickytoken.errors import EncodingError, InputError
from stickytoken.settings.prompting import Prompting

__all__ = ["CausalPrompt"]


class CausalPrompt(InputModule):
    """Encodes sentences through a prompt: ``SentenceTransformer(modules=[CausalPrompt(model, tokenizer)])``.

    Sentences are never truncated: a filled prompt that exceeds the context raises an error.
    sentence-transformers loads a saved model only with ``trust_remote_code=True``, as it does for every
    module that is not its own; `stickytoken.load_encoder` loads a saved model without this argument.

    Args:
        model: a decoder-only transformers model; its head is dropped.
        tokenizer: the model's transformers tokenizer.
        prompt: name of a known prompt, or a template with ``{sentence}``.
        settings: other settings of `stickytoken.encoders.Prompting`, such as ``token_prepending=True``.

    Raises:
        ModelError: The model is not decoder-only.
        InputError: The model does not support one of the options.

    Examples:
        >>> decoder.sentence_transformer()[0].reading.prompt.name
        'prompteol'
    """

    config_file_name = "causal_prompt_config.json"
    config_keys = [*Prompting().saved()]  # noqa: RUF012 - as in the base class

    def __init__(
        self, model: Any, tokenizer: Any, *, prompt: str | prompts.Prompt = "prompteol", **settings: Any
    ) -> None:
        """Prepare the prompt, and find the maximum length of a filled prompt; see the class for arguments."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.model = model.base_model if hasattr(model, "base_model") else model
        self.tokenizer = tokenizer
        name = getattr(getattr(model, "config", None), "_name_or_path", "") or type(model).__name__
        options = Prompting(**settings)
        decoder = find_decoder(self.model, name)
        reading, _layer_choice = reading_for(decoder, prompts.find_prompt(prompt), options)
        tokenizer_copy = own_tokenizer(tokenizer, name, options.token_prepending)
        self._prompted = PromptedModel(decoder, reading, tokenizer_copy)
        prompt_length = self._prompted.length(content_length=0)  # the prompt with an empty sentence
        self.max_seq_length = context_length(
            decoder.model, tokenizer, max_length=None, name=name, prompt_length=prompt_length
        )

    @property
    def reading(self) -> Reading:
        """The settings that determine the vectors: prompt, token prepending and layer."""
        return self._prompted.reading

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> Features:
        """Return the features of all filled prompts.

        There is one row for each pair of a sentence and a template; the rows of a sentence are adjacent.

        Raises:
            EncodingError: A filled prompt is longer than the context.
        """
        del kwargs
        for text in inputs:
            if not isinstance(text, str):
                raise InputError(f"a prompt takes a text, got a {type(text).__name__}: pass strings")
        texts = [(prompt or "") + text for text in inputs]
        contents = [text.ids for text in self._prompted.tokenize(texts)]
        for text, content in zip(texts, contents, strict=True):
            length = self._prompted.length(len(content))
            if self.max_seq_length is not None and length > self.max_seq_length:
                raise EncodingError(
                    f"the text {text[:80]!r} makes a prompt of {length} tokens, but the model reads "
                    f"{self.max_seq_length}: use a shorter text"
                )
        return self._prompted.layout(self._prompted.rows(contents))

    def forward(self, features: Features, **kwargs: Any) -> Features:
        """Return the features with ``sentence_embedding`` added, shape (sentences, d).

        ``features`` come from `preprocess`, and have one row for each pair of a sentence and a template. The
        vector of a sentence is the mean over its templates.
        """
        del kwargs
        prompted = self._prompted
        prompted.forget_derived_values()  # the weights may have changed since the last call
        template_count = len(prompted.prompts)
        batch = prompted.batch(features)
        layers_of_rows = pool_states(prompted.decoder, batch, [prompted.layer_count])
        row_vectors = layers_of_rows[:, 0]  # only one layer is read
        vectors = row_vectors.reshape(-1, template_count, row_vectors.shape[-1]).mean(1)
        return {**features, "sentence_embedding": vectors}

    def get_embedding_dimension(self) -> int:
        """Return the number of components in each vector."""
        with torch.inference_mode():
            return int(self.forward(self.preprocess(["a"]))["sentence_embedding"].shape[-1])

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings that `load` needs, with all presets resolved."""
        return self.reading.prompting.saved()

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Save the model, the user's tokenizer, and the settings of the prompt and the layers."""
        del args, kwargs
        self.model.save_pretrained(output_path, safe_serialization=safe_serialization)
        self.save_tokenizer(output_path)
        self.save_config(output_path)

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        init_defaults: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> CausalPrompt:
        """Load a saved module; ``model_kwargs`` and ``processor_kwargs`` go to transformers."""
        from transformers import AutoModel, AutoTokenizer

        del init_defaults
        name = model_name_or_path
        hub: dict[str, Any] = {"subfolder": subfolder, "token": token, "revision": revision}
        hub["local_files_only"] = local_files_only
        config = cls.load_config(name, cache_folder=cache_folder, **hub)
        hub |= {"cache_dir": cache_folder, "trust_remote_code": bool(kwargs.get("trust_remote_code"))}
        model = AutoModel.from_pretrained(name, **hub, **(kwargs.get("model_kwargs") or {}))
        tokenizer = AutoTokenizer.from_pretrained(name, **hub, **(kwargs.get("processor_kwargs") or {}))
        return cls(model, tokenizer, **config)


@dataclass(frozen=True, slots=True)
class _Preset:
    """Default settings for a model and a prompt.

    Default settings are either those published for the model, or those published for Llama 2 7B, scaled to
    the number of the model's layers.

    Attributes:
        start: first layer of token prepending.
        exit: first layer after those with token prepending.
        layer: layer after which the vector is read; a negative number counts from the end.
        published: whether ``start``, ``exit`` and ``layer`` were published for this model and prompt.
    """

    start: int
    exit: int
    layer: int
    published: bool


# Published settings, keyed by model family and number of layers. Each value holds the start and the exit of
# token prepending, and the layer after which the vector is read. The models are, in this order, Llama 3 8B,
# Llama 2 7B, Llama 2 13B, Qwen2 7B and Gemma 2 9B.
_PUBLISHED = {
    ("llama 3", 32): (1, 3, -2),
    ("llama", 32): (1, 7, 27),
    ("llama", 40): (1, 7, -2),
    ("qwen2", 28): (1, 6, -2),
    ("gemma2", 42): (1, 6, -2),
}
# Settings of Llama 2 7B: number of layers, exit of token prepending, and layer after which the vector is
# read. A model without published settings uses layers at the same relative depth.
_LLAMA_2_LAYERS = 32
_LLAMA_2_EXIT = 7
_LLAMA_2_READ = 27
# Smallest vocabulary size at which a Llama with 32 layers is treated as a Llama 3.
_LLAMA_3_VOCABULARY = 128_000
# Prompts that the settings were published for. With a prompt in _READ_LATER, the vector of every published
# model is read after the second-to-last layer.
_PUBLISHED_PROMPTS = ("prompteol", "cot", "ke", "ck", "metaeol")
_READ_LATER = ("ke", "ck")
_SECOND_TO_LAST = -2


def _preset_of(decoder: Decoder, prompt: prompts.Prompt) -> _Preset:
    """Return the settings published for a model and prompt, or else the scaled settings of Llama 2 7B.

    The model is recognized by its family and its number of layers. The settings are the layers of token
    prepending and the layer after which the vector is read.
    """
    config = decoder.model.config
    count = len(decoder.layers)
    family = config.model_type
    # Llama 3 8B and Llama 2 7B have the same family name and number of layers, but different vocabularies.
    if (family, count) == ("llama", 32) and config.vocab_size >= _LLAMA_3_VOCABULARY:
        family = "llama 3"
    if (family, count) in _PUBLISHED:
        start, end, layer = _PUBLISHED[family, count]
        if prompt.name in _READ_LATER:  # published for these prompts, whatever the model
            layer = _SECOND_TO_LAST
        published = prompt.name in _PUBLISHED_PROMPTS
    else:  # no settings were published for this model
        start = min(1, count - 1)
        end = max(2, _at_depth(_LLAMA_2_EXIT, count))
        layer = max(1, _at_depth(_LLAMA_2_READ, count))
        published = False
    return _Preset(start=start, exit=end, layer=layer, published=published)


def _at_depth(layer: int, count: int) -> int:
    return round(layer * count / _LLAMA_2_LAYERS)


def reading_for(decoder: Decoder, prompt: prompts.Prompt, options: Prompting) -> tuple[Reading, LayerChoice]:
    """Complete the user's options with defaults.

    Returns:
        The `Reading`, and how its layer was chosen. The layer is the user's choice or, without one, the
        published layer. For a model without a published layer, the default with token prepending is the
        layer at the same relative depth as in Llama 2 7B, and the default without it is the last layer.

    Raises:
        InputError: an option is wrong or has no effect.
    """
    if not options.token_prepending and (options.start is not None or options.exit is not None):
        raise InputError(
            "start and exit are the layers of token prepending, which is off: turn on token prepending, or "
            "leave them out"
        )
    preset = _preset_of(decoder, prompt)
    if options.layer is not None:
        layer = options.layer
        choice = LayerChoice.GIVEN
    elif preset.published:
        # The same layer is read with and without token prepending, so that results can be compared.
        layer = preset.layer
        choice = LayerChoice.PUBLISHED
    elif options.token_prepending:
        layer = preset.layer
        choice = LayerChoice.SCALED
    else:
        layer = -1
        choice = LayerChoice.LAST
    prepending = None
    if options.token_prepending:
        start = preset.start if options.start is None else options.start
        # The user may choose a start layer that does not come before the preset's exit layer, so the exit is
        # at least the layer after the start.
        end = max(preset.exit, start + 1) if options.exit is None else options.exit
        prepending = prompts.TokenPrepending(start, end)
    return Reading(prompt, prepending, layer), choice
