"""Compute the last layer for the first token only, if the vector of a text is the state of this token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from stickytoken.encoders.compute.batches import pools_by

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Names of the child modules in a BERT layer, and in layers with the same structure: attention with residual
# and norm, followed by modules that process each token separately.
_BERT_LAYER_CHILDREN = {"attention", "intermediate", "output"}


def attention_of_last_layer(model: SentenceTransformer) -> torch.nn.Module | None:
    """Return the attention module of the last layer, if only its output for the first token matters.

    Its output for all other tokens has no effect if the vector of a text is the state of the first token, and
    if layers are built as in BERT, where tokens are processed separately after the attention. For other
    models, return None.
    """
    if not pools_by(model, "cls"):
        return None
    backbone: Any = model[0].model
    layers = getattr(getattr(backbone, "encoder", None), "layer", None)
    if not isinstance(layers, torch.nn.ModuleList) or len(layers) == 0:
        return None
    layer: Any = layers[-1]
    children = {name for name, _ in layer.named_children()}
    # Code from elsewhere, a decoder, or a layer that processes chunks of tokens may need the states of the
    # other tokens after the attention.
    is_of_transformers = type(layer).__module__.startswith("transformers.models.")
    is_decoder = getattr(layer, "is_decoder", False)
    is_chunked = getattr(layer, "chunk_size_feed_forward", 0)
    if not is_of_transformers or is_decoder or is_chunked or children != _BERT_LAYER_CHILDREN:
        return None
    attention: torch.nn.Module = layer.attention
    return attention


@contextmanager
def first_token_only(attention: torch.nn.Module) -> Iterator[None]:
    """Make an attention module return only the state of the first token, inside a ``with`` block.

    The modules behind it process each token separately, so they then compute one token instead of all.
    """
    if "forward" in vars(attention):  # the user has replaced the forward pass, which is left as it is
        yield
        return
    original: Any = attention.forward

    def forward(*arguments: Any, **options: Any) -> tuple[Any, ...]:
        states, *others = original(*arguments, **options)  # states: shape (texts, tokens, d)
        return states[:, :1], *others

    vars(attention)["forward"] = forward  # takes precedence over the method of the class
    try:
        yield
    finally:
        vars(attention).pop("forward", None)
