"""Find the linear layers of a model that oneDNN can compute on a CPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class LinearPlace(NamedTuple):
    """Where a linear layer's product is computed.

    Attributes:
        module: whose forward pass is replaced: the layer, or a block of the layer and its GELU.
        layer: the layer.
        gelu: whether an exact GELU follows inside the module.
        feeds: the only layer that reads the module's output, where that is known.
    """

    module: torch.nn.Module
    layer: torch.nn.Linear
    gelu: bool
    feeds: torch.nn.Linear | None = None


def linear_places(model: torch.nn.Module) -> list[LinearPlace]:
    """Find all plain float32 linear layers on a CPU."""
    fed = {
        id(block): output
        for parent in model.modules()
        if (block := getattr(parent, "intermediate", None)) is not None
        and (output := _plain(getattr(getattr(parent, "output", None), "dense", None))) is not None
    }
    blocks = [
        LinearPlace(module, layer, gelu=True, feeds=fed.get(id(module)))
        for module in model.modules()
        if (layer := _followed_by_gelu(module)) is not None
    ]
    inner = {place.layer for place in blocks}
    layers = [
        LinearPlace(layer, layer, gelu=False)
        for module in model.modules()
        if (layer := _plain(module)) is not None and layer not in inner
    ]
    return [*blocks, *layers]


def _plain(module: object) -> torch.nn.Linear | None:
    """Return the module if it is a plain linear layer, else None."""
    if type(module) is not torch.nn.Linear:
        return None
    weight = module.weight
    return module if weight.device.type == "cpu" and weight.dtype == torch.float32 else None


def _followed_by_gelu(module: torch.nn.Module) -> torch.nn.Linear | None:
    """Return the layer of a block that is a linear layer and an exact GELU, as in BERT and its relatives."""
    from transformers.activations import GELUActivation

    parts: Any = dict(module.named_children())
    activation = getattr(module, "intermediate_act_fn", None)
    # Elsewhere the same parts may be used in another way.
    known = type(module).__module__.startswith("transformers.models.")
    exact = known and isinstance(activation, GELUActivation) and activation.act is torch.nn.functional.gelu
    return _plain(parts["dense"]) if exact and set(parts) == {"dense", "intermediate_act_fn"} else None
