"""Load the model that the options name, without the chatter of the libraries underneath."""

from __future__ import annotations

import functools
import gc
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, get_type_hints

import typer

from stickytoken.cli.options.model import EndpointLoadingOptions, LoadingOptions, PromptingOptions
from stickytoken.cli.options.output import VerbosityOptions
from stickytoken.cli.output.console import Verbosity, current_verbosity, inform, log_lines, status, verbosity
from stickytoken.cli.output.progress import bars_hidden, duration, progress_bar
from stickytoken.errors import InputError, ModelError, StickyTokenError

if TYPE_CHECKING:
    from stickytoken.detection import Run
    from stickytoken.detection.run_folder import LoadingRecord, RunRecord
    from stickytoken.encoders import Encoder
    from stickytoken.encoders.endpoint.cost import CostEstimate
    from stickytoken.encoders.endpoint.encoder import EndpointEncoder
    from stickytoken.measurement.stage import Progress, ProgressCallback


# A later estimate is told if it differs by this share.
_NOTED = 0.02


def load_endpoint(
    model: str,
    loading: EndpointLoadingOptions,
    prompting: PromptingOptions,
    others: dict[str, Any],
    tokenizer_needed: bool,
) -> Encoder:
    """Load a model behind an endpoint that the options name."""
    from stickytoken.encoders import Prompting, load_encoder
    from stickytoken.encoders.endpoint.vocabulary import CandidateVocabulary

    tokenizer: Any = loading.tokenizer
    if tokenizer is None and loading.candidates is None and not tokenizer_needed:
        tokenizer = CandidateVocabulary(())
    passed = {name: value for name, value in others.items() if value not in (None, False)}
    with status(f"asking {model}"):
        encoder: Any = load_encoder(
            model,
            prompt=Prompting(**asdict(prompting)),
            tokenizer=tokenizer,
            candidates=loading.candidates,
            endpoint=loading.options,
            **passed,
        )
    return prepared(encoder)


def load_recorded(model: str, recorded: LoadingRecord, loading: EndpointLoadingOptions) -> Encoder:
    """Load the model behind an endpoint of a run; see `load_endpoint`. Its tokenizer may have moved."""
    from stickytoken.detection.model_files import load_recorded_endpoint

    if recorded.endpoint is not None and (loading.tokenizer or loading.candidates):
        moved = {"tokenizer": loading.tokenizer, "candidates": loading.candidates}
        recorded = recorded.model_copy(update={"endpoint": recorded.endpoint.model_copy(update=moved)})
    with status(f"asking {model}"):
        encoder: Any = load_recorded_endpoint(model, recorded, loading.options)
    return prepared(encoder)


def prepared(encoder: EndpointEncoder) -> Encoder:
    """Report long pauses of an encoder, and anything unusual about its server."""
    encoder.endpoint.waits = lambda reason, seconds: inform(f"waiting {seconds:.0f} s: {reason}")
    found = encoder.capabilities
    facts = [
        f"{found.dimension:,} components",
        f"{found.batch:,} texts per request",
        "reads any length that was tried"
        if found.long == "unknown"
        else f"reads {found.max_length:,} tokens",
        {"truncates": "cuts longer texts", "refuses": "refuses longer texts", "unknown": ""}[found.long],
        "normalised" if found.normalised else "not normalised",
        f"noise {found.noise:.1e}",
    ]
    inform(f"endpoint: {', '.join(fact for fact in facts if fact)}")
    return encoder


@contextmanager
def announced(
    encoder: Encoder | None,
    loading: EndpointLoadingOptions,
    measurement: Callable[[Any, Path], object],
    uncertain: str | None = None,
) -> Iterator[ProgressCallback]:
    """Yield a callback for progress; of an endpoint, show what will be sent before the first request.

    Nothing is shown where everything was answered before. Nobody is asked with ``--yes``, or about a server
    on this machine without a price.
    """
    from stickytoken.encoders.endpoint.encoder import EndpointEncoder

    with progress_bar() as progress:
        if not isinstance(encoder, EndpointEncoder):
            yield progress
            return
        forecast = _Forecast(encoder, loading, progress, measurement, uncertain)
        encoder.endpoint.before_sending = forecast.agree
        yield forecast
        spent = encoder.endpoint.spending
        if spent.requests:
            cost = "" if spent.cost is None else f", cost {spent.cost:.4g}"
            inform(f"sent, with the checks: {spent.requests:,} requests, {spent.tokens:,} tokens{cost}")


