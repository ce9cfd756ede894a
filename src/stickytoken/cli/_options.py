"""Options that several commands share, and what they name: models, runs and tokens."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import typer

import stickytoken
from stickytoken.cli import console
from stickytoken.cli.console import Verbosity
from stickytoken.errors import InputError, ModelError, StickyTokenError

if TYPE_CHECKING:
    from stickytoken.detection.run_folder import RunRecord
    from stickytoken.encoders.endpoint.encoder import CostEstimate, EndpointEncoder
    from stickytoken.measurement.engine import Progress, ProgressCallback
    from stickytoken.measurement.ray_engine import EngineChoice


# The panels of --help, in this order. What an option means stands in the docstring of its command or group.
PANELS = (
    MODEL := "Model",
    TEXTS := "Tokens and texts",
    METHOD := "Method",
    COMPUTATION := "Computation",
    ENDPOINT := "Models behind an endpoint",
    LANGUAGE_MODELS := "Language models",
    OUTPUT := "Output",
)

model_option = partial(typer.Option, rich_help_panel=MODEL)
texts_option = partial(typer.Option, rich_help_panel=TEXTS)
method_option = partial(typer.Option, rich_help_panel=METHOD)
endpoint_option = partial(typer.Option, rich_help_panel=ENDPOINT)
computation_option = partial(typer.Option, rich_help_panel=COMPUTATION)
language_option = partial(typer.Option, rich_help_panel=LANGUAGE_MODELS)
output_option = partial(typer.Option, rich_help_panel=OUTPUT)
# An option that is rarely needed: `--set name=value` reaches it, see `stickytoken.cli._command`.
setting = partial(typer.Option, hidden=True)

_T = TypeVar("_T")
Argument: TypeAlias = Annotated[_T, typer.Argument()]
Texts: TypeAlias = Annotated[_T, texts_option()]
Method: TypeAlias = Annotated[_T, method_option()]
Computation: TypeAlias = Annotated[_T, computation_option()]
Language: TypeAlias = Annotated[_T, language_option()]
Output: TypeAlias = Annotated[_T, output_option()]
Setting: TypeAlias = Annotated[_T, setting()]


Format = StrEnum("Format", "TABLE JSON")

TableFormat = StrEnum("TableFormat", "TABLE JSON CSV")

_WHERE = "Folder, or name: looked up in the hub cache, among packaged models, then on the hub."

Model: TypeAlias = Annotated[str, typer.Argument(help=_WHERE)]
ModelOrEndpoint: TypeAlias = Annotated[
    str, typer.Argument(help=f"{_WHERE} openai:NAME or URL#NAME: behind an endpoint.")
]
RunsModel: TypeAlias = Annotated[
    str | None,
    model_option("--model", help="Model of the run, if it has moved. Default: the model that the run names."),
]
RunFolder: TypeAlias = Annotated[Path, typer.Argument(help="Run folder.")]
Revision: TypeAlias = Annotated[str | None, model_option(help="Branch, tag or commit on the hub.")]
TrustRemoteCode: TypeAlias = Annotated[
    bool, setting("--trust-remote-code", help="Run Python code from the model's repository.")
]
OutputFormat: TypeAlias = Annotated[
    Format, output_option("--format", "-f", help="Print tables, or one JSON document.")
]
FormatChoice: TypeAlias = Annotated[_T, output_option("--format", "-f")]
ListLimit: TypeAlias = Annotated[_T, output_option(min=1)]


_NAMED_TOKENS = (
    "Token, by vocabulary string, text, or # and its id ('#2003'), or a file: txt with one token per line, "
    "or a table with a column token_id or token. Repeatable."
)
# The categories of vocabulary entries; `stickytoken.vocabulary` imports more than --help may load.
CATEGORIES = {
    "OK": "text can produce it",
    "OK_SPECIAL": "special, and text can produce it",
    "MEANINGLESS": "decodes to white space",
    "UNREACHABLE_SPECIAL": "special, and text cannot produce it",
    "UNDECODEABLE": "not valid UTF-8 by itself",
    "UNREACHABLE_SINGLE_TOKEN": "its text encodes to another token, or the model has no row for it",
    "UNREACHABLE_MULTI_TOKEN": "its text encodes to several tokens",
}


def _category(name: str) -> str:
    if name.upper() not in CATEGORIES:
        raise typer.BadParameter(f"{name!r} is not a category: use one of {', '.join(CATEGORIES)}")
    return name.upper()


Source: TypeAlias = Annotated[
    str, typer.Argument(metavar="RUN|MODEL", help="Run folder, or model as for detect.")
]
TokenArguments: TypeAlias = Annotated[list[str], typer.Argument(help="Tokens, by vocabulary string or text.")]
Ids: TypeAlias = Annotated[bool, texts_option("--ids", help="Read the arguments as token ids.")]
SentencesColumn: TypeAlias = Annotated[
    str | None, texts_option(help="Column of --sentences to read. Default: found by name.")
]
TextColumn: TypeAlias = Annotated[
    str | None, texts_option(help="Column with the text. Default: found by name.")
]
Tokens: TypeAlias = Annotated[list[str] | None, texts_option(help=f"{_NAMED_TOKENS} Default: all tokens.")]
RunsTokens: TypeAlias = Annotated[
    list[str] | None, texts_option(help=f"{_NAMED_TOKENS} Default: the sticky tokens of the run.")
]
InCategory: TypeAlias = Annotated[
    str | None,
    texts_option(
        parser=_category,
        # In the case in which the user began one; typer offers those that fit.
        autocompletion=lambda incomplete: [
            name.lower() if incomplete.islower() else name for name in CATEGORIES
        ],
        metavar="CATEGORY",
        help="List tokens of one category, such as OK or UNDECODEABLE.",
    ),
]
CopiesInText: TypeAlias = Annotated[int, method_option(min=1, help="Number of copies of a token in a text.")]
IntervalConfidence: TypeAlias = Annotated[float, method_option(help="Coverage of the intervals.")]
AnySeed: TypeAlias = Annotated[int, method_option(min=0, help="Seed of all random sampling.")]


# Groups of options: a parameter of a command that is annotated with one has an option for every field.


@dataclass(frozen=True)
class LoadingOptions:
    """Where a model comes from and where it computes.

    Attributes:
        device: cpu, cuda, cuda:1, mps. Default: the best one available.
        route: How an asymmetric model reads texts: query, document, or another of its routes. Default: the
            model's own.
        dtype: Precision: float32, float16, bfloat16, or tf32 on CUDA. Default: the run's, else float32.
        token_budget: Tokens in a batch. Default: chosen by device.
        packed_layers: Pack the weights of linear layers on a CPU. Default: if that is faster on this machine,
            as measured once for each model.
        truncate_dim: Read only so many first components of every vector. Default: all.
    """

    revision: Revision = None
    trust_remote_code: TrustRemoteCode = False
    route: Annotated[str | None, model_option()] = None
    device: Computation[str | None] = None
    dtype: Computation[str | None] = None
    token_budget: Annotated[int | None, setting(min=1)] = None
    packed_layers: Annotated[bool | None, setting("--packed-layers/--no-packed-layers")] = None
    truncate_dim: Annotated[int | None, model_option(min=1)] = None


@dataclass(frozen=True)
class EndpointLoadingOptions(LoadingOptions):
    """For a model that may be behind an endpoint, too.

    Attributes:
        tokenizer: The model's tokenizer: a folder, a hub name, tiktoken:NAME or a .tiktoken file.
        candidates: Instead of an unpublished tokenizer: a text file with one string to examine per line.
        request_dimensions: Number of vector components to request. Default: the model's own.
        key_variable: Environment variable with the API key. Default: OPENAI_API_KEY for openai:NAME, else
            STICKYTOKEN_API_KEY.
        price_per_million: Price of a million tokens, for the estimate and --max-cost.
        max_cost: Stop before this command spends more. Needs --set price-per-million=PRICE; all answers are
            kept.
        yes: Do not ask before spending the estimated cost.
    """

    tokenizer: Setting[str | None] = None
    candidates: Setting[str | None] = None
    request_dimensions: Annotated[int | None, setting(min=1)] = None
    key_variable: Setting[str | None] = None
    price_per_million: Annotated[float | None, setting(min=0)] = None
    max_cost: Annotated[float | None, endpoint_option(min=0)] = None
    yes: Annotated[bool, endpoint_option("--yes")] = False

    @property
    def options(self) -> stickytoken.EndpointOptions:
        kept = {each: getattr(self, each) for each in ("key_variable", "price_per_million", "max_cost")}
        return stickytoken.EndpointOptions(dimensions=self.request_dimensions, **kept)


@dataclass(frozen=True)
class PromptingOptions:
    """What a model reads around a text.

    Attributes:
        prompt: Text in front of every input. Default: the model's own. For a plain language model: prompteol,
            cot, ke, ck, metaeol, echo, or a text with {sentence}.
        prompt_name: Name of one of the model's own prompts.
        token_prepending: With a prompt: let every token of the sentence see the whole sentence (Fu et al.,
            ACL 2025).
        start: First layer that token prepending overwrites, counted from 0. Default: the prompt's preset.
        exit: First layer after start that it leaves alone. Default: the prompt's preset.
        layer: Read the vectors after so many layers. Default: the last one; for a language model with a
            prompt, that of a published preset, and -1 is the last.
        contrast: With a prompt: subtract what an auxiliary prompt attends to (Cheng et al., ACL 2025).
        contrast_layer: Layer whose attention contrast changes, counted from 0. Default: the prompt's preset.
        contrast_strength: Factor of what contrast leaves, from 0. Default: the prompt's preset.
        contrast_rule: What contrast puts in its place: scaled, norm, scaled_norm or sub_head_norm. Default:
            scaled.
    """

    prompt: Language[str | None] = None
    prompt_name: Setting[str | None] = None
    token_prepending: Annotated[bool, language_option("--token-prepending")] = False
    start: Setting[int | None] = None
    exit: Setting[int | None] = None
    layer: Annotated[int | None, model_option()] = None
    contrast: Annotated[bool, language_option("--contrast")] = False
    contrast_layer: Setting[int | None] = None
    contrast_strength: Setting[float | None] = None
    contrast_rule: Setting[str | None] = None

    @property
    def prompting(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(PromptingOptions)}


@dataclass(frozen=True)
class ModelOptions(PromptingOptions, LoadingOptions):
    """For commands that need the model itself."""


@dataclass(frozen=True)
class AnyModelOptions(PromptingOptions, EndpointLoadingOptions):
    """For commands that only need vectors of texts."""


Engine = StrEnum("Engine", "LOCAL RAY")


@dataclass(frozen=True)
class EngineOptions:
    """Where shards are computed.

    Attributes:
        engine: local: this process. ray: workers on a Ray cluster, or on all GPUs of this machine.
        ray_address: With engine=ray: host:port of the head node, or auto. Default: RAY_ADDRESS, else Ray is
            started on this machine.
        workers: With engine=ray: number of workers. Default: one per GPU, or one per four cores.
    """

    engine: Setting[Engine] = Engine.LOCAL
    ray_address: Setting[str | None] = None
    workers: Annotated[int | None, setting(min=1)] = None

    @property
    def choice(self) -> EngineChoice:
        if self.engine is Engine.RAY:
            from stickytoken.measurement.ray_engine import RayCluster

            return RayCluster(self.ray_address, self.workers)
        for name, value in (("ray-address", self.ray_address), ("workers", self.workers)):
            if value is not None:
                raise typer.BadParameter("it needs --set engine=ray", param_hint=f"--set {name}")
        return "local"


def load(
    model: str, loading: ModelOptions | AnyModelOptions, *, tokenizer_needed: bool = True
) -> stickytoken.Encoder:
    at_endpoint = _names_endpoint(model, loading)
    silence_transformers()
    options: dict[str, Any] = {each.name: getattr(loading, each.name) for each in fields(LoadingOptions)}
    if isinstance(loading, AnyModelOptions):
        if at_endpoint:
            from stickytoken.encoders import Prompting, load_encoder
            from stickytoken.encoders.endpoint.vocabulary import CandidateVocabulary

            options = {name: value for name, value in options.items() if value not in (None, False)}
            options |= {"tokenizer": loading.tokenizer, "candidates": loading.candidates}
            if not tokenizer_needed and loading.tokenizer is None and loading.candidates is None:
                options["tokenizer"] = CandidateVocabulary(())
            options |= {"endpoint": loading.options, "prompt": Prompting(**loading.prompting)}
            with console.status(f"asking {model}"):
                connected: Any = load_encoder(model, **options)
            return _told_of_server(connected)
        rare = ("tokenizer", "candidates", "request_dimensions", "key_variable", "price_per_million")
        given = [f"--set {name.replace('_', '-')}" for name in rare if getattr(loading, name) is not None]
        if given := [*given, *(["--max-cost"] if loading.max_cost is not None else [])]:
            raise InputError(
                f"{', '.join(given)} apply only to models behind an endpoint, and {model} is not: leave "
                "them out"
            )
    options["dtype"] = loading.dtype or "float32"
    with console.status(f"loading {model}"), collector_paused():
        from stickytoken.encoders import Prompting, load_encoder

        encoder: stickytoken.Encoder = load_encoder(model, prompt=Prompting(**loading.prompting), **options)
    _tell_route(encoder)
    if console.current_verbosity() is Verbosity.VERBOSE:
        from stickytoken.encoders.loading.resolution import resolve_model

        source, identity = resolve_model(model, loading.revision), encoder.identity
        longest = "any length" if identity.max_length is None else f"at most {identity.max_length:,} tokens"
        console.inform(f"model: {source.location} ({source.origin}), weights {identity.weights[:12]}")
        vectors = f"inputs of {longest}, vectors of {identity.dimension:,} components"
        console.inform(f"computes: on {encoder.device} in {identity.dtype}, {vectors}")
    return encoder


def _told_of_server(encoder: EndpointEncoder) -> stickytoken.Encoder:
    encoder.waits = lambda reason, seconds: console.inform(f"waiting {seconds:.0f} s: {reason}")
    server = encoder.capabilities
    length = "reads any length that was tried"
    if server.long != "unknown":
        verb = {"truncates": "cuts", "refuses": "refuses"}[server.long]
        length = f"reads {server.max_length:,} tokens, {verb} longer texts"
    sizes = f"{server.dimension:,} components, {server.batch:,} texts per request, {length}"
    normalised = "normalised" if server.normalised else "not normalised"
    console.inform(f"endpoint: {sizes}, {normalised}, noise {server.noise:.1e}")
    return encoder


def _names_endpoint(model: str, loading: LoadingOptions) -> bool:
    from stickytoken.encoders.endpoint import names_endpoint

    if names_endpoint(model) and not isinstance(loading, EndpointLoadingOptions):
        raise InputError(
            f"this command needs the model itself, and {model} is behind an endpoint, which gives only "
            "vectors of texts: pass a model that is on this machine"
        )
    return names_endpoint(model)


def load_for(
    source: str, run: RunRecord | None, loading: ModelOptions | AnyModelOptions, model: str | None = None
) -> stickytoken.Encoder:
    """Load the model that the source names, or that of a run: what the user leaves open is as in the run."""
    if run is None:
        return load(source, loading)
    from stickytoken.detection.run import load_recorded_endpoint, recorded_loading

    recorded = recorded_loading(run)
    name = model or run.model.name
    with _named_by(source):
        if recorded.endpoint is not None and isinstance(loading, EndpointLoadingOptions):
            if loading.tokenizer or loading.candidates:
                moved = {"tokenizer": loading.tokenizer, "candidates": loading.candidates}
                endpoint = recorded.endpoint.model_copy(update=moved)
                recorded = recorded.model_copy(update={"endpoint": endpoint})
            if loading.truncate_dim is not None:
                recorded = recorded.model_copy(update={"truncate_dim": loading.truncate_dim})
            with console.status(f"asking {name}"):
                encoder: Any = load_recorded_endpoint(name, recorded, loading.options)
            return _told_of_server(encoder)
        if PromptingOptions(**loading.prompting) == PromptingOptions():
            loading = replace(loading, **recorded.prompting())
        loading = replace(
            loading,
            dtype=loading.dtype or recorded.dtype,
            revision=loading.revision or recorded.revision,
            truncate_dim=loading.truncate_dim or recorded.truncate_dim,
            route=loading.route or recorded.route,
        )
        return load(name, loading)


def require_found(
    source: str, run: RunRecord | None, loading: LoadingOptions, model: str | None = None
) -> str:
    from stickytoken.detection.run import recorded_loading
    from stickytoken.encoders.loading import require_model

    name = source if run is None else model or run.model.name
    if _names_endpoint(name, loading):
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


def _tell_route(encoder: stickytoken.Encoder) -> None:
    from stickytoken.encoders.loading import route_of

    route = route_of(encoder, described=True)
    if route is not None:
        console.inform(f"route: {route}")


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
    """Yield a callback for progress; of an endpoint, show what each stage will send before it begins."""
    from stickytoken.encoders.endpoint.encoder import EndpointEncoder, estimate_cost

    with console.progress_bar() as progress:
        if not isinstance(encoder, EndpointEncoder):
            yield progress
            return
        endpoint, stages = encoder, set[str]()
        expected: int | None = None

        def estimated() -> CostEstimate | None:
            with TemporaryDirectory(prefix="stickytoken-") as folder:
                place = Path(folder) / "rehearsal"
                try:
                    return estimate_cost(endpoint, lambda stand_in: measurement(stand_in, place), uncertain)
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
            begins = stages and step.stage not in stages and step.done == 0
            stages.add(step.stage)
            if begins and expected is not None:
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
        _tell_refused(endpoint.refused)


# Texts without a vector that are named on the screen.
_REFUSED_SHOWN = 5


def _tell_refused(refused: Mapping[str, str]) -> None:
    """Name the texts for which the server gave no vector, and why."""
    from stickytoken.encoders.protocol import shown

    if not refused:
        return
    texts = "1 text" if len(refused) == 1 else f"{len(refused):,} texts"
    console.inform(f"the server gave no vector for {texts}:")
    for text, reason in islice(refused.items(), _REFUSED_SHOWN):
        console.inform(f"  {shown(text)}: {reason}")
    if len(refused) > _REFUSED_SHOWN:
        console.inform(f"  and {len(refused) - _REFUSED_SHOWN:,} more")


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
    verbose = console.current_verbosity() is Verbosity.VERBOSE
    # transformers reads the variable when it is imported, before the calls below can have an effect.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "warning" if verbose else "error")
    from transformers.utils import logging

    (logging.set_verbosity_warning if verbose else logging.set_verbosity_error)()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector, which takes a third of the time of loading libraries and weights."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()  # nearly all objects stay, so later collections skip them
            gc.enable()


def run_in(source: str, model: str | None) -> stickytoken.Run | None:
    from stickytoken.detection.run import is_run

    if is_run(source):
        return stickytoken.open_run(source)
    if model is not None:
        raise InputError(f"--model needs a run folder, and {source} is not one: leave --model out")
    return None


def named_token_ids(encoder: stickytoken.Encoder, names: Sequence[str] | None) -> list[int] | None:
    from stickytoken.data.tables import TABLE_SUFFIXES
    from stickytoken.detection import find_named, token_ids_from_file
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
