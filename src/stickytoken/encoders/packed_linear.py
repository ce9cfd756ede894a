"""Linear layers on a CPU in float32 through oneDNN, their weights packed once.

torch multiplies float32 matrices with MKL, which on processors of other makers than Intel's does not use
their widest instructions. oneDNN's kernels do, take the bias along, and apply an exact GELU as they write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from stickytoken.encoders.batching import TOKEN_MULTIPLE

Forward = Callable[[torch.Tensor], torch.Tensor]


class PackedLinears:
    """Packed weights of a model's linear layers.

    The model is left as it was outside of `active`.

    Args:
        model: any model; layers that are not plain float32 ones on a CPU are left alone.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._forwards: list[tuple[torch.nn.Module, Forward]] = []
        if not _available():
            return
        inner: set[int] = set()
        for module in model.modules():
            layer = _followed_by_gelu(module)
            if layer is not None:
                self._forwards.append((module, _Packed(layer, "gelu")))
                inner.add(id(layer))
        for module in model.modules():
            layer = _plain(module)
            if layer is not None and id(layer) not in inner:
                self._forwards.append((module, _Packed(layer, "none")))

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let the layers compute with their packed weights."""
        replaced = [(module, forward) for module, forward in self._forwards if "forward" not in vars(module)]
        for module, forward in replaced:
            vars(module)["forward"] = forward
        try:
            yield
        finally:
            for module, _ in replaced:
                vars(module).pop("forward", None)


def _available() -> bool:
    onednn: Any = torch.backends.mkldnn
    return bool(onednn.is_available()) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _plain(module: torch.nn.Module) -> torch.nn.Linear | None:
    """The module if it is a linear layer and nothing more."""
    if type(module) is not torch.nn.Linear:
        return None
    weight = module.weight
    return module if weight.device.type == "cpu" and weight.dtype == torch.float32 else None


def _followed_by_gelu(module: torch.nn.Module) -> torch.nn.Linear | None:
    """The layer of a block that is a linear layer and an exact GELU, as BERT and its kin have them."""
    from transformers.activations import GELUActivation

    parts: Any = dict(module.named_children())
    activation = getattr(module, "intermediate_act_fn", None)
    # Elsewhere the same parts may be used in another way.
    known = type(module).__module__.startswith("transformers.models.")
    exact = known and isinstance(activation, GELUActivation) and activation.act is torch.nn.functional.gelu
    return _plain(parts["dense"]) if exact and set(parts) == {"dense", "intermediate_act_fn"} else None


class _Packed:
    """A linear layer's forward pass.

    Weights that torch saw change, or that were replaced, are packed again; it does not see changes
    through ``.data``.
    """

    def __init__(self, layer: torch.nn.Linear, activation: str) -> None:
        self._layer = layer
        self._activation = activation
        self._algorithm = "none" if activation == "gelu" else ""
        self._version: tuple[int, int] | None = None
        self._weight: Any = None

    def __call__(self, hidden_states: torch.Tensor) -> torch.Tensor:
        weight = self._layer.weight.detach()
        bias: torch.Tensor | None = self._layer.bias
        # Weights that were made in inference mode have no version.
        changes = 0 if weight.is_inference() else self._layer.weight._version
        version = (changes, weight.data_ptr())
        if version != self._version:
            self._weight, self._version = torch.ops.mkldnn._reorder_linear_weight(weight), version
        flat = hidden_states.reshape(-1, hidden_states.shape[-1])
        rows = flat.shape[0]
        # oneDNN keeps a kernel with its buffers for every number of rows: few numbers, little memory.
        if missing := -rows % TOKEN_MULTIPLE:
            flat = torch.nn.functional.pad(flat, (0, 0, 0, missing))
        found = torch.ops.mkldnn._linear_pointwise(
            flat, self._weight, None if bias is None else bias.detach(), self._activation, [], self._algorithm
        )
        shaped: torch.Tensor = found[:rows].reshape(*hidden_states.shape[:-1], self._layer.out_features)
        return shaped
