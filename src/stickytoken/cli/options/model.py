"""The model, where it computes, and what it reads around a text."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from stickytoken.cli.options.output import computation_option, endpoint_option, language_option, model_option
from stickytoken.errors import InputError

if TYPE_CHECKING:
    from stickytoken.encoders.endpoint.options import EndpointOptions
    from stickytoken.measurement.ray_engine import EngineChoice


Model: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="Folder, or name: looked up in the hub cache, among packaged models, then on the hub."
    ),
]
RunsModel: TypeAlias = Annotated[
    str | None,
    model_option("--model", help="Model of the run, if it has moved. Default: the model that the run names."),
]
Revision: TypeAlias = Annotated[str | None, model_option(help="Branch, tag or commit on the hub.")]
TrustRemoteCode: TypeAlias = Annotated[
    bool, model_option("--trust-remote-code", help="Run Python code from the model's repository.")
]
Start: TypeAlias = Annotated[
    int | None,
    language_option(
        help="First layer that token prepending overwrites, counted from 0. Default: the prompt's preset."
    ),
]
ContrastSwitch: TypeAlias = Annotated[
    bool,
    language_option(
        "--contrast",
        help="With a prompt: subtract what an auxiliary prompt attends to (Cheng et al., ACL 2025).",
    ),
]
ContrastLayer: TypeAlias = Annotated[
    int | None,
    language_option(
        help="Layer whose attention contrast changes, counted from 0. Default: the prompt's preset."
    ),
]
ContrastStrength: TypeAlias = Annotated[
    float | None,
    language_option(help="Factor of what contrast leaves, from 0. Default: the prompt's preset."),
]
ContrastRule: TypeAlias = Annotated[
    str | None,
    language_option(
        help="What contrast puts in its place: scaled, norm, scaled_norm or sub_head_norm. Default: scaled."
    ),
]


@dataclass(frozen=True, slots=True)
class LoadingOptions:
    """Where a model comes from and where it computes, for commands that need the model itself."""

    revision: Revision = None
    trust_remote_code: TrustRemoteCode = False
    device: Annotated[
        str | None, computation_option(help="cpu, cuda, cuda:1, mps. Default: the best one available.")
    ] = None
    dtype: Annotated[
        str | None,
        computation_option(
            help="Precision: float32, float16, bfloat16, or tf32 on CUDA. Default: the run's, else float32."
        ),
    ] = None
    token_budget: Annotated[
        int | None, computation_option(min=1, help="Tokens in a batch. Default: chosen by device.")
    ] = None
    packed_layers: Annotated[
        bool | None,
        computation_option(
            "--packed-layers/--no-packed-layers",
            help="Pack the weights of linear layers on a CPU. Default: if that is faster on this machine, as "
            "measured once for each model.",
        ),
    ] = None

    def name_of(self, model: str) -> str:
        """Return the name of the model: the argument."""
        from stickytoken.encoders.endpoint.options import names_endpoint

        if names_endpoint(model):
            raise InputError(
                f"this command needs the model itself, and {model} is behind an endpoint, which gives only "
                "vectors of texts: pass a model that is on this machine"
            )
        return model


@dataclass(frozen=True, slots=True)
class PromptingOptions:
    """What a model reads around a text."""

    prompt: Annotated[
        str | None,
        language_option(
            help="Text in front of every input. Default: the model's own. For a plain language model: "
            "prompteol, cot, ke, ck, metaeol, echo, or a text with {sentence}."
        ),
    ] = None
    prompt_name: Annotated[str | None, language_option(help="Name of one of the model's own prompts.")] = None
    token_prepending: Annotated[
        bool,
        language_option(
            "--token-prepending",
            help="With a prompt: let every token of the sentence see the whole sentence (Fu et al., ACL "
            "2025).",
        ),
    ] = False
    start: Start = None
    exit: Annotated[
        int | None,
        language_option(help="First layer after --start that it leaves alone. Default: the prompt's preset."),
    ] = None
    layer: Annotated[
        int | None,
        language_option(
            help="Layer to read the vector from, counted from 1; -1 is the last. Default: that of a "
            "published preset, else the last one for a plain prompt."
        ),
    ] = None
    contrast: ContrastSwitch = False
    contrast_layer: ContrastLayer = None
    contrast_strength: ContrastStrength = None
    contrast_rule: ContrastRule = None


ModelOrEndpoint: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="Folder, or name: looked up in the hub cache, among packaged models, then on the hub. "
        "openai:NAME or URL#NAME: behind an endpoint.",
    ),
]
Endpoint: TypeAlias = Annotated[
    str | None,
    endpoint_option(
        help="URL of an OpenAI-compatible server, such as http://localhost:8080/v1. Needs --endpoint-model."
    ),
]
EndpointModel: TypeAlias = Annotated[
    str | None,
    endpoint_option("--endpoint-model", help="Name of the model on that server."),
]
TokenizerSource: TypeAlias = Annotated[
    str | None,
    endpoint_option(help="The model's tokenizer: a folder, a hub name, tiktoken:NAME or a .tiktoken file."),
]
Candidates: TypeAlias = Annotated[
    str | None,
    endpoint_option(
        help="Instead of an unpublished tokenizer: a text file with one string to examine per line."
    ),
]
Dimensions: TypeAlias = Annotated[
    int | None,
    endpoint_option(
        "--request-dimensions",
        min=1,
        help="Number of vector components to request. Default: the model's own.",
    ),
]
KeyVariable: TypeAlias = Annotated[
    str | None,
    endpoint_option(
        "--key-variable",
        help="Environment variable with the API key. Default: OPENAI_API_KEY for openai:NAME, else "
        "STICKYTOKEN_API_KEY.",
    ),
]
Price: TypeAlias = Annotated[
    float | None,
    endpoint_option(
        "--price-per-million", min=0, help="Price of a million tokens, for the estimate and --max-cost."
    ),
]
MaxCost: TypeAlias = Annotated[
    float | None,
    endpoint_option(
        "--max-cost",
        min=0,
        help="Stop before this command spends more. Needs --price-per-million; all answers are kept.",
    ),
]
Yes: TypeAlias = Annotated[
    bool, endpoint_option("--yes", help="Do not ask before spending the estimated cost.")
]


@dataclass(frozen=True, slots=True)
class EndpointLoadingOptions(LoadingOptions):
    """The same for commands that only need vectors of texts: the model may be behind an endpoint."""

    tokenizer: TokenizerSource = None
    candidates: Candidates = None
    request_dimensions: Dimensions = None
    key_variable: KeyVariable = None
    price_per_million: Price = None
    max_cost: MaxCost = None
    yes: Yes = False

    def name_of(self, model: str) -> str:
        """Return the name of the model: the argument."""
        return model

    @property
    def options(self) -> EndpointOptions:
        """The options of the endpoint."""
        from stickytoken.encoders.endpoint.options import EndpointOptions

        return EndpointOptions(
            key_variable=self.key_variable,
            dimensions=self.request_dimensions,
            price_per_million=self.price_per_million,
            max_cost=self.max_cost,
        )

    @property
    def given(self) -> list[str]:
        """The options that only an endpoint has and that were passed."""
        names = (
            "tokenizer",
            "candidates",
            "request_dimensions",
            "key_variable",
            "price_per_million",
            "max_cost",
        )
        return [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is not None]


@dataclass(frozen=True, slots=True)
class AddressOptions(EndpointLoadingOptions):
    """The same, and the address of the endpoint in two options instead of the model's name."""

    endpoint: Endpoint = None
    endpoint_model: EndpointModel = None

    def name_of(self, model: str) -> str:
        """Return the name of the model: the argument, or what the options say."""
        from stickytoken.encoders.endpoint.options import names_endpoint

        if self.endpoint is None and self.endpoint_model is None:
            if not model:
                raise typer.BadParameter(
                    "no model is named: pass one, or --endpoint URL with --endpoint-model NAME"
                )
            return model
        if model:
            raise InputError(f"{model!r} and --endpoint both name a model: leave one of them out")
        if self.endpoint is None or self.endpoint_model is None:
            raise InputError("--endpoint and --endpoint-model belong together: pass both")
        if not names_endpoint(self.endpoint):
            raise InputError(
                f"--endpoint {self.endpoint} is not a URL: begin it with http:// or https://, as in "
                "http://localhost:8080/v1"
            )
        return f"{self.endpoint}#{self.endpoint_model}"


class Engine(StrEnum):
    """Where shards are computed."""

    LOCAL = "local"
    RAY = "ray"


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Where shards are computed."""

    engine: Annotated[
        Engine,
        computation_option(
            "--engine",
            help="local: this process. ray: workers on a Ray cluster, or on all GPUs of this machine.",
        ),
    ] = Engine.LOCAL
    ray_address: Annotated[
        str | None,
        computation_option(
            help="With --engine ray: host:port of the head node, or auto. Default: RAY_ADDRESS, else Ray is "
            "started on this machine."
        ),
    ] = None
    workers: Annotated[
        int | None,
        computation_option(
            min=1, help="With --engine ray: number of workers. Default: one per GPU, or one per four cores."
        ),
    ] = None

    @property
    def choice(self) -> EngineChoice:
        """The engine as `detect` takes it."""
        if self.engine is Engine.RAY:
            from stickytoken.measurement.ray_engine import RayCluster

            return RayCluster(self.ray_address, self.workers)
        for option, value in (("--ray-address", self.ray_address), ("--workers", self.workers)):
            if value is not None:
                raise typer.BadParameter("it needs --engine ray", param_hint=option)
        return "local"
