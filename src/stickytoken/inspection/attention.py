"""Attention weights of a model, taken layer by layer as they are computed and reduced at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# Weights in half precision sum to 1 no more exactly than this.
_ROW_TOLERANCE = 0.02


class AttentionCapture:
    """Sums of attention weights between parts of the input.

    Every module that puts out a square matrix of weights a head, whose rows sum to 1, is a layer; a
    module around it that hands on the same weights is none. Only the sums are kept, so a long text
    needs the memory of one layer's weights.

    Args:
        members: 1 where a position belongs to a part, shape (texts, positions, parts).
    """

    def __init__(self, members: torch.Tensor) -> None:
        self._members = members
        self._last: torch.Tensor | None = None
        self.layers: list[torch.Tensor] = []

    def hook(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        """Forward hook; see `torch.nn.Module.register_forward_hook`."""
        del module, inputs
        if not isinstance(output, tuple):
            return
        for each in output:
            if self._is_attention(each) and each is not self._last:
                self._last = each
                members = self._members.to(each.device)
                sums = torch.einsum("tqg,thqk,tkj->thgj", members, each.float(), members)
                self.layers.append(sums / members.sum(dim=1)[:, None, :, None])

    def _is_attention(self, value: Any) -> bool:
        texts, positions, _ = self._members.shape
        if not isinstance(value, torch.Tensor) or value.ndim != 4:
            return False
        if (value.shape[0], *value.shape[2:]) != (texts, positions, positions):
            return False
        rows = value.float().sum(dim=-1)
        return bool((value >= 0).all() and ((rows - 1).abs() <= _ROW_TOLERANCE).all())

    def result(self) -> torch.Tensor | None:
        """Mean weight by (text, layer, head, part that attends, part that receives).

        A part without a position has NaN as the part that attends. None where no layer gave weights.
        """
        # The number of heads may differ between layers of unusual models; then there is no one table.
        heads = {layer.shape[1] for layer in self.layers}
        return torch.stack(self.layers, dim=1) if len(heads) == 1 else None


@contextmanager
def attention_of(model: torch.nn.Module, backbone: Any, capture: AttentionCapture) -> Iterator[None]:
    """Let a model compute its attention weights in the open, and hand them to a capture.

    Fused kernels never hold the weights, so the plain implementation is set for the time, and set back.

    Args:
        model: all modules.
        backbone: the transformers model in it; None where there is none.
        capture: takes the weights.
    """
    handles = [module.register_forward_hook(capture.hook) for module in model.modules()]
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
    """Change one setting of a configuration for the time."""
    before = getattr(config, name)
    setattr(config, name, value)
    try:
        yield
    finally:
        setattr(config, name, before)
