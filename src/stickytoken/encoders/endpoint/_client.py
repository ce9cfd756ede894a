"""Send one request to the server of a model: what can go wrong, when to try again, and what it costs."""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.endpoint import Address, EndpointOptions, key_missing, key_of
from stickytoken.encoders.endpoint._answers import (
    error_message,
    is_web_page,
    read_answer,
    seconds_to_wait,
)
from stickytoken.errors import ModelError, RunError, require_package

Encoding = Literal["base64", "float", "omitted"]

KEPT = "its answers are kept, and the same command continues from there"
# Characters of a server's message that are shown.
_SHOWN_REASON = 200
_CONNECT_SECONDS = 10.0
# HTTP statuses that are worth asking again, beside 5xx: time-out, conflict, too many requests.
_TEMPORARY = frozenset({408, 409, 429})
# Statuses of a server that has too much to do.
_TOO_MANY = frozenset({429, 503})
# What OpenAI says with 429 where waiting does not help.
_NO_CREDIT = b"insufficient_quota"
# Seconds before the second attempt, which double up to the longest.
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
_MOST_DOUBLED = 10
# Failures up to which the server's own Retry-After is trusted. After them, pauses grow as well.
_TRUSTED_WAITS = 8
# Attempts at an address where nobody answers, while the server is being tried out.
_MOST_UNREACHED = 2


class Failure(Enum):
    """Why a request failed that may succeed later."""

    REFUSED = auto()  # the server said that it cannot answer now
    WEB_PAGE = auto()  # of a server in maintenance, or of one that is no API
    UNREACHED = auto()  # nobody was there to take the request
    LATE = auto()  # no answer within the time-out
    LOST = auto()  # the connection broke before the answer was whole
    UNUSABLE = auto()  # an answer that does not match the request


class TemporaryError(Exception):
    """A request that failed, and may succeed when it is sent again.

    Attributes:
        failure: the kind of failure.
        wait: seconds after which the server wants to be asked again.
        unreachable: whether no answer came.
        busy: whether the server says that it is busy, and not that it is broken.
        too_many: whether the server has too much to do for any request.
        paid: whether the server may have computed an answer, and count it.
    """

    def __init__(
        self, reason: str, failure: Failure, status: int | None = None, wait: float | None = None
    ) -> None:
        super().__init__(reason)
        self.failure = failure
        self.wait = wait
        self.unreachable = failure in (Failure.UNREACHED, Failure.LATE, Failure.LOST)
        self.busy = status in _TEMPORARY | _TOO_MANY
        self.too_many = status in _TOO_MANY
        self.paid = failure in (Failure.LATE, Failure.LOST, Failure.UNUSABLE)


class RefusedError(Exception):
    """The server will never answer a request with these texts.

    Attributes:
        for_all: the error to raise if the server refuses all other texts as well, because the key or the name
            of the model is wrong; None if the error says nothing of other texts.
    """

    def __init__(self, reason: str, for_all: ModelError | None = None) -> None:
        super().__init__(reason)
        self.for_all = for_all


@dataclass(frozen=True, slots=True)
class RequestForm:
    """Which optional fields a request has. Servers refuse some of them.

    Attributes:
        encoding: value of ``encoding_format``; omitted leaves the field out.
        dimensions: send ``dimensions``, if the user asks for a number of components.
        as_list: send a list of texts; otherwise one text, as a string.
    """

    encoding: Encoding = "base64"
    dimensions: bool = True
    as_list: bool = True


_ENCODINGS: tuple[Encoding, ...] = ("base64", "float", "omitted")


def request_forms(dimensions: int | None) -> Iterator[RequestForm]:
    """Yield the forms of a request, from the one that most servers accept."""
    whether_dimensions = (True,) if dimensions is None else (True, False)
    for as_list in (True, False):
        for with_dimensions in whether_dimensions:
            for encoding in _ENCODINGS:
                yield RequestForm(encoding, with_dimensions, as_list)


def price(tokens: float, price_per_million: float | None) -> float | None:
    """Return what tokens cost; None without a price."""
    return None if price_per_million is None else tokens * price_per_million / 1e6


