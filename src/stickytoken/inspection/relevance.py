"""BiLRP: the relevance of each part of a text for its vector, by layer-wise relevance propagation.

Eberle et al., "Building and Interpreting Deep Similarity Models" (IEEE TPAMI 2020): the
relevance of a pair of inputs is the product of two relevance passes, summed over the components of the
vectors,

    R_ij = sum_m [LRP_m(a)]_i [LRP_m(b)]_j

With the rules for transformers of Vasileiou and Eberle, "Explaining Text Similarity in Transformer Models"
(NAACL 2024), a model is linear around a text, and [LRP_m(a)]_i is what the embedding of token i adds to
component m. One plain pass with all other embeddings and all biases taken away gives that for every m at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from stickytoken.errors import EncodingError, ModelError
from stickytoken.inspection._embedded_text import EmbeddedText
from stickytoken.inspection.protocol import Inspector, as_numbers
from stickytoken.inspection.similarity_matrix import Contributions

_TOKENS = 2048
# Largest norm of what is lost, as a share of the vector's; rounding loses about 1e-6 in float32.
_LOST = 0.01


def relevance(inspector: Inspector, content: Sequence[int], labels: Sequence[int]) -> Contributions:
    """Split the unit vector of a text into the relevance of parts of its content.

    Positions, biases and the tokens that the model puts around the text are the reference.

    Args:
        inspector: inspector of the model.
        content: content ids.
        labels: part of each id, from 0.

    Raises:
        EncodingError: The text has no usable vector.
        ModelError: The model has steps that no rule covers, or its embeddings cannot be reached.
    """
    with inspector.differentiating():
        text = inspector.embedded(content)
        plain = text.vectors(text.rows[None])[0].double()
        length = float(plain.norm())
        if not np.isfinite(length) or length == 0:
            raise EncodingError(f"{inspector.encoder.name}: a text has no usable vector (zero or not finite)")
        shares = _replayed(text, _lanes(text, labels)) / length
    biases, reference = shares[0], shares[1]
    found = Contributions(as_numbers(plain / length), as_numbers(reference), as_numbers(shares[2:] - biases))
    if not found.error <= _LOST:
        raise ModelError(
            f"{inspector.encoder.name}: the rules of bilrp do not cover all steps of this model, and lose "
            f"{found.error:.0%} of a vector: choose the method deletion or jacobians"
        )
    return found


def _lanes(text: EmbeddedText, labels: Sequence[int]) -> torch.Tensor:
    """Return inputs with some embeddings and zeros elsewhere, shape (parts + 2, T, D).

    The first has no embeddings, the second those around the text, the others one part each.
    """
    members = torch.nn.functional.one_hot(torch.tensor(labels, device=text.rows.device)).to(text.rows)
    inside = (text.content >= 0)[:, None]
    parts = torch.where(inside, members[text.content], 0.0).T[:, :, None] * text.rows
    around = torch.where(inside, 0.0, text.rows)
    return torch.cat([torch.zeros_like(around)[None], around[None], parts])


def _replayed(text: EmbeddedText, lanes: torch.Tensor) -> torch.Tensor:
    """Return the vectors of inputs with the factors of the text, shape (inputs, d)."""
    found = []
    with ReplayedRules() as rules:
        text.vectors(text.rows[None])
        for batch in torch.split(lanes, max(1, _TOKENS // len(text.rows))):
            rules.replay()
            found.append(text.vectors(batch).double())
    return torch.cat(found)


Function: TypeAlias = Callable[..., torch.Tensor]


class ReplayedRules(TorchFunctionMode):
    """Record the factors of one text in the first pass, and compute with them in all later ones.

    This makes a model linear around the text: every nonlinear step is replaced by a multiplication with what
    it did to it. Attention weights and the scales of normalisations are constants (Ali et al., "XAI for
    Transformers", ICML 2022), and an activation multiplies its input by the ratio of its output to its input.

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
