"""Load the model that the options name, without the chatter of the libraries underneath."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

from stickytoken.cli._endpoints import load_endpoint
from stickytoken.cli.options.endpoint import EndpointLoadingOptions
from stickytoken.cli.options.model import LoadingOptions, PromptingOptions
from stickytoken.cli.output.console import inform, status
from stickytoken.cli.output.verbosity import Verbosity, current_verbosity
from stickytoken.errors import InputError

if TYPE_CHECKING:
    from stickytoken.encoders import Encoder


_OF_ANY_MODEL = tuple(field.name for field in fields(LoadingOptions))


def load(
    model: str, loading: LoadingOptions, prompting: PromptingOptions, *, tokenizer_needed: bool = True
) -> Encoder:
    """Load the model that the options name.

    Args:
        model: its name, if the options do not say it.
        loading: options of loading.
        prompting: options of prompts.
        tokenizer_needed: whether a model behind an endpoint is refused without its tokenizer.
    """
    from stickytoken.encoders.endpoint.options import names_endpoint

    model = loading.name_of(model)
    silence_transformers()
    options = {name: getattr(loading, name) for name in _OF_ANY_MODEL}
    if isinstance(loading, EndpointLoadingOptions):
        if names_endpoint(model):
            return load_endpoint(model, loading, prompting, options, tokenizer_needed)
        if loading.given:
            raise InputError(
                f"{', '.join(loading.given)} apply only to models behind an endpoint, and {model} is not: "
                "leave them out"
            )
    options["dtype"] = loading.dtype or "float32"
    with status(f"loading {model}"), collector_paused():
        from stickytoken.encoders import Prompting, load_encoder

        encoder: Encoder = load_encoder(model, prompt=Prompting(**asdict(prompting)), **options)
    if current_verbosity() is Verbosity.VERBOSE:
        _describe(encoder, model, loading)
    return encoder


def tell_layer(encoder: Encoder) -> None:
    """Say which layer of a prompted language model is read and why, and which one contrast changes."""
    from stickytoken.encoders.prompted.encoder import CausalPromptEncoder

    if isinstance(encoder, CausalPromptEncoder) and encoder.spec is not None:
        choice = encoder.spec.layer_choice
        inform(f"layer: {encoder.prompted.number} of {encoder.layers} ({choice})")
    if isinstance(encoder, CausalPromptEncoder) and (contrast := encoder.reading.contrast) is not None:
        strength = "" if contrast.strength is None else f", strength {contrast.strength:g}"
        inform(f"contrast: layer {contrast.layer}, counted from 0, rule {contrast.rule}{strength}")


def _describe(encoder: Encoder, model: str, loading: LoadingOptions) -> None:
    """Print where the model was found and how it computes."""
    from stickytoken.encoders.loading.resolution import resolve_model

    source = resolve_model(model, loading.revision)
    identity = encoder.identity
    longest = "any length" if identity.max_length is None else f"at most {identity.max_length:,} tokens"
    inform(f"model: {source.location} ({source.origin}), weights {identity.weights[:12]}")
    inform(
        f"computes: on {encoder.device} in {identity.dtype}, inputs of {longest}, vectors of "
        f"{identity.dimension:,} components"
    )


def silence_transformers() -> None:
    """Switch off the progress bars and log lines of transformers, except with `--verbose`."""
    verbose = current_verbosity() is Verbosity.VERBOSE
    # transformers reads the variable when it is imported, before the calls below can have an effect.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "warning" if verbose else "error")
    from transformers.utils import logging

    (logging.set_verbosity_warning if verbose else logging.set_verbosity_error)()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def silence_transformers_once_loaded() -> None:
    """Do what `silence_transformers` does, for a command that may end without loading transformers."""
    if current_verbosity() is not Verbosity.VERBOSE:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the cyclic garbage collector while libraries and weights are loaded.

    It would scan the many objects that loading creates again and again, for a third of the start time.
    Nearly all of them stay, so later collections skip them too.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.enable()
