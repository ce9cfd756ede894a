"""Find the linear layers of a model that oneDNN can compute on a CPU."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from stickytoken.encoders.model_state import evaluating, weight_mark
from stickytoken.encoders.protocol import TOKEN_MULTIPLE
from stickytoken.errors import StickyTokenWarning


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


SWITCH = "STICKYTOKEN_PACKED_LAYERS"
_TRIAL_ROWS = 64
_TOLERANCE = 1e-4


def packed_layers_wanted(asked: bool | None) -> bool | None:
    """Decide whether to pack layers; None if neither the caller nor STICKYTOKEN_PACKED_LAYERS says so."""
    said = os.environ.get(SWITCH, "").strip().lower()
    if asked is not None or not said:
        return asked
    return said not in ("0", "false", "no", "off")


class ReplacedForwards(ABC):
    """Replacement forward passes for modules of a model, used only inside `active`."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._layout: list[object] | None = None
        self._forwards: Mapping[torch.nn.Module, PackedForward] = {}
        self._renew()

    @property
    def modules(self) -> frozenset[torch.nn.Module]:
        """Modules whose forward pass is replaced."""
        return frozenset(self._forwards)

    @abstractmethod
    def make(self, places: list[LinearPlace]) -> Mapping[torch.nn.Module, PackedForward]:
        """Build the forward passes for the linear layers of the model."""

    @contextmanager
    def active(self) -> Iterator[None]:
        """Use the replacement forward passes; the caller holds the model's lock."""
        self._renew()
        replaced = {
            module: forward for module, forward in self._forwards.items() if "forward" not in vars(module)
        }
        for module, forward in replaced.items():
            forward.refresh()
            vars(module)["forward"] = forward
        try:
            yield
        finally:
            for module in replaced:
                vars(module).pop("forward", None)

    def layout(self, places: list[LinearPlace]) -> list[object]:
        """List the modules that the forward passes were built for."""
        return [*places]

    def _renew(self) -> None:
        """Build the forward passes again if modules were added, replaced or removed."""
        places = linear_places(self._model)
        layout = self.layout(places)
        if layout != self._layout:
            self._forwards = self.make(places)
            self._layout = layout


class PackedForward(ABC):
    """A forward pass that computes with packed weights; several threads may call it."""

    @abstractmethod
    def refresh(self) -> None:
        """Pack the weights again if they have changed."""

    @abstractmethod
    def __call__(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the output, shape (..., features)."""


class PackedLayer(PackedForward):
    """A linear layer's forward pass with packed weights."""

    def __init__(self, place: LinearPlace) -> None:
        self._layer = place.layer
        # What oneDNN calls the function that follows, and its kind.
        self._activation = ("gelu", "none") if place.gelu else ("none", "")
        self._mark: tuple[int, int] | None = None
        self._checksum = torch.empty(0)
        generator = torch.Generator().manual_seed(0)
        self._direction = torch.randn(place.layer.in_features, generator=generator)

    def __call__(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, shape (..., features)."""
        flat, rows = flattened(hidden_states)
        found = self.multiply(flat, self.bias)
        return found[:rows].reshape(*hidden_states.shape[:-1], self._layer.out_features)

    def refresh(self) -> None:
        """Pack the weights again if they have changed.

        torch counts most changes, but none that are made through ``.data``. The product with a fixed random
        direction shows these, for the time of reading the weights once.
        """
        weight = self._layer.weight.detach()
        mark = weight_mark(self._layer.weight)
        with torch.inference_mode():
            checksum = weight @ self._direction
        if mark != self._mark or not torch.equal(checksum, self._checksum):
            self.pack(weight)
            self._mark, self._checksum = mark, checksum

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
        """Multiply with the weights, then apply bias and activation."""


class PackedLinear(PackedLayer):
    """A layer in float32."""

    def pack(self, weight: torch.Tensor) -> None:
        """Take the weights, shape (features, inputs)."""
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight)

    def multiply(
        self, flat: torch.Tensor, bias: torch.Tensor | None, activation: str | None = None
    ) -> torch.Tensor:
        """Multiply; ``activation`` is oneDNN's name of the activation to apply, if not the layer's own."""
        name, kind = self._activation if activation is None else (activation, "")
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(flat, self._packed, bias, name, [], kind)
        return found

    def times(self, flat: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Multiply with the weights, add the bias, then multiply entry by entry with another matrix."""
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(
            flat, other, self._packed, self.bias, "mul"
        )
        return found


class PackedLinears(ReplacedForwards):
    """Packed weights of a model's linear layers."""

    def make(self, places: list[LinearPlace]) -> Mapping[torch.nn.Module, PackedForward]:
        """Pack the layers. If oneDNN's operators do not work, warn once and pack none."""
        if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            return {}
        forwards = {place.module: PackedLinear(place) for place in places}
        if reason := untrusted(places, forwards, _TOLERANCE):
            warn_unpacked("encoding", reason)
            return {}
        return forwards


def warn_unpacked(slower: str, reason: str) -> None:
    """Warn that layers are not packed, which makes something slower."""
    warnings.warn(
        f"packed layers are off, and {slower} on this CPU is slower: {reason}. Another version of torch may "
        f"help; {SWITCH}=0 turns this warning off",
        StickyTokenWarning,
        stacklevel=3,
    )


def untrusted(
    places: list[LinearPlace], forwards: Mapping[torch.nn.Module, PackedForward], tolerance: float
) -> str | None:
    """Compare one layer of each shape with torch's own, on its own weights."""
    tried = set()
    for place in places:
        shape = (*place.layer.weight.shape, place.layer.bias is None, place.gelu)
        if shape in tried or place.module not in forwards or "forward" in vars(place.module):
            continue
        tried.add(shape)
        try:
            same = agrees(place.module, place.layer.in_features, forwards[place.module], tolerance)
        except torch.OutOfMemoryError:
            raise
        except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            # What torch raises for an operator that is missing, or that takes other arguments.
            return f"oneDNN's operators failed ({' '.join(str(error).split())[:200]})"
        if not same:
            return "oneDNN's operators gave other numbers than torch's own"
    return None


def agrees(module: torch.nn.Module, features: int, forward: PackedForward, tolerance: float) -> bool:
    """Check that a forward pass gives what the module gives, on `_TRIAL_ROWS` rows of ``features`` values."""
    values = torch.linspace(-1, 1, _TRIAL_ROWS * features).sin().reshape(_TRIAL_ROWS, -1)
    with torch.inference_mode(), evaluating(module):
        expected: Any = module.forward(values)
        forward.refresh()
        found = forward(values)
    known = expected.isfinite()  # damaged weights are reported with the text whose vector shows it
    difference = torch.where(known, found - expected, 0).abs().max()
    return bool(difference <= tolerance * torch.where(known, expected, 0).abs().max())


def flattened(hidden_states: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Reshape states to rows, padded to a multiple of `TOKEN_MULTIPLE`, and count those that are theirs.

    oneDNN keeps a kernel with its buffers for every number of rows: few numbers, little memory.
    """
    flat = hidden_states.reshape(-1, hidden_states.shape[-1])
    rows = flat.shape[0]
    missing = -rows % TOKEN_MULTIPLE
    return (torch.nn.functional.pad(flat, (0, 0, 0, missing)) if missing else flat), rows


_PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}


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
    """The forward pass of a block."""

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
