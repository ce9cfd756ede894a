"""Token Prepending: an early token sees what the last one has read (Fu et al., ACL 2025, section 4).

Before each of a few early layers, the state of the prompt's last token is copied over that of one placeholder
token, which stands in front of the sentence. Every token of the sentence then attends, causally, to a
summary of the whole sentence that is one layer old.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from stickytoken.errors import InputError, ModelError


@dataclass(frozen=True, slots=True)
class TokenPrepending:
    """Which layers see the copy.

    Attributes:
        start: first layer, from 0, before which the placeholder's state is overwritten.
        exit: first later layer before which it is not; beyond the last layer means never.

    Raises:
        InputError: a start below 0, or an exit that is not behind it.
    """

    start: int = 1
    exit: int = 7

    def __post_init__(self) -> None:
        if self.start < 0:
            raise InputError(f"start is {self.start}: layers are counted from 0")
        if self.start >= self.exit:
            raise InputError(
                f"start is {self.start} and exit is {self.exit}: nothing would be copied; exit must be larger"
            )

    def require_layers(self, layers: int, name: str) -> None:
        """Refuse a start behind the last layer.

        Raises:
            InputError: the model has no such layer.
        """
        if self.start >= layers:
            raise InputError(f"start is {self.start}, but {name} has {layers} layers: 0 to {layers - 1}")


def plain_states(found: Any) -> torch.Tensor:
    """What goes into a layer or comes out of it, if it is one state a token.

    Raises:
        ModelError: it is several, as in Gemma 3n: no one of them is the residual stream.
    """
    states: torch.Tensor = found[0] if isinstance(found, (tuple, list)) else found
    if states.ndim != 3:
        raise ModelError(
            f"layers of this model pass on states of shape {tuple(states.shape)}: prompts need a model with "
            "one state a token, of shape (rows, tokens, d)"
        )
    return states


@contextmanager
def prepended(
    layers: Sequence[torch.nn.Module], settings: TokenPrepending, places: torch.Tensor, last: torch.Tensor
) -> Iterator[None]:
    """Overwrite states before the layers from start to exit, for calls of this thread.

    Other threads may run the same model meanwhile, with other settings or none. The hooks are gone
    afterwards, whatever happened.

    Args:
        layers: the decoder's layers.
        settings: which of them.
        places: slot of the placeholder in each row, padding included; int64, shape (rows,).
        last: slot of the last token in each row, shape (rows,).
    """
    owner = threading.get_ident()

    # torch may call the hook without kwargs, where another thread removes its own at the same moment.
    def overwrite(
        module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        del module
        if kwargs is None or threading.get_ident() != owner:
            return None
        states = plain_states(args[0] if args else kwargs["hidden_states"])
        # A model may be spread over devices: each layer has its states where it computes.
        rows = torch.arange(states.shape[0], device=states.device)
        # A copy: in place, the states that others recorded would change with it.
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
