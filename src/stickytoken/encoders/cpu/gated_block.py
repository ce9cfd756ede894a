"""Gated feed-forward blocks on a CPU through oneDNN: SiLU and the gate's product are applied as layers write.

down(silu(gate(x)) * up(x)), as Llama, Mistral and Qwen have it. Otherwise the two steps between the layers
read and write the widest states of the model once more each.
"""

from __future__ import annotations

from typing import Any

import torch

from stickytoken.encoders.cpu.packed_linear import (
    LinearPlace,
    PackedLinear,
    PackedLinears,
    flattened,
    linear_places,
)
from stickytoken.encoders.model_state import evaluating

_PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_TRIAL_ROWS = 64
_TOLERANCE = 1e-4


class PackedBlocks(PackedLinears):
    """Packed weights of a model's linear layers, gated blocks computed as a whole.

    Args:
        model: any model; layers that are not plain float32 ones on a CPU are left alone.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        places = {place.layer: place for place in linear_places(model)}
        tried: dict[type, bool] = {}
        for module in model.modules():
            block = _block(module, places)
            if block is None:
                continue
            kind = type(module)
            if kind not in tried:
                tried[kind] = _agrees(module, block)
            if tried[kind]:
                self._forwards[module] = block


class _GatedBlock:
    """The forward pass of a block.

    Args:
        gate: place of the layer that SiLU follows.
        up: place of the layer that it is multiplied with.
        down: place of the layer that reads the product.
    """

    def __init__(self, gate: LinearPlace, up: LinearPlace, down: LinearPlace) -> None:
        self._gate, self._up, self._down = PackedLinear(gate), PackedLinear(up), PackedLinear(down)
        self._features = down.layer.out_features

    def __call__(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The block's output, shape (..., features)."""
        for layer in (self._gate, self._up, self._down):
            layer.refresh()
        flat, rows = flattened(hidden_states)
        mixed = self._up.times(flat, self._gate.multiply(flat, self._gate.bias, "swish"))
        found = self._down.multiply(mixed, self._down.bias)
        return found[:rows].reshape(*hidden_states.shape[:-1], self._features)


def _block(module: torch.nn.Module, places: dict[torch.nn.Linear, LinearPlace]) -> _GatedBlock | None:
    """A block of transformers that has the parts of a gated one with SiLU, and no others."""
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


def _agrees(module: torch.nn.Module, block: _GatedBlock) -> bool:
    """Whether a block of this kind puts its parts together in this way and no other."""
    inputs: Any = dict(module.named_children())["gate_proj"]
    values = torch.linspace(-1, 1, _TRIAL_ROWS * inputs.in_features).sin().reshape(_TRIAL_ROWS, -1)
    with torch.inference_mode(), evaluating(module):
        expected = module(values)
        found = block(values)
    return bool((found - expected).abs().max() <= _TOLERANCE * expected.abs().max())
