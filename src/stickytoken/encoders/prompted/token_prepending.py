"""Token Prepending: let early tokens attend to the whole sentence (Fu et al., ACL 2025, section 4).

Before each of a few early layers, the state of the prompt's last token is copied over that of one placeholder
token before the sentence. Every token of the sentence then attends, causally, to a summary of the whole
sentence from the layer before.
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
    """Layers before which the placeholder is overwritten.

    Attributes:
        start: first of these layers, from 0.
        exit: first later layer that is not one of them; a value beyond the last layer includes all.

    Raises:
        InputError: The start is below 0, or the exit is not after it.
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
        """Refuse a start beyond the last layer.

        Raises:
            InputError: The model has no such layer.
        """
        if self.start >= layers:
            raise InputError(f"start is {self.start}, but {name} has {layers} layers: pass 0 to {layers - 1}")


def plain_states(found: Any) -> torch.Tensor:
    """Return the input or output of a layer, one state per token.

    Raises:
        ModelError: There are several per token, as in Gemma 3n, none of which is the residual stream.
    """
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

    Args:
        layers: the decoder's layers.
        settings: layers before which to overwrite.
        places: index of the placeholder in each row, counting padding; int64, shape (rows,).
        last: index of the last token in each row, shape (rows,).
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
