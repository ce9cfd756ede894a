"""What requests cost: spent so far, and estimated before anything is sent."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from stickytoken.errors import RunError


class CostLimitError(RunError):
    """The next request would exceed the user's cost limit."""


@dataclass
class Spending:
    """What requests of this process cost, in whatever threads.

    A request is reserved before it is sent, each time. Then it is answered, or it has failed.

    Attributes:
        price_per_million: price of a million tokens; None is unknown.
        limit: largest sum; None is any.
        requests: answered requests.
        tokens: tokens that were paid for, as the server counts them.
        pending: estimated tokens of requests in flight.
        excess: how many times more the server counted than was estimated, at most.
    """

    price_per_million: float | None = None
    limit: float | None = None
    requests: int = 0
    tokens: int = 0
    pending: float = 0.0
    excess: float = 1.0
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    @property
    def cost(self) -> float | None:
        """Price of the tokens; None without a price."""
        return price(self.tokens, self.price_per_million)

    def reserve(self, tokens: float) -> None:
        """Count a request that is about to be sent.

        Raises:
            CostLimitError: it might exceed the limit.
        """
        with self._lock:
            cost = price(self.tokens + (self.pending + tokens) * self.excess, self.price_per_million)
            if self.limit is not None and cost is not None and cost > self.limit:
                raise CostLimitError(
                    f"stopped at the maximum cost of {self.limit:g}: {self.requests:,} requests with "
                    f"{self.tokens:,} tokens cost {self.cost or 0.0:.4g}; their answers are kept, and "
                    "the same command continues from there"
                )
            self.pending += tokens

    def answered(self, reserved: float, tokens: int) -> None:
        """Count an answered request.

        Args:
            reserved: what `reserve` was told.
            tokens: what it was.
        """
        with self._lock:
            self.requests += 1
            self.pending -= reserved
            self.tokens += tokens
            self.excess = max(self.excess, tokens / max(1.0, reserved))

    def failed(self, reserved: float, paid: bool) -> None:
        """Count a request without a usable answer.

        Args:
            reserved: what `reserve` was told.
            paid: whether the server may have computed an answer.
        """
        with self._lock:
            self.pending -= reserved
            if paid:
                self.tokens += round(reserved)


def price(tokens: float, price_per_million: float | None) -> float | None:
    """Price of a number of tokens; None without a price."""
    return None if price_per_million is None else tokens * price_per_million / 1e6


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """What a measurement would send.

    Attributes:
        requests: number of requests.
        texts: texts in them.
        tokens: tokens in them, as the server counts them.
        answered: texts that it needs too, and that were answered before.
        cost: price of the tokens; None without a price.
        seconds: at the latency that was measured, one request at a time.
        most: the same with everything that depends on results, where that is not certain; else None.
    """

    requests: int
    texts: int
    tokens: int
    answered: int
    cost: float | None
    seconds: float
    most: CostEstimate | None = None
