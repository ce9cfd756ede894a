"""The model that a command works with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stickytoken.cli.collector import collector_paused
from stickytoken.cli.output import status
from stickytoken.cli.quiet import quiet_libraries

if TYPE_CHECKING:
    from stickytoken.encoders import Encoder


def chosen_encoder(
    model: str,
    *,
    device: str | None,
    dtype: str | None,
    prompt: str | None,
    prompt_name: str | None,
    revision: str | None,
    trust_remote_code: bool,
    token_budget: int | None,
    token_prepending: bool = False,
    start: int | None = None,
    exit: int | None = None,  # noqa: A002 - the published name
    layer: int | None = None,
) -> Encoder:
    """Load the model that the options name.

    Raises:
        ModelError: it cannot be found or used.
        InputError: an option that it cannot meet.
    """
    quiet_libraries()
    with status(f"loading {model}"), collector_paused():
        from stickytoken.encoders import load_encoder

        return load_encoder(
            model,
            device=device,
            dtype=dtype or "float32",
            prompt=prompt,
            prompt_name=prompt_name,
            revision=revision,
            trust_remote_code=trust_remote_code,
            token_budget=token_budget,
            token_prepending=token_prepending,
            start=start,
            exit=exit,
            layer=layer,
        )
