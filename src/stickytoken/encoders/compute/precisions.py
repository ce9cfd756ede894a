"""Compute at a lower precision than a model's weights have, and check that the vectors stay close."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.compute import onednn_enabled
from stickytoken.errors import InputError
from stickytoken.machine import Precision, SharedSetting

# A function that returns a context manager, inside which the model computes at a certain precision.
Arithmetic: TypeAlias = Callable[[], AbstractContextManager[object]]

# Machine epsilon of each precision.
ROUNDING = {Precision.TF32: 2**-10, Precision.BFLOAT16: 2**-7, Precision.FLOAT16: 2**-10}
# A lower precision is usable if the mean cosine between vectors at this precision and vectors at the model's
# own precision is at least this constant.
_MIN_AGREEMENT = 0.95
_MATMUL_PRECISION = SharedSetting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)


def require_precision(model: torch.nn.Module, precision: Precision, name: str) -> None:
    """Raise an `InputError` if the device does not support the precision or the weights are not float32."""
    parameter = next(model.parameters())
    supported = [Precision.BFLOAT16]
    if parameter.device.type != "cpu":
        supported.append(Precision.FLOAT16)
    if parameter.device.type == "cuda":
        supported.insert(0, Precision.TF32)
    if precision not in supported:
        raise InputError(
            f"precision {precision} is not available on {parameter.device}: use {' or '.join(supported)}, "
            "or leave it out"
        )
    if parameter.dtype != torch.float32:
        current = str(parameter.dtype).removeprefix("torch.")
        raise InputError(f"{name} already computes in {current}: leave out the precision {precision}")


def arithmetic(model: torch.nn.Module, precision: Precision | None) -> Arithmetic:
    """Return a function that makes context managers, inside which the model computes at a precision.

    A context manager serves only once, so each ``with`` block calls the function anew:
    ``with arithmetic(model, precision)():``. If the precision is None, the model computes at its own
    precision.
    """
    if precision is None:
        return nullcontext
    if precision is Precision.TF32:
        return lambda: _MATMUL_PRECISION.at("high")  # torch calls TF32 "high"
    dtype = getattr(torch, precision)  # torch's types have the same names, such as bfloat16
    device = next(model.parameters()).device.type
    if device == "cpu":
        return lambda: _computing_on_cpu(dtype)
    return lambda: torch.autocast(device, dtype=dtype)


@contextmanager
def _computing_on_cpu(dtype: torch.dtype) -> Iterator[None]:
    # Only oneDNN has fast kernels for bfloat16.
    with onednn_enabled(True), torch.autocast("cpu", dtype=dtype):
        yield


def require_agreement(
    exact: NDArray[np.float32], lower: NDArray[np.float32], precision: Precision, name: str
) -> None:
    """Raise an `InputError` if a lower precision changes the vectors of the model too much.

    Args:
        exact: vectors at the model's own precision, shape (n, d).
        lower: vectors of the same texts at the lower precision, shape (n, d).
        precision: the lower precision, for the message.
        name: name of the model, for the message.
    """
    products_of_norms = np.linalg.norm(exact, axis=1) * np.linalg.norm(lower, axis=1)
    dot_products = (exact * lower).sum(axis=1)
    # The maximum avoids a division by zero.
    cosines = dot_products / np.maximum(products_of_norms, np.finfo(np.float32).tiny)
    agreement = float(np.mean(cosines))
    # If a vector is not finite, the agreement is NaN. Every comparison with NaN is false, so `<` would accept
    # it.
    if not agreement >= _MIN_AGREEMENT:
        raise InputError(
            f"{precision} changes the vectors of {name} too much (mean cosine {agreement:.2f} with "
            "the exact ones): use another precision, or leave it out"
        )
