"""Open the run that a command works with, and load its model as it was loaded for the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from stickytoken.cli._endpoints import load_recorded
from stickytoken.cli._loading import load
from stickytoken.cli.options.endpoint import EndpointLoadingOptions
from stickytoken.cli.options.model import LoadingOptions, PromptingOptions
from stickytoken.errors import InputError, ModelError

if TYPE_CHECKING:
    from stickytoken.detection import Run
    from stickytoken.detection.schema import RunRecord
    from stickytoken.encoders import Encoder


def run_in(source: str, model: str | None) -> Run | None:
    """Open the run that the source names; None where it names a model."""
    from stickytoken.detection.run import is_run, open_run

    if is_run(source):
        return open_run(source)
    if model is not None:
        raise InputError(f"--model needs a run folder, and {source} is not one: leave --model out")
    return None


def load_for(
    source: str,
    run: RunRecord | None,
    loading: LoadingOptions,
    prompting: PromptingOptions,
    model: str | None = None,
) -> Encoder:
    """Load the model that the source names, or the model of a run.

    What the user leaves open is as in the run: precision and revision separately, prompt and token prepending
    together.

    Args:
        source: a model where there is no run, else the run folder.
        run: run.json of the run; None without one.
        loading: options of loading.
        prompting: options of prompts.
        model: the model of the run, if it has moved.
    """
    if run is None:
        return load(source, loading, prompting)
    from stickytoken.detection.run_model import recorded_loading

    recorded = recorded_loading(run)
    name = model or run.model.name
    if recorded.endpoint is not None and isinstance(loading, EndpointLoadingOptions):
        with _named_by(source):
            return load_recorded(name, recorded, loading)
    loading = replace(
        loading, dtype=loading.dtype or recorded.dtype, revision=loading.revision or recorded.revision
    )
    if prompting == PromptingOptions():
        prompting = PromptingOptions(**asdict(prompting) | recorded.prompting())
    with _named_by(source):
        return load(name, loading, prompting)


def require_found(
    source: str, run: RunRecord | None, loading: LoadingOptions, model: str | None = None
) -> str:
    """Return the name of the model that `load_for` would load, and refuse early one that does not exist.

    Args:
        source: a model where there is no run, else the run folder.
        run: run.json of the run; None without one.
        loading: options of loading.
        model: the model of the run, if it has moved.
    """
    from stickytoken.detection.run_model import recorded_loading
    from stickytoken.encoders.endpoint.options import names_endpoint
    from stickytoken.encoders.loading.load import require_model

    name = loading.name_of(source if run is None else model or run.model.name)
    if names_endpoint(name):
        return name
    if run is None:
        return require_model(source, loading.revision)
    with _named_by(source):
        return require_model(name, loading.revision or recorded_loading(run).revision)


@contextmanager
def _named_by(source: str) -> Iterator[None]:
    """Add to an error that it is about the model of a run."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"the model of {source}: {error} (if it has moved, pass --model)") from error
