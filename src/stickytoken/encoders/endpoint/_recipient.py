"""Receive the outcomes of requests: count their cost, and pass on their vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.endpoint._request import Reply
from stickytoken.encoders.endpoint.cost import Spending

Keep = Callable[[Mapping[str, NDArray[np.float32]]], None]


class Recipient:
    """Counts the cost of requests and passes on their vectors; called in the thread that sends them all.

    Args:
        spending: counts.
        estimate: tokens that the server will count for texts.
        counts_tokens: whether the server reports tokens.
        keep: called with the vectors of every answer.
        without_vector: called with a text that the server does not take, and the reason; without it, such a
            text ends everything.
    """

    def __init__(
        self,
        spending: Spending,
        estimate: Callable[[Sequence[str]], float],
        counts_tokens: bool,
        keep: Keep,
        without_vector: Callable[[str, str], None] | None = None,
    ) -> None:
        self._spending = spending
        self._estimate = estimate
        self._counts_tokens = counts_tokens
        self._keep = keep
        self._without_vector = without_vector

    def allow(self, texts: Sequence[str]) -> float:
        """Reserve the tokens of a request, and return them."""
        tokens = self._estimate(texts)
        self._spending.reserve(tokens)
        return tokens

    def received(self, texts: Sequence[str], reply: Reply, reserved: float) -> None:
        """Count an answer, and keep its vectors."""
        counted = reply.tokens if self._counts_tokens else None
        self._spending.answered(reserved, round(reserved) if counted is None else counted)
        self._keep(dict(zip(texts, reply.vectors, strict=True)))

    def failed(self, reserved: float, paid: bool) -> None:
        """Count a request without a usable answer."""
        self._spending.failed(reserved, paid)

    def refused(self, text: str, reason: str) -> bool:
        """Handle a text that the server refuses; return False if that ends everything."""
        if self._without_vector is None:
            return False
        self._without_vector(text, reason)
        return True
