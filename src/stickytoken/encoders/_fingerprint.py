"""Hash everything in a model that can change its vectors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stickytoken.errors import ModelError

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer

# The location of a model and the software that wrote it do not change its vectors.
_IRRELEVANT_KEYS = frozenset(
    {"_name_or_path", "name_or_path", "transformers_version", "dtype", "torch_dtype"}
)


def weights_fingerprint(model: torch.nn.Module) -> str:
    """Return the sha256 of names, types, shapes and bytes of all parameters and buffers."""
    import torch

    digest = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        for tensor in _tensors(value):
            if tensor.is_meta:
                raise ModelError(
                    f"the weights {key} are offloaded, not in memory, so the model cannot be identified: "
                    "load it without offloading"
                )
            digest.update(f"{key}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the plain tensors in a state entry; a quantised layer packs weight, scales and types."""
    import torch

    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, torch.Tensor) and value.is_quantized:
        yield value.int_repr()
        per_channel = value.qscheme() in (torch.per_channel_affine, torch.per_channel_symmetric)
        yield value.q_per_channel_scales() if per_channel else torch.tensor(value.q_scale())
    elif isinstance(value, torch.Tensor):
        yield value


def modules_fingerprint(model: SentenceTransformer) -> str:
    """Return the sha256 of the types and settings of the modules, in order."""
    description: list[list[Any]] = [
        [name, type(module).__name__, _settings(module)]
        for name, module in model.named_modules()
        if "." not in name or hasattr(module, "config_keys")  # the modules of a router are nested deeper
    ]
    description.append(["truncate_dim", model.truncate_dim])
    return hashlib.sha256(json.dumps(description, sort_keys=True, default=str).encode()).hexdigest()


def _settings(module: Any) -> dict[str, Any]:
    found = {key: getattr(module, key, None) for key in getattr(module, "config_keys", ())}
    if hasattr(getattr(module, "config", None), "to_dict"):
        found["config"] = _without_cache(config_of(module))
    return found


def _without_cache(config: dict[str, Any]) -> dict[str, Any]:
    """Turn off the cache of a decoder, which some versions of sentence-transformers do themselves."""
    return {
        key: _without_cache(value) if isinstance(value, dict) else False if key == "use_cache" else value
        for key, value in config.items()
    }


def config_of(model: Any) -> dict[str, Any]:
    """Return the configuration of a transformers model without entries that cannot change vectors."""
    return {key: value for key, value in model.config.to_dict().items() if key not in _IRRELEVANT_KEYS}
