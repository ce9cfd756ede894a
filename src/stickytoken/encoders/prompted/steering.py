"""Run filled prompts through a decoder, and change its states for token prepending and contrast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from stickytoken.encoders.prompted import Contrast, TokenPrepending
from stickytoken.encoders.prompted.decoder import (
    Decoder,
    Hook,
    LayerReachedError,
    hook_before,
    layer_input,
    run_until_reached,
    states_after,
)
from stickytoken.errors import ModelError
from stickytoken.settings.prompting import ContrastRule

# Names that transformers gives to an attention's output projection: o_proj (Llama and most others), out_proj
# (OPT, GPT-J), c_proj (GPT-2), dense (Bloom, Falcon, GPT-NeoX). Feed-forward and convolution blocks use some
# of these names too, so the name of the enclosing block must also match.
_PROJECTIONS = ("o_proj", "out_proj", "c_proj", "dense")
_ATTENTION = ("attn", "attention")
# The difference between the attention outputs of a prompt and its auxiliary prompt is treated as a rounding
# error if its norm is at most a certain share of the norm of the prompt's output. The accepted share is
# _ROUNDING_EPSILONS times the machine epsilon of the arithmetic, but at most _MAX_ROUNDING_SHARE.
_ROUNDING_EPSILONS = 64
_MAX_ROUNDING_SHARE = 0.01

TokenIndex: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Rows of a batch, and the index of one token in each row."""


def contrasted(values: torch.Tensor, auxiliary: torch.Tensor, settings: Contrast, heads: int) -> torch.Tensor:
    """Subtract the attention outputs of auxiliary prompts from those of prompts, and scale the difference.

    The rule ``SCALED`` keeps the norm of the difference. All other rules give the difference the norm of the
    prompt's output; ``SUB_HEAD_NORM`` does so in each attention head separately. The result is multiplied by
    the strength, if there is one.

    If a sliding window hides the words in which a prompt differs from its auxiliary prompt, the outputs of
    the two prompts are equal up to rounding errors. A difference that consists of rounding errors is set to
    zero, because a rule that preserves the norm would magnify the errors, which depend on the batch.

    Args:
        values: attention outputs at the last tokens of the prompts, shape (rows, heads * size).
        auxiliary: attention outputs at the last tokens of the auxiliary prompts, of the same shape.
        settings: the rule and the strength.
        heads: number of attention heads, for rules that scale each head separately; 1 for other rules.

    Returns:
        The scaled differences, shape (rows, heads * size), which replace the outputs of the prompts.
    """
    shape = values.shape
    if settings.rule is ContrastRule.SUB_HEAD_NORM:
        values = values.reshape(*shape[:-1], heads, -1)
        auxiliary = auxiliary.reshape(*shape[:-1], heads, -1)
    difference = values - auxiliary
    difference_norm = torch.linalg.vector_norm(difference, dim=-1, keepdim=True)
    norm = torch.linalg.vector_norm(values, dim=-1, keepdim=True)
    rounding_share = min(_ROUNDING_EPSILONS * torch.finfo(values.dtype).eps, _MAX_ROUNDING_SHARE)
    difference = difference.masked_fill(difference_norm <= rounding_share * norm, 0)
    if settings.rule is not ContrastRule.SCALED:
        difference = difference * (norm / (difference_norm + 1e-7))
    if settings.strength is not None:
        difference = settings.strength * difference
    return difference.reshape(shape)


def _projection_of(layer: torch.nn.Module) -> torch.nn.Module | None:
    """Return the module that combines the outputs of the attention heads; None unless exactly one matches."""
    projections = []
    for path, module in layer.named_modules():
        *blocks, name = path.split(".")
        if name in _PROJECTIONS and any(_is_attention(block) for block in blocks):
            projections.append(module)
    return projections[0] if len(projections) == 1 else None


def _is_attention(block_name: str) -> bool:
    return any(word in block_name for word in _ATTENTION) and "linear" not in block_name


def layers_with_projection(decoder: Decoder) -> list[int]:
    """Return the layers that contrast can change, counted from 0."""
    return [number for number, layer in enumerate(decoder.layers) if _projection_of(layer) is not None]


