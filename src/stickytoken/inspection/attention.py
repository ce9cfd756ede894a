"""Collect the attention weights in each layer of a model, and aggregate them over parts of the text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeAlias

import torch

from stickytoken.encoders.compute import switch_on

Sources: TypeAlias = dict[torch.nn.Module, int]
"""Modules that return attention weights, with the index of the weights in the returned tuple."""

# Attention weights in a row should sum to 1. This is the maximum difference, which allows for rounding in
# half precision.
_ROW_SUM_ERROR = 0.02


@dataclass(frozen=True)
class _Returned:
    """Attention weights that a module returned."""

    module: torch.nn.Module
    index: int  # index of the weights in the tuple that the module returned
    weights: torch.Tensor

    def equals(self, weights: torch.Tensor) -> bool:
        if self.weights is weights:
            return True
        return self.weights.shape == weights.shape and torch.equal(
            self.weights, weights.to(self.weights.device)
        )


def find_attention_sources(model: torch.nn.Module, backbone: Any, run: Callable[[], object]) -> Sources:
    """Find the modules that compute the attention weights in the model's output.

    Args:
        model: The whole model.
        backbone: The transformer in the model.
        run: Runs the model on a short input.

    Returns:
        For each layer, the module that returns the layer's attention weights, mapped to the index of the
        weights in the tuple that the module returns. The result is empty if the model's output has no
        attention weights, or if, for some layer, no module is found that returns the layer's weights.
    """
    config = getattr(backbone, "config", None)
    if config is None:  # the model has no transformer
        return {}
    # The model's output lists the attention weights of all layers. To find the module that computed the
    # weights of a layer, the weights that single modules return are recorded and compared with this list.
    returned: list[_Returned] = []  # weights that single modules returned, in the order of the calls
    # Each list has the attention weights of all layers. A module that returns such a list is a whole model.
    weight_lists: list[list[torch.Tensor]] = []

    def record(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        """Record the attention weights in a module's output: those of all layers, or of this module only."""
        del inputs
        weights_by_layer = _weights_of_layers(output)
        if weights_by_layer:
            weight_lists.append(weights_by_layer)
        elif type(output) is tuple:  # as attention modules return
            for index, item in enumerate(output):
                if _are_weights(item):
                    returned.append(_Returned(module, index, item))

    handles = [module.register_forward_hook(record) for module in model.modules()]
    try:
        with ExitStack() as stack:
            stack.enter_context(using_plain_attention(backbone))
            stack.enter_context(switch_on(config, "output_attentions"))
            # No hook of the backbone runs, because sentence-transformers calls its `forward` directly.
            stack.enter_context(_recording_outputs(backbone, weight_lists))
            run()
    except ValueError:  # raised by a model that cannot switch away from fused kernels
        return {}
    finally:
        for handle in handles:
            handle.remove()
    lists_with_weights = [weights_by_layer for weights_by_layer in weight_lists if weights_by_layer]
    if not lists_with_weights:
        return {}
    sources: Sources = {}
    for weights in lists_with_weights[-1]:  # the outermost module, which is the model, returns last
        # An outer module may return the weights of an inner module again, so the first module that returned
        # the weights computed them.
        source = next((candidate for candidate in returned if candidate.equals(weights)), None)
        if source is None:
            return {}
        sources[source.module] = source.index
    return sources


@contextmanager
def _recording_outputs(backbone: Any, weight_lists: list[list[torch.Tensor]]) -> Iterator[None]:
    """Record the attention weights in the output of the backbone's ``forward``, in a ``with`` block.

    Each call of ``forward`` appends a list with the weights of all layers to ``weight_lists``. The list is
    empty if the output has no weights.
    """
    forward = backbone.forward
    # If the user has replaced the method with a function in the instance, this function is put back at the
    # end.
    users_forward = vars(backbone).get("forward")

    @wraps(forward)  # keeps the signature, because callers inspect it to choose arguments
    def recording_forward(*arguments: Any, **options: Any) -> Any:
        output = forward(*arguments, **options)
        weight_lists.append(_weights_of_layers(output))
        return output

    vars(backbone)["forward"] = recording_forward
    try:
        yield
    finally:
        vars(backbone).pop("forward", None)
        if users_forward is not None:
            vars(backbone)["forward"] = users_forward


