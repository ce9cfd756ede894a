"""Models behind an OpenAI-compatible endpoint: where they are, their vocabulary, and what they may cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from stickytoken.cli.options.model import LoadingOptions
from stickytoken.cli.options.panels import endpoint_option
from stickytoken.errors import InputError

if TYPE_CHECKING:
    from stickytoken.encoders.endpoint.options import EndpointOptions

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
        """The options of the endpoint.

        Raises:
            InputError: they cannot be used.
        """
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
        """Return the name of the model: the argument, or what the options say.

        Raises:
            typer.BadParameter: neither names one.
            InputError: both name a model, the options are incomplete, or the URL is none.
        """
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