def output_projection(decoder: Decoder, layer: int) -> torch.nn.Module:
    """Return the output projection of a layer's attention.

    Raises:
        ModelError: the layer's attention has no output projection.
    """
    projection = _projection_of(decoder.layers[layer])
    if projection is not None:
        return projection
    possible_layers = layers_with_projection(decoder)
    if possible_layers:
        advice = f"layers {', '.join(map(str, possible_layers))} have one"
    else:
        advice = "no other layer has one either"
    raise ModelError(
        f"layer {layer} of {decoder.name} (a {decoder.model.config.model_type}) has no attention "
        f"output projection ({', '.join(_PROJECTIONS)}), which contrast needs: {advice}"
    )


def _projection_hook(
    decoder: Decoder,
    layer: int,
    last: torch.Tensor,
    change: Callable[[torch.Tensor, TokenIndex], torch.Tensor],
) -> Hook:
    def change_input(_: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of the projection, after `change` was applied to the first of them."""
        values = args[0]
        if values.ndim != 3 or len(values) != len(last):
            raise ModelError(
                f"an attention layer of this model projects values of shape {tuple(values.shape)}: contrast "
                "needs the shape (rows, tokens, heads * size)"
            )
        # A model may be spread over several devices, so indices are moved to the device of this layer.
        rows = torch.arange(len(values), device=values.device)
        return (change(values, (rows, last.to(values.device))), *args[1:])

    return Hook(output_projection(decoder, layer).register_forward_pre_hook, change_input)


@dataclass(frozen=True)
class PromptBatch:
    """A batch of filled prompts: the decoder's inputs, and how its states are changed and pooled.

    Attributes:
        embeddings: input of the first layer, shape (rows, tokens, d).
        mask: 1 for a token, 0 for padding, shape (rows, cached tokens + tokens).
        positions: position of each token in its prompt, not counting padding, shape (rows, tokens).
        first: index of the first pooled token, shape (rows,).
        last: index of the last pooled token, shape (rows,).
        placeholders: index of the placeholder, shape (rows,); used only with token prepending.
        echoes: whether all tokens from first to last are pooled; if false, only the last is used.
        prepending: layers of token prepending; None if it is off.
        per_layer_inputs: further arguments of the decoder; see `Decoder.per_layer_inputs`.
        contrast: how contrast changes the attention output; None if contrast is off.
        auxiliary: attention output at the last tokens of the auxiliary prompts, shape (rows, heads * size);
            None if contrast is off.
    """

    embeddings: torch.Tensor
    mask: torch.Tensor
    positions: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor
    placeholders: torch.Tensor
    echoes: bool
    prepending: TokenPrepending | None
    per_layer_inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    contrast: Contrast | None = None
    auxiliary: torch.Tensor | None = None

    def pool(self, states: torch.Tensor) -> torch.Tensor:
        """Return one state for each row, shape (rows, d).

        The state of a row is that of its last token or, in an echo, the mean over the tokens of the second
        copy of the sentence.
        """
        first = self.first.to(states.device)
        last = self.last.to(states.device)
        if not self.echoes:
            return states[torch.arange(states.shape[0], device=states.device), last]
        indices = torch.arange(states.shape[1], device=states.device)[None]
        inside = ((indices >= first[:, None]) & (indices <= last[:, None]))[..., None]
        return torch.where(inside, states, 0).sum(1) / inside.sum(1)

    def inputs(self, decoder: Decoder, cache: Any) -> dict[str, Any]:
        """Return the keyword arguments of the decoder's forward pass.

        ``cache`` is a transformers cache with the keys and values of earlier tokens, or None.
        """
        inputs: dict[str, Any] = {
            "inputs_embeds": self.embeddings,
            "attention_mask": self.mask,
            "use_cache": cache is not None,
        }
        inputs |= self.per_layer_inputs
        if decoder.takes_positions:
            inputs["position_ids"] = self.positions
        if cache is not None:
            inputs["past_key_values"] = cache
        return inputs


def pooled_states(
    decoder: Decoder, batch: PromptBatch, layer_counts: Sequence[int], cache: Any = None
) -> torch.Tensor:
    """Return the pooled states of each row after each of ``layer_counts``, shape (rows, layers, d)."""
    states = prompt_states(decoder, batch, layer_counts, batch.pool, cache)
    device = states[max(layer_counts)].device
    return torch.stack([states[layer_count].to(device) for layer_count in layer_counts], dim=1)


def prompt_states(
    decoder: Decoder,
    batch: PromptBatch,
    layer_counts: Sequence[int],
    keep: Callable[[torch.Tensor], torch.Tensor] = lambda states: states,
    cache: Any = None,
) -> dict[int, torch.Tensor]:
    """Run filled prompts, with token prepending and contrast as the batch specifies.

    Returns:
        ``keep(states)`` for each number of layers in ``layer_counts``, keyed by this number of layers (0 for
        the embedding).
    """
    hooks = _prepending_hooks(decoder, batch)
    if batch.contrast is not None and batch.auxiliary is not None:
        hooks.append(_contrast_hook(decoder, batch, batch.contrast, batch.auxiliary))
    return states_after(decoder, layer_counts, batch.inputs(decoder, cache), keep, hooks)


def _prepending_hooks(decoder: Decoder, batch: PromptBatch) -> list[Hook]:
    """Return hooks that overwrite the placeholder's state with the last token's state.

    The last token's state represents the whole sentence. Once the last token's state is at the placeholder's
    position, all tokens after the placeholder can attend to it. The list of hooks is empty if token
    prepending is off.
    """
    if batch.prepending is None:
        return []

    def overwrite(
        _: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a layer, with the state of the placeholder overwritten."""
        states = layer_input(args, kwargs)
        # A model may be spread over several devices, so indices are moved to the device of this layer.
        device = states.device
        rows = torch.arange(states.shape[0], device=device)
        changed = states.clone()  # another hook may have recorded the states, so only a copy is changed
        changed[rows, batch.placeholders.to(device)] = states[rows, batch.last.to(device)]
        if args:
            return (changed, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": changed}

    layers = decoder.layers[batch.prepending.start : batch.prepending.exit]
    return [hook_before(layer, overwrite) for layer in layers]


def _contrast_hook(decoder: Decoder, batch: PromptBatch, settings: Contrast, auxiliary: torch.Tensor) -> Hook:
    """Return a hook that subtracts the auxiliary outputs from the attention output of the contrast layer.

    The hook changes only the last token of each row.
    """
    heads = 1
    if settings.rule is ContrastRule.SUB_HEAD_NORM:
        heads = getattr(decoder.model.config, "num_attention_heads", 0)
        width = auxiliary.shape[-1]
        if not isinstance(heads, int) or heads < 1 or width % heads:
            raise ModelError(
                f"{decoder.name} has {heads} attention heads for values of width {width}: the contrast "
                f"rule {ContrastRule.SUB_HEAD_NORM} needs heads of equal size, so use another rule"
            )

    def subtract(values: torch.Tensor, last_tokens: TokenIndex) -> torch.Tensor:
        changed = values.clone()
        changed[last_tokens] = contrasted(values[last_tokens], auxiliary.to(values), settings, heads)
        return changed

    return _projection_hook(decoder, settings.layer, batch.last, subtract)


def attention_output(decoder: Decoder, batch: PromptBatch, layer: int, cache: Any = None) -> torch.Tensor:
    """Return the attention output of a layer at the last token of each row, shape (rows, heads * size).

    The attention output consists of the concatenated outputs of all heads, before the output projection. The
    decoder stops when it reaches the output projection.

    Raises:
        ModelError: the decoder does not call the projection.
    """
    recorded: list[torch.Tensor] = []

    def record(values: torch.Tensor, last_tokens: TokenIndex) -> torch.Tensor:
        """Record the attention output at the last tokens, and stop the decoder."""
        recorded.append(values[last_tokens])
        raise LayerReachedError

    hook = _projection_hook(decoder, layer, batch.last, record)
    run_until_reached(decoder, batch.inputs(decoder, cache), [hook])
    if not recorded:
        raise ModelError(
            f"{decoder.name} does not call the output projection of layer {layer} as a module, so contrast "
            "cannot change its input: leave out contrast"
        )
    return recorded[0]
