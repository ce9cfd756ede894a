"""A prompted language model as a module of sentence-transformers; saved models name this import path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sentence_transformers.base.modules import InputModule

from stickytoken.encoders import prompted as prompts
from stickytoken.encoders.lengths import context_length
from stickytoken.encoders.prompted.model import (
    Decoder,
    Features,
    PromptedModel,
    Reading,
    TokenPrepending,
    find_decoder,
    layers_with_projection,
    pooled_states,
)
from stickytoken.encoders.protocol import LayerChoice, Prompting
from stickytoken.errors import EncodingError, InputError

__all__ = ["CausalPrompt"]

_AUXILIARY = "auxiliary_"  # before the names of the features of an auxiliary prompt


class CausalPrompt(InputModule):
    """Encode sentences through a prompt: ``SentenceTransformer(modules=[CausalPrompt(model, tokenizer)])``.

    Nothing is truncated: a sentence whose prompt exceeds the context is an error. sentence-transformers loads
    a saved model with ``trust_remote_code=True``, which it requires for every module that is not its own;
    `stickytoken.load_encoder` does not need it.

    Args:
        model: a decoder-only transformers model; its head is dropped.
        tokenizer: its transformers tokenizer.
        prompt: name of a known prompt, or a template with ``{sentence}``.
        token_prepending: use token prepending.
        start: first layer at which the placeholder is overwritten; None is the preset's.
        exit: first later layer at which it is not; None is the preset's.
        layer: layer to read; None is the published preset's, else the last one for a plain prompt.
        contrast: use contrastive prompting.
        contrast_layer: layer whose attention it changes, from 0; None is the preset's.
        contrast_strength: its factor; None is the preset's.
        contrast_rule: ``scaled``, ``norm``, ``scaled_norm`` or ``sub_head_norm``; None is ``scaled``.

    Raises:
        ModelError: The model is not decoder-only.
        InputError: The model does not support an option.
    """

    config_file_name = "causal_prompt_config.json"
    config_keys = [  # noqa: RUF012 - the base class has it so
        "prompt",
        *("token_prepending", "start", "exit", "layer"),
        *("contrast", "contrast_layer", "contrast_strength", "contrast_rule"),
    ]

    def __init__(  # noqa: PLR0913 - keyword-only, one decision each
        self,
        model: Any,
        tokenizer: Any,
        *,
        prompt: str | prompts.Prompt = "prompteol",
        token_prepending: bool = False,
        start: int | None = None,
        exit: int | None = None,  # noqa: A002 - the published name
        layer: int | None = None,
        contrast: bool = False,
        contrast_layer: int | None = None,
        contrast_strength: float | None = None,
        contrast_rule: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model = model.base_model if hasattr(model, "base_model") else model
        self.tokenizer = tokenizer
        name = getattr(getattr(model, "config", None), "_name_or_path", "") or type(model).__name__
        options = Prompting(
            token_prepending=token_prepending,
            start=start,
            exit=exit,
            layer=layer,
            contrast=contrast,
            contrast_layer=contrast_layer,
            contrast_strength=contrast_strength,
            contrast_rule=contrast_rule,
        )
        decoder = find_decoder(self.model, name)
        reading, _ = reading_for(decoder, prompts.find_prompt(prompt), options)
        own = prompts.own_tokenizer(tokenizer, name, token_prepending)
        self._prompted = PromptedModel(decoder, reading, own)
        taken = self._prompted.length(0)
        self.max_seq_length = context_length(decoder.model, tokenizer, None, name, taken=taken)

    @property
    def reading(self) -> Reading:
        """Prompt, token prepending and layer to read."""
        return self._prompted.reading

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> Features:
        """Fill the prompts: one row per sentence and template, sentence by sentence; also auxiliary prompts.

        Raises:
            EncodingError: A prompt is longer than the context.
        """
        del kwargs
        for each in inputs:
            if not isinstance(each, str):
                raise InputError(f"a prompt takes one text, got a {type(each).__name__}: pass strings")
        texts = [(prompt or "") + each for each in inputs]
        contents = [text.ids for text in self._prompted.tokenize(texts)]
        for text, content in zip(texts, contents, strict=True):
            length = self._prompted.length(len(content))
            if self.max_seq_length is not None and length > self.max_seq_length:
                raise EncodingError(
                    f"the text {text[:80]!r} makes a prompt of {length} tokens, but the model reads "
                    f"{self.max_seq_length}: use a shorter text"
                )
        features = self._prompted.layout(self._prompted.rows(contents))
        if (auxiliary := self._prompted.auxiliary) is not None:
            others = auxiliary.layout(auxiliary.rows(contents))
            features |= {f"{_AUXILIARY}{name}": value for name, value in others.items()}
        return features

    def forward(self, features: Features, **kwargs: Any) -> Features:
        """Add ``sentence_embedding``, shape (sentences, d)."""
        del kwargs
        prompted = self._prompted
        prompted.forget()  # the weights may have changed since the last call
        values = None
        if (auxiliary := prompted.auxiliary) is not None:
            names = [name for name in features if name.startswith(_AUXILIARY)]
            others = auxiliary.batch({name.removeprefix(_AUXILIARY): features[name] for name in names})
            values = auxiliary.attended(others).repeat_interleave(len(prompted.prompts), dim=0)
        batch = prompted.batch(features, auxiliary=values)
        states = pooled_states(prompted.decoder, batch, [prompted.number])
        means = states[:, 0].reshape(-1, len(prompted.prompts), states.shape[-1]).mean(1)
        return {**features, "sentence_embedding": means}

    def get_embedding_dimension(self) -> int:
        """Return the number of components of a vector."""
        with torch.inference_mode():
            return int(self.forward(self.preprocess(["a"]))["sentence_embedding"].shape[-1])

    def get_config_dict(self) -> dict[str, Any]:
        """Return what `load` needs besides the model and the tokenizer, with presets resolved."""
        return self.reading.options

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write the model, the user's tokenizer, and the prompt and layers."""
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


