"""The settings of a model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

from stickytoken.errors import InputError
from stickytoken.settings import PYTHON_ONLY, NonNegativeNumber, PositiveCount, check_settings

# Fields of a request that other settings decide.
_OWN_FIELDS = frozenset({"model", "input", "encoding_format", "dimensions"})
# Fields that would write the key into run folders.
_SECRET_FIELDS = frozenset({"api_key", "api-key", "authorization", "key", "token"})


@dataclass(frozen=True)
class EndpointOptions:
    """How requests are sent to a model behind an endpoint, and how much they may cost.

    Costs are in the currency of the price. A request that could exceed ``max_cost`` is not sent. The limit
    ``max_cost`` applies to each process separately.

    Attributes:
        key_variable: Name of the environment variable that holds the API key. By default, OPENAI_API_KEY is
            read for openai:NAME, and STICKYTOKEN_API_KEY for a URL.
        request_dimensions: Number of vector components to request. Default: as many as the model has.
        request_fields: Further fields of every request, as a JSON object: '{"input_type": "passage"}'.
        price_per_million: Price per million tokens, used for the cost estimate and for max-cost.
        max_cost: Stop before the requests cost more than this. Needs price-per-million. Responses are cached.
        patience: How long to wait for a server that fails before the run stops, in seconds.
        request_seconds: Maximum time to wait for the response to a request, in seconds.

    Raises:
        InputError: A value is out of range, or `max_cost` is set without a price.

    Examples:
        >>> stickytoken.EndpointOptions(price_per_million=0.02, max_cost=0.5).max_cost
        0.5
    """

    key_variable: str | None = None
    request_dimensions: PositiveCount | None = None
    request_fields: str | None = None
    price_per_million: NonNegativeNumber | None = None
    max_cost: NonNegativeNumber | None = None
    patience: Annotated[NonNegativeNumber, PYTHON_ONLY] = 600.0
    request_seconds: Annotated[NonNegativeNumber, PYTHON_ONLY] = 60.0

    def __post_init__(self) -> None:
        check_settings(self)
        _ = self.fields_of_requests  # raises an error if `request_fields` is not valid
        if self.max_cost is not None and not self.price_per_million:
            raise InputError(
                f"max_cost is {self.max_cost:g}, but the cost is unknown without a price: pass "
                "price_per_million too"
            )

    @property
    def fields_of_requests(self) -> dict[str, Any]:
        """The further fields of every request, keyed by name."""
        if self.request_fields is None:
            return {}
        try:
            values = json.loads(self.request_fields)
        except ValueError as error:
            raise InputError(
                f"request_fields is {self.request_fields!r}, which is no JSON ({error}): pass an object such "
                'as {"input_type": "passage"}'
            ) from error
        if not isinstance(values, dict):
            raise InputError(
                f"request_fields is {self.request_fields!r}, which is no object: pass one such as "
                '{"input_type": "passage"}'
            )
        own_names = sorted(_OWN_FIELDS & values.keys())
        if own_names:
            raise InputError(
                f"request_fields has {', '.join(own_names)}, which every request has already: leave it out "
                "(request-dimensions sets the number of components)"
            )
        secrets = sorted(name for name in values if name.lower() in _SECRET_FIELDS)
        if secrets:
            # The message does not repeat the value, which is probably a key.
            raise InputError(
                f"request_fields has {', '.join(secrets)}, but it is recorded in runs: put the key into an "
                "environment variable (key-variable names it)"
            )
        return values