def _weights_of_layers(output: Any) -> list[torch.Tensor]:
    weights_by_layer = (
        getattr(output, "attentions", None) or getattr(output, "encoder_attentions", None) or ()
    )
    return [weights for weights in weights_by_layer if isinstance(weights, torch.Tensor)]


def _are_weights(value: Any) -> bool:
    # Weights have the shape (texts, heads, positions, positions), and each row of them sums to 1.
    if not isinstance(value, torch.Tensor) or value.ndim != 4 or value.shape[-1] != value.shape[-2]:
        return False
    row_sums = value.float().sum(dim=-1)
    sum_to_one = (row_sums - 1).abs() <= _ROW_SUM_ERROR  # up to rounding
    return bool((value >= 0).all() and sum_to_one.all())


@contextmanager
def collecting_attention(
    backbone: Any, sources: Sources, members: torch.Tensor
) -> Iterator[list[torch.Tensor]]:
    """Yield a list to which each layer appends its attention weights between parts, in a ``with`` block.

    A part is a set of positions, such as the tokens of one word. When the model runs, each layer appends to
    the list a tensor of shape (texts, heads, attending parts, attended parts). The weights are summed over
    the positions of the attended part, and averaged over the positions of the attending part.

    Args:
        backbone: The transformer.
        sources: The modules that return attention weights, mapped to the index of the weights in the tuple
            that the module returns, as found by `find_attention_sources`.
        members: Indicator tensor, shape (texts, positions, parts): 1 if the position belongs to the part,
            else 0.
    """
    layers: list[torch.Tensor] = []

    def append_weights_of_parts(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        del inputs
        weights = output[sources[module]]  # shape (texts, heads, attending positions, attended positions)
        indicators = members.to(weights.device)
        # t: text, h: head, q: attending position, k: attended position, g: attending part, j: attended part
        sums = torch.einsum("tqg,thqk,tkj->thgj", indicators, weights.float(), indicators)
        positions_per_part = indicators.sum(dim=1)  # shape (texts, parts)
        layers.append(sums / positions_per_part[:, None, :, None])  # the mean over the attending part

    config = getattr(backbone, "config", None)
    handles = [module.register_forward_hook(append_weights_of_parts) for module in sources]
    try:
        with using_plain_attention(backbone), ExitStack() as stack:
            # A model that cannot switch away from fused kernels raises an error if it is asked for weights.
            is_plain = getattr(config, "_attn_implementation", None) in (None, "eager")
            # Older models return weights only if the configuration asks for them. Newer models, which declare
            # the outputs that can be recorded, do not need this setting.
            needs_setting = not getattr(backbone, "_can_record_outputs", None)
            if config is not None and is_plain and needs_setting:
                stack.enter_context(switch_on(config, "output_attentions"))
            yield layers
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def using_plain_attention(backbone: Any) -> Iterator[None]:
    """Switch a model to plain (eager) attention in a ``with`` block, if the model allows it.

    Fused kernels return no attention weights.
    """
    set_implementation = getattr(backbone, "set_attn_implementation", None)
    can_set = getattr(backbone, "_can_set_attn_implementation", lambda: True)
    configs = _list_configs(backbone)
    # transformers has a public method that sets the attention implementation, but only private attributes
    # tell which implementation is set.
    implementations = [config._attn_implementation_internal for config in configs]
    all_are_plain = all(implementation in (None, "eager") for implementation in implementations)
    if set_implementation is None or all_are_plain or not can_set():
        yield
        return
    set_implementation("eager")  # for all parts
    try:
        yield
    finally:
        for config, implementation in zip(configs, implementations, strict=True):
            # The public attribute would set the parts of this part, too.
            config._attn_implementation_internal = implementation


def _list_configs(backbone: Any) -> list[Any]:
    """Return the configuration of a model and those of its parts, such as text and images, at any depth."""
    waiting = [getattr(backbone, "config", None)]
    if isinstance(backbone, torch.nn.Module):  # some parts have a copy of the configuration
        waiting += [getattr(module, "config", None) for module in backbone.modules()]
    configs: dict[int, Any] = {}  # keyed by `id`, because configurations cannot be hashed
    while waiting:
        config = waiting.pop()
        if id(config) in configs or not hasattr(config, "_attn_implementation_internal"):
            continue
        configs[id(config)] = config
        waiting += [getattr(config, name, None) for name in getattr(config, "sub_configs", {})]
    return list(configs.values())
