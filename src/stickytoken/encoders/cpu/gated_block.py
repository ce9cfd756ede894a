"""Gated feed-forward blocks on a CPU through oneDNN: SiLU and the gate's product are applied as layers write.

down(silu(gate(x)) * up(x)), as in Llama, Mistral and Qwen. Otherwise the two steps between the layers
read and write the widest states of the model once more each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stickytoken.encoders.cpu._linear_places import LinearPlace
from stickytoken.encoders.cpu.packed_linear import (
    PackedForward,
    PackedLinear,
    PackedLinears,
    agrees,
    flattened,
)

_PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_TOLERANCE = 1e-4


class PackedBlocks(PackedLinears):
    """Packed weights of a model's linear layers; gated blocks are computed as a whole."""

    def layout(self, places: list[LinearPlace]) -> list[object]:
        """List the modules that the forward passes were built for, activations of blocks included."""
        return [*places, *(getattr(module, "act_fn", None) for module in self._model.modules())]

    def make(self, places: list[LinearPlace]) -> Mapping[torch.nn.Module, PackedForward]:
        """Pack the layers, then replace the blocks whose output is reproduced."""
        forwards = dict(super().make(places))
        by_layer = {place.layer: place for place in places}
        tried: dict[type, bool] = {}
        for module in self._model.modules() if forwards else ():
            block = _block(module, by_layer)
            if block is None or "forward" in vars(module):
                continue
            kind = type(module)
            if kind not in tried:
                tried[kind] = _works(module, block)
            if tried[kind]:
                forwards[module] = block
                for layer in block.layers:
                    forwards.pop(layer, None)
        return forwards


class _GatedBlock(PackedForward):
    """The forward pass of a block.

    Args:
        gate: place of the layer that SiLU follows.
        up: place of the layer that it is multiplied with.
        down: place of the layer that reads the product.
    """

    def __init__(self, gate: LinearPlace, up: LinearPlace, down: LinearPlace) -> None:
        self._gate, self._up, self._down = PackedLinear(gate), PackedLinear(up), PackedLinear(down)
        self.layers = (gate.layer, up.layer, down.layer)
        self.inputs, self._features = gate.layer.in_features, down.layer.out_features

    def refresh(self) -> None:
        """Pack the weights again if they have changed."""
        for layer in (self._gate, self._up, self._down):
            layer.refresh()

    def __call__(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the block's output, shape (..., features)."""
        flat, rows = flattened(hidden_states)
        mixed = self._up.times(flat, self._gate.multiply(flat, self._gate.bias, "swish"))
        found = self._down.multiply(mixed, self._down.bias)
        return found[:rows].reshape(*hidden_states.shape[:-1], self._features)


def _block(module: torch.nn.Module, places: dict[torch.nn.Linear, LinearPlace]) -> _GatedBlock | None:
    """Return a forward pass for a block with exactly the parts of a gated SiLU block, else None."""
    from transformers.activations import SiLUActivation

    parts: Any = dict(module.named_children())
    if set(parts) != _PARTS or not type(module).__module__.startswith("transformers.models."):
        return None
    layers = [parts[name] for name in ("gate_proj", "up_proj", "down_proj")]
    if type(parts["act_fn"]) not in (torch.nn.SiLU, SiLUActivation) or not all(
        layer in places for layer in layers
    ):
        return None
    return _GatedBlock(*(places[layer] for layer in layers))


def _works(module: torch.nn.Module, block: _GatedBlock) -> bool:
    """Check that the packed pass reproduces the output of the block, and that the operators work."""
    try:
        return agrees(module, block.inputs, block, _TOLERANCE)
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return False  # its layers are packed one by one