# Published settings by family and layers: those of token prepending, and the layer to read.
_PRESETS = {
    ("llama 3", 32): (1, 3, -2),  # Llama 3 8B
    ("llama", 32): (1, 7, 27),  # Llama 2 7B
    ("llama", 40): (1, 7, -2),  # Llama 2 13B
    ("qwen2", 28): (1, 6, -2),  # Qwen2 7B
    ("gemma2", 42): (1, 6, -2),  # Gemma 2 9B
}
# The templates that they were published for; of these, two are always read after the last layer but one.
_TEMPLATES = ("prompteol", "cot", "ke", "ck", "metaeol")
_READ_LATER = ("ke", "ck")
_LLAMA_3_VOCABULARY = 128_000


def reading_for(decoder: Decoder, prompt: prompts.Prompt, options: Prompting) -> tuple[Reading, LayerChoice]:
    start, end, rule = options.start, options.exit, prompts.require_contrast_options(options)
    if not options.token_prepending and (start is not None or end is not None):
        raise InputError(
            "start and exit are the layers of token prepending, which is off: turn on token prepending, or "
            "leave them out"
        )
    config, count, published = decoder.model.config, len(decoder.layers), prompt.name in _TEMPLATES
    family, wanted, default_strength = config.model_type, round(4 * count / 32), prompts.DEFAULT_STRENGTH
    if (family, count) == ("llama", 32) and config.vocab_size >= _LLAMA_3_VOCABULARY:
        family, wanted, default_strength = "llama 3", 6, 0.25
    if (family, count) in _PRESETS:
        first, later, read = _PRESETS[family, count]
        read = -2 if prompt.name in _READ_LATER else read
    else:  # the same relative depth, not measured on this model
        first, published = min(1, count - 1), False
        later, read = max(2, round(7 * count / 32)), max(1, round(27 * count / 32))
    if options.layer is not None:
        layer, choice = options.layer, LayerChoice.GIVEN
    elif published:  # the plain prompt too, so that the two can be compared
        layer, choice = read, LayerChoice.PUBLISHED
    elif options.token_prepending or options.contrast:
        layer, choice = read, LayerChoice.SCALED
    else:
        layer, choice = -1, LayerChoice.LAST
    prepending = contrast = None
    if options.token_prepending:
        start = first if start is None else start
        # The preset's exit may be before a start that is given.
        prepending = TokenPrepending(start, max(later, start + 1) if end is None else end)
    if options.contrast:
        place, strength = options.contrast_layer, options.contrast_strength
        if place is None:  # the nearest layer before the one that is read
            number = decoder.layer_number(layer)
            earlier = [each for each in layers_with_projection(decoder) if each < number]
            place = min(earlier, key=lambda each: abs(each - wanted), default=min(wanted, number - 1))
        if strength is None and rule.scales:
            strength = default_strength
        contrast = prompts.Contrast(place, strength, rule)
    return Reading(prompt, prepending, layer, contrast), choice
