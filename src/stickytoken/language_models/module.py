"""A prompted language model as a module of sentence-transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sentence_transformers.base.modules import InputModule

from stickytoken.errors import EncodingError, InputError
from stickytoken.language_models.prompts import Prompt, find_prompt
from stickytoken.language_models.reading import Reading, make_reading
from stickytoken.language_models.running.decoder import find_decoder
from stickytoken.language_models.running.model import Features, PromptedModel
from stickytoken.language_models.running.steering import pool_states
from stickytoken.language_models.running.tokenization import copy_tokenizer
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

    # Saved models import the class by this name, so it must not change.
    __module__ = "stickytoken.encoders.causal_module"
    config_file_name = "causal_prompt_config.json"
    config_keys = [*Prompting().as_options()]  # noqa: RUF012 - as in the base class

    def __init__(
        self, model: Any, tokenizer: Any, *, prompt: str | Prompt = "prompteol", **settings: Any
    ) -> None:
        """Prepare the prompt, and find the maximum length of a filled prompt; see the class for arguments."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.model = model.base_model if hasattr(model, "base_model") else model  # without its head
        self.tokenizer = tokenizer
        # Messages name the model by where it was loaded from, or else by its class.
        name = getattr(getattr(model, "config", None), "_name_or_path", "") or type(model).__name__
        options = Prompting(**settings)
        decoder = find_decoder(self.model, name)
        reading, _layer_choice = make_reading(decoder, find_prompt(prompt), options)
        tokenizer_copy = copy_tokenizer(tokenizer, name, options.token_prepending)
        self._prompted = PromptedModel(decoder, reading, tokenizer_copy)
        # The limit is an attribute of the user's tokenizer, who may have changed it.
        self.max_seq_length = self._prompted.find_max_length(tokenizer)

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
        del kwargs  # other modules have further options
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
        layers_of_rows = pool_states(prompted.decoder, batch, [prompted.layers_run])
        row_vectors = layers_of_rows[:, 0]  # only one layer is read
        vectors = row_vectors.reshape(-1, template_count, row_vectors.shape[-1]).mean(1)
        return {**features, "sentence_embedding": vectors}

    def get_embedding_dimension(self) -> int:
        """Return the number of components in each vector."""
        with torch.inference_mode():
            return int(self.forward(self.preprocess(["a"]))["sentence_embedding"].shape[-1])

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings that `load` needs, with all presets resolved."""
        return self.reading.prompting.as_options()

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
        options: dict[str, Any] = {"subfolder": subfolder, "token": token, "revision": revision}
        options["local_files_only"] = local_files_only
        config = cls.load_config(name, cache_folder=cache_folder, **options)
        # transformers has another name for `cache_folder` of sentence-transformers.
        options |= {"cache_dir": cache_folder, "trust_remote_code": bool(kwargs.get("trust_remote_code"))}
        model = AutoModel.from_pretrained(name, **options, **(kwargs.get("model_kwargs") or {}))
        tokenizer = AutoTokenizer.from_pretrained(name, **options, **(kwargs.get("processor_kwargs") or {}))
        return cls(model, tokenizer, **config)
