"""Capture the attention weights of a model layer by layer, and reduce them immediately."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

# In half precision, the weights of a row sum to 1 only up to this error.
_ROW_TOLERANCE = 0.02

Sources = dict[torch.nn.Module, int]
"""Modules that return attention weights, and their index in the returned tuple."""


def attention_sources(model: torch.nn.Module, backbone: Any, run: Callable[[], object]) -> Sources:
    """Find the modules whose outputs are the attention weights that the model itself reports.

    The model runs once on a short input with attention output turned on. A tensor that only looks like
    weights does not count.
    """
    config = getattr(backbone, "config", None)
    if config is None:
        return {}
    seen: list[tuple[torch.nn.Module, int, torch.Tensor]] = []
    reports: list[list[torch.Tensor]] = []

    def record(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        del inputs
        if found := _reported(output):
            reports.append(found)
        elif type(output) is tuple:
            seen.extend((module, place, each) for place, each in enumerate(output) if _are_weights(each))

    handles = [module.register_forward_hook(record) for module in model.modules()]
    try:
        with (
            plain_attention(backbone),
            switched_on(config, "output_attentions"),
            _forward_watched(backbone, lambda output: reports.append(_reported(output))),
        ):
            run()
    except ValueError:  # raised by a model that cannot switch from fused kernels
        return {}
    finally:
        for handle in handles:
            handle.remove()
    found: Sources = {}
    # The last report is that of the outermost module.
    for weights in next((each for each in reversed(reports) if each), []):
        # An outer module may return the same weights again.
        source = next(((module, place) for module, place, each in seen if _same(each, weights)), None)
        if source is None:
            return {}
        found[source[0]] = source[1]
    return found


@contextmanager
def _forward_watched(backbone: Any, watch: Callable[[Any], None]) -> Iterator[None]:
    """Pass each output of the model to ``watch``; sentence-transformers bypasses forward hooks."""
    forward = backbone.forward

    def watched(*arguments: Any, **options: Any) -> Any:
        output = forward(*arguments, **options)
        watch(output)
        return output

    own = vars(backbone).get("forward")
    # Keep the signature visible, since callers choose arguments by it.
    vars(backbone)["forward"] = functools.wraps(forward)(watched)
    try:
        yield
    finally:
        vars(backbone).pop("forward")
        if own is not None:
            vars(backbone)["forward"] = own


def _reported(output: Any) -> list[torch.Tensor]:
    """Return the attentions in a backbone's output; with two stacks, those of the decoder if it has any."""
    found = getattr(output, "attentions", None) or getattr(output, "encoder_attentions", None) or ()
    return [each for each in found if isinstance(each, torch.Tensor)]


def _are_weights(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.ndim != 4 or value.shape[-1] != value.shape[-2]:
        return False
    rows = value.float().sum(dim=-1)
    return bool((value >= 0).all() and ((rows - 1).abs() <= _ROW_TOLERANCE).all())


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one is other or (one.shape == other.shape and torch.equal(one, other.to(one.device)))


class AttentionCapture:
    """Sum attention weights between parts of the input.

    Only the sums are kept, so a long text needs memory for the weights of one layer.
    """

    def __init__(self, members: torch.Tensor, sources: Sources) -> None:
        self._members = members
        self.sources = sources
        self.layers: list[torch.Tensor] = []

    def hook(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        """Forward hook; see `torch.nn.Module.register_forward_hook`."""
        del inputs
        weights = output[self.sources[module]]
        members = self._members.to(weights.device)
        sums = torch.einsum("tqg,thqk,tkj->thgj", members, weights.float(), members)
        self.layers.append(sums / members.sum(dim=1)[:, None, :, None])

    def result(self) -> torch.Tensor | None:
        """Return the mean weight by (text, layer, head, attending part, attended part).

        Rows of an attending part without positions are NaN. None if no layer returned weights, or layers
        differ in the number of heads.
        """
        # In unusual models the number of heads differs between layers.
        heads = {layer.shape[1] for layer in self.layers}
        return torch.stack(self.layers, dim=1) if len(heads) == 1 else None


@contextmanager
def attention_of(backbone: Any, capture: AttentionCapture) -> Iterator[None]:
    """Make a model compute its attention weights explicitly, and pass them to a capture.

    Fused kernels never materialise the weights, so the plain implementation is set temporarily.
    """
    handles = [module.register_forward_hook(capture.hook) for module in capture.sources]
    try:
        with plain_attention(backbone), _weights_returned(backbone):
            yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def plain_attention(backbone: Any) -> Iterator[None]:
    """Temporarily set the plain ("eager") attention implementation, if the model supports the choice."""
    config = getattr(backbone, "config", None)
    before = getattr(config, "_attn_implementation", None)
    settable = getattr(backbone, "set_attn_implementation", None)
    can_set = getattr(backbone, "_can_set_attn_implementation", lambda: True)
    if settable is None or before in (None, "eager") or not can_set():
        yield
        return
    parts = {name: getattr(config, name)._attn_implementation for name in _parts(config)}
    settable("eager")
    try:
        yield
    finally:
        settable({"": before, **parts} if parts else before)


def _parts(config: Any) -> list[str]:
    return [name for name in getattr(config, "sub_configs", {}) if getattr(config, name, None) is not None]


@contextmanager
def _weights_returned(backbone: Any) -> Iterator[None]:
    """Turn on ``output_attentions`` if the layers of a model return weights only then."""
    config = getattr(backbone, "config", None)
    recorded = getattr(backbone, "_can_record_outputs", None)
    if config is None or recorded or getattr(config, "_attn_implementation", None) not in (None, "eager"):
        yield
        return
    with switched_on(config, "output_attentions"):
        yield


@contextmanager
def switched_on(config: Any, name: str) -> Iterator[None]:
    """Temporarily switch a setting of a configuration on."""
    before = getattr(config, name)
    setattr(config, name, True)
    try:
        yield
    finally:
        setattr(config, name, before)
