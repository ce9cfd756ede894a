"""How to use a model behind an endpoint: what the user passes, and what a run records."""

from __future__ import annotations

from dataclasses import dataclass

from stickytoken.errors import InputError
from stickytoken.validation import real_number, whole_number

REQUEST_SECONDS = 60.0
PATIENCE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """Options of a model behind an endpoint.

    Attributes:
        key_variable: environment variable that holds the key; None chooses by address.
        dimensions: number of components to ask for; None leaves it to the model.
        price_per_million: price of a million tokens, for estimates and `max_cost`.
        max_cost: largest sum to spend in this process; nothing that would exceed it is sent.
        patience: seconds for which a request may fail, with retries, before everything ends.
        request_seconds: longest wait for one answer.

    Raises:
        InputError: a value is out of range, or there is a largest sum without a price.
    """

    key_variable: str | None = None
    dimensions: int | None = None
    price_per_million: float | None = None
    max_cost: float | None = None
    patience: float = PATIENCE_SECONDS
    request_seconds: float = REQUEST_SECONDS

    def __post_init__(self) -> None:
        if self.dimensions is not None:
            object.__setattr__(self, "dimensions", whole_number("dimensions", self.dimensions, 1))
        for name in ("price_per_million", "max_cost", "patience", "request_seconds"):
            value = getattr(self, name)
            if value is None:
                continue
            number = real_number(name, value)
            if not 0 <= number < float("inf"):
                raise InputError(f"{name} is {value}: it must be a number from 0")
            object.__setattr__(self, name, number)
        if self.max_cost is not None and not self.price_per_million:
            raise InputError(f"max_cost is {self.max_cost:g}, without a price: pass price_per_million, too")