@dataclass
class Spending:
    """What this process spends. Each attempt reserves its cost, and then has succeeded or failed.

    Attributes:
        price_per_million: price of a million tokens; None if it is unknown.
        limit: largest sum to spend; None is no limit.
        requests: number of requests that were answered.
        tokens: number of tokens that are paid for, as the server counts them.
        pending: number of tokens that are expected of requests in flight.
        excess: largest ratio of what the server counted for a request to what was expected, from 1.
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
        return price(self.tokens, self.price_per_million)

    def reserve(self, tokens: float) -> None:
        """Reserve the cost of a request.

        Raises:
            RunError: with this request, the limit could be exceeded.
        """
        with self._lock:
            cost = price(self.tokens + (self.pending + tokens) * self.excess, self.price_per_million)
            if self.limit is not None and cost is not None and cost > self.limit:
                raise RunError(
                    f"stopped at the maximum cost of {self.limit:g}: {self.requests:,} requests with "
                    f"{self.tokens:,} tokens cost {self.cost or 0.0:.4g}; their answers are kept, and "
                    "the same command continues from there"
                )
            self.pending += tokens

    def answered(self, reserved: float, tokens: int) -> None:
        """Replace what was reserved for a request by what it cost."""
        with self._lock:
            self.requests += 1
            self.pending -= reserved
            self.tokens += tokens
            self.excess = max(self.excess, tokens / max(1.0, reserved))

    def failed(self, reserved: float, paid: bool) -> None:
        """Free what was reserved for a request, unless the server may count it all the same."""
        with self._lock:
            self.pending -= reserved
            if paid:
                self.tokens += round(reserved)


@dataclass
class Attempts:
    """Failed attempts at one request, and when to try again.

    Attributes:
        patience: seconds for which the request may fail.
        limit: number of failures after which to give up, without those of a busy server; None is no limit.
            Where no server answers, fewer are enough.
        failed: number of failures.
        counted: number of failures without those of a busy server.
        unreached: number of failures without an answer.
        since: time of the first failure, on the monotonic clock.
    """

    patience: float
    limit: int | None = None
    failed: int = 0
    counted: int = 0
    unreached: int = 0
    since: float | None = None

    def pause_after(self, error: TemporaryError, now: float) -> float | None:
        """Note a failure. Return the seconds until the next attempt, or None to give up."""
        self.failed += 1
        if not error.busy:
            self.counted += 1
        if error.unreachable:
            self.unreached += 1
        if self.since is None:
            self.since = now
        if self.limit is not None:
            too_many_failures = self.counted >= self.limit or self.unreached >= _MOST_UNREACHED
            if too_many_failures or error.failure is Failure.WEB_PAGE:
                return None
        pause = self._pause(error.wait)
        return None if now + pause - self.since > self.patience else pause

    def _pause(self, requested: float | None) -> float:
        """Return what the server requests and a little more, or a random pause that grows."""
        jitter = random.SystemRandom()
        longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self.failed, _MOST_DOUBLED))
        pause = 0.0
        if requested is not None:
            pause = requested + jitter.uniform(0.0, 0.1 * min(requested, longest) + 0.01)
        if requested is None or self.failed > _TRUSTED_WAITS:
            pause = max(pause, jitter.uniform(longest / 2, longest))
        return pause

    def why_given_up(self, last: TemporaryError) -> str:
        """Say why the request was given up after its last failure, with the server as the subject."""
        if self.failed == 1 and last.wait is not None and last.wait > self.patience:
            longer = f"longer than the {self.patience:,.0f} s allowed"
            return f"asks to wait for {last.wait:,.0f} s, {longer} ({last})"
        return f"gave no usable answer in {self.failed} attempts ({last})"


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one or more requests.

    Attributes:
        vectors: shape (n, d); rows of NaN for the texts in `problems`.
        tokens: tokens that the server counted; None if it does not count them.
        seconds: how long the server took.
        problems: what is wrong with the vector of a text, by the position of the text.
    """

    vectors: NDArray[np.float32]
    tokens: int | None
    seconds: float
    problems: Mapping[int, str] = field(default_factory=dict)


def as_one(replies: Sequence[Reply]) -> Reply:
    """Return the answers to several requests as one, if none of them has problems."""
    counts = [reply.tokens for reply in replies if reply.tokens is not None]
    return Reply(
        vectors=np.concatenate([reply.vectors for reply in replies]),
        tokens=sum(counts) if len(counts) == len(replies) else None,
        seconds=sum(reply.seconds for reply in replies),
    )


