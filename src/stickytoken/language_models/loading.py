"""Load a language model with its prompt. `stickytoken.loading` calls this module for language models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stickytoken.encoders.compute import devices
from stickytoken.encoders.files import resolution
from stickytoken.encoders.files.resolution import ModelSource, Origin
from stickytoken.encoders.files.spec import EncoderSpec
from stickytoken.encoders.protocol import IdEncoder
from stickytoken.errors import InputError, ModelError
from stickytoken.language_models.prompts import PROMPTS, find_prompt, is_template
from stickytoken.settings.prompting import LayerChoice, Prompting

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Class of the first module in a model that was saved with its prompt.
PROMPT_MODULE = "stickytoken.encoders.causal_module.CausalPrompt"


def asks_for_prompt(prompting: Prompting) -> bool:
    """Return whether these settings make an encoder of a plain language model."""
    if prompting.prompt is None:
        return False
    return is_template(prompting.prompt) or bool(prompting.decoder_options)


def load_language_model(source: ModelSource, spec: EncoderSpec, saved_modules: list[str]) -> IdEncoder:
    """Load a language model, and return an encoder that uses it through a prompt.

    Args:
        source: where the model is.
        spec: how to load it.
        saved_modules: types of the saved modules; empty for a plain language model.

    Raises:
        ModelError: the model has no weights, or cannot be used with prompts.
        InputError: there is no prompt, or an option does not apply to a language model.
    """
    import torch
    from transformers import AutoModel, AutoTokenizer

    from stickytoken.language_models.encoder import CausalPromptEncoder
    from stickytoken.language_models.module import CausalPrompt
    from stickytoken.language_models.reading import make_reading
    from stickytoken.language_models.running.decoder import find_decoder

    for option in ("prompt_name", "query_prompt"):  # fields of `Prompting` that are for other models only
        value = getattr(spec.prompting, option)
        if value is not None:
            raise InputError(
                f"{source.name!r} is a prompted language model, which reads all texts through one prompt: "
                f"leave out the {option.replace('_', ' ')} {value!r}"
            )
    _refuse_truncation(spec, repr(source.name))
    _refuse_route(spec, source.name)
    folder = Path(source.location)
    options = spec.prompting
    settings_file = folder / CausalPrompt.config_file_name
    was_saved = bool(saved_modules) and settings_file.is_file()
    normalize = False
    if was_saved:  # the saved settings replace the user's options, which must be the defaults
        class_names = [module.rpartition(".")[2] for module in saved_modules]
        normalize = _is_followed_by_normalize(class_names, repr(source.name))
        options = _read_saved_prompting(source, options, settings_file)
    if options.prompt is None:
        known_prompts = ", ".join(PROMPTS)
        raise InputError(f"{source.name!r} is a language model and needs a prompt: {known_prompts}")
    prompt = find_prompt(options.prompt)
    is_local = source.origin is not Origin.HUB
    if is_local and not resolution.has_weights(folder):
        raise ModelError(f"{source.name!r} has no weights (*.safetensors or *.bin)")
    hub_options: dict[str, Any] = {
        "revision": spec.revision,
        "trust_remote_code": spec.trust_remote_code,
        "local_files_only": is_local,
    }
    with resolution.explained(source, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(source.location, **hub_options)
    with resolution.loading_weights(source):
        dtype = getattr(torch, spec.weight_dtype)
        model = AutoModel.from_pretrained(source.location, dtype=dtype, **hub_options)
    model = model.to(spec.device or devices.default_device()).eval()
    if spec.precision is not None:
        devices.require_cuda(model.device.type, source.name)
    # `reading` has the options with defaults for this model; `layer_choice` says where the layer comes from.
    reading, layer_choice = make_reading(find_decoder(model, source.name), prompt, options)
    encoder = CausalPromptEncoder(
        model,
        tokenizer,
        source.name,
        reading,
        token_budget=spec.token_budget,
        max_length=spec.max_length,
        normalize=normalize,
        precision=spec.precision,
    )
    # Loading by this spec must give the same encoder. The spec of a saved model keeps no prompt options,
    # because they are read from the model's folder again.
    encoder.spec = replace(
        spec,
        device=encoder.device,
        prompting=spec.prompting if was_saved else reading.prompting,
        layer_choice=LayerChoice.SAVED if was_saved else layer_choice,
    )
    return encoder


def encoder_of_module(model: SentenceTransformer, spec: EncoderSpec, name: str) -> IdEncoder:
    """Return the encoder of a loaded SentenceTransformer whose first module is a `CausalPrompt`.

    Raises:
        InputError: an option is set that a loaded model does not take, or the model changes its vectors in a
            way that is not supported.
    """
    from stickytoken.language_models.encoder import CausalPromptEncoder

    _refuse_route(spec, name)
    _refuse_truncation(spec, name)
    if model.truncate_dim is not None:
        raise InputError(
            f"{name} truncates its vectors to {model.truncate_dim}, but a model with a prompt needs vectors "
            "of full length: set its truncate_dim to None"
        )
    normalize = _is_followed_by_normalize([type(module).__name__ for module in model], name)
    if spec.prompting != Prompting():
        raise InputError(f"{name} is already loaded with its prompt and layers: leave out the prompt options")
    causal_prompt: Any = model[0]
    return CausalPromptEncoder(
        causal_prompt.model,
        causal_prompt.tokenizer,
        name,
        causal_prompt.reading,
        token_budget=spec.token_budget,
        max_length=causal_prompt.max_seq_length,
        normalize=normalize,
    )


def _refuse_truncation(spec: EncoderSpec, name: str) -> None:
    if spec.truncate_dim is not None:
        raise InputError(
            f"truncate_dim is {spec.truncate_dim}, but {name} is a language model with a prompt, whose "
            "vectors are used at full length: leave truncate_dim out"
        )


def _refuse_route(spec: EncoderSpec, name: str) -> None:
    if spec.route is not None:
        raise InputError(
            f"{name} is a prompted language model, which has no routes: leave out the route {spec.route!r}"
        )


def _is_followed_by_normalize(modules: list[str], name: str) -> bool:
    if modules not in (["CausalPrompt"], ["CausalPrompt", "Normalize"]):
        raise InputError(
            f"{name} has the modules {', '.join(modules)}: only Normalize is supported after CausalPrompt"
        )
    return len(modules) > 1


def _read_saved_prompting(source: ModelSource, options: Prompting, settings_file: Path) -> Prompting:
    if options != Prompting():
        raise InputError(
            f"{source.name!r} was saved with its prompt and layers: leave out the prompt options"
        )
    try:
        return Prompting(**json.loads(settings_file.read_text("utf-8")))
    except (ValueError, TypeError, InputError) as error:  # not JSON, unknown names, or values out of range
        raise ModelError(f"{settings_file} is damaged: {error}") from error
