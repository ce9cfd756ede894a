"""Linear layers of a model computed by oneDNN on a CPU, with packed weights or in bfloat16."""

from __future__ import annotations

import math
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.compute import evaluating, weight_mark
from stickytoken.encoders.protocol import TOKEN_MULTIPLE
from stickytoken.errors import InputError, StickyTokenWarning
from stickytoken.machine import Precision, digest, keep, recalled

SWITCH = "STICKYTOKEN_PACKED_LAYERS"
_GATED_PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}
# Largest difference from torch's own layers, as a share of the largest output.
_TOLERANCE, _BFLOAT16_TOLERANCE = 1e-4, 0.05
_TRIAL_ROWS = 64


class LinearPlace(NamedTuple):
    module: torch.nn.Module  # whose forward pass is replaced: the layer, or a block of it and its GELU
    layer: torch.nn.Linear
    gelu: bool = False  # an exact GELU follows inside the module
    feeds_layer: bool = False  # only another linear layer reads the module's output


def linear_places(model: torch.nn.Module) -> list[LinearPlace]:
    from transformers.activations import GELUActivation

    blocks = []
    feeding = {
        getattr(parent, "intermediate", None)
        for parent in model.modules()
        if _is_plain(getattr(getattr(parent, "output", None), "dense", None))
    }
    for module in model.modules():
        # A linear layer and an exact GELU, as in BERT; elsewhere the same parts may be used in another way.
        parts: Any = dict(module.named_children())
        activation = getattr(module, "intermediate_act_fn", None)
        if (
            set(parts) == {"dense", "intermediate_act_fn"}
            and type(module).__module__.startswith("transformers.models.")
            and isinstance(activation, GELUActivation)
            and activation.act is torch.nn.functional.gelu
            and _is_plain(parts["dense"])
        ):
            blocks.append(LinearPlace(module, parts["dense"], gelu=True, feeds_layer=module in feeding))
    inner = {place.layer for place in blocks}
    layers: Any = (module for module in model.modules() if _is_plain(module) and module not in inner)
    return [*blocks, *(LinearPlace(layer, layer) for layer in layers)]


def _is_plain(module: Any) -> bool:
    if type(module) is not torch.nn.Linear:
        return False
    return module.weight.device.type == "cpu" and module.weight.dtype == torch.float32


