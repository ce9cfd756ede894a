"""Options that several commands share, and functions that load the models, runs and tokens they name."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar, cast

import typer

import stickytoken
from stickytoken.cli import console
from stickytoken.cli.console import Verbosity
from stickytoken.errors import InputError, StickyTokenError
from stickytoken.settings import PositiveCount, descriptions, part_of
from stickytoken.settings.endpoint import EndpointOptions
from stickytoken.settings.loading import LoadingSettings
from stickytoken.settings.prompting import Prompting
from stickytoken.words import counted

if TYPE_CHECKING:
    from stickytoken.detection.run_folder import RunRecord
    from stickytoken.encoders.endpoint.dry_run import CostEstimate
    from stickytoken.encoders.endpoint.encoder import EndpointEncoder
    from stickytoken.encoders.files.spec import EncoderSpec
    from stickytoken.loading import DeferredModel
    from stickytoken.measurement.engine import ProgressCallback
    from stickytoken.measurement.ray_engine import EngineChoice


# Titles of the panels that --help groups the options into.
MODEL = "Model"
TEXTS = "Tokens and texts"
METHOD = "Method"
OUTPUT = "Output"
COMPUTATION = "Computation"
ENDPOINT = "Models behind an endpoint"
LANGUAGE_MODELS = "Language models"
# The order of the panels. Panels that most users need come first, and panels for special models come last.
PANELS = (MODEL, TEXTS, METHOD, OUTPUT, COMPUTATION, ENDPOINT, LANGUAGE_MODELS)


# `typer.Option` for each panel. Without a name, such as ``--text``, an option is named after its parameter.
model_option = partial(typer.Option, rich_help_panel=MODEL)
texts_option = partial(typer.Option, rich_help_panel=TEXTS)
method_option = partial(typer.Option, rich_help_panel=METHOD)
endpoint_option = partial(typer.Option, rich_help_panel=ENDPOINT)
computation_option = partial(typer.Option, rich_help_panel=COMPUTATION)
language_option = partial(typer.Option, rich_help_panel=LANGUAGE_MODELS)
output_option = partial(typer.Option, rich_help_panel=OUTPUT)
# A setting: a rarely needed option, which can only be set with ``--set name=value`` or in a settings file.
setting = partial(typer.Option, hidden=True)

# The options that --help shows for the fields of dataclasses such as `LoadingSettings`, keyed by field. A
# field that is not here is a setting. By passing the name of an option to `@command`, a command makes it a
# setting, too.
FIELD_OPTIONS = {
    "prompt": language_option(),
    "token_prepending": language_option("--token-prepending"),
    "layer": model_option(),
    "revision": model_option(),
    "route": model_option(),
    "truncate_dim": model_option(),
    "device": computation_option(),
    "dtype": computation_option(),
    "max_cost": endpoint_option(),
    "copies": method_option(),
    "insertion": method_option(),
    "strategy": method_option(),
    "verify": method_option("--verify/--no-verify"),
    "seed": method_option(),
    "column": texts_option(),
    "template": texts_option(),
}

# An argument or option whose value has the type in brackets. `TextsOption[Path]`, for example, is one path,
# and --help shows the option in the panel `TEXTS`.
_T = TypeVar("_T")
Argument: TypeAlias = Annotated[_T, typer.Argument()]
TextsOption: TypeAlias = Annotated[_T, texts_option()]
MethodOption: TypeAlias = Annotated[_T, method_option()]
LanguageOption: TypeAlias = Annotated[_T, language_option()]
OutputOption: TypeAlias = Annotated[_T, output_option()]
Setting: TypeAlias = Annotated[_T, setting()]


Format = StrEnum("Format", "TABLE JSON")

_WHERE = "Folder, or name of a model in the hub cache, among the packaged models, or on the hub."

Model: TypeAlias = Annotated[str, typer.Argument(help=_WHERE)]
ModelOrEndpoint: TypeAlias = Annotated[
    str, typer.Argument(help=f"{_WHERE} openai:NAME or URL#NAME for a model behind an endpoint.")
]
RunsModel: TypeAlias = Annotated[
    str | None,
    model_option(
        "--model", help="Where the run's model is now, if it has moved. Default: as recorded in the run."
    ),
]
RunFolder: TypeAlias = Annotated[Path, typer.Argument(help="Run folder.")]
_LOADING = descriptions(*LoadingSettings.__mro__)
Revision: TypeAlias = Annotated[str | None, model_option(help=_LOADING["revision"])]
TrustRemoteCode: TypeAlias = Annotated[
    bool, setting("--trust-remote-code", help=_LOADING["trust_remote_code"])
]
OutputFormat: TypeAlias = Annotated[
    Format, output_option("--format", "-f", help="Print tables, or one JSON document.")
]
FormatChoice: TypeAlias = Annotated[_T, output_option("--format", "-f")]


def _within_tables(limit: int | None) -> int | None:
    return None if limit is None else min(limit, _LONGEST_TABLE)


_LONGEST_TABLE = 2**32 - 1  # the most rows that polars can have in a table
ListLimit: TypeAlias = Annotated[_T, output_option(min=1, callback=_within_tables)]


_NAMED_TOKENS = (
    "A token: its vocabulary string, its text, or # and its id ('#2003'). Or a file of tokens: txt with one "
    "per line, or a table with a column token_id or token. Repeatable."
)
# What each category of vocabulary entries means. The categories are copied from `stickytoken.vocabulary`,
# because that module is too slow to import for --help.
CATEGORIES = {
    "OK": "text can produce it",
    "OK_SPECIAL": "special, and text can produce it",
    "MEANINGLESS": "decodes to white space",
    "UNREACHABLE_SPECIAL": "special, and text cannot produce it",
    "UNDECODEABLE": "not valid UTF-8 by itself",
    "UNREACHABLE_SINGLE_TOKEN": "its text encodes to another token, or the model has no row for it",
    "UNREACHABLE_MULTI_TOKEN": "its text encodes to several tokens",
}


def parser_of(choices: Sequence[str], noun: str) -> Callable[[str], str]:
    """Return the parser of an option whose value is one of some names, in capitals or not.

    Args:
        choices: The names, all in capitals or all in lower case.
        noun: What the error calls such a name.
    """

    def parse(value: str) -> str:
        for name in (value.lower(), value.upper()):
            if name in choices:
                return name
        raise typer.BadParameter(f"{value!r} is not a {noun}: use one of {', '.join(choices)}")

    return parse


def _complete_category(incomplete: str) -> list[str]:
    # The parser takes any mixture of cases, but a shell takes only what begins as the user has typed it.
    is_in_capitals = incomplete == incomplete.upper()
    completed = []
    for name in CATEGORIES:
        if name.startswith(incomplete.upper()):
            rest = name[len(incomplete) :]
            completed.append(incomplete + (rest if is_in_capitals else rest.lower()))
    return completed


Source: TypeAlias = Annotated[
    str, typer.Argument(metavar="RUN|MODEL", help="Run folder, or model as for detect.")
]
TokenArguments: TypeAlias = Annotated[
    list[str], typer.Argument(help="Tokens, as vocabulary strings, texts or #id, such as #101.")
]
AuditFolder: TypeAlias = Annotated[
    Path | None,
    texts_option(
        "--audit",
        help="Folder of an audit. Also search for the tokens that are sticky there.",
    ),
]
AllowedWords: TypeAlias = Annotated[
    Path | None,
    texts_option(
        "--allow", help="File of words and special tokens that are no finding, one on each line (# comments)."
    ),
]
KnownDocuments: TypeAlias = Annotated[
    Path | None,
    texts_option(
        "--known", help="File of documents that are no finding, which scan --set write-known=FILE writes."
    ),
]
Tokens: TypeAlias = Annotated[list[str] | None, texts_option(help=f"{_NAMED_TOKENS} Default: all tokens.")]
RunsTokens: TypeAlias = Annotated[
    list[str] | None, texts_option(help=f"{_NAMED_TOKENS} Default: the sticky tokens of the run.")
]
InCategory: TypeAlias = Annotated[
    str | None,
    texts_option(
        parser=parser_of(tuple(CATEGORIES), "category"),
        autocompletion=_complete_category,
        metavar="CATEGORY",
        help="List tokens of one category, such as OK or UNDECODEABLE.",
    ),
]


# Groups of options. If the type of a command's parameter is one of these classes, the command has one option
# for each field of the class. The settings classes of the library can be used in the same way.


@dataclass(frozen=True)
class ModelOptions(Prompting, LoadingSettings):
    """Options of commands that need the model itself."""


@dataclass(frozen=True)
class AnyModelOptions(Prompting, EndpointOptions, LoadingSettings):
    """Options of commands that need only the vectors of texts, so that the model may be behind an endpoint.

    Attributes:
        tokenizer: The model's tokenizer: a folder, a hub name or tiktoken:NAME.
        candidates: Text file of strings to examine, one per line, for a model whose tokenizer is not public.
        yes: Do not ask for confirmation of the estimated cost.
    """

    tokenizer: Setting[str | None] = None
    candidates: Setting[str | None] = None
    yes: Annotated[bool, endpoint_option("--yes")] = False


Engine = StrEnum("Engine", "LOCAL RAY")


@dataclass(frozen=True)
class EngineOptions:
    """Which processes compute the results.

    Attributes:
        engine: local: compute in this process. ray: compute in workers on a Ray cluster, or on all GPUs of
            this machine.
        ray_address: With engine=ray: host:port of the head node, or auto. Default: the environment variable
            RAY_ADDRESS, or else a new cluster on this machine.
        workers: With engine=ray: number of workers. Default: one per GPU or, without a GPU, one
            per four cores.
    """

    engine: Setting[Engine] = Engine.LOCAL
    ray_address: Setting[str | None] = None
    workers: Setting[PositiveCount | None] = None

    @property
    def choice(self) -> EngineChoice:
        """The value to pass as `engine` to library functions such as `stickytoken.detect`."""
        if self.engine is Engine.RAY:
            from stickytoken.measurement.ray_engine import RayCluster

            return RayCluster(self.ray_address, self.workers)
        ray_options = {"ray-address": self.ray_address, "workers": self.workers}
        for name, value in ray_options.items():
            if value is not None:
                raise typer.BadParameter("it needs --set engine=ray", param_hint=f"--set {name}")
        return "local"


# Options that a model on this machine does not have. The fields of `EndpointOptions` that have a value by
# default can be set in Python only, so they are left out.
_OF_ENDPOINTS = tuple(field.name for field in fields(EndpointOptions) if field.default is None)
_ENDPOINT_ONLY = ("tokenizer", "candidates", *_OF_ENDPOINTS)


def load_later(
    source: str,
    loading: ModelOptions | AnyModelOptions,
    run: RunRecord | None = None,
    moved_to: str | None = None,
    *,
    for_documents: bool = True,
) -> DeferredModel:
    """Return the model that `load` loads, for a function of the library that first checks everything else.

    The arguments and errors are those of `load`.
    """
    return _ModelToLoad.named(source, loading, run, moved_to, for_documents=for_documents).defer()


def load(
    source: str,
    loading: ModelOptions | AnyModelOptions,
    run: RunRecord | None = None,
    moved_to: str | None = None,
) -> stickytoken.Encoder:
    """Load a model, or connect to a model behind an endpoint, and print how its texts are encoded.

    Args:
        source: A model or a run folder, as the user named it.
        loading: The options that the user passed. Those that the user did not pass come from the run.
        run: The record of the run; None if `source` is a model.
        moved_to: Where the model of the run is now, if it has moved.

    Raises:
        InputError: The model is behind an endpoint, and ``loading`` says that the command needs the model
            itself; or it is not, and the user passed an option that only such models have.
    """
    return _ModelToLoad.named(source, loading, run, moved_to).load()


def require_found(
    source: str,
    loading: ModelOptions | AnyModelOptions,
    run: RunRecord | None = None,
    moved_to: str | None = None,
) -> str:
    """Check that `load` will find the model, so that a command fails before any slow work.

    The arguments and errors are those of `load`. The model of an endpoint is not checked.

    Returns:
        The name of the model.
    """
    model = _ModelToLoad.named(source, loading, run, moved_to)
    model.require_found()
    return model.spec.model


@dataclass(frozen=True)
class _ModelToLoad:
    """A model that the user named, and how to load it.

    Attributes:
        spec: The user's options or else those of the run. It has an ``endpoint`` if the model is behind one.
        source: The model or the run, as the user named it.
        run: The record of the run; None if the user named the model.
        for_documents: Whether copies are put into documents. Otherwise, the texts have no role, and a model
            behind an endpoint needs no tokenizer, because the vocabulary does not matter.
    """

    spec: EncoderSpec
    source: str
    run: RunRecord | None
    for_documents: bool

    @classmethod
    def named(
        cls,
        source: str,
        loading: ModelOptions | AnyModelOptions,
        run: RunRecord | None,
        moved_to: str | None,
        *,
        for_documents: bool = True,
    ) -> _ModelToLoad:
        """Return the model that the arguments of `load` name."""
        from stickytoken.encoders.endpoint import names_endpoint
        from stickytoken.encoders.files.spec import EncoderSpec

        model = source if run is None else moved_to or run.model.location
        settings = asdict(part_of(loading, LoadingSettings))
        spec = EncoderSpec(model=model, prompting=part_of(loading, Prompting), **settings)
        if not isinstance(loading, AnyModelOptions):
            if names_endpoint(model):
                raise InputError(
                    f"this command needs the model itself, and {model} is behind an endpoint, which gives "
                    "only vectors of texts: pass a model that is on this machine"
                )
        elif names_endpoint(model):
            spec = replace(
                spec,
                tokenizer=loading.tokenizer,
                candidates=loading.candidates,
                endpoint=part_of(loading, EndpointOptions),
            )
            has_vocabulary = loading.tokenizer is not None or loading.candidates is not None
            if not for_documents and not has_vocabulary:
                from stickytoken.encoders.endpoint.vocabulary import NO_VOCABULARY

                spec = replace(spec, tokenizer=NO_VOCABULARY)
        else:
            from stickytoken.loading import refuse_endpoint_options

            refuse_endpoint_options(model, loading, _ENDPOINT_ONLY)
        if run is None:
            return cls(spec, source, None, for_documents)
        from stickytoken.detection.run import complete_spec

        # With what the run records and the user has not passed.
        return cls(complete_spec(run, spec), source, run, for_documents)

    def require_found(self) -> None:
        """Raise an error if the model is on this machine or the hub, but not found there."""
        from stickytoken.loading import require_model

        if self.spec.endpoint is None:
            with self._naming_moved_model_in_errors():
                require_model(self.spec.model, self.spec.revision)

    def defer(self) -> DeferredModel:
        from stickytoken.loading import DeferredModel

        return DeferredModel(self.load, reads_texts_only=self.spec.endpoint is not None)

    @console.bars_hidden()  # a spinner takes the place of the bars of the library, if it shows any
    def load(self) -> stickytoken.Encoder:
        """Load the model, or connect to its endpoint, and print how its texts are encoded."""
        silence_transformers()
        name = self.spec.model
        verb = "loading" if self.spec.endpoint is None else "asking"
        with (
            self._naming_moved_model_in_errors(),
            console.status(f"{verb} {name}"),
            garbage_collector_paused(),
        ):
            from stickytoken.encoders.roles import Role, in_role
            from stickytoken.loading import load_from_spec

            encoder = load_from_spec(self.spec)
            console.raise_if_interrupted()
            if self.for_documents:
                encoder = in_role(encoder, Role.DOCUMENT)
        if self.spec.endpoint is None:
            _announce_model(encoder, name, self.spec.revision)
            _tell_layer(encoder, self.run)
        else:
            _announce_server(cast("EndpointEncoder", encoder))
        if self.for_documents:
            tell_prompts(encoder)
        return encoder

    def _naming_moved_model_in_errors(self) -> AbstractContextManager[None]:
        # An error names the model. One that comes from a run may have moved since, so that a user must know
        # which run it comes from, and what to pass.
        if self.run is None:
            return nullcontext()
        from stickytoken.detection.run import naming_model_in_errors

        run_as_named_by_user = self.source
        return naming_model_in_errors(run_as_named_by_user, "--model")


def tell_prompts(encoder: stickytoken.Encoder) -> None:
    """Print what is put before documents and queries, if anything is."""
    from stickytoken.encoders.roles import describe_prompts

    line = describe_prompts(encoder)
    if line is not None:
        console.inform(line)


def _announce_model(encoder: stickytoken.Encoder, model: str, revision: str | None) -> None:
    from stickytoken.encoders.files.resolution import resolve_model
    from stickytoken.encoders.protocol import capabilities_of

    route = capabilities_of(encoder).route_in_words
    if route is not None:
        console.inform(f"route: {route}")
    if console.current_verbosity() is Verbosity.VERBOSE:
        source = resolve_model(model, revision)
        identity = encoder.identify()
        length = "any length" if identity.max_length is None else f"at most {identity.max_length:,} tokens"
        console.inform(f"model: {source.location} ({source.origin}), weights {identity.weights[:12]}")
        vectors = f"inputs of {length}, vectors of {identity.dimension:,} components"
        console.inform(f"computes: on {encoder.device} in {identity.dtype}, {vectors}")


def _tell_layer(encoder: stickytoken.Encoder, run: RunRecord | None) -> None:
    """Print which layer a prompted language model uses, and who chose it: for a run, who chose it there."""
    from stickytoken.language_models.encoder import CausalPromptEncoder

    if not isinstance(encoder, CausalPromptEncoder) or encoder.spec is None:
        return
    choice: str | None = encoder.spec.layer_choice
    recorded = None if run is None else run.model.loading
    if recorded is not None and recorded.prompting.layer == encoder.spec.prompting.layer:
        choice = recorded.layer_choice
    console.inform(f"layer: {encoder.prompted.layers_run} of {encoder.layers} ({choice})")


def _announce_server(encoder: EndpointEncoder) -> None:
    encoder.session.waits = lambda reason, seconds: console.inform(f"waiting {seconds:.0f} s: {reason}")
    server = encoder.server
    console.inform(f"endpoint: {server.dimension:,} components, noise {server.noise:.1e}")


@contextmanager
def cost_announced(
    encoder: DeferredModel,
    loading: AnyModelOptions,
    rehearse: Callable[[Any, Path], object],
) -> Iterator[ProgressCallback]:
    """Yield a progress callback. For a model behind an endpoint, also print an estimate of the cost.

    The estimate is printed before the first request, and the user is asked to confirm it.

    Args:
        encoder: The encoder, which is loaded within the ``with`` block.
        loading: The options that the user passed.
        rehearse: Function that does the work of the command with an encoder and a folder. To estimate the
            cost, this function is called with a stand-in for the encoder, which only counts texts
            (`encoders.endpoint.dry_run.DryRun`), and with a temporary folder.
    """
    from stickytoken.encoders.endpoint.encoder import EndpointEncoder

    def ask_before_sending(loaded: stickytoken.Encoder) -> None:
        if isinstance(loaded, EndpointEncoder):
            loaded.session.before_sending = partial(_confirm_cost, loaded, loading, rehearse)

    encoder.when_loaded.append(ask_before_sending)
    with console.progress_bar() as progress:
        try:
            yield progress
            if isinstance(encoder.loaded, EndpointEncoder):
                # A measurement does this itself, but not every command makes one.
                encoder.loaded.confirm_answers()
        finally:  # what a command has sent before it failed costs as much
            if isinstance(encoder.loaded, EndpointEncoder):
                _print_spending(encoder.loaded)


def _print_spending(endpoint: EndpointEncoder) -> None:
    sent = endpoint.spending
    if sent.requests:
        counts = f"{sent.requests:,} requests, {sent.tokens:,} tokens{_cost_phrase(sent.cost)}"
        console.inform(f"sent, with the checks: {counts}")
    _print_refused_texts(endpoint.refused)


def _confirm_cost(
    endpoint: EndpointEncoder, loading: AnyModelOptions, rehearse: Callable[[Any, Path], object]
) -> None:
    """Print an estimate of the cost of a command, and ask the user whether to go on; see `cost_announced`.

    Raises:
        InputError: The user cannot be asked, because stdin is not a terminal.
    """
    from stickytoken.encoders.endpoint.dry_run import estimate_cost

    with console.bars_hidden():
        console.inform("counting what to send")
        with TemporaryDirectory(prefix="stickytoken-") as folder:
            temporary = Path(folder) / "rehearsal"
            try:
                estimate = estimate_cost(endpoint, lambda stand_in: rehearse(stand_in, temporary))
                estimate_line = f"estimate: {_estimate_line(estimate)}"
            except StickyTokenError as error:
                estimate_line = f"the cost cannot be estimated ({error})"
        console.inform(estimate_line)
        is_free = endpoint.address.is_local and not loading.price_per_million
        if loading.yes or is_free:
            return
        if not sys.stdin.isatty():  # nobody is there to answer
            raise InputError("cannot ask for confirmation, because stdin is not a terminal: pass --yes")
        if console.current_verbosity() is Verbosity.QUIET:
            console.print_error(estimate_line)  # nobody can answer without it
        if not typer.confirm("go on?", err=True):
            raise typer.Exit(1)


# Maximum number of texts without a vector to list.
_REFUSED_SHOWN = 5


def _print_refused_texts(refused: Mapping[str, str]) -> None:
    from stickytoken.encoders.protocol import quote_text

    if not refused:
        return
    console.inform(f"the server returned no vector for {counted(len(refused), 'text')}:")
    for text, reason in islice(refused.items(), _REFUSED_SHOWN):
        console.inform(f"  {quote_text(text)}: {reason}")
    if len(refused) > _REFUSED_SHOWN:
        console.inform(f"  and {len(refused) - _REFUSED_SHOWN:,} more")


def _cost_phrase(cost: float | None, unknown: str = "") -> str:
    return unknown if cost is None else f", cost {cost:.4g}"


def _estimate_line(estimate: CostEstimate) -> str:
    price = _cost_phrase(estimate.cost, ", price unknown (--set price-per-million=PRICE)")
    counts = f"{estimate.requests:,} requests, {estimate.texts:,} texts, {estimate.tokens:,} tokens"
    phrases = [f"{counts}{price}, about {console.duration(estimate.seconds)}"]
    upper = estimate.most
    if upper is not None:  # how much is sent depends on the answers
        phrases.append(
            f"at most {upper.tokens:,} tokens{_cost_phrase(upper.cost)}, depending on what is found"
        )
    if estimate.answered:
        phrases.append(f"{estimate.answered:,} texts were answered before")
    return "; ".join(phrases)


def silence_transformers() -> None:
    """Make transformers print only errors or, with --verbose, only errors and warnings."""
    verbose = console.current_verbosity() is Verbosity.VERBOSE
    # transformers reads this variable while it is imported, before the calls below take effect.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "warning" if verbose else "error")
    from transformers.utils import logging

    if verbose:
        logging.set_verbosity_warning()  # type: ignore[no-untyped-call]
    else:
        logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def garbage_collector_paused() -> Iterator[None]:
    """Pause the garbage collector, which would take a third of the time for loading libraries and weights."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            # Later garbage collections skip the objects that were loaded, nearly all of which stay alive.
            # When Python exits, the objects are collected again. Otherwise some libraries, such as triton,
            # would report them as leaks.
            gc.freeze()
            atexit.register(gc.unfreeze)
            gc.enable()


