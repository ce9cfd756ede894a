"""What a token has attended to: the input of a layer's output projection, recorded and replaced.

It holds the outputs of the attention heads side by side, before the projection mixes them.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from stickytoken.encoders.model_state import evaluating
from stickytoken.encoders.prompted.prompts import Contrast, ContrastRule
from stickytoken.errors import InputError, ModelError

_LAYERS = ("layers", "h", "blocks")
# Recurrent layers that ignore the attention mask.
_READS_PADDING = ("recurrent_gemma",)
# Largest relative change of an earlier state by a later token in a causal model, beyond rounding.
_LOOK_AHEAD = 1e-4


@dataclass(frozen=True)
class Decoder:
    """A base decoder without a language-model head."""

    model: Any
    layers: tuple[torch.nn.Module, ...]
    name: str

    @property
    def embedding(self) -> Any:
        """The token embedding."""
        return self.model.get_input_embeddings()

    @property
    def rows(self) -> int:
        """Number of rows of the token embedding."""
        return int(self.embedding.weight.shape[0])

    @property
    def device(self) -> torch.device:
        """Device of the token embedding, where inputs go."""
        device: torch.device = self.embedding.weight.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the token embedding, which is not quantised."""
        dtype: torch.dtype = self.embedding.weight.dtype
        return dtype

    @cached_property
    def takes_positions(self) -> bool:
        """Whether the model accepts position ids; models with linear biases have none."""
        return "position_ids" in inspect.signature(self.model.forward).parameters

    def beside(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return further inputs computed from the token ids: Gemma 4 has an embedding per layer."""
        if not getattr(self.model.config, "hidden_size_per_layer_input", None):
            return {}
        by_layer = self.model.get_per_layer_inputs
        # Earlier releases of transformers require this argument too, and ignore it if ids are given.
        more = {"inputs_embeds": None} if "inputs_embeds" in inspect.signature(by_layer).parameters else {}
        return {"per_layer_inputs": by_layer(ids, **more)}

    def layer_number(self, layer: int) -> int:
        """Return how many layers to run for ``layer``, an index into the embedding and all layer outputs."""
        count = len(self.layers)
        number = layer + count + 1 if layer < 0 else layer
        if number == 0:
            raise InputError(
                f"layer {layer} of {self.name} is the embedding of the prompt's last token, the same for "
                f"every sentence: use 1 to {count}, or -1 to {-count}"
            )
        if not 0 < number <= count:
            raise InputError(f"{self.name} has no layer {layer}: use 1 to {count}, or -1 to {-count}")
        return number


def find_decoder(model: Any, name: str) -> Decoder:
    """Find the base decoder of a language model, and its layers."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "get_input_embeddings"):
        raise ModelError(f"{name} is a {type(model).__name__}, not a transformers language model")
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{name} is an encoder-decoder ({config.model_type}): prompts need a decoder-only model"
        )
    found = model.get_decoder()
    layers = next((part for key in _LAYERS if (part := getattr(found, key, None)) is not None), None)
    if not isinstance(layers, torch.nn.ModuleList) or not len(layers):
        raise ModelError(
            f"{name} is a {config.model_type} without a list of decoder layers: prompts need a "
            f"decoder-only model"
        )
    if _is_recurrent(found):
        raise ModelError(
            f"{name} is a {config.model_type}, a recurrent model: prompts need a decoder-only model "
            "whose tokens attend to earlier ones"
        )
    decoder = Decoder(found, tuple(layers), name)
    if decoder.device.type == "meta":
        raise ModelError(f"{name} is on the meta device, which holds no values: load it onto a real device")
    if not _is_causal(decoder):
        raise ModelError(
            f"{name} is a {config.model_type} whose tokens attend to later ones (an encoder): "
            "prompts need a decoder-only model"
        )
    return decoder


def _is_recurrent(model: Any) -> bool:
    """Check for models without attention, such as Mamba and RWKV, and those that read padding as text."""
    attends = getattr(model.config, "num_attention_heads", None) is not None
    return (
        getattr(model, "_is_stateful", False) and not attends
    ) or model.config.model_type in _READS_PADDING


def _is_causal(decoder: Decoder) -> bool:
    """Check that changing the last token leaves all earlier states as they are."""
    *shared, one, other = (place % decoder.rows for place in range(5, 11))
    ids = torch.tensor([[*shared, one], [*shared, other]], device=decoder.device)
    with evaluating(decoder.model), torch.inference_mode():
        states = decoder.model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    before = states[:, :-1].float()
    moved = (before[0] - before[1]).norm()
    allowed = (_LOOK_AHEAD + 4 * torch.finfo(states.dtype).eps) * before[0].norm()
    return not bool(moved > allowed)  # NaN from damaged weights: reported later, with the text


# Names of the projection in transformers: o_proj (Llama and most others), out_proj (OPT, GPT-J), c_proj
# (GPT-2), dense (Bloom, Falcon, GPT-NeoX). Feed-forward and convolution blocks use some of them too, so the
# name of the block counts.
_PROJECTIONS = ("o_proj", "out_proj", "c_proj", "dense")
_ATTENTION = ("attn", "attention")
_NOT_ATTENTION = ("linear",)
_TINY = 1e-7
# A difference below this many machine epsilons of A, and below this share of it, is rounding.
_ROUNDING, _LARGEST_ROUNDING = 64, 0.01


