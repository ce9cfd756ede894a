"""Attention weights of a model, taken layer by layer as they are computed and reduced at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

# Weights in half precision sum to 1 no more exactly than this.
_ROW_TOLERANCE = 0.02

Sources = dict[torch.nn.Module, int]
"""The modules that put out attention weights, with their place in the output."""


def attention_sources(model: torch.nn.Module, backbone: Any, run: Callable[[], object]) -> Sources:
    """Find the modules whose outputs are the attention weights that the model itself reports.

    The model is asked for its attentions once, on a short input. A tensor that only looks like weights is
    none of them, however square it is.

    Args:
        model: all modules.
        backbone: the transformers model in it; None where there is none.
        run: sends a short input through the model.

    Returns:
        Empty where the model reports no weights, or none that a module puts out as they are.
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
            setting_changed(config, "output_attentions", True),
            _forward_watched(backbone, lambda output: reports.append(_reported(output))),
        ):
            run()
    except ValueError:  # a model that stays with its fused kernels refuses to report weights
        return {}
    finally:
        for handle in handles:
            handle.remove()
    found: Sources = {}
    # The last report is that of the outermost module.
    for weights in next((each for each in reversed(reports) if each), []):
        # A module around the first one may hand on the same weights.
        source = next(((module, place) for module, place, each in seen if _same(each, weights)), None)
        if source is None:
            return {}
        found[source[0]] = source[1]
    return found


@contextmanager
def _forward_watched(backbone: Any, watch: Callable[[Any], None]) -> Iterator[None]:
    """See what a model's forward pass returns; sentence-transformers calls it past the hooks."""
    forward = backbone.forward

    def watched(*arguments: Any, **options: Any) -> Any:
        output = forward(*arguments, **options)
        watch(output)
        return output

    own = vars(backbone).get("forward")
    # The signature stays visible: callers choose arguments by it.
    vars(backbone)["forward"] = functools.wraps(forward)(watched)
    try:
        yield
    finally:
        vars(backbone).pop("forward")
        if own is not None:
            vars(backbone)["forward"] = own


def _reported(output: Any) -> list[torch.Tensor]:
    """The attentions in a backbone's output; those of a decoder count where there are two stacks."""
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
    """Sums of attention weights between parts of the input.

    Only the sums are kept, so a long text needs the memory of one layer's weights.

    Args:
        members: 1 where a position belongs to a part, shape (texts, positions, parts).
        sources: from `attention_sources`.
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
        """Mean weight by (text, layer, head, part that attends, part that receives).

        A part without a position has NaN as the part that attends. None where no layer gave weights.
        """
        # The number of heads may differ between layers of unusual models; then there is no one table.
        heads = {layer.shape[1] for layer in self.layers}
        return torch.stack(self.layers, dim=1) if len(heads) == 1 else None


@contextmanager
def attention_of(backbone: Any, capture: AttentionCapture) -> Iterator[None]:
    """Let a model compute its attention weights in the open, and hand them to a capture.

    Fused kernels never hold the weights, so the plain implementation is set for the duration.

    Args:
        backbone: the transformers model; None where there is none.
        capture: takes the weights.
    """
    handles = [module.register_forward_hook(capture.hook) for module in capture.sources]
    try:
        with plain_attention(backbone), _weights_put_out(backbone):
            yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def plain_attention(backbone: Any) -> Iterator[None]:
    """Set the plain ("eager") implementation of attention where a model has a choice, and set it back."""
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
def _weights_put_out(backbone: Any) -> Iterator[None]:
    """Ask for weights by the setting, where a model's layers put them out only then.

    Models with recorders put them out always, and would keep those of all layers if asked. A model that
    stays with its fused kernels refuses the setting.
    """
    config = getattr(backbone, "config", None)
    recorded = getattr(backbone, "_can_record_outputs", None)
    if config is None or recorded or getattr(config, "_attn_implementation", None) not in (None, "eager"):
        yield
        return
    with setting_changed(config, "output_attentions", True):
        yield


@contextmanager
def setting_changed(config: Any, name: str, value: Any) -> Iterator[None]:
    """Change one setting of a configuration for the duration."""
    before = getattr(config, name)
    setattr(config, name, value)
    try:
        yield
    finally:
        setattr(config, name, before)
