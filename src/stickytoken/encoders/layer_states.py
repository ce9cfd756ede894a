"""States of a decoder after the layers that are asked for, and nothing behind the last of them computed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from stickytoken.encoders.decoder import Decoder
from stickytoken.encoders.token_prepending import TokenPrepending, prepended


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
    """

    embeddings: torch.Tensor
    mask: torch.Tensor
    positions: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor
    places: torch.Tensor | None
    echoes: bool

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

    The state after all layers has the final norm, any other is the raw residual stream.

    Args:
        decoder: the model, in evaluation mode.
        batch: what it reads.
        numbers: numbers of layers, from 1; distinct.
        prepending: overwrite the placeholder's states.
        cache: keys and values of tokens before the batch, or an empty cache to fill.

    Returns:
        Shape (rows, numbers, d), in the precision of the model, where its last layer computes.
    """
    options: dict[str, Any] = {"position_ids": batch.positions} if decoder.takes_positions else {}
    if cache is not None:
        options |= {"past_key_values": cache}
    copying = (
        nullcontext()
        if prepending is None or batch.places is None
        else prepended(decoder.layers, prepending, batch.places, batch.last)
    )
    found: dict[int, torch.Tensor] = {}
    whole = len(decoder.layers)
    with copying, _recorded(decoder, batch, numbers, found):
        try:
            output = decoder.model(
                inputs_embeds=batch.embeddings,
                attention_mask=batch.mask,
                use_cache=cache is not None,
                **options,
            )
        except _ReachedError:
            pass
        else:
            found[whole] = batch.pool(output.last_hidden_state)
    device = found[max(numbers)].device
    return torch.stack([found[number].to(device) for number in numbers], dim=1)


@contextmanager
def _recorded(
    decoder: Decoder, batch: PromptBatch, numbers: Sequence[int], found: dict[int, torch.Tensor]
) -> Iterator[None]:
    """Pool states behind layers as they are computed, in calls of this thread; stop after the last one."""
    owner, top, whole = threading.get_ident(), max(numbers), len(decoder.layers)

    def hook(number: int) -> Any:
        def record(module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
            del module, args
            if threading.get_ident() != owner:
                return
            found[number] = batch.pool(output[0] if isinstance(output, tuple) else output)
            if number == top:
                raise _ReachedError

        return record

    handles = []
    try:
        for number in (each for each in numbers if each < whole):
            handles.append(decoder.layers[number - 1].register_forward_hook(hook(number)))  # noqa: PERF401
        yield
    finally:
        for handle in handles:
            handle.remove()