class PackedLinear:
    # Weights are packed, unless that does not work for bfloat16: then torch's public functions compute.
    # Products of bfloat16 numbers are summed in float32.

    def __init__(self, place: LinearPlace, dtype: torch.dtype, *, packed: bool = True) -> None:
        self._place, self._layer, self._dtype, self._packed = place, place.layer, dtype, packed
        self._weight = self._checksum = torch.empty(0)
        self._mark: tuple[int, int] | None = None
        generator = torch.Generator().manual_seed(0)
        self._direction = torch.randn(place.layer.in_features, generator=generator)

    def __getstate__(self) -> dict[str, Any]:  # packed weights cannot be pickled, and are packed again
        return vars(self) | {"_weight": torch.empty(0), "_mark": None}

    def __call__(self, hidden_states: torch.Tensor) -> torch.Tensor:
        flat, rows = _flattened(hidden_states)
        found = self.multiply(flat, "gelu" if self._place.gelu else "none")
        return found[:rows].reshape(*hidden_states.shape[:-1], found.shape[-1])

    def refresh(self) -> None:
        weight = self._layer.weight.detach()
        # The mark shows changes that torch counts, however small. Others, by ``.data``, show in a product
        # with a fixed direction, unless they vanish in its rounding beside an outlier of their row.
        mark = weight_mark(self._layer.weight)
        with torch.inference_mode():
            checksum = weight @ self._direction
        if mark != self._mark or not torch.equal(checksum, self._checksum):
            self._weight = weight.to(self._dtype)
            if self._packed:
                self._weight = torch.ops.mkldnn._reorder_linear_weight(self._weight)
            self._mark, self._checksum = mark, checksum

    def multiply(self, flat: torch.Tensor, activation: str = "none") -> torch.Tensor:
        flat = flat.to(self._dtype)
        if self._packed:
            kind = "none" if activation == "gelu" else ""
            found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
                flat, self._weight, self._bias, activation, [], kind
            )
        else:
            found = torch.nn.functional.linear(flat, self._weight, self._bias)
            found = torch.nn.functional.gelu(found) if activation == "gelu" else found
        # A linear layer that reads bfloat16 numbers would round them to bfloat16 again.
        return found if self._place.feeds_layer else found.float()

    def times(self, flat: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        multiply: Any = torch.ops.mkldnn._linear_pointwise.binary
        found: torch.Tensor = multiply(flat, other, self._weight, self._bias, "mul")
        return found

    @property
    def _bias(self) -> torch.Tensor | None:
        bias: torch.Tensor | None = self._layer.bias
        return None if bias is None else bias.detach().to(self._dtype)


class _GatedBlock:  # the forward pass of a gated SiLU block, as in Llama
    def __init__(self, gate: LinearPlace, up: LinearPlace, down: LinearPlace) -> None:
        self._packed = [PackedLinear(place, torch.float32) for place in (gate, up, down)]

    def refresh(self) -> None:
        for layer in self._packed:
            layer.refresh()

    def __call__(self, hidden_states: torch.Tensor) -> torch.Tensor:
        flat, rows = _flattened(hidden_states)
        gate, up, down = self._packed
        found = down.multiply(up.times(flat, gate.multiply(flat, "swish")))
        return found[:rows].reshape(*hidden_states.shape[:-1], found.shape[-1])


def _flattened(hidden_states: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Flatten to rows, padded to few different numbers: oneDNN keeps a kernel for each."""
    flat = hidden_states.reshape(-1, hidden_states.shape[-1])
    rows = flat.shape[0]
    missing = -rows % TOKEN_MULTIPLE
    return (torch.nn.functional.pad(flat, (0, 0, 0, missing)) if missing else flat), rows


class PackedLinears:
    """Forward passes in place of those of linear layers and gated blocks, inside `active`."""

    def __init__(
        self, model: torch.nn.Module, dtype: torch.dtype = torch.float32, *, packed: bool = True
    ) -> None:
        self._model, self._dtype, self._packed = model, dtype, packed
        self._layout: list[object] | None = None
        self.forwards: dict[torch.nn.Module, PackedLinear | _GatedBlock] = {}
        self._renew()

    @contextmanager
    def active(self) -> Iterator[None]:
        self._renew()
        replaced = [module for module in self.forwards if "forward" not in vars(module)]
        for module in replaced:
            self.forwards[module].refresh()
            vars(module)["forward"] = self.forwards[module]
        try:
            yield
        finally:
            for module in replaced:
                vars(module).pop("forward", None)

    def _renew(self) -> None:
        places = linear_places(self._model)
        layout = [*places, *(getattr(module, "act_fn", None) for module in self._model.modules())]
        if layout != self._layout:
            self.forwards = self._make(places)
            self._layout = layout

    def _make(self, places: list[LinearPlace]) -> dict[torch.nn.Module, PackedLinear | _GatedBlock]:
        from transformers.activations import SiLUActivation

        exact = self._dtype is torch.float32
        if exact and not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            return {}
        forwards: dict[torch.nn.Module, PackedLinear | _GatedBlock] = {
            place.module: PackedLinear(place, self._dtype, packed=self._packed) for place in places
        }
        # One layer of each shape is compared with torch's own, on its own weights.
        tolerance = _TOLERANCE if exact else _BFLOAT16_TOLERANCE
        samples: dict[object, tuple[torch.nn.Module, torch.nn.Linear]] = {}
        for module, layer, gelu, _ in places:
            if "forward" not in vars(module):
                samples.setdefault((*layer.weight.shape, layer.bias is None, gelu), (module, layer))
        reasons = (
            _failure(module, layer.in_features, forwards[module], tolerance)
            for module, layer in samples.values()
        )
        if self._packed and (reason := next(filter(None, reasons), None)):
            slow = f"packed layers are off, and {'encoding' if exact else 'bfloat16'} on this CPU is slower"
            said = f"{slow}: {reason}. Another version of torch may help; {SWITCH}=0 turns this warning off"
            if not (exact or torch.ops.mkldnn._is_mkldnn_bf16_supported()):
                said = "this CPU has no instructions for bfloat16, which is slower on it: use float32"
            warnings.warn(said, StickyTokenWarning, stacklevel=2)
            unpacked = {place.module: PackedLinear(place, self._dtype, packed=False) for place in places}
            return {} if exact else dict(unpacked)
        if not exact:
            return forwards
        by_layer = {place.layer: place for place in places}
        works: dict[type, bool] = {}
        for module in self._model.modules():
            parts: Any = dict(module.named_children())
            kind, layers = type(module), [parts.get(name) for name in ("gate_proj", "up_proj", "down_proj")]
            if (
                set(parts) != _GATED_PARTS
                or not kind.__module__.startswith("transformers.models.")
                or type(parts["act_fn"]) not in (torch.nn.SiLU, SiLUActivation)
                or not by_layer.keys() >= set(layers)
                or "forward" in vars(module)
            ):
                continue
            block = _GatedBlock(*(by_layer[layer] for layer in layers))
            if kind not in works:  # otherwise its layers are packed one by one
                works[kind] = _failure(module, layers[0].in_features, block, _TOLERANCE) is None
            if works[kind]:
                forwards[module] = block
                for layer in layers:
                    forwards.pop(layer, None)
        return forwards


def _failure(
    module: torch.nn.Module, features: int, forward: PackedLinear | _GatedBlock, tolerance: float
) -> str | None:
    values = torch.linspace(-1, 1, _TRIAL_ROWS * features).sin().reshape(_TRIAL_ROWS, -1)
    try:
        with torch.inference_mode(), evaluating(module):
            expected: Any = module.forward(values)
            forward.refresh()
            found = forward(values)
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        # What torch raises for an operator that is missing, or that takes other arguments.
        return f"oneDNN's operators failed ({' '.join(str(error).split())[:200]})"
    known = expected.isfinite()  # damaged weights are reported with the text whose vector shows it
    difference = torch.where(known, found - expected, 0).abs().max()
    if difference <= tolerance * torch.where(known, expected, 0).abs().max():
        return None
    return "oneDNN's operators gave other numbers than torch's own"


_SECONDS, _LEAST_TURNS = 0.5, 3
_OPERATIONS, _MOST_TEXTS = 20e9, 64
# Increased when the measurement changes.
_VERSION = 1


def trial_inputs(network: torch.nn.Module, contents: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    weights = sum(place.layer.weight.numel() for place in linear_places(network))
    texts: list[tuple[int, ...]] = []
    operations = 0
    for content in reversed(contents) if weights else ():
        operations += 2 * weights * len(content)
        if texts and (operations > _OPERATIONS or len(texts) == _MOST_TEXTS):
            break
        texts.append(content)
    return texts


def measured(
    network: torch.nn.Module, trials: Mapping[str, Callable[[], object]], threads: int
) -> dict[str, float]:
    machine = [platform.node(), torch.backends.cpu.get_cpu_capability()]
    facts = {"version": _VERSION, "model": repr(network), "machine": machine}
    key = f"packing-{digest({**facts, 'torch': torch.__version__, 'threads': threads})}"
    known = recalled(key) or {}
    if not all(isinstance(known.get(name), float) for name in trials):
        for run in trials.values():
            run()  # packs weights, and builds kernels
        # Take turns, and keep the shortest times: other work only makes them longer.
        known = dict.fromkeys(trials, math.inf)
        ends, turns = time.perf_counter() + _SECONDS, 0
        while turns < _LEAST_TURNS or time.perf_counter() < ends:
            for name, run in trials.items():
                started = time.perf_counter()
                run()
                known[name] = min(known[name], time.perf_counter() - started)
            turns += 1
        keep(key, known)
    return {name: known[name] for name in trials}


# Mean cosine between the vectors of a lower precision and the model's own, below which it is of no use.
_LEAST_AGREEMENT = 0.95


def require_agreement(
    exact: NDArray[np.float32], found: NDArray[np.float32], precision: Precision, name: str
) -> None:
    lengths = np.linalg.norm(exact, axis=1) * np.linalg.norm(found, axis=1)
    agreement = float(np.mean((exact * found).sum(axis=1) / np.maximum(lengths, np.finfo(np.float32).tiny)))
    # The comparison is false where a vector is not finite.
    if not agreement >= _LEAST_AGREEMENT:
        raise InputError(
            f"{precision} changes the vectors of {name} too much (mean cosine {agreement:.2f} with "
            "its own): use another precision, or leave it out"
        )