def open_source(
    source: str, loading: ModelOptions | AnyModelOptions, moved_to: str | None
) -> tuple[stickytoken.Run | None, DeferredModel]:
    """Return the run that `source` names, or None if it names a model, and the model, which is loaded later.

    Raises:
        InputError: The model is not found, or `source` names one although the option --model was passed.
    """
    from stickytoken.detection.run import is_run

    run = stickytoken.open_run(source) if is_run(source) else None
    if run is None and moved_to is not None:
        raise InputError(f"--model needs a run folder, but {source} is not one: leave --model out")
    model = _ModelToLoad.named(source, loading, None if run is None else run.record, moved_to)
    model.require_found()
    return run, model.defer()


def words_of_audit(folder: Path | None, run_identity: str | None) -> tuple[str, ...]:
    """Return the texts of the tokens that are sticky in the audit in a folder; empty if the folder is None.

    Raises:
        InputError: The audit belongs to a different run from `run_identity`.
    """
    if folder is None:
        return ()
    from stickytoken.audits import open_audit

    audit = open_audit(folder)
    # If `run_identity` is None, it is not known to which run the audit must belong.
    if run_identity is not None and audit.record.run_identity != run_identity:
        raise InputError(f"the audit in {folder} is of another run, {audit.record.run}: pass one of this run")
    return audit.words


def parse_tokens(names: Sequence[str]) -> list[int | str]:
    """Return the ids of the names that are written as ``#id``, and all others as they are."""
    from stickytoken.detection.naming import parse_token

    return [parse_token(name) for name in names]


def parse_tokens_or_files(names: Sequence[str] | None) -> list[int | str | Path] | None:
    """Return the values of --tokens, as paths if they have the extension of a file; None without values."""
    from stickytoken.data.rows import TABLE_SUFFIXES

    if not names:
        return None
    tokens: list[int | str | Path] = []
    for name in names:
        path = Path(name)  # not expanded: a token may begin with ~
        if path.suffix.lower() in (".txt", *TABLE_SUFFIXES):
            tokens.append(path)
        else:
            tokens += parse_tokens([name])
    return tokens
