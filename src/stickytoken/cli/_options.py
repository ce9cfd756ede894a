"""Options that several commands share: models, prompts, engines, and what is printed and written."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import typer

from stickytoken.cli.console import Verbosity

if TYPE_CHECKING:
    from stickytoken.encoders.endpoint.options import EndpointOptions
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

_FOUND = "Folder, or name: looked up in the hub cache, among packaged models, then on the hub."

Model: TypeAlias = Annotated[str, typer.Argument(help=_FOUND)]
ModelOrEndpoint: TypeAlias = Annotated[
    str, typer.Argument(help=f"{_FOUND} openai:NAME or URL#NAME: behind an endpoint.")
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


def _categories() -> list[str]:
    from stickytoken.vocabulary import Category

    return [category.value for category in Category]


def _completed(incomplete: str) -> list[str]:
    """List the categories in the case in which the user began one; typer offers those that fit."""
    return [name.lower() if incomplete.islower() else name for name in _categories()]


def _category(name: str) -> str:
    if name.upper() not in _categories():
        raise typer.BadParameter(f"{name!r} is not a category: use one of {', '.join(_categories())}")
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
        autocompletion=_completed,
        metavar="CATEGORY",
        help="List tokens of one category, such as OK or UNDECODEABLE.",
    ),
]
CopiesInText: TypeAlias = Annotated[int, method_option(min=1, help="Number of copies of a token in a text.")]
IntervalConfidence: TypeAlias = Annotated[float, method_option(help="Coverage of the intervals.")]
AnySeed: TypeAlias = Annotated[int, method_option(min=0, help="Seed of all random sampling.")]


@dataclass(frozen=True, slots=True)
class VerbosityOptions:
    """How much a command prints besides its results.

    Attributes:
        quiet: Print results and errors only.
        verbose: Also print where the model was found, how it computes, and the logs of libraries.
    """

    quiet: Annotated[bool, output_option("--quiet", "-q")] = False
    verbose: Annotated[bool, output_option("--verbose", "-v")] = False

    @property
    def level(self) -> Verbosity:
        if self.quiet and self.verbose:
            raise typer.BadParameter("use one of --quiet and --verbose", param_hint="--quiet")
        if self.quiet:
            return Verbosity.QUIET
        return Verbosity.VERBOSE if self.verbose else Verbosity.NORMAL


@dataclass(frozen=True, slots=True)
class LoadingOptions:
    """Where a model comes from and where it computes, for commands that need the model itself.

    Attributes:
        device: cpu, cuda, cuda:1, mps. Default: the best one available.
        dtype: Precision: float32, float16, bfloat16, or tf32 on CUDA. Default: the run's, else float32.
        token_budget: Tokens in a batch. Default: chosen by device.
        packed_layers: Pack the weights of linear layers on a CPU. Default: if that is faster on this machine,
            as measured once for each model.
    """

    revision: Revision = None
    trust_remote_code: TrustRemoteCode = False
    device: Computation[str | None] = None
    dtype: Computation[str | None] = None
    token_budget: Annotated[int | None, setting(min=1)] = None
    packed_layers: Annotated[bool | None, setting("--packed-layers/--no-packed-layers")] = None


@dataclass(frozen=True, slots=True)
class EndpointLoadingOptions(LoadingOptions):
    """The same for commands that only need vectors of texts: the model may be behind an endpoint.

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
    def options(self) -> EndpointOptions:
        from stickytoken.encoders.endpoint.options import EndpointOptions

        return EndpointOptions(
            key_variable=self.key_variable,
            dimensions=self.request_dimensions,
            price_per_million=self.price_per_million,
            max_cost=self.max_cost,
        )

    @property
    def given(self) -> list[str]:
        settings = ("tokenizer", "candidates", "request_dimensions", "key_variable", "price_per_million")
        found = [f"--set {name.replace('_', '-')}" for name in settings if getattr(self, name) is not None]
        return [*found, "--max-cost"] if self.max_cost is not None else found


Start: TypeAlias = Annotated[
    int | None,
    setting(
        help="First layer that token prepending overwrites, counted from 0. Default: the prompt's preset."
    ),
]
ContrastLayer: TypeAlias = Annotated[
    int | None,
    setting(help="Layer whose attention contrast changes, counted from 0. Default: the prompt's preset."),
]
ContrastStrength: TypeAlias = Annotated[
    float | None, setting(help="Factor of what contrast leaves, from 0. Default: the prompt's preset.")
]
ContrastRule: TypeAlias = Annotated[
    str | None,
    setting(
        help="What contrast puts in its place: scaled, norm, scaled_norm or sub_head_norm. Default: scaled."
    ),
]


@dataclass(frozen=True, slots=True)
class PromptingOptions:
    """What a model reads around a text.

    Attributes:
        prompt: Text in front of every input. Default: the model's own. For a plain language model: prompteol,
            cot, ke, ck, metaeol, echo, or a text with {sentence}.
        prompt_name: Name of one of the model's own prompts.
        token_prepending: With a prompt: let every token of the sentence see the whole sentence (Fu et al.,
            ACL 2025).
        exit: First layer after start that it leaves alone. Default: the prompt's preset.
        layer: Layer to read the vector from, counted from 1; -1 is the last. Default: that of a published
            preset, else the last one for a plain prompt.
        contrast: With a prompt: subtract what an auxiliary prompt attends to (Cheng et al., ACL 2025).
    """

    prompt: Language[str | None] = None
    prompt_name: Setting[str | None] = None
    token_prepending: Annotated[bool, language_option("--token-prepending")] = False
    start: Start = None
    exit: Setting[int | None] = None
    layer: Setting[int | None] = None
    contrast: Annotated[bool, language_option("--contrast")] = False
    contrast_layer: ContrastLayer = None
    contrast_strength: ContrastStrength = None
    contrast_rule: ContrastRule = None


Engine = StrEnum("Engine", "LOCAL RAY")


@dataclass(frozen=True, slots=True)
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
