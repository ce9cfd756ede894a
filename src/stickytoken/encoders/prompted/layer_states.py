"""Compute the states of a decoder after the requested layers, and stop after the last of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from stickytoken.encoders.prompted._decoder import Decoder
from stickytoken.encoders.prompted.attention_output import (
    Subtraction,
    output_projection,
    recorded_values,
    subtracted,
)
from stickytoken.encoders.prompted.token_prepending import TokenPrepending, plain_states, prepended
from stickytoken.errors import ModelError


@dataclass(frozen=True)
class PromptBatch:
    """Filled prompts as tensors.

    Attributes:
        embeddings: input of the first layer, shape (rows, tokens, d).
        mask: 1 for a token, 0 for padding, shape (rows, past + tokens).
        positions: positions of the tokens, not counting padding, shape (rows, tokens).
        first: index of the first pooled token, shape (rows,).
        last: index of the last pooled token, which is the last one of the prompt, shape (rows,).
        places: index of the placeholder, shape (rows,); None without one.
        echoes: pool all tokens from first to last, rather than only the last.
        beside: further inputs computed from the ids; see `Decoder.beside`.
        subtraction: what contrastive prompting subtracts; None without it.
    """

    embeddings: torch.Tensor
    mask: torch.Tensor
    positions: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor
    places: torch.Tensor | None
    echoes: bool
    beside: dict[str, torch.Tensor] = field(default_factory=dict)
    subtraction: Subtraction | None = None

    def pool(self, states: torch.Tensor) -> torch.Tensor:
        """Pool states into one vector per row, shape (rows, d)."""
        rows = torch.arange(states.shape[0], device=states.device)
        first, last = self.first.to(states.device), self.last.to(states.device)
        if not self.echoes:
            return states[rows, last]
        slots = torch.arange(states.shape[1], device=states.device)[None]
        inside = ((slots >= first[:, None]) & (slots <= last[:, None]))[..., None]
        return torch.where(inside, states, 0).sum(1) / inside.sum(1)


class _ReachedError(Exception):
    """Stops a forward pass after the last requested layer."""


def pooled_states(
    decoder: Decoder,
    batch: PromptBatch,
    numbers: Sequence[int],
    prepending: TokenPrepending | None,
    cache: Any = None,
) -> torch.Tensor:
    """Return the pooled states after the given numbers of layers; later layers do not run.

    Args:
        decoder: the model, in evaluation mode.
        batch: its input.
        numbers: layer counts from 1, distinct.
        prepending: overwrite the placeholder's states.
        cache: keys and values of tokens before the batch, or an empty cache to fill.

    Returns:
        Shape (rows, numbers, d), in the precision of the model, on the device of the last layer that ran.
    """
    found = prompt_states(decoder, batch, numbers, prepending, batch.pool, cache)
    device = found[max(numbers)].device
    return torch.stack([found[number].to(device) for number in numbers], dim=1)


def prompt_states(
    decoder: Decoder,
    batch: PromptBatch,
    numbers: Sequence[int],
    prepending: TokenPrepending | None,
    keep: Callable[[torch.Tensor], torch.Tensor] = lambda states: states,
    cache: Any = None,
) -> dict[int, torch.Tensor]:
    """Return the states of filled prompts after the given numbers of layers; see `states_after`.

    Args:
        decoder: the model, in evaluation mode.
        batch: its input.
        numbers: layer counts.
        prepending: overwrite the placeholder's states.
        keep: applied to the states after a layer; its result is kept.
        cache: keys and values of tokens before the batch, or an empty cache to fill.
    """
    with ExitStack() as changes:
        if prepending is not None and batch.places is not None:
            changes.enter_context(prepended(decoder.layers, prepending, batch.places, batch.last))
        if (subtraction := batch.subtraction) is not None:
            projection = output_projection(decoder, subtraction.settings.layer)
            changes.enter_context(subtracted(projection, batch.last, subtraction))
        return states_after(decoder, numbers, _inputs(decoder, batch, cache), keep)


def attended_values(decoder: Decoder, batch: PromptBatch, layer: int, cache: Any = None) -> torch.Tensor:
    """Return what the last tokens have attended to in a layer; nothing after it runs.

    Args:
        decoder: the model, in evaluation mode.
        batch: its input.
        layer: index of the layer, from 0.
        cache: keys and values of tokens before the batch.

    Returns:
        The input of the layer's output projection, shape (rows, heads * size).

    Raises:
        ModelError: The layer has no output projection, or does not call it.
    """
    found: list[torch.Tensor] = []

    def keep(values: torch.Tensor) -> None:
        found.append(values)
        raise _ReachedError

    with recorded_values(output_projection(decoder, layer), batch.last, keep), suppress(_ReachedError):
        decoder.model(**_inputs(decoder, batch, cache))
    if not found:
        raise ModelError(
            f"{decoder.name} does not call the output projection of layer {layer} as a module, so contrast "
            "cannot change its input: leave out contrast"
        )
    return found[0]


def _inputs(decoder: Decoder, batch: PromptBatch, cache: Any) -> dict[str, Any]:
    inputs: dict[str, Any] = {
        "inputs_embeds": batch.embeddings,
        "attention_mask": batch.mask,
        "use_cache": cache is not None,
        **batch.beside,
    }
    if decoder.takes_positions:
        inputs["position_ids"] = batch.positions
    if cache is not None:
        inputs["past_key_values"] = cache
    return inputs


def states_after(
    decoder: Decoder,
    numbers: Sequence[int],
    inputs: dict[str, Any],
    keep: Callable[[torch.Tensor], torch.Tensor] = lambda states: states,
) -> dict[int, torch.Tensor]:
    """Return the states after the given numbers of layers; later layers do not run.

    The state after all layers includes the final norm; any other is the raw residual stream. The state after
    zero layers is the input of the first one.

    Args:
        decoder: the model, in evaluation mode.
        numbers: layer counts from 0, at least one of them above 0.
        inputs: arguments of the model.
        keep: applied to the states after a layer, shape (rows, tokens, d); its result is kept.

    Returns:
        What was kept, by layer count.
    """
    found: dict[int, torch.Tensor] = {}
    with _recorded(decoder, numbers, keep, found):
        try:
            output = decoder.model(**inputs)
        except _ReachedError:
            pass
        else:
            found[len(decoder.layers)] = keep(output.last_hidden_state)
    return found


@contextmanager
def _recorded(
    decoder: Decoder,
    numbers: Sequence[int],
    keep: Callable[[torch.Tensor], torch.Tensor],
    found: dict[int, torch.Tensor],
) -> Iterator[None]:
    """Record states after layers during calls from this thread; stop after the last requested one."""
    owner, top, whole = threading.get_ident(), max(numbers), len(decoder.layers)

    def hook(number: int) -> Any:
        def record(module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
            del module, args
            if threading.get_ident() != owner:
                return
            found[number] = keep(plain_states(output))
            if number == top:
                raise _ReachedError

        return record

    def record_first(
        module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> None:
        del module
        if kwargs is not None and threading.get_ident() == owner:
            found[0] = keep(plain_states(args[0] if args else kwargs["hidden_states"]))

    handles = []
    try:
        for number in (each for each in numbers if 0 < each < whole):
            handles.append(decoder.layers[number - 1].register_forward_hook(hook(number)))  # noqa: PERF401
        if 0 in numbers:
            handles.append(decoder.layers[0].register_forward_pre_hook(record_first, with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
