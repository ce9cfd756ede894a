"""The model that a command works with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stickytoken.cli.output import status
from stickytoken.cli.quiet import quiet_libraries
from stickytoken.errors import ModelError

if TYPE_CHECKING:
    from stickytoken.encoders import Encoder
    from stickytoken.runs.schema import RunRecord


def chosen_encoder(
    model: str,
    *,
    device: str | None,
    dtype: str,
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
    from stickytoken.encoders import load_encoder

    quiet_libraries()
    with status(f"loading {model}"):
        return load_encoder(
            model,
            device=device,
            dtype=dtype,
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


def encoder_of_run(source: str, run: RunRecord | None, model: str | None, **options: Any) -> Encoder:
    """Load the model named, or the run's with the run's prompt and precision.

    Args:
        source: the model where there is no run, else the run folder.
        run: run.json of the run; None without one.
        model: where the run's model lies now; None is as the run names it.
        options: of `chosen_encoder`; a prompt, prompt name and dtype of None are the run's.

    Raises:
        ModelError: it cannot be found or used.
        InputError: an option that it cannot meet.
    """
    recorded = {} if run is None else run.identity_parts.get("encoder", {})
    if options["prompt"] is None and options["prompt_name"] is None:
        options["prompt"] = recorded.get("prompt")
    options["dtype"] = options["dtype"] or recorded.get("dtype", "float32")
    if run is None:
        return chosen_encoder(source, **options)
    try:
        return chosen_encoder(model or run.model.name, **options)
    except ModelError as error:
        raise ModelError(f"the model of {source}: {error} (--model says where it lies now)") from error
