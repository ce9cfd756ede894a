"""What requests cost: spent so far, counted by the server, and estimated before anything is sent."""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import StandIn, require_list
from stickytoken.errors import RunError

if TYPE_CHECKING:
    from stickytoken.encoders.endpoint.encoder import EndpointEncoder


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
        """Count a request that is about to be sent."""
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
        """Count an answered request."""
        with self._lock:
            self.requests += 1
            self.pending -= reserved
            self.tokens += tokens
            self.excess = max(self.excess, tokens / max(1.0, reserved))

    def failed(self, reserved: float, paid: bool) -> None:
        """Count a request without a usable answer."""
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


# Counts of one tokenizer differ by special tokens alone, which cancel out. Those of BERT, RoBERTa, T5, XLM-R
# and Gemma differ by four and more on the texts of the discovery.
_MOST = 2
_SHORT = ("a", "in", "the", "is", "of", "on")
# Names, numbers, code and scripts, which tokenizers cut in different ways.
_LONGER = (
    "Order 66-1047/b: naïve façades cost €1,234,567.89 (VAT №42), antidisestablishmentarianism included.",
    "def parseHTTPHeader(raw): return {k.strip(): v for k, v in re.findall(r'(\\w+):\\s*(.+)', raw)}",
    "東京タワーは1958年に建てられました。 Ελληνικά, русский язык, हिन्दी, العربية; 😀🚀 https://example.org/a?b=c&d=%20e",
    "Pneumonoultramicroscopicsilicovolcanoconiosis, Llanfairpwllgwyngyll, Qzxv-brxl, McDonald's iPhone15",
)


class Usage(NamedTuple):
    """What a server counts.

    Attributes:
        counts_tokens: whether it counts tokens.
        overhead: what it counts for each text beside its tokens.
        tokens_per_unit: what it counts for each token that is counted here.
        mismatch: tokens by which two requests differ here and on the server, where that cannot be the same
            tokenizer.
    """

    counts_tokens: bool
    overhead: float
    tokens_per_unit: float
    mismatch: tuple[int, int] | None


def compared_usage(
    counted: Callable[[Sequence[str]], int | None],
    count: Callable[[Sequence[str]], list[int]],
    max_length: int | None,
) -> Usage:
    """Compare the tokens that a server counts with those of a tokenizer, on texts that it reads whole.

    Special tokens cancel out in the difference of two requests with equally many texts. Some servers count
    characters, words or nothing.
    """
    lengths = zip(_LONGER, count(_LONGER), strict=True)
    longer = [text for text, tokens in lengths if max_length is None or tokens <= max_length]
    short = _SHORT[: len(longer)]
    unknown = Usage(False, 0.0, 1.0, None)
    if not longer:
        return unknown
    first, second = counted(short), counted(longer)
    if first is None or second is None or first == second:
        return unknown

    def more(size: Callable[[str], int]) -> int:
        return sum(map(size, longer)) - sum(map(size, short))

    difference = second - first
    sizes = (len, lambda text: len(text.encode()), lambda text: len(text.split()))
    if difference in map(more, sizes):
        return unknown
    ours = sum(count(short)), sum(count(longer))
    own = ours[1] - ours[0]
    if abs(difference - own) > _MOST:
        return Usage(True, 0.0, second / max(1, ours[1]), (own, difference))
    overhead = (first - ours[0] + second - ours[1]) / (2 * len(longer))
    return Usage(True, max(0.0, overhead), 1.0, None)


_ROWS = 4099
_SEED = 5
# What tells a text from others, beside its tokens.
_OWN = 0.3


