"""Run filled prompts through a decoder, and change its states for token prepending."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stickytoken.language_models.reading import TokenPrepending
from stickytoken.language_models.running.decoder import (
    Decoder,
    Hook,
    compute_states_after,
    find_layer_input,
    hook_before,
)


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
        echoes: whether all tokens from ``first`` to ``last`` are pooled; if false, only the token at
            ``last``.
        prepending: layers of token prepending; None if it is off.
        per_layer_inputs: further arguments of the decoder; see `Decoder.per_layer_inputs`.
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

    def pool(self, states: torch.Tensor) -> torch.Tensor:
        """Return one state for each row, shape (rows, d).

        The state of a row is the state of its last token or, in an echo, the mean state of the tokens in the
        second copy of the sentence.
        """
        first = self.first.to(states.device)
        last = self.last.to(states.device)
        if not self.echoes:
            rows = torch.arange(states.shape[0], device=states.device)
            return states[rows, last]
        indices = torch.arange(states.shape[1], device=states.device)[None]  # shape (1, tokens)
        is_pooled = (indices >= first[:, None]) & (indices <= last[:, None])  # shape (rows, tokens)
        is_pooled = is_pooled[..., None]  # shape (rows, tokens, 1)
        return torch.where(is_pooled, states, 0).sum(1) / is_pooled.sum(1)

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


def pool_states(
    decoder: Decoder, batch: PromptBatch, layer_counts: Sequence[int], cache: Any = None
) -> torch.Tensor:
    """Return the pooled states of each row after each of ``layer_counts``, shape (rows, layers, d)."""
    states = compute_prompt_states(decoder, batch, layer_counts, batch.pool, cache)
    device = states[max(layer_counts)].device  # layers may be on several devices
    return torch.stack([states[layer_count].to(device) for layer_count in layer_counts], dim=1)


def compute_prompt_states(
    decoder: Decoder,
    batch: PromptBatch,
    layer_counts: Sequence[int],
    keep: Callable[[torch.Tensor], torch.Tensor] = lambda states: states,
    cache: Any = None,
) -> dict[int, torch.Tensor]:
    """Run filled prompts, with token prepending if the batch specifies it.

    Returns:
        ``keep(states)`` for each number of layers in ``layer_counts``, keyed by this number of layers (0 for
        the embedding).
    """
    hooks = _make_prepending_hooks(decoder, batch)
    return compute_states_after(decoder, layer_counts, batch.inputs(decoder, cache), keep, hooks)


def _make_prepending_hooks(decoder: Decoder, batch: PromptBatch) -> list[Hook]:
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
        states = find_layer_input(args, kwargs)
        # A model may be spread over several devices, so indices are moved to the device of this layer.
        device = states.device
        rows = torch.arange(states.shape[0], device=device)
        changed = states.clone()  # another hook may have recorded the states, so only a copy is changed
        # In each row, the state of the placeholder is replaced by the state of the last token.
        changed[rows, batch.placeholders.to(device)] = states[rows, batch.last.to(device)]
        if args:  # the states are the first argument; otherwise, they are passed by name
            return (changed, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": changed}

    layers = decoder.layers[batch.prepending.start : batch.prepending.exit]
    return [hook_before(layer, overwrite) for layer in layers]