@dataclass(frozen=True)
class Subtraction:
    """What to subtract from a batch.

    Attributes:
        settings: layer, strength and rule.
        heads: number of attention heads; 1 where the rule does not tell them apart.
        values: values of the auxiliary prompt's last token, shape (rows, heads * size).
    """

    settings: Contrast
    heads: int
    values: torch.Tensor


def contrasted(own: torch.Tensor, other: torch.Tensor, settings: Contrast, heads: int) -> torch.Tensor:
    """Return what replaces the values of the prompt's last token.

    Where both are equal up to rounding, as behind a sliding window that hides the beginnings of the prompts,
    nothing remains: rules that keep a norm would enlarge the rounding, which depends on the batch.
    """
    if settings.rule is ContrastRule.SUB_HEAD_NORM:
        own, other = (values.reshape(*values.shape[:-1], heads, -1) for values in (own, other))
        return _with_norm(_difference(own, other), own).flatten(-2)
    found = _difference(own, other)
    if settings.rule is not ContrastRule.SCALED:
        found = _with_norm(found, own)
    return found if settings.strength is None else settings.strength * found


def _difference(own: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    found = own - other
    share = min(_ROUNDING * torch.finfo(own.dtype).eps, _LARGEST_ROUNDING)
    size, whole = (torch.linalg.vector_norm(each, dim=-1, keepdim=True) for each in (found, own))
    return found.masked_fill(size <= share * whole, 0)


def _with_norm(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Scale values to the norm of others, over the last axis."""
    norm, wanted = (torch.linalg.vector_norm(each, dim=-1, keepdim=True) for each in (values, like))
    scaled: torch.Tensor = values * (wanted / (norm + _TINY))
    return scaled


def attention_heads(decoder: Decoder, width: int) -> int:
    """Return the number of attention heads."""
    heads = getattr(decoder.model.config, "num_attention_heads", None)
    if not isinstance(heads, int) or heads < 1 or width % heads:
        raise ModelError(
            f"{decoder.name} has {heads} attention heads for values of width {width}: the contrast rule "
            f"{ContrastRule.SUB_HEAD_NORM} needs heads of equal size, so use another rule"
        )
    return heads


def output_projection(decoder: Decoder, layer: int) -> torch.nn.Module:
    """Find the module that mixes the outputs of the attention heads of a layer."""
    found = _projection_of(decoder.layers[layer])
    if found is not None:
        return found
    others = layers_with_projection(decoder)
    where = f"layers {', '.join(map(str, others))} have one" if others else "no other layer has one either"
    raise ModelError(
        f"layer {layer} of {decoder.name} (a {decoder.model.config.model_type}) has no output projection of "
        f"an attention ({', '.join(_PROJECTIONS)}), which contrast needs: {where}"
    )


def layers_with_projection(decoder: Decoder) -> list[int]:
    """List the layers that contrast can change."""
    return [place for place, layer in enumerate(decoder.layers) if _projection_of(layer) is not None]


def _projection_of(layer: torch.nn.Module) -> torch.nn.Module | None:
    found = [module for path, module in layer.named_modules() if _is_projection(path)]
    return found[0] if len(found) == 1 else None


def _is_projection(path: str) -> bool:
    *blocks, name = path.split(".")
    return name in _PROJECTIONS and any(
        any(word in block for word in _ATTENTION) and not any(word in block for word in _NOT_ATTENTION)
        for block in blocks
    )


@contextmanager
def recorded_values(
    projection: torch.nn.Module, last: torch.Tensor, keep: Callable[[torch.Tensor], None]
) -> Iterator[None]:
    """Hand over the values of the last tokens, during calls from this thread."""

    def record(values: torch.Tensor, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        keep(values[rows, ends])
        return values

    with _hooked(projection, last, record):
        yield


@contextmanager
def subtracted(projection: torch.nn.Module, last: torch.Tensor, subtraction: Subtraction) -> Iterator[None]:
    """Replace the values of the last tokens, during calls from this thread; other tokens keep theirs."""

    def replace(values: torch.Tensor, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        other = subtraction.values.to(values)
        # Copy, so that values recorded elsewhere do not change.
        changed = values.clone()
        changed[rows, ends] = contrasted(values[rows, ends], other, subtraction.settings, subtraction.heads)
        return changed

    with _hooked(projection, last, replace):
        yield


@contextmanager
def _hooked(
    projection: torch.nn.Module,
    last: torch.Tensor,
    change: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
) -> Iterator[None]:
    owner = threading.get_ident()

    def hook(module: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        del module
        if threading.get_ident() != owner:
            return None
        values = args[0]
        if values.ndim != 3 or len(values) != len(last):
            raise ModelError(
                f"an attention of this model projects values of shape {tuple(values.shape)}: contrast needs "
                "the shape (rows, tokens, heads * size)"
            )
        # A model may be spread over devices, so values are on the device of their layer.
        rows = torch.arange(len(values), device=values.device)
        return (change(values, rows, last.to(values.device)), *args[1:])

    handle = projection.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()