class Rehearsal(StandIn["EndpointEncoder"]):
    """An encoder that records the requested texts, and makes up the vectors that are not cached yet.

    Such a vector is the mean of one random vector per token and one of the text, so that copies of a token
    move it as they move a real one. Rounds that are planned from the results of earlier ones become exact as
    soon as those are answered.
    """

    def __init__(self, encoder: EndpointEncoder, uncertain: str | None = None) -> None:
        super().__init__(encoder)
        self._uncertain = uncertain
        self._certain: CostEstimate | None = None
        self._asked: dict[str, None] = {}
        self._requests = 0
        self._tokens = 0.0
        self._texts = 0
        self._answered = 0

    def encode(self, texts: Sequence[str], *, allow_zero: bool = False) -> NDArray[np.float32]:
        """Record the texts and return made-up vectors, shape (n, d)."""
        del allow_zero
        require_list(texts)
        if not texts:
            return np.empty((0, self.dimension), np.float32)
        prompt = self._encoder.endpoint.prompt
        known = self._encoder.endpoint.answers.find([prompt + text for text in dict.fromkeys(texts)])
        self._note(texts, known)
        new = [text for text in texts if prompt + text not in known]
        made_up = {text: self._vector(parts) for text, parts in zip(new, self._parts(new), strict=True)}
        return np.stack([known[prompt + text] if text not in made_up else made_up[text] for text in texts])

    @property
    def makes_up_vectors(self) -> bool:
        """Whether any vector so far was made up, so that a choice by results would mean nothing."""
        return self._texts > 0

    def reached(self, stage: str) -> None:
        """Note the stage that was reached: what is recorded before the uncertain one is certain."""
        if stage == self._uncertain and self._certain is None:
            self._certain = self._noted()

    def estimate(self) -> CostEstimate:
        """Estimate the cost of the recorded texts."""
        noted = self._noted()
        if self._certain is None or self._certain.requests == noted.requests:
            return noted
        return replace(self._certain, most=noted)

    def _noted(self) -> CostEstimate:
        endpoint = self._encoder.endpoint
        tokens = self._tokens + endpoint.checking(self._requests)
        return CostEstimate(
            requests=self._requests,
            texts=self._texts,
            tokens=round(tokens),
            answered=self._answered,
            cost=price(tokens, endpoint.options.price_per_million),
            seconds=endpoint.seconds(self._requests, round(tokens)),
        )

    def _note(self, texts: Sequence[str], known: Collection[str]) -> None:
        endpoint = self._encoder.endpoint
        new = [endpoint.prompt + text for text in dict.fromkeys(texts) if text not in self._asked]
        self._asked.update(dict.fromkeys(texts))
        left = [text for text in new if text not in known]
        self._answered += len(new) - len(left)
        self._texts += len(left)
        self._requests += len(endpoint.batches(left))
        self._tokens += endpoint.counted_by_server(left)

    @cached_property
    def _table(self) -> NDArray[np.float32]:
        """Random vectors, shape (rows, d)."""
        return np.random.default_rng(_SEED).standard_normal((_ROWS, self.dimension), dtype=np.float32)

    def _parts(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text's tokens, or of its words where the tokenizer is unpublished."""
        if not getattr(self.tokenizer, "estimates", False):
            return self.content_ids(texts)
        return [
            [zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in text.split()] for text in texts
        ]

    def _vector(self, ids: Sequence[int]) -> NDArray[np.float32]:
        whole = np.asarray(ids, dtype=np.int64)
        own = int.from_bytes(hashlib.sha256(whole.tobytes()).digest()[:8], "little") % _ROWS
        mean = self._table[whole % _ROWS].mean(axis=0) if len(ids) else 0.0
        return np.asarray(mean + _OWN * self._table[::-1][own], dtype=np.float32)


def estimate_cost(
    encoder: EndpointEncoder, measurement: Callable[[Any], object], uncertain: str | None = None
) -> CostEstimate:
    """Estimate what a measurement would cost, without sending anything.

    Example: ``estimate_cost(encoder, lambda stand_in: detect(stand_in, out=folder))``, with a folder that is
    thrown away.
    """
    rehearsal = Rehearsal(encoder, uncertain)
    measurement(rehearsal)
    return rehearsal.estimate()
