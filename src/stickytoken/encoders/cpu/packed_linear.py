"""Linear layers on a CPU through oneDNN, their weights packed once.

torch multiplies float32 matrices with MKL, which leaves the widest instructions of other makers' processors
than Intel's unused. oneDNN's kernels use them, add the bias, and apply an exact GELU as they write.

The operators are private to torch. So each kind of layer is compared with torch's own when it is packed, and
a model whose layers do not agree computes without packed layers.
"""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from stickytoken.encoders.batching import TOKEN_MULTIPLE
from stickytoken.encoders.cpu._linear_places import LinearPlace, linear_places
from stickytoken.encoders.model_state import evaluating, weight_mark
from stickytoken.errors import StickyTokenWarning

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
    """Replacement forward passes for modules of a model, used only inside `active`.

    Args:
        model: any model; layers other than plain float32 ones on a CPU are left alone.
    """

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
        """Multiply with the weights, then apply bias and activation.

        Args:
            flat: shape (rows, inputs).
            bias: shape (features,).

        Returns:
            Shape (rows, features).
        """


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
    """Compare one layer of each shape with torch's own, on its own weights.

    Args:
        places: the layers.
        forwards: their other forward passes.
        tolerance: largest difference, as a share of the largest output.

    Returns:
        What is wrong; None if all agree.
    """
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
