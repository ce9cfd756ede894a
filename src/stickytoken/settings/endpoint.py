"""The settings of a model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stickytoken.errors import InputError
from stickytoken.settings import PYTHON_ONLY, NonNegativeNumber, OptionName, PositiveCount, check_settings


@dataclass(frozen=True)
class EndpointOptions:
    """How requests are sent to a model behind an endpoint, and how much they may cost.

    Costs are in the currency of the price. A request that could exceed ``max_cost`` is not sent. The limit
    ``max_cost`` applies to each process separately.

    Attributes:
        key_variable: Name of the environment variable that holds the API key. By default, OPENAI_API_KEY is
            read for openai:NAME, and STICKYTOKEN_API_KEY for a URL.
        dimensions: Number of vector components to request. Default: as many as the model has.
        price_per_million: Price per million tokens, used for the cost estimate and for max-cost.
        max_cost: Stop before the requests cost more than this. Needs price-per-million. Responses are cached.
        patience: How long to wait for a server that fails before the run stops, in seconds.
        request_seconds: Maximum time to wait for the response to a request, in seconds.

    Raises:
        InputError: A value is out of range, or `max_cost` is set without a price.
    """

    key_variable: str | None = None
    dimensions: Annotated[PositiveCount | None, OptionName("request_dimensions")] = None
    price_per_million: NonNegativeNumber | None = None
    max_cost: NonNegativeNumber | None = None
    patience: Annotated[NonNegativeNumber, PYTHON_ONLY] = 600.0
    request_seconds: Annotated[NonNegativeNumber, PYTHON_ONLY] = 60.0

    def __post_init__(self) -> None:
        check_settings(self)
        if self.max_cost is not None and not self.price_per_million:
            raise InputError(
                f"max_cost is {self.max_cost:g}, but the cost is unknown without a price: pass "
                "price_per_million too"
            )
