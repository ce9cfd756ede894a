"""Hashes over everything in a model that can change its vectors."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Where a model lay or what wrote it does not change its numbers.
_IRRELEVANT_KEYS = frozenset(
    {"_name_or_path", "name_or_path", "transformers_version", "dtype", "torch_dtype"}
)


def weights_fingerprint(model: SentenceTransformer) -> str:
    """Return the sha256 over names, types, shapes and bytes of all parameters and buffers."""
    import torch

    digest = hashlib.sha256()
    for key, tensor in sorted(model.state_dict().items()):
        digest.update(f"{key}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def modules_fingerprint(model: SentenceTransformer) -> str:
    """Return the sha256 over the kinds and settings of the modules, in order."""
    description: list[list[Any]] = [
        [name, type(module).__name__, _settings(module)]
        for name, module in model.named_modules()
        if "." not in name or hasattr(module, "config_keys")  # a router holds its modules deeper
    ]
    description.append(["truncate_dim", model.truncate_dim])
    return hashlib.sha256(json.dumps(description, sort_keys=True, default=str).encode()).hexdigest()


def _settings(module: Any) -> dict[str, Any]:
    found = {key: getattr(module, key, None) for key in getattr(module, "config_keys", ())}
    config = getattr(module, "config", None)
    if config is not None and hasattr(config, "to_dict"):
        found["config"] = {
            key: value for key, value in config.to_dict().items() if key not in _IRRELEVANT_KEYS
        }
    return found
