"""Borrow a user's model for one call, and restore its state."""

from __future__ import annotations

import hashlib
import json
import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from stickytoken.errors import ModelError

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer

# A model has one state, whoever encodes with it: one call at a time.
_LOCKS: weakref.WeakKeyDictionary[torch.nn.Module, threading.RLock] = weakref.WeakKeyDictionary()
_LOCKS_GUARD = threading.Lock()
# torch has one flag for all threads: the first computation switches oneDNN off, the last one on again.
_BOUNDED: list[AbstractContextManager[object]] = []
_BOUNDED_GUARD = threading.Lock()


def exclusive(model: torch.nn.Module) -> AbstractContextManager[bool]:
    """Return an exclusive, reentrant lock on the model; models that share their first weights share it."""
    owner = next((module for module in model.modules() if module._parameters), model)
    with _LOCKS_GUARD:
        return _LOCKS.setdefault(owner, threading.RLock())


@contextmanager
def computing(model: torch.nn.Module, *, gradients: bool = False) -> Iterator[None]:
    import torch

    mode = torch.no_grad() if gradients else torch.inference_mode()
    with exclusive(model), evaluating(model), mode, bounded_memory(model):
        yield


def weight_mark(weight: torch.Tensor) -> tuple[int, int]:
    """Return what changes when torch writes to a weight or replaces it: its address and version."""
    # Weights that were made in inference mode have no version.
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def switched_on(config: Any, name: str) -> Iterator[None]:
    before = getattr(config, name)
    setattr(config, name, True)
    try:
        yield
    finally:
        setattr(config, name, before)


@contextmanager
def bounded_memory(model: torch.nn.Module) -> Iterator[None]:
    """Keep torch from choosing oneDNN for float32 on a CPU; packed layers call it with few shapes."""
    # oneDNN keeps a kernel with its buffers for every shape of batch, up to a thousand. Lengths and batch
    # sizes vary here, so the process grew to 2.7 GB on all-MiniLM-L6-v2; without it, it stays at 0.9 GB. For
    # bfloat16, oneDNN has the only fast kernels.
    import torch

    parameter = next(model.parameters())
    if parameter.device.type != "cpu" or parameter.dtype != torch.float32:
        yield
        return
    unchanged = {"deterministic": None, "allow_tf32": None, "fp32_precision": None}
    with _BOUNDED_GUARD:
        off = nullcontext() if _BOUNDED else torch.backends.mkldnn.flags(enabled=False, **unchanged)
        off.__enter__()
        _BOUNDED.append(off)
    try:
        yield
    finally:
        with _BOUNDED_GUARD:
            # Whichever ends last gives back what the first one changed.
            own = _BOUNDED.pop()
            own.__exit__(None, None, None)


# The location of a model and the software that wrote it do not change its vectors.
_IRRELEVANT_KEYS = frozenset(
    {"_name_or_path", "name_or_path", "transformers_version", "dtype", "torch_dtype"}
)


def weights_fingerprint(model: torch.nn.Module) -> str:
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
    description: list[list[Any]] = []
    for name, module in model.named_modules():
        if "." in name and not hasattr(module, "config_keys"):  # the modules of a router are nested deeper
            continue
        settings = {key: getattr(module, key, None) for key in getattr(module, "config_keys", ())}
        if hasattr(getattr(module, "config", None), "to_dict"):
            settings["config"] = _without_cache(config_of(module))
        description.append([name, type(module).__name__, settings])
    description.append(["truncate_dim", model.truncate_dim])
    description += _route_of(model)
    content = json.dumps(_with_plain_keys(description), sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def _with_plain_keys(value: Any) -> Any:
    """Return settings whose keys JSON can sort: inputs of several modalities are named by tuples."""
    if isinstance(value, dict):
        return {
            str(key) if isinstance(key, tuple) else key: _with_plain_keys(inside)
            for key, inside in value.items()
        }
    return [_with_plain_keys(inside) for inside in value] if isinstance(value, list) else value


def _route_of(model: SentenceTransformer) -> list[list[Any]]:
    """Describe the route of a model that has several, and its task where a module reads that."""
    from stickytoken.encoders._routes import RoutedModel

    if not isinstance(model, RoutedModel):
        return []
    return [["route", model.route, model.task if model.task_matters else None]]


def _without_cache(config: dict[str, Any]) -> dict[str, Any]:
    """Turn off the cache of a decoder, which some versions of sentence-transformers do themselves."""
    return {
        key: _without_cache(value) if isinstance(value, dict) else False if key == "use_cache" else value
        for key, value in config.items()
    }


def config_of(model: Any) -> dict[str, Any]:
    return {key: value for key, value in model.config.to_dict().items() if key not in _IRRELEVANT_KEYS}
