"""Load a prompted language model."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stickytoken.encoders.loading import resolution
from stickytoken.encoders.loading.resolution import EncoderSpec, ModelSource, Origin
from stickytoken.encoders.prompted.prompts import PROMPTS, find_prompt, is_template, require_contrast_options
from stickytoken.encoders.protocol import LayerChoice, Prompting
from stickytoken.errors import InputError, ModelError, StickyTokenWarning
from stickytoken.machine import Precision

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from stickytoken.encoders.prompted.encoder import CausalPromptEncoder

# Its name in the modules.json of a saved model.
_MODULE = "stickytoken.encoders.causal_module.CausalPrompt"
_NORMALIZE = "Normalize"


def loads_as_causal(source: ModelSource, options: Prompting) -> bool:
    """Check whether a model was saved with a prompt, or is a language model with a template."""
    if source.origin is not Origin.HUB:
        folder = Path(source.location)
        if (folder / "modules.json").is_file():
            return _module_types(folder)[:1] == [_MODULE]
    return options.prompt is not None and (is_template(options.prompt) or bool(options.given))


def refuse_prompt_options(options: Prompting, name: str) -> None:
    if options.given:
        asked = ", ".join(options.given)
        raise InputError(
            f"{asked} applies only to prompted language models, and {name!r} is not loaded as one: pass a "
            f"plain language model and a prompt ({', '.join(PROMPTS)}, or a text with {{sentence}})"
        )
    if options.prompt is not None and options.prompt.lower() in PROMPTS:
        warnings.warn(
            f"{name!r} is a SentenceTransformer: {options.prompt!r} is put before every text literally, "
            "and is not the name of a prompt",
            StickyTokenWarning,
            stacklevel=3,
        )


def load_causal(source: ModelSource, options: Prompting, spec: EncoderSpec) -> CausalPromptEncoder:
    import torch
    from transformers import AutoModel, AutoTokenizer

    from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
    from stickytoken.encoders.prompted.module import reading_for

    saved, normalize = _saved_options(source)
    if saved is not None:
        if options.given or options.prompt is not None:
            raise InputError(
                f"{source.name!r} was saved with its prompt and layers: leave out the prompt options"
            )
        options = saved
    if options.prompt is None:
        raise InputError(f"{source.name!r} is a language model and needs a prompt: {', '.join(PROMPTS)}")
    prompt = find_prompt(options.prompt)
    require_contrast_options(options)
    local = source.origin is not Origin.HUB
    if local and not resolution.has_weights(Path(source.location)):
        raise ModelError(f"{source.name!r} has no weights (*.safetensors or *.bin)")
    place: dict[str, Any] = {"revision": spec.revision, "trust_remote_code": spec.trust_remote_code}
    place["local_files_only"] = local
    precision = Precision.TF32 if spec.dtype == Precision.TF32 else None
    dtype = torch.float32 if precision else getattr(torch, spec.dtype)
    with resolution.explained(source, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(source.location, **place)
    with resolution.loading_weights(source):
        model = AutoModel.from_pretrained(source.location, dtype=dtype, **place)
    model = model.to(spec.device or resolution.available_devices()[:2][-1]).eval()
    if precision:
        resolution.require_cuda(model.device.type, source.name)
    reading, choice = reading_for(model, source.name, prompt, options)
    encoder = CausalPromptEncoder(
        model,
        tokenizer,
        source.name,
        reading,
        token_budget=spec.token_budget,
        max_length=spec.max_length,
        normalize=normalize,
        precision=precision,
        packed_layers=spec.packed_layers,
    )
    encoder.spec = replace(
        spec,
        device=encoder.device,
        prompting=Prompting(**reading.options) if saved is None else spec.prompting,
        layer_choice=choice if saved is None else LayerChoice.SAVED,
    )
    return encoder


def encoder_of_module(
    model: SentenceTransformer,
    name: str,
    options: Prompting,
    token_budget: int | None,
    packed_layers: bool | None,
) -> CausalPromptEncoder | None:
    if type(model[0]).__name__ != "CausalPrompt":
        return None
    from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
    from stickytoken.encoders.prompted.module import CausalPrompt

    module: Any = model[0]
    if not isinstance(module, CausalPrompt):
        return None
    kinds = [type(each).__name__ for each in model]
    if model.truncate_dim is not None:
        raise InputError(
            f"{name} truncates its vectors to {model.truncate_dim}, and a model with a prompt is read whole: "
            "set its truncate_dim to None"
        )
    _require_kinds(kinds, name)
    if options.given or options.prompt is not None or options.prompt_name is not None:
        raise InputError(f"{name} is already loaded with its prompt and layers: leave out the prompt options")
    return CausalPromptEncoder(
        module.model,
        module.tokenizer,
        name,
        module.reading,
        token_budget=token_budget,
        max_length=module.max_seq_length,
        normalize=_NORMALIZE in kinds,
        packed_layers=packed_layers,
    )


def _module_types(folder: Path) -> list[str]:
    try:
        return [str(entry["type"]) for entry in json.loads((folder / "modules.json").read_text("utf-8"))]
    except (ValueError, KeyError, TypeError):
        return []  # reported when the model is loaded


def _require_kinds(kinds: list[str], name: str) -> None:
    if kinds not in (["CausalPrompt"], ["CausalPrompt", _NORMALIZE]):
        raise InputError(f"{name} has {', '.join(kinds)}: only Normalize is supported after a prompt")


def _saved_options(source: ModelSource) -> tuple[Prompting | None, bool]:
    from stickytoken.encoders.prompted.module import CausalPrompt

    folder = Path(source.location)
    path = folder / CausalPrompt.config_file_name
    if source.origin is Origin.HUB or not (folder / "modules.json").is_file() or not path.is_file():
        return None, False
    kinds = [kind.rpartition(".")[2] for kind in _module_types(folder)]
    _require_kinds(kinds, repr(source.name))
    try:
        return Prompting(**json.loads(path.read_text("utf-8"))), _NORMALIZE in kinds
    except (ValueError, TypeError) as error:
        raise ModelError(f"{path} is damaged: {error}") from error
