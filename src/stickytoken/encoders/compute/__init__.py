"""Lock a model during a call and restore its state afterwards; fingerprint its weights and modules."""

from __future__ import annotations

import hashlib
import json
import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from stickytoken.errors import ModelError
from stickytoken.machine import SharedSetting

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer

# One lock for each model, keyed by the module that `model_lock` chooses.
_MODEL_LOCKS: weakref.WeakKeyDictionary[torch.nn.Module, threading.RLock] = weakref.WeakKeyDictionary()
_MODEL_LOCKS_GUARD = threading.Lock()


def model_lock(model: torch.nn.Module) -> AbstractContextManager[bool]:
    """Return the lock that a thread must hold while it runs a model or relies on the state of its modules.

    A call changes the state of the modules, such as their evaluation mode, and restores it afterwards.
    Several encoders may run the same modules, so only one call at a time is admitted. The lock is reentrant:
    a thread that holds it can take it again.

    Two model objects can contain the same modules, for example a SentenceTransformer and the transformer
    inside it, or a SentenceTransformer and its shallow copy. They must have the same lock. The lock therefore
    belongs to the first module with weights of its own, usually the token embeddings, because the outer
    objects, which differ, have no weights of their own. A deep copy of a model has other modules, and so
    another lock, even if both share their weights.
    """
    modules_with_weights = (module for module in model.modules() if _has_own_weights(module))
    owner = next(modules_with_weights, model)
    with _MODEL_LOCKS_GUARD:
        return _MODEL_LOCKS.setdefault(owner, threading.RLock())


def _has_own_weights(module: torch.nn.Module) -> bool:
    return next(module.parameters(recurse=False), None) is not None


@contextmanager
def computing(model: torch.nn.Module) -> Iterator[None]:
    """In a ``with`` block, lock a model, put it in evaluation and inference mode, and bound its memory."""
    import torch

    with model_lock(model), evaluating(model), torch.inference_mode(), _bounding_memory(model):
        yield


def weight_version(weight: torch.Tensor) -> tuple[int, int]:
    """Return a weight's address and version number.

    The address or the version number changes whenever torch changes the weight.
    """
    if weight.is_inference():  # inference tensors have no version counter
        return weight.data_ptr(), 0
    return weight.data_ptr(), weight._version


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode inside a ``with`` block; afterwards, restore the mode of each module."""
    training_modules = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training_modules:
            module.training = True


@contextmanager
def switch_on(config: Any, name: str) -> Iterator[None]:
    """Set an attribute of a configuration to true inside a ``with`` block; afterwards, restore its value."""
    before = getattr(config, name)
    setattr(config, name, True)
    try:
        yield
    finally:
        setattr(config, name, before)


def _onednn_is_enabled() -> bool:
    import torch

    return bool(torch.backends.mkldnn.enabled)


def _switch_onednn(is_on: bool) -> None:
    import torch

    backend: Any = torch.backends.mkldnn  # the earlier name of oneDNN
    backend.enabled = is_on


# torch has one switch for oneDNN, which all threads of the process share.
_ONEDNN = SharedSetting(_onednn_is_enabled, _switch_onednn)


def onednn_enabled(enabled: bool) -> AbstractContextManager[None]:
    """Turn oneDNN on or off inside a ``with`` block."""
    return _ONEDNN.at(enabled)


@contextmanager
def _bounding_memory(model: torch.nn.Module) -> Iterator[None]:
    # Turns oneDNN off for float32 on a CPU. oneDNN keeps a kernel and its buffers for each of up to a
    # thousand batch shapes. Lengths and batch sizes vary here, so memory use on all-MiniLM-L6-v2 grew to 2.7
    # GB; without oneDNN it stays at 0.9 GB. For bfloat16, oneDNN stays on, because nothing else has fast
    # kernels.
    import torch

    parameter = next(model.parameters())
    if parameter.device.type == "cpu" and parameter.dtype == torch.float32:
        with onednn_enabled(False):
            yield
    else:
        yield


# Settings that do not change a model's vectors, such as its location and the software that wrote it.
_IRRELEVANT_KEYS = frozenset(
    {"_name_or_path", "name_or_path", "transformers_version", "dtype", "torch_dtype"}
)


def weights_fingerprint(model: torch.nn.Module) -> str:
    """Return the sha256 of all parameters and buffers, with their names, types and shapes."""
    import torch

    fingerprint = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        for tensor in _divide_into_plain_tensors(value):  # usually the value itself
            if tensor.is_meta:
                raise ModelError(
                    f"the weights {name} are offloaded, not in memory, so the model cannot be identified: "
                    "load it without offloading"
                )
            fingerprint.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            # The values are viewed as bytes, because NumPy lacks some types of torch, such as bfloat16.
            fingerprint.update(flat.view(torch.uint8).numpy().data)
    return fingerprint.hexdigest()


def _divide_into_plain_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value of a state dict, in a form whose bytes can be read.

    torch gives no access to the bytes of a quantized tensor, so its integers, scales and zero points are
    yielded in its place.
    """
    import torch

    if isinstance(value, (tuple, list)):  # such as the packed weights of a quantized layer
        for item in value:
            yield from _divide_into_plain_tensors(item)
    elif isinstance(value, torch.Tensor) and value.is_quantized:
        yield value.int_repr()
        is_for_whole_tensor = value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric)
        if is_for_whole_tensor:
            yield torch.tensor(value.q_scale())
            yield torch.tensor(value.q_zero_point())
        else:  # every channel has its own scale and zero point
            yield value.q_per_channel_scales()
            yield value.q_per_channel_zero_points()
    elif isinstance(value, torch.Tensor):
        yield value


