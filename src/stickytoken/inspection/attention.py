"""Capture the attention weights of a model layer by layer, and reduce them immediately."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.encoders.compute.model_state import switched_on


@dataclass(frozen=True)
class EmbeddedText:
    """One text of T tokens, including those that the model puts around it."""

    rows: torch.Tensor  # embeddings, shape (T, D)
    filler: torch.Tensor  # embedding of the padding token, or zeros, shape (D,)
    # Index of the content id at each position, which may be at several; -1 around the text. Shape (T,).
    content: torch.Tensor
    # Maps embeddings of shape (n, T, D) to vectors before any final normalisation, shape (n, d).
    vectors: Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Inside:
    """Record of one text of T tokens, in all its prompts, with those that the model puts around it."""

    labels: NDArray[np.intp]  # part of each position, shape (T,); that around the text is the last
    hidden: NDArray[np.float32] | None  # states by layer, embeddings first, shape (layers + 1, T, D)
    # Mean weight, shape (layers, heads, attending parts, attended parts); NaN for a part without positions.
    attention: NDArray[np.float64] | None
    pooled: NDArray[np.float64] | None  # pooled last hidden states, shape (P,)
    # Share of each part in the pooled states, shape (parts, P); None if the pooling is not a sum.
    supplied: NDArray[np.float64] | None
    vector: NDArray[np.float32]  # output of the model, shape (d,)


def as_numbers(values: torch.Tensor, dtype: torch.dtype = torch.float64) -> Any:
    return values.detach().to(dtype).cpu().numpy()


Sources = dict[torch.nn.Module, int]
"""Modules that return attention weights, and their index in the returned tuple."""


def attention_sources(model: torch.nn.Module, backbone: Any, run: Callable[[], object]) -> Sources:
    """Run the model once, and find the modules whose outputs are the weights that it reports."""
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

    # sentence-transformers bypasses forward hooks of the backbone.
    forward, own = backbone.forward, vars(backbone).get("forward")

    @functools.wraps(forward)  # keeps the signature visible, since callers choose arguments by it
    def watched(*arguments: Any, **options: Any) -> Any:
        output = forward(*arguments, **options)
        reports.append(_reported(output))
        return output

    handles = [module.register_forward_hook(record) for module in model.modules()]
    try:
        with plain_attention(backbone), switched_on(config, "output_attentions"):
            vars(backbone)["forward"] = watched
            run()
    except ValueError:  # raised by a model that cannot switch from fused kernels
        return {}
    finally:
        vars(backbone).pop("forward", None)
        if own is not None:
            vars(backbone)["forward"] = own
        for handle in handles:
            handle.remove()
    sources: Sources = {}
    # The last report is that of the outermost module.
    for weights in next((each for each in reversed(reports) if each), []):
        for module, place, each in seen:  # an outer module may return the same weights again
            if each is weights or (
                each.shape == weights.shape and torch.equal(each, weights.to(each.device))
            ):
                sources[module] = place
                break
        else:
            return {}
    return sources


def _reported(output: Any) -> list[torch.Tensor]:
    # With two stacks, those of the decoder if it has any.
    found = getattr(output, "attentions", None) or getattr(output, "encoder_attentions", None) or ()
    return [each for each in found if isinstance(each, torch.Tensor)]


def _are_weights(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.ndim != 4 or value.shape[-1] != value.shape[-2]:
        return False
    rows = value.float().sum(dim=-1)  # in half precision 1 only up to an error
    return bool((value >= 0).all() and ((rows - 1).abs() <= 0.02).all())


@contextmanager
def attention_of(backbone: Any, sources: Sources, members: torch.Tensor) -> Iterator[list[torch.Tensor]]:
    """Collect mean weights by layer and (text, head, attending part, attended part); parts are one-hot."""
    layers: list[torch.Tensor] = []

    def record(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        del inputs
        weights = output[sources[module]]
        own = members.to(weights.device)
        sums = torch.einsum("tqg,thqk,tkj->thgj", own, weights.float(), own)
        layers.append(sums / own.sum(dim=1)[:, None, :, None])

    config = getattr(backbone, "config", None)
    handles = [module.register_forward_hook(record) for module in sources]
    try:
        with plain_attention(backbone), ExitStack() as stack:
            plain = getattr(config, "_attn_implementation", None) in (None, "eager")
            if config is not None and plain and not getattr(backbone, "_can_record_outputs", None):
                # The layers of such a model return weights only if they are asked to.
                stack.enter_context(switched_on(config, "output_attentions"))
            yield layers
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def plain_attention(backbone: Any) -> Iterator[None]:
    config = getattr(backbone, "config", None)
    before = getattr(config, "_attn_implementation", None)
    settable = getattr(backbone, "set_attn_implementation", None)
    can_set = getattr(backbone, "_can_set_attn_implementation", lambda: True)
    if settable is None or before in (None, "eager") or not can_set():
        yield
        return
    parts = {name: getattr(config, name, None) for name in getattr(config, "sub_configs", {})}
    own = {name: part._attn_implementation for name, part in parts.items() if part is not None}
    settable("eager")
    try:
        yield
    finally:
        settable({"": before, **own} if own else before)
