"""Choose the arithmetic of a model's matrix products, by device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeAlias

import torch

from stickytoken.encoders.cpu.gated_block import PackedBlocks
from stickytoken.encoders.cpu.low_precision import BFloat16Linears, Int8Linears
from stickytoken.encoders.cpu.packed_linear import SWITCH
from stickytoken.errors import InputError
from stickytoken.precision import Precision

Arithmetic: TypeAlias = Callable[[], AbstractContextManager[object]]
"""A context in which the model computes."""

_ON_CPU = (Precision.BFLOAT16, Precision.INT8)
_ON_CUDA = (Precision.TF32, Precision.BFLOAT16, Precision.FLOAT16)
_ON_OTHERS = (Precision.BFLOAT16, Precision.FLOAT16)
# Instructions that multiply int8 numbers without intermediate overflow.
_INT8_INSTRUCTIONS = ("avx512_vnni", "avx_vnni", "amx_int8", "i8mm", "dot")
# Machine epsilon.
ROUNDING = {
    Precision.TF32: 2**-10,
    Precision.BFLOAT16: 2**-7,
    Precision.FLOAT16: 2**-10,
    Precision.INT8: 2**-7,
}


def require_precision(model: torch.nn.Module, precision: Precision, name: str) -> None:
    """Refuse a precision that the model's device does not support."""
    parameter = next(model.parameters())
    kind = parameter.device.type
    there = _ON_CPU if kind == "cpu" else _ON_CUDA if kind == "cuda" else _ON_OTHERS
    if precision not in there:
        raise InputError(
            f"precision {precision} is not available on {parameter.device}: use {' or '.join(there)}, "
            "or leave it out"
        )
    if parameter.dtype != torch.float32:
        found = str(parameter.dtype).removeprefix("torch.")
        raise InputError(f"{name} already computes in {found}: leave out the precision {precision}")
    if precision is Precision.INT8 and not _multiplies_int8():
        raise InputError(
            "precision int8 needs a processor with VNNI instructions, which this one lacks: "
            "use bfloat16, or leave it out"
        )


def arithmetic(
    model: torch.nn.Module,
    precision: Precision | None,
    calibrate: Callable[[], object],
    packed: bool,
) -> Arithmetic:
    """Choose the fastest way to compute in a precision; None is the weights' own.

    Args:
        model: the model, on its device.
        precision: a precision that `require_precision` accepts.
        calibrate: runs the model on the calibration inputs.
        packed: pack linear layers on a CPU.
    """
    kind = next(model.parameters()).device.type
    if kind == "cpu":
        if precision is Precision.INT8 and not packed:
            raise InputError(
                f"precision int8 needs packed layers, which are off: turn them on (is {SWITCH} set?), "
                "or leave int8 out"
            )
        if precision is Precision.INT8:
            return Int8Linears(model, calibrate).active
        if precision is not None:
            return BFloat16Linears(model, packed=packed).active
        return PackedBlocks(model).active if packed else nullcontext
    if precision is None:
        return nullcontext
    if precision is Precision.TF32:
        return _tf32
    dtype = getattr(torch, precision)
    return lambda: torch.autocast(kind, dtype=dtype)


def _multiplies_int8() -> bool:
    capabilities: Any = getattr(torch.cpu, "get_capabilities", dict)()
    present = any(capabilities.get(name) for name in _INT8_INSTRUCTIONS)
    return present and hasattr(torch.ops.onednn, "qlinear_pointwise")


@contextmanager
def _tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
