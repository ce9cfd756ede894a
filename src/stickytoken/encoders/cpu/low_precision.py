"""Linear layers on a CPU in bfloat16 or int8, for early rounds; the rest of the model stays in float32.

A layer's output depends on its own input row alone: int8 takes the range of each layer's inputs from
calibration, not from the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.cpu.linear import (
    LinearPlace,
    PackedForward,
    PackedLayer,
    ReplacedForwards,
    untrusted,
    warn_unpacked,
)
from stickytoken.errors import InputError
from stickytoken.machine import Precision

# Inputs beyond the calibrated range by this share are still told apart.
_HEADROOM = 1.1
_LEVELS = 255
_LARGEST_WEIGHT = 127
# Largest difference from float32 that rounding explains, as a share of the largest output.
_BFLOAT16_TOLERANCE = 0.05
# How far int8 may be from float32 is decided by the model's vectors.
_ANY_DIFFERENCE = 1e9


class Range(NamedTuple):
    """Smallest and largest input of a layer."""

    low: float
    high: float


class BFloat16Linears(ReplacedForwards):
    """Products of bfloat16 numbers, summed in float32."""

    def __init__(self, model: torch.nn.Module, *, packed: bool = True) -> None:
        self._packed = packed
        super().__init__(model)

    def make(self, places: list[LinearPlace]) -> Mapping[torch.nn.Module, PackedForward]:
        """Pack the layers. If oneDNN's operators do not work, warn once and pack none."""
        if self._packed:
            forwards = {place.module: _PackedBFloat16(place) for place in places}
            reason = untrusted(places, forwards, _BFLOAT16_TOLERANCE)
            if reason is None:
                return forwards
            warn_unpacked("bfloat16", reason)
        return {place.module: _BFloat16Linear(place) for place in places}


class Int8Linears(ReplacedForwards):
    """Products of int8 numbers: weights scaled by feature, inputs by layer."""

    def __init__(self, model: torch.nn.Module, calibrate: Callable[[], object]) -> None:
        self._calibrate = calibrate
        super().__init__(model)

    def make(self, places: list[LinearPlace]) -> Mapping[torch.nn.Module, PackedForward]:
        """Pack the layers that calibration reaches, with the ranges of their inputs."""
        ranges = _input_ranges(places, self._calibrate)
        forwards = {place.module: _Int8Linear(place, ranges) for place in places if place.layer in ranges}
        if reason := untrusted(places, forwards, _ANY_DIFFERENCE):
            raise InputError(
                f"precision int8 does not work with this torch on this processor: {reason}; use bfloat16, or "
                "leave it out"
            )
        return forwards


