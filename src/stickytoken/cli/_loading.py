"""Load the model that the options name, without the chatter of the libraries underneath."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer

import stickytoken
from stickytoken.cli import console
from stickytoken.cli._options import EndpointLoadingOptions, LoadingOptions, PromptingOptions
from stickytoken.errors import InputError, ModelError, StickyTokenError

if TYPE_CHECKING:
    from stickytoken.detection.run_folder import RunRecord
    from stickytoken.encoders.endpoint.encoder import CostEstimate, EndpointEncoder
    from stickytoken.measurement.engine import Progress, ProgressCallback


def load(
    model: str, loading: LoadingOptions, prompting: PromptingOptions, *, tokenizer_needed: bool = True
) -> stickytoken.Encoder:
    from stickytoken.encoders.endpoint.options import names_endpoint

    _require_own(model, loading)
    silence_transformers()
    options = {each.name: getattr(loading, each.name) for each in fields(LoadingOptions)}
    if isinstance(loading, EndpointLoadingOptions) and names_endpoint(model):
        with console.status(f"asking {model}"):
            from stickytoken.encoders import Prompting, load_encoder
            from stickytoken.encoders.endpoint.vocabulary import CandidateVocabulary

            tokenizer: Any = loading.tokenizer
            if tokenizer is None and loading.candidates is None and not tokenizer_needed:
                tokenizer = CandidateVocabulary(())
            connected: Any = load_encoder(
                model,
                prompt=Prompting(**asdict(prompting)),
                tokenizer=tokenizer,
                candidates=loading.candidates,
                endpoint=loading.options,
                **{name: value for name, value in options.items() if value not in (None, False)},
            )
        return _told_of_server(connected)
    if isinstance(loading, EndpointLoadingOptions) and (given := ", ".join(loading.given)):
        raise InputError(
            f"{given} apply only to models behind an endpoint, and {model} is not: leave them out"
        )
    options["dtype"] = loading.dtype or "float32"
    with console.status(f"loading {model}"), collector_paused():
        from stickytoken.encoders import Prompting, load_encoder

        encoder: stickytoken.Encoder = load_encoder(model, prompt=Prompting(**asdict(prompting)), **options)
    if console.current_verbosity() is console.Verbosity.VERBOSE:
        from stickytoken.encoders.loading.resolution import resolve_model

        source, identity = resolve_model(model, loading.revision), encoder.identity
        longest = "any length" if identity.max_length is None else f"at most {identity.max_length:,} tokens"
        console.inform(f"model: {source.location} ({source.origin}), weights {identity.weights[:12]}")
        vectors = f"inputs of {longest}, vectors of {identity.dimension:,} components"
        console.inform(f"computes: on {encoder.device} in {identity.dtype}, {vectors}")
    return encoder


def _told_of_server(encoder: EndpointEncoder) -> stickytoken.Encoder:
    encoder.endpoint.waits = lambda reason, seconds: console.inform(f"waiting {seconds:.0f} s: {reason}")
    server = encoder.capabilities
    length = "reads any length that was tried"
    if server.long != "unknown":
        verb = {"truncates": "cuts", "refuses": "refuses"}[server.long]
        length = f"reads {server.max_length:,} tokens, {verb} longer texts"
    sizes = f"{server.dimension:,} components, {server.batch:,} texts per request, {length}"
    normalised = "normalised" if server.normalised else "not normalised"
    console.inform(f"endpoint: {sizes}, {normalised}, noise {server.noise:.1e}")
    return encoder


def _require_own(model: str, loading: LoadingOptions) -> None:
    from stickytoken.encoders.endpoint.options import names_endpoint

    if names_endpoint(model) and not isinstance(loading, EndpointLoadingOptions):
        raise InputError(
            f"this command needs the model itself, and {model} is behind an endpoint, which gives only "
            "vectors of texts: pass a model that is on this machine"
        )


def load_for(
    source: str,
    run: RunRecord | None,
    loading: LoadingOptions,
    prompting: PromptingOptions,
    model: str | None = None,
) -> stickytoken.Encoder:
    """Load the model that the source names, or the model of a run.

    What the user leaves open is as in the run: precision and revision separately, prompt and token prepending
    together. The tokenizer of a model behind an endpoint may have moved.
    """
    if run is None:
        return load(source, loading, prompting)
    from stickytoken.detection.run import load_recorded_endpoint, recorded_loading

    recorded = recorded_loading(run)
    name = model or run.model.name
    with _named_by(source):
        if recorded.endpoint is not None and isinstance(loading, EndpointLoadingOptions):
            if loading.tokenizer or loading.candidates:
                moved = {"tokenizer": loading.tokenizer, "candidates": loading.candidates}
                endpoint = recorded.endpoint.model_copy(update=moved)
                recorded = recorded.model_copy(update={"endpoint": endpoint})
            with console.status(f"asking {name}"):
                encoder: Any = load_recorded_endpoint(name, recorded, loading.options)
            return _told_of_server(encoder)
        loading = replace(
            loading, dtype=loading.dtype or recorded.dtype, revision=loading.revision or recorded.revision
        )
        if prompting == PromptingOptions():
            prompting = PromptingOptions(**asdict(prompting) | recorded.prompting())
        return load(name, loading, prompting)


def require_found(
    source: str, run: RunRecord | None, loading: LoadingOptions, model: str | None = None
) -> str:
    """Return the name of the model that `load_for` would load; refuse early one that does not exist."""
    from stickytoken.detection.run import recorded_loading
    from stickytoken.encoders.endpoint.options import names_endpoint
    from stickytoken.encoders.loading.load import require_model

    name = source if run is None else model or run.model.name
    _require_own(name, loading)
    if names_endpoint(name):
        return name
    if run is None:
        return require_model(source, loading.revision)
    with _named_by(source):
        return require_model(name, loading.revision or recorded_loading(run).revision)


@contextmanager
def _named_by(source: str) -> Iterator[None]:
    try:
        yield
    except ModelError as error:
        raise ModelError(f"the model of {source}: {error} (if it has moved, pass --model)") from error


def tell_layer(encoder: stickytoken.Encoder) -> None:
    from stickytoken.encoders.prompted.encoder import CausalPromptEncoder

    if isinstance(encoder, CausalPromptEncoder) and encoder.spec is not None:
        choice = encoder.spec.layer_choice
        console.inform(f"layer: {encoder.prompted.number} of {encoder.layers} ({choice})")
    if isinstance(encoder, CausalPromptEncoder) and (contrast := encoder.reading.contrast) is not None:
        strength = "" if contrast.strength is None else f", strength {contrast.strength:g}"
        console.inform(f"contrast: layer {contrast.layer}, counted from 0, rule {contrast.rule}{strength}")


@contextmanager
def announced(
    encoder: stickytoken.Encoder | None,
    loading: EndpointLoadingOptions,
    measurement: Callable[[Any, Path], object],
    uncertain: str | None = None,
) -> Iterator[ProgressCallback]:
    """Yield a callback for progress; of an endpoint, show what will be sent before the first request.

    Nothing is shown where everything was answered before. Nobody is asked with ``--yes``, or about a server
    on this machine without a price. The estimate is made again whenever a stage begins that was planned from
    results.
    """
    from stickytoken.encoders.endpoint.encoder import EndpointEncoder, estimate_cost

    with console.progress_bar() as progress:
        if not isinstance(encoder, EndpointEncoder):
            yield progress
            return
        endpoint, stages = encoder.endpoint, set[str]()
        expected: int | None = None

        def estimated() -> CostEstimate | None:
            with TemporaryDirectory(prefix="stickytoken-") as folder:
                place = Path(folder) / "rehearsal"
                try:
                    return estimate_cost(encoder, lambda stand_in: measurement(stand_in, place), uncertain)
                except StickyTokenError as error:
                    console.inform(f"what will be sent cannot be estimated ({error})")
                    return None

        def agree() -> None:
            nonlocal expected
            with console.bars_hidden():
                console.inform("counting what to send")
                if (estimate := estimated()) is not None:
                    expected = estimate.tokens
                    console.inform(f"estimate: {_described(estimate)}")
                if loading.yes or (endpoint.address.is_local and not loading.price_per_million):
                    return
                if not sys.stdin.isatty():
                    raise InputError("nobody can be asked whether to spend this: pass --yes")
                if not typer.confirm("go on?", err=True):
                    raise typer.Exit(1)

        def report(step: Progress) -> None:
            nonlocal expected
            begins = step.stage not in stages and step.done == 0
            stages.add(step.stage)
            if begins and expected is not None and len(stages) > 1:
                spent, estimate = endpoint.spending.tokens, estimated()
                if estimate is not None and estimate.requests:
                    estimate = estimate.most or estimate  # what it depends on is known now
                    total = spent + estimate.tokens
                    if abs(total - expected) > 0.02 * expected:
                        expected = total
                        with console.bars_hidden():
                            console.inform(f"estimate for the rest: {_described(estimate)}")
            progress(step)

        endpoint.before_sending = agree
        yield report
        if endpoint.spending.requests:
            sent, cost = endpoint.spending, _cost(endpoint.spending.cost)
            console.inform(f"sent, with the checks: {sent.requests:,} requests, {sent.tokens:,} tokens{cost}")


def _cost(cost: float | None, unknown: str = "") -> str:
    return unknown if cost is None else f", cost {cost:.4g}"


def _described(estimate: CostEstimate) -> str:
    price = _cost(estimate.cost, ", price unknown (--set price-per-million=PRICE)")
    said = f"{estimate.requests:,} requests, {estimate.texts:,} texts, {estimate.tokens:,} tokens{price}"
    said += f", about {console.duration(estimate.seconds)}"
    if (most := estimate.most) is not None:
        said += f"; at most {most.tokens:,} tokens{_cost(most.cost)}, depending on what is found"
    return said + (f"; {estimate.answered:,} texts were answered before" if estimate.answered else "")


def silence_transformers() -> None:
    verbose = console.current_verbosity() is console.Verbosity.VERBOSE
    # transformers reads the variable when it is imported, before the calls below can have an effect.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "warning" if verbose else "error")
    from transformers.utils import logging

    (logging.set_verbosity_warning if verbose else logging.set_verbosity_error)()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def silence_transformers_once_loaded() -> None:
    """Do what `silence_transformers` does, for a command that may end without loading transformers."""
    if console.current_verbosity() is not console.Verbosity.VERBOSE:
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


def run_in(source: str, model: str | None) -> stickytoken.Run | None:
    from stickytoken.detection.run import is_run, open_run

    if is_run(source):
        return open_run(source)
    if model is not None:
        raise InputError(f"--model needs a run folder, and {source} is not one: leave --model out")
    return None


def named_token_ids(encoder: stickytoken.Encoder, names: Sequence[str] | None) -> list[int] | None:
    from stickytoken.data.tables import TABLE_SUFFIXES
    from stickytoken.detection.selection import find_named, token_ids_from_file
    from stickytoken.vocabulary import categorize

    if not names:
        return None
    vocabulary = categorize(encoder.tokenizer)
    ids: list[int] = []
    for name in names:
        path = Path(name).expanduser()
        if path.suffix.lower() in (".txt", *TABLE_SUFFIXES):
            ids += token_ids_from_file(vocabulary, path)
        else:
            ids.append(find_named(vocabulary, name))
    return ids


def token_id(argument: str) -> int:
    try:
        return int(argument)
    except ValueError:
        raise InputError(
            f"{argument!r} is not a token id: pass a number, or leave --ids out to name tokens by text"
        ) from None