class Client:
    """Sends one request and turns whatever comes back into a reply or an error of this module.

    It does not let `openai` retry. Waits of `openai` cannot be interrupted, the other threads would not learn
    that the server is busy, and failed attempts that are paid for would be hidden, which breaks `max_cost`.

    Attributes:
        address: of the server, and the name of the model.
        options: how to use the server.
        spending: what this process spends.
        form: form of the requests.
        held_until: time before which no request is sent, on the monotonic clock. A server that is too busy
            for one request is too busy for all.
        last_answer: time of the last answer, on the monotonic clock.
        given_up: number of texts for which the server gave no vector, by its reason.
    """

    def __init__(self, address: Address, options: EndpointOptions, spending: Spending) -> None:
        self._key = key_of(address)
        require_package("openai", "a model behind an endpoint", "endpoint")
        import openai

        self._sdk = openai
        self.address = address
        self.options = options
        self.spending = spending
        self.form = RequestForm()
        self._api = openai.OpenAI(
            base_url=address.base_url,
            api_key=self._key.reveal() or "none",
            max_retries=0,
            timeout=openai.Timeout(
                options.request_seconds, connect=min(options.request_seconds, _CONNECT_SECONDS)
            ),
        )
        weakref.finalize(self, self._api.close)  # or its connections stay open until they are collected
        self.held_until = 0.0
        self.last_answer = 0.0
        self.given_up: Counter[str] = Counter()

    def request(self, texts: Sequence[str], reserved: float, *, counts_tokens: bool = True) -> Reply:
        """Send one request, whose cost is reserved first.

        Args:
            texts: texts of the request.
            reserved: tokens that it is expected to cost.
            counts_tokens: whether it costs what the server counts, and not what was expected.

        Raises:
            TemporaryError: it may succeed later.
            RefusedError: the server does not take these texts.
            ModelError: no request will succeed.
            RunError: it could exceed the largest sum to spend.
        """
        self.spending.reserve(reserved)
        try:
            reply = self._send(texts)
        except TemporaryError as error:
            self.spending.failed(reserved, error.paid)
            raise
        except BaseException:
            self.spending.failed(reserved, paid=False)
            raise
        counted = reply.tokens if counts_tokens else None
        self.spending.answered(reserved, round(reserved) if counted is None else counted)
        self.last_answer = time.monotonic()
        return reply

    def _send(self, texts: Sequence[str]) -> Reply:
        form = self.form
        if form.as_list or len(texts) == 1:
            return self._send_together(texts, form)
        return as_one([self._send_together([text], form) for text in texts])

    def _send_together(self, texts: Sequence[str], form: RequestForm) -> Reply:
        """Send texts in one request; the errors are those of `request`."""
        body: dict[str, Any] = {
            "model": self.address.model,
            "input": list(texts) if form.as_list else texts[0],
        }
        if form.encoding != "omitted":
            body["encoding_format"] = form.encoding
        if form.dimensions and self.options.dimensions is not None:
            body["dimensions"] = self.options.dimensions
        started = time.perf_counter()
        problem: Exception | None = None
        content = ""
        try:
            content = self._api.post("/embeddings", cast_to=str, body=body)
        except self._sdk.APIError as error:
            problem = self._explained(error)
        if problem is not None:
            # Raised out here, so that it does not carry the error of the SDK: servers repeat keys in theirs.
            raise problem
        seconds = time.perf_counter() - started
        if is_web_page(content):
            raise TemporaryError("a web page instead of an answer", Failure.WEB_PAGE)
        try:
            answer = read_answer(content, len(texts))
        except ValueError as error:
            is_error, message = error_message(content)  # some servers send errors with status 200
            reason = self._shown(message if is_error else str(error))
            raise TemporaryError(reason, Failure.UNUSABLE) from None
        return Reply(answer.vectors, answer.tokens, seconds, answer.problems)

    def refused(self, reason: object) -> ModelError:
        """Return the error to raise if the server refuses all requests."""
        return ModelError(
            f"{self.address.name}: the server refuses the request ({reason}): check the model and the options"
        )

    def other_url(self) -> str | None:
        """Say how the URL of an API usually ends; None if this one ends so."""
        usual = self.address.base_url.removesuffix("/embeddings").removesuffix("/v1") + "/v1"
        if usual == self.address.base_url:
            return None
        return f"check the URL, which usually ends in /v1, as in {usual}#{self.address.model}"

    def _explained(self, error: Any) -> Exception:
        """Turn an error of the SDK into one of this module."""
        cause = type(error.__cause__).__name__
        if isinstance(error, self._sdk.APITimeoutError):
            if cause == "ConnectTimeout":
                return TemporaryError("no connection in time", Failure.UNREACHED)
            return TemporaryError(f"no answer within {self.options.request_seconds:g} s", Failure.LATE)
        if not isinstance(error, self._sdk.APIStatusError):
            reason = self._shown(str(error.__cause__ or error))
            return TemporaryError(reason, Failure.UNREACHED if cause == "ConnectError" else Failure.LOST)
        return self._of_status(error.status_code, error.response.content, error.response.headers)

    def _of_status(self, status: int, body: bytes, headers: Mapping[str, str]) -> Exception:
        """Return the error that a status other than 200 means."""
        message = self._shown(error_message(body)[1])
        reason = f"HTTP {status}, {message}" if message else f"HTTP {status}"
        name = self.address.name
        if _NO_CREDIT in body or status == 402:
            return ModelError(f"{name}: the account has no credit left ({reason}): add some; {KEPT}")
        if status in _TEMPORARY or status >= 500:
            return TemporaryError(reason, Failure.REFUSED, status, seconds_to_wait(headers))
        if status in (401, 403):
            if not self._key:
                return RefusedError(reason, key_missing(self.address))
            wrong_key = ModelError(
                f"{name}: the server refuses the key in the environment variable "
                f"{self.address.key_variable} ({reason}): set the right one, or name another variable "
                "(--set key-variable=NAME)"
            )
            return RefusedError(reason, wrong_key)
        if status in (404, 405):
            advice = self.other_url() or "check the name of the model and the URL"
            wrong_name = ModelError(f"{name}: the server knows no such model or path ({reason}): {advice}")
            return RefusedError(reason, wrong_name)
        return RefusedError(reason)

    def _shown(self, text: str) -> str:
        """Return the beginning of a server's message in one line, without the key."""
        line = " ".join(self._key.removed_from(text).split())
        return line if len(line) <= _SHOWN_REASON else line[: _SHOWN_REASON - 1] + "…"