class _Forecast:
    """Estimates what a measurement sends, again whenever a stage begins that was planned from results."""

    def __init__(
        self,
        encoder: EndpointEncoder,
        loading: EndpointLoadingOptions,
        progress: ProgressCallback,
        measurement: Callable[[Any, Path], object],
        uncertain: str | None,
    ) -> None:
        self._encoder = encoder
        self._loading = loading
        self._progress = progress
        self._measurement = measurement
        self._uncertain = uncertain
        self._stages: set[str] = set()
        self._total: int | None = None

    def __call__(self, step: Progress) -> None:
        begins = step.stage not in self._stages and step.done == 0
        self._stages.add(step.stage)
        if begins and self._total is not None and len(self._stages) > 1:
            self._look_again()
        self._progress(step)

    def agree(self) -> None:
        """Show the estimate, and go on only if the user wants to."""
        with bars_hidden():
            inform("counting what to send")
            estimate = self._estimate()
            if estimate is not None:
                self._total = estimate.tokens
                inform(f"estimate: {_described(estimate)}")
            local = self._encoder.endpoint.address.is_local and not self._loading.price_per_million
            if self._loading.yes or local:
                return
            if not sys.stdin.isatty():
                raise InputError("nobody can be asked whether to spend this: pass --yes")
            if not typer.confirm("go on?", err=True):
                raise typer.Exit(1)

    def _look_again(self) -> None:
        spent = self._encoder.endpoint.spending.tokens
        estimate = self._estimate()
        if estimate is None or self._total is None or not estimate.requests:
            return
        estimate = estimate.most or estimate  # what it depends on is known now
        total = spent + estimate.tokens
        if abs(total - self._total) > _NOTED * self._total:
            self._total = total
            with bars_hidden():
                inform(f"estimate for the rest: {_described(estimate)}")

    def _estimate(self) -> CostEstimate | None:
        from stickytoken.encoders.endpoint.cost import estimate_cost

        with TemporaryDirectory(prefix="stickytoken-") as folder:
            place = Path(folder) / "rehearsal"
            try:
                return estimate_cost(
                    self._encoder, lambda stand_in: self._measurement(stand_in, place), self._uncertain
                )
            except StickyTokenError as error:
                inform(f"what will be sent cannot be estimated ({error})")
                return None


def _described(estimate: CostEstimate) -> str:
    most = ""
    if estimate.most is not None:
        cost = "" if estimate.most.cost is None else f", cost {estimate.most.cost:.4g}"
        most = f"; at most {estimate.most.tokens:,} tokens{cost}, depending on what is found"
    cost = "price unknown (--price-per-million)" if estimate.cost is None else f"cost {estimate.cost:.4g}"
    before = f"; {estimate.answered:,} texts were answered before" if estimate.answered else ""
    return (
        f"{estimate.requests:,} requests, {estimate.texts:,} texts, {estimate.tokens:,} tokens, "
        f"{cost}, about {duration(estimate.seconds)}{most}{before}"
    )


_OF_ANY_MODEL = tuple(field.name for field in fields(LoadingOptions))


def load(
    model: str, loading: LoadingOptions, prompting: PromptingOptions, *, tokenizer_needed: bool = True
) -> Encoder:
    """Load the model that the options name."""
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
    """
    if run is None:
        return load(source, loading, prompting)
    from stickytoken.detection.model_files import recorded_loading

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
    """Return the name of the model that `load_for` would load, and refuse early one that does not exist."""
    from stickytoken.detection.model_files import recorded_loading
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


def named_token_ids(encoder: Encoder, names: Sequence[str] | None) -> list[int] | None:
    """Find the ids of tokens that `--tokens` names; None where it names none."""
    from stickytoken.corpora.files import TABLE_SUFFIXES
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
    """Read an argument as a token id."""
    try:
        return int(argument)
    except ValueError:
        raise InputError(
            f"{argument!r} is not a token id: pass a number, or leave --ids out to name tokens by text"
        ) from None


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Turn each parameter whose type is a dataclass into one option per field.

    A group of `VerbosityOptions` takes effect while the function runs.
    """
    hints = get_type_hints(function, include_extras=True)
    groups = {name: group for name, hint in hints.items() if (group := _group(hint)) is not None}

    @functools.wraps(function)
    def gathered(**values: Any) -> None:
        with ExitStack() as stack:
            for name, kind in groups.items():
                group = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
                if isinstance(group, VerbosityOptions):
                    stack.enter_context(verbosity(group.level))
                    stack.enter_context(log_lines())
                values[name] = group
            function(**values)

    vars(gathered)["__signature__"] = inspect.Signature(list(_parameters(function, hints, groups)))
    return gathered


def _group(hint: Any) -> type[Any] | None:
    """Return the dataclass of a parameter, or the subclass of it that an annotation names."""
    for kind in reversed((hint, *getattr(hint, "__metadata__", ()))):
        if isinstance(kind, type) and is_dataclass(kind):
            return kind
    return None


def _parameters(
    function: Callable[..., None], hints: dict[str, Any], groups: dict[str, Any]
) -> Iterator[inspect.Parameter]:
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in groups:
            yield parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            continue
        kinds = get_type_hints(groups[name], include_extras=True)
        for field in fields(groups[name]):
            yield inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=kinds[field.name],
            )
