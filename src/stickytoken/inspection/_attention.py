"""The attention weights of a model, layer by layer, which are reduced immediately."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeAlias

import torch

from stickytoken.encoders.compute import switched_on

Sources: TypeAlias = dict[torch.nn.Module, int]
"""Modules that return attention weights, and their index in the returned tuple."""

# Largest error of a row of weights, which sum to 1: in half precision, only up to an error.
_ROW_SUM_ERROR = 0.02


@dataclass(frozen=True)
class _Returned:
    """Weights that a module returned, and their index in its tuple."""

    module: torch.nn.Module
    index: int
    weights: torch.Tensor

    def equals(self, weights: torch.Tensor) -> bool:
        if self.weights is weights:
            return True
        return self.weights.shape == weights.shape and torch.equal(
            self.weights, weights.to(self.weights.device)
        )


def attention_sources(model: torch.nn.Module, backbone: Any, run: Callable[[], object]) -> Sources:
    """Find the modules that return the attention weights which the model reports.

    Args:
        model: the whole model.
        backbone: its transformer.
        run: runs the model on a short input.

    Returns:
        A module for every layer; none if the model reports no weights, or a layer does not return them.
    """
    config = getattr(backbone, "config", None)
    if config is None:
        return {}
    returned: list[_Returned] = []
    reports: list[list[torch.Tensor]] = []

    def record(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        del inputs
        weights = _reported(output)
        if weights:
            reports.append(weights)
        elif type(output) is tuple:
            for index, item in enumerate(output):
                if _are_weights(item):
                    returned.append(_Returned(module, index, item))

    handles = [module.register_forward_hook(record) for module in model.modules()]
    try:
        with ExitStack() as stack:
            stack.enter_context(plain_attention(backbone))
            stack.enter_context(switched_on(config, "output_attentions"))
            stack.enter_context(_recording_reports(backbone, reports))
            run()
    except ValueError:  # raised by a model that cannot switch from fused kernels
        return {}
    finally:
        for handle in handles:
            handle.remove()
    # The last report is that of the outermost module.
    last_report = next((weights for weights in reversed(reports) if weights), [])
    sources: Sources = {}
    for weights in last_report:
        # An outer module may return the same weights again, so the first one counts.
        source = next((candidate for candidate in returned if candidate.equals(weights)), None)
        if source is None:
            return {}
        sources[source.module] = source.index
    return sources


@contextmanager
def _recording_reports(backbone: Any, reports: list[list[torch.Tensor]]) -> Iterator[None]:
    """Record what the backbone reports: sentence-transformers bypasses its forward hooks."""
    forward = backbone.forward
    replaced_forward = vars(backbone).get("forward")

    @wraps(forward)  # keeps the signature visible, since callers choose arguments by it
    def watched(*arguments: Any, **options: Any) -> Any:
        output = forward(*arguments, **options)
        reports.append(_reported(output))
        return output

    vars(backbone)["forward"] = watched
    try:
        yield
    finally:
        vars(backbone).pop("forward", None)
        if replaced_forward is not None:
            vars(backbone)["forward"] = replaced_forward


def _reported(output: Any) -> list[torch.Tensor]:
    """Return the attention weights in an output; with two stacks, those of the decoder if it has any."""
    weights = getattr(output, "attentions", None) or getattr(output, "encoder_attentions", None) or ()
    return [layer for layer in weights if isinstance(layer, torch.Tensor)]


def _are_weights(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.ndim != 4 or value.shape[-1] != value.shape[-2]:
        return False
    row_sums = value.float().sum(dim=-1)
    return bool((value >= 0).all() and ((row_sums - 1).abs() <= _ROW_SUM_ERROR).all())


@contextmanager
def attention_of(backbone: Any, sources: Sources, members: torch.Tensor) -> Iterator[list[torch.Tensor]]:
    """Give a list that gets the mean weights between parts of every layer that runs.

    Args:
        backbone: the transformer.
        sources: what `attention_sources` returns.
        members: 1 where a position belongs to a part, shape (texts, positions, parts).
    """
    layers: list[torch.Tensor] = []

    def record(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        del inputs
        weights = output[sources[module]]
        device_members = members.to(weights.device)
        sums = torch.einsum("tqg,thqk,tkj->thgj", device_members, weights.float(), device_members)
        layers.append(sums / device_members.sum(dim=1)[:, None, :, None])

    config = getattr(backbone, "config", None)
    handles = [module.register_forward_hook(record) for module in sources]
    try:
        with plain_attention(backbone), ExitStack() as stack:
            is_plain = getattr(config, "_attn_implementation", None) in (None, "eager")
            # The layers of a model that does not record outputs return weights only if they are asked to.
            if config is not None and is_plain and not getattr(backbone, "_can_record_outputs", None):
                stack.enter_context(switched_on(config, "output_attentions"))
            yield layers
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def plain_attention(backbone: Any) -> Iterator[None]:
    """Let a model compute attention without fused kernels, which return no weights, if it can switch."""
    # transformers sets the implementation by a public method, but tells it by private names only.
    config = getattr(backbone, "config", None)
    implementation = getattr(config, "_attn_implementation", None)
    set_implementation = getattr(backbone, "set_attn_implementation", None)
    can_set = getattr(backbone, "_can_set_attn_implementation", lambda: True)
    if set_implementation is None or implementation in (None, "eager") or not can_set():
        yield
        return
    sub_configs = {name: getattr(config, name, None) for name in getattr(config, "sub_configs", {})}
    by_sub_config = {
        name: sub_config._attn_implementation
        for name, sub_config in sub_configs.items()
        if sub_config is not None
    }
    set_implementation("eager")
    try:
        yield
    finally:
        set_implementation({"": implementation, **by_sub_config} if by_sub_config else implementation)
