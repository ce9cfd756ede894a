"""Compute the states of a decoder after the requested layers, and stop after the last of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from stickytoken.encoders.prompted.attention_output import (
    Decoder,
    Subtraction,
    output_projection,
    recorded_values,
    subtracted,
)
from stickytoken.errors import InputError, ModelError


@dataclass(frozen=True, slots=True)
class TokenPrepending:
    """Layers before which the placeholder is overwritten.

    Attributes:
        start: first of these layers, from 0.
        exit: first later layer that is not one of them; a value beyond the last layer includes all.
    """

    start: int
    exit: int

    def __post_init__(self) -> None:
        if self.start < 0:
            raise InputError(f"start is {self.start}: layers are counted from 0")
        if self.start >= self.exit:
            raise InputError(
                f"start is {self.start} and exit is {self.exit}, so nothing would be overwritten: pass a "
                "larger exit"
            )

    def require_layers(self, layers: int, name: str) -> None:
        """Refuse a start beyond the last layer."""
        if self.start >= layers:
            raise InputError(f"start is {self.start}, but {name} has {layers} layers: pass 0 to {layers - 1}")


def plain_states(found: Any) -> torch.Tensor:
    """Return the input or output of a layer, one state per token."""
    states: torch.Tensor = found[0] if isinstance(found, (tuple, list)) else found
    if states.ndim != 3:
        raise ModelError(
            f"the layers of this model return states of shape {tuple(states.shape)}: prompts need a model "
            "with one state per token, of shape (rows, tokens, d)"
        )
    return states


@contextmanager
def prepended(
    layers: Sequence[torch.nn.Module], settings: TokenPrepending, places: torch.Tensor, last: torch.Tensor
) -> Iterator[None]:
    """Overwrite states before the layers from start to exit, during calls from this thread.

    Other threads may run the same model at the same time, with other settings or none. The hooks are always
    removed at the end.
    """
    owner = threading.get_ident()

    # torch may call the hook without kwargs if another thread removes its own at the same moment.
    def overwrite(
        module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        del module
        if kwargs is None or threading.get_ident() != owner:
            return None
        states = plain_states(args[0] if args else kwargs["hidden_states"])
        # A model may be spread over devices, so states are on the device of their layer.
        rows = torch.arange(states.shape[0], device=states.device)
        # Copy, so that states recorded elsewhere do not change.
        changed = states.clone()
        changed[rows, places.to(states.device)] = states[rows, last.to(states.device)]
        if args:
            return (changed, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": changed}

    handles = []
    try:
        for layer in layers[settings.start : settings.exit]:
            handles.append(layer.register_forward_pre_hook(overwrite, with_kwargs=True))  # noqa: PERF401
        yield
    finally:
        for handle in handles:
            handle.remove()


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
    """Return the pooled states after the given numbers of layers; later layers do not run."""
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
    """Return the states of filled prompts after the given numbers of layers; see `states_after`."""
    with ExitStack() as changes:
        if prepending is not None and batch.places is not None:
            changes.enter_context(prepended(decoder.layers, prepending, batch.places, batch.last))
        if (subtraction := batch.subtraction) is not None:
            projection = output_projection(decoder, subtraction.settings.layer)
            changes.enter_context(subtracted(projection, batch.last, subtraction))
        return states_after(decoder, numbers, _inputs(decoder, batch, cache), keep)


def attended_values(decoder: Decoder, batch: PromptBatch, layer: int, cache: Any = None) -> torch.Tensor:
    """Return what the last tokens have attended to in a layer; nothing after it runs."""
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