class _BFloat16Linear(PackedLayer):
    """A layer computed with torch's public functions."""

    def __init__(self, place: LinearPlace) -> None:
        super().__init__(place)
        self._gelu, self._feeds = place.gelu, place.feeds is not None

    def pack(self, weight: torch.Tensor) -> None:
        self._weight = weight.bfloat16()

    def multiply(self, flat: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        bias = None if bias is None else bias.bfloat16()
        found = self._product(flat.bfloat16(), bias)
        # The layer that reads it would round it to bfloat16 again.
        return found if self._feeds else found.float()

    def _product(self, flat: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        found = torch.nn.functional.linear(flat, self._weight, bias)
        return torch.nn.functional.gelu(found) if self._gelu else found


class _PackedBFloat16(_BFloat16Linear):
    """A layer computed through oneDNN."""

    def pack(self, weight: torch.Tensor) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16())

    def _product(self, flat: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        name, kind = self._activation
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(flat, self._weight, bias, name, [], kind)
        return found


class _Quantization:
    """Maps numbers in a range to 0, 1, ..., 255."""

    def __init__(self, of: Range) -> None:
        low, high = min(of.low * _HEADROOM, 0.0), max(of.high * _HEADROOM, 0.0)
        self.scale = (high - low) / _LEVELS or 1.0
        self.zero = round(-low / self.scale)
        # A half, since the conversion to integers truncates.
        self._shift = torch.tensor(self.zero + 0.5)

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        scaled = torch.add(self._shift, values, alpha=1 / self.scale)
        return scaled.clamp_(0, _LEVELS).to(torch.uint8)


class _Int8Linear(PackedLayer):
    def __init__(self, place: LinearPlace, ranges: dict[torch.nn.Linear, Range]) -> None:
        super().__init__(place)
        self._input = _Quantization(ranges[place.layer])
        read_by = None if place.feeds is None else ranges.get(place.feeds)
        self._output = None if read_by is None else _Quantization(read_by)

    def pack(self, weight: torch.Tensor) -> None:
        self._scales = weight.abs().amax(dim=1).clamp_(min=torch.finfo(weight.dtype).tiny) / _LARGEST_WEIGHT
        quantized = (weight / self._scales[:, None]).round_().to(torch.int8)
        self._weight = torch.ops.onednn.qlinear_prepack(quantized, None)
        self._zeros = torch.zeros(len(weight), dtype=torch.int64)

    def multiply(self, flat: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        given, to = self._input, self._output
        found: Any = torch.ops.onednn.qlinear_pointwise(
            flat if flat.dtype == torch.uint8 else given(flat),
            given.scale,
            given.zero,
            self._weight,
            self._scales,
            self._zeros,
            bias,
            1.0 if to is None else to.scale,
            0 if to is None else to.zero,
            torch.float32 if to is None else torch.uint8,
            self._activation[0],
            [],
            self._activation[1],
        )
        return found  # type: ignore[no-any-return]


def _input_ranges(places: list[LinearPlace], calibrate: Callable[[], object]) -> dict[torch.nn.Linear, Range]:
    ranges: dict[torch.nn.Linear, Range] = {}

    def widen(layer: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        low, high = (value.item() for value in torch.aminmax(inputs[0]))
        known = ranges.get(layer, Range(low, high))
        ranges[layer] = Range(min(low, known.low), max(high, known.high))

    hooks = [place.layer.register_forward_pre_hook(widen) for place in places]
    try:
        calibrate()
    finally:
        for hook in hooks:
            hook.remove()
    return ranges


_ENTRIES = 512
_IN_A_ROW = 8
_COPIES = 8
# Mean cosine between the vectors of a lower precision and the model's own, below which it is of no use.
_LEAST_AGREEMENT = 0.95


def calibration_inputs(entries: Sequence[int], special: Sequence[int]) -> list[tuple[int, ...]]:
    """Rows of different vocabulary entries, alone and with copies of one entry behind.

    The entries are spread over the vocabulary; special ones, which move a model most, are all there.
    """
    known = set(entries)
    step = max(1, len(entries) // _ENTRIES)
    spread = [entries[place] for place in range(0, len(entries), step)]
    rows = [tuple(spread[start : start + _IN_A_ROW]) for start in range(0, len(spread), _IN_A_ROW)]
    repeated = [*(row[0] for row in rows), *(entry for entry in special if entry in known)]
    copies = [(*rows[place % len(rows)], *(entry,) * _COPIES) for place, entry in enumerate(repeated)]
    return [*rows, *copies]


def require_agreement(
    exact: NDArray[np.float32], found: NDArray[np.float32], precision: Precision, name: str
) -> None:
    """Refuse a precision whose vectors are too far from the model's own."""
    if not len(exact):
        raise InputError(
            f"{name} reads too few tokens to compare {precision} with its own: leave the precision out"
        )
    lengths = np.linalg.norm(exact, axis=1) * np.linalg.norm(found, axis=1)
    agreement = float(np.mean((exact * found).sum(axis=1) / np.maximum(lengths, np.finfo(np.float32).tiny)))
    # The comparison is false where a vector is not finite.
    if not agreement >= _LEAST_AGREEMENT:
        raise InputError(
            f"{precision} changes the vectors of {name} too much (mean cosine {agreement:.2f} with "
            "its own): use another precision, or leave it out"
        )
