"""Matrix products with packed weights, computed by oneDNN, the library that torch uses on CPUs.

torch exposes these operators under private names only. No other module of the package uses these names, and
`linear.PackedLinears` compares the operators with torch's public functions before it relies on them. If an
operator is missing or its results differ, the public functions are used instead.
"""

from __future__ import annotations

from enum import StrEnum

import torch


class Activation(StrEnum):
    """The activation function applied to a product, by its name in oneDNN."""

    NONE = "none"
    GELU = "gelu"
    SILU = "swish"


# Errors raised if an operator is missing, or takes different arguments.
OPERATOR_ERRORS = (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError)


def is_available() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def has_bfloat16() -> bool:
    """Return whether the processor has instructions for bfloat16."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def packed(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight in oneDNN's own memory layout, which makes products faster."""
    packed_weight: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    return packed_weight


def product(
    rows: torch.Tensor, packed_weight: torch.Tensor, bias: torch.Tensor | None, activation: Activation
) -> torch.Tensor:
    """Return ``activation(rows @ weight.T + bias)``."""
    algorithm = "none" if activation is Activation.GELU else ""  # the exact GELU, not its approximation
    outputs: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
        rows, packed_weight, bias, activation.value, [], algorithm
    )
    return outputs


def product_times(
    rows: torch.Tensor, factors: torch.Tensor, packed_weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return ``(rows @ weight.T + bias) * factors``."""
    outputs: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(
        rows, factors, packed_weight, bias, "mul"
    )
    return outputs
