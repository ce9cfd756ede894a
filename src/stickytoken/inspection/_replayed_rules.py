"""Rules of layer-wise relevance propagation for transformers, which make a model linear around one text.

Every nonlinear step is replaced by a multiplication with what it did to one text. Attention weights and the
scales of normalisations are constants (Ali et al., "XAI for Transformers", ICML 2022), and an
activation multiplies its input by the ratio of its output to its input. What is left is linear in
embeddings and biases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Function: TypeAlias = Callable[..., torch.Tensor]


class ReplayedRules(TorchFunctionMode):
    """Record the factors of one text in the first pass, and compute with them in all later ones.

    A step without a rule runs unchanged, so a model whose nonlinear steps are not all covered does not
    conserve its output. The caller must check that.
    """

    def __init__(self) -> None:
        super().__init__()
        self._factors: list[torch.Tensor] = []
        self._next: int | None = None

    def replay(self) -> None:
        """Use the recorded factors in the next pass, from the first one on."""
        self._next = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Apply the rule of a function, or the function."""
        del types
        rule = _RULES.get(func)
        if rule is None:
            return func(*args, **(kwargs or {}))
        return rule(self, func, *args, **(kwargs or {}))

    def factor(self, value: torch.Tensor, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Record a factor in the first pass, and return the recorded one in later passes.

        Args:
            value: input of the step, inputs of the model in its first dimension.
            compute: returns the factor; called in the first pass.
        """
        if self._next is None:
            self._factors.append(compute())
            return self._factors[-1]
        found = self._factors[self._next] if self._next < len(self._factors) else None
        self._next += 1
        if found is None or not _fits(found, value):
            return compute()  # a step of another shape: the output is not conserved, which the caller sees
        return found


def _fits(found: torch.Tensor, value: torch.Tensor) -> bool:
    sizes = zip(found.shape, value.shape, strict=False)
    return found.ndim == value.ndim and all(own in (1, size) for own, size in sizes)


def _constant(
    rules: ReplayedRules, func: Function, value: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """Attention weights and scales of normalisations stay as they were."""
    found = rules.factor(value, lambda: func(value, *args, **kwargs))
    return found.expand(value.shape)


def _proportional(
    rules: ReplayedRules, func: Function, value: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """An activation multiplies its input."""

    def ratio() -> torch.Tensor:
        # Any factor maps 0 to 0.
        return torch.where(value == 0, 0.0, func(value, *args, **kwargs) / value)

    return value * rules.factor(value, ratio)


def _layer_norm(
    rules: ReplayedRules,
    func: Function,
    value: torch.Tensor,
    normalized_shape: Any,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """The mean is linear already, and the standard deviation stays as it was."""
    del func
    over = tuple(range(-len(normalized_shape), 0))
    centred = value - value.mean(dim=over, keepdim=True)
    scale = rules.factor(value, lambda: torch.rsqrt(centred.square().mean(dim=over, keepdim=True) + eps))
    scaled = centred * scale if weight is None else centred * scale * weight
    return scaled if bias is None else scaled + bias


_RULES: dict[Any, Callable[..., torch.Tensor]] = {
    functional.layer_norm: _layer_norm,
    **dict.fromkeys((functional.softmax, torch.softmax, torch.Tensor.softmax), _constant),
    **dict.fromkeys((torch.rsqrt, torch.Tensor.rsqrt), _constant),
    **dict.fromkeys((functional.relu, torch.relu, torch.Tensor.relu), _proportional),
    **dict.fromkeys((torch.tanh, torch.Tensor.tanh), _proportional),
    **dict.fromkeys((functional.gelu, functional.silu, functional.normalize), _proportional),
}
