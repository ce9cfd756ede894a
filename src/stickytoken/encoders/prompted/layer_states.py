"""States of a decoder after the layers that are asked for, and nothing behind the last of them computed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from stickytoken.encoders.prompted.decoder import Decoder
from stickytoken.encoders.prompted.token_prepending import TokenPrepending, plain_states, prepended


@dataclass(frozen=True)
class PromptBatch:
    """Filled prompts as tensors.

    Attributes:
        embeddings: what the first layer reads, shape (rows, tokens, d).
        mask: 1 for a token, 0 for padding, shape (rows, past + tokens).
        positions: of the tokens, padding not counted, shape (rows, tokens).
        first: slot where the part that is pooled begins, shape (rows,).
        last: slot of its last token, which is the prompt's last one, shape (rows,).
        places: slot of the placeholder, shape (rows,); None without one.
        echoes: pool over all tokens from first to last, not the last alone.
        beside: what else the model reads of the ids; see `Decoder.beside`.
    """

    embeddings: torch.Tensor
    mask: torch.Tensor
    positions: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor
    places: torch.Tensor | None
    echoes: bool
    beside: dict[str, torch.Tensor] = field(default_factory=dict)

    def pool(self, states: torch.Tensor) -> torch.Tensor:
        """One vector a row, shape (rows, d)."""
        rows = torch.arange(states.shape[0], device=states.device)
        first, last = self.first.to(states.device), self.last.to(states.device)
        if not self.echoes:
            return states[rows, last]
        slots = torch.arange(states.shape[1], device=states.device)[None]
        inside = ((slots >= first[:, None]) & (slots <= last[:, None]))[..., None]
        return torch.where(inside, states, 0).sum(1) / inside.sum(1)


class _ReachedError(Exception):
    """Ends a forward pass after the last layer that is read."""


def pooled_states(
    decoder: Decoder,
    batch: PromptBatch,
    numbers: Sequence[int],
    prepending: TokenPrepending | None,
    cache: Any = None,
) -> torch.Tensor:
    """Pooled states after some numbers of layers; no layer behind the largest of them runs.

    Args:
        decoder: the model, in evaluation mode.
        batch: what it reads.
        numbers: numbers of layers, from 1; distinct.
        prepending: overwrite the placeholder's states.
        cache: keys and values of tokens before the batch, or an empty cache to fill.

    Returns:
        Shape (rows, numbers, d), in the precision of the model, where its last layer computes.
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
    """States of filled prompts after some numbers of layers; see `states_after`.

    Args:
        decoder: the model, in evaluation mode.
        batch: what it reads.
        numbers: numbers of layers.
        prepending: overwrite the placeholder's states.
        keep: what is kept of the states behind a layer.
        cache: keys and values of tokens before the batch, or an empty cache to fill.
    """
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
    copying = (
        nullcontext()
        if prepending is None or batch.places is None
        else prepended(decoder.layers, prepending, batch.places, batch.last)
    )
    with copying:
        return states_after(decoder, numbers, inputs, keep)


def states_after(
    decoder: Decoder,
    numbers: Sequence[int],
    inputs: dict[str, Any],
    keep: Callable[[torch.Tensor], torch.Tensor] = lambda states: states,
) -> dict[int, torch.Tensor]:
    """States after some numbers of layers; no layer behind the largest of them runs.

    The state after all layers has the final norm, any other is the raw residual stream. After no layer it is
    what the first one reads.

    Args:
        decoder: the model, in evaluation mode.
        numbers: numbers of layers, from 0, one of them above it.
        inputs: of the model.
        keep: what is kept of the states behind a layer, shape (rows, tokens, d).

    Returns:
        What is kept, by number.
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
    """Keep states behind layers as they are computed, in calls of this thread; stop after the last one."""
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
