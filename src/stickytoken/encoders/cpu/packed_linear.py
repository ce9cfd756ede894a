"""Linear layers on a CPU through oneDNN, their weights packed once.

torch multiplies float32 matrices with MKL, which on processors of other makers than Intel's does not use
their widest instructions. oneDNN's kernels do, take the bias along, and apply an exact GELU as they write.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from stickytoken.encoders.batching import TOKEN_MULTIPLE


class LinearPlace(NamedTuple):
    """Where a linear layer's product is computed.

    Attributes:
        module: whose forward pass is replaced: the layer, or a block of the layer and its GELU.
        layer: the layer.
        gelu: whether an exact GELU follows inside the module.
        feeds: the layer that alone reads what the module gives, where that is known.
    """

    module: torch.nn.Module
    layer: torch.nn.Linear
    gelu: bool
    feeds: torch.nn.Linear | None = None


class ReplacedForwards:
    """Other forward passes for some modules of a model, which is left as it was outside of `active`.

    Args:
        forwards: by module.
    """

    def __init__(self, forwards: dict[torch.nn.Module, Callable[[torch.Tensor], torch.Tensor]]) -> None:
        self._forwards = forwards

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let the modules compute by their other forward passes."""
        replaced = {
            module: forward for module, forward in self._forwards.items() if "forward" not in vars(module)
        }
        for module, forward in replaced.items():
            vars(module)["forward"] = forward
        try:
            yield
        finally:
            for module in replaced:
                vars(module).pop("forward", None)


class PackedLinears(ReplacedForwards):
    """Packed weights of a model's linear layers.

    Args:
        model: any model; layers that are not plain float32 ones on a CPU are left alone.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__({place.module: PackedLinear(place) for place in linear_places(model)})


def linear_places(model: torch.nn.Module) -> list[LinearPlace]:
    """All plain float32 linear layers on a CPU; none where oneDNN is missing."""
    onednn: Any = torch.backends.mkldnn
    if not (onednn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return []
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


class PackedForward(ABC):
    """A linear layer's forward pass with packed weights.

    Weights that torch saw change, or that were replaced, are packed again; it does not see changes
    through ``.data``.

    Args:
        place: the layer.
    """

    def __init__(self, place: LinearPlace) -> None:
        self._layer = place.layer
        # What oneDNN calls the function that follows, and its kind.
        self._activation = ("gelu", "none") if place.gelu else ("none", "")
        self._version: tuple[int, int] | None = None

    def __call__(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The layer's output, shape (..., features)."""
        self.refresh()
        flat, rows = flattened(hidden_states)
        found = self.multiply(flat, self.bias)
        return found[:rows].reshape(*hidden_states.shape[:-1], self._layer.out_features)

    def refresh(self) -> None:
        """Pack the weights if they are others than those that are packed."""
        weight = self._layer.weight.detach()
        # Weights that were made in inference mode have no version.
        version = (0 if weight.is_inference() else self._layer.weight._version, weight.data_ptr())
        if version != self._version:
            self.pack(weight)
            self._version = version

    @property
    def bias(self) -> torch.Tensor | None:
        """The layer's bias, shape (features,)."""
        bias: torch.Tensor | None = self._layer.bias
        return None if bias is None else bias.detach()

    @abstractmethod
    def pack(self, weight: torch.Tensor) -> None:
        """Take the weights, shape (features, inputs)."""

    @abstractmethod
    def multiply(self, flat: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The product with the weights, bias and activation applied.

        Args:
            flat: shape (rows, inputs).
            bias: shape (features,).

        Returns:
            Shape (rows, features).
        """


def flattened(hidden_states: torch.Tensor) -> tuple[torch.Tensor, int]:
    """States as rows, filled up to a multiple of `TOKEN_MULTIPLE`, and how many of them are theirs.

    oneDNN keeps a kernel with its buffers for every number of rows: few numbers, little memory.
    """
    flat = hidden_states.reshape(-1, hidden_states.shape[-1])
    rows = flat.shape[0]
    missing = -rows % TOKEN_MULTIPLE
    return (torch.nn.functional.pad(flat, (0, 0, 0, missing)) if missing else flat), rows


class PackedLinear(PackedForward):
    """In float32."""

    def pack(self, weight: torch.Tensor) -> None:
        """Take the weights, shape (features, inputs)."""
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight)

    def multiply(
        self, flat: torch.Tensor, bias: torch.Tensor | None, activation: str | None = None
    ) -> torch.Tensor:
        """The product; ``activation`` is oneDNN's name of one that follows in place of the layer's own."""
        name, kind = self._activation if activation is None else (activation, "")
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(flat, self._packed, bias, name, [], kind)
        return found

    def times(self, flat: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """The product with the weights, bias applied, times another matrix of its shape, entry by entry."""
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(
            flat, other, self._packed, self.bias, "mul"
        )
        return found