def modules_fingerprint(model: SentenceTransformer) -> str:
    """Return the sha256 of what determines a model's vectors, apart from its weights.

    The hash covers the type and the settings of each module of sentence-transformers, `truncate_dim` and the
    route.
    """
    from stickytoken.encoders.inputs.routes import RoutedModel

    description: list[list[Any]] = []
    for name, module in model.named_modules():
        # The layers inside a module are left out: the settings of the module determine them. The modules
        # inside a Router are not such layers. They are modules of sentence-transformers with their own
        # settings, which `config_keys` lists.
        is_nested = "." in name
        if is_nested and not hasattr(module, "config_keys"):
            continue
        settings = {key: getattr(module, key, None) for key in getattr(module, "config_keys", ())}
        if hasattr(getattr(module, "config", None), "to_dict"):
            settings["config"] = _ignore_use_of_cache(config_of(module))
        description.append([name, type(module).__name__, settings])
    description.append(["truncate_dim", model.truncate_dim])
    if isinstance(model, RoutedModel):
        description.append(["route", model.route, model.task if model.task_matters else None])
    content = json.dumps(_make_keys_plain(description), sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def _make_keys_plain(value: Any) -> Any:
    # Converts keys that are tuples to text, because JSON allows no tuples as keys. A Router's settings have
    # such keys.
    if isinstance(value, list):
        return [_make_keys_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    plain: dict[Any, Any] = {}
    for key, item in value.items():
        plain_key = str(key) if isinstance(key, tuple) else key
        plain[plain_key] = _make_keys_plain(item)
    return plain


def _ignore_use_of_cache(config: dict[str, Any]) -> dict[str, Any]:
    # Returns the config with `use_cache` set to false, so that two configs that differ only in this setting
    # become equal: `use_cache` says whether keys and values are returned, which changes no vector. A config
    # may contain further configs, of the parts of a model.
    settings: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            settings[key] = _ignore_use_of_cache(value)
        else:
            settings[key] = False if key == "use_cache" else value
    return settings


def config_of(model: Any) -> dict[str, Any]:
    """Return the settings of a transformers model that can change its vectors."""
    return {key: value for key, value in model.config.to_dict().items() if key not in _IRRELEVANT_KEYS}
