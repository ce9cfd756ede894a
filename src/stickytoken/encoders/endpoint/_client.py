"""Send requests to a model's server, repeat them if they fail, and count their cost."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.endpoint import Address, make_missing_key_error, read_key
from stickytoken.encoders.endpoint._answers import (
    is_web_page,
    read_answer,
    read_error,
    seconds_to_wait,
)
from stickytoken.errors import InputError, ModelError, RunError, require_package
from stickytoken.settings.endpoint import EndpointOptions

if TYPE_CHECKING:
    from tenacity import RetryCallState

Encoding = Literal["base64", "float", "omitted"]

HOW_TO_CONTINUE = "all answers so far are cached; run the same command again to continue"
# Maximum number of characters to quote from a server's message in an error.
_SHOWN_REASON = 200
_CONNECT_SECONDS = 10.0
# HTTP statuses, besides 5xx, after which a retry makes sense: timeout, conflict, too many requests.
_TEMPORARY = frozenset({408, 409, 429})
# Error code that OpenAI sends with status 429 when the account has no credit. In that case, a retry does not
# help.
_NO_CREDIT = b"insufficient_quota"
# Largest number of texts in a request, until the server refuses so many.
MOST_TEXTS = 128
# How often a request is sent before its failure is reported, so that its texts may be suspected.
ATTEMPTS = 3
# The pause before a retry is random. Its upper bound doubles with each failure, from the first of these
# values up to the second.
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0


class Failure(Enum):
    """The kinds of failure after which a retry may succeed."""

    REFUSED = auto()  # the server said that it cannot answer now
    WEB_PAGE = auto()  # a web page came back: the server is in maintenance, or the URL is not an API
    UNREACHED = auto()  # no connection to the server
    LATE = auto()  # no answer within the time-out
    LOST = auto()  # the connection broke before the answer was complete
    UNUSABLE = auto()  # the answer does not match the request


class TemporaryError(Exception):
    """A request failed, but may succeed if it is sent again.

    Attributes:
        failure: the kind of failure.
        wait: seconds that the server asks to wait before a retry; None if it does not say.
        paid: whether the server may have computed an answer, and may charge for it.
    """

    def __init__(self, reason: str, failure: Failure, wait: float | None = None) -> None:
        super().__init__(reason)
        self.failure = failure
        self.wait = wait
        self.paid = failure in (Failure.LATE, Failure.LOST, Failure.UNUSABLE)


class RefusedError(Exception):
    """The server refused a request, and a retry would not help.

    Attributes:
        access_error: if the HTTP status suggests a wrong key or a wrong name of the model, the error that
            says so; otherwise None. This error is to be raised once the server also refuses other texts.
    """

    def __init__(self, reason: str, access_error: ModelError | None = None) -> None:
        super().__init__(reason)
        self.access_error = access_error


@dataclass(frozen=True, slots=True)
class RequestFormat:
    """Which optional fields a request has.

    Attributes:
        encoding: value of the ``encoding_format`` field; ``omitted`` means that the field is not sent.
        dimensions: whether to send the ``dimensions`` field, provided that the user requests a number of
            components.
    """

    encoding: Encoding = "float"
    dimensions: bool = True


# Vectors in base64 are sent only once they have been compared with lists.
_ENCODINGS: tuple[Encoding, ...] = ("float", "omitted")


def request_formats(dimensions: int | None) -> Iterator[RequestFormat]:
    """Yield the formats of a request in which vectors are lists, first the one that most servers accept.

    Args:
        dimensions: number of components that the user requests; if None, the ``dimensions`` field is never
            sent.
    """
    # If no number is requested, the field is never sent, so formats without it would repeat the same
    # requests.
    sends_dimensions = (True,) if dimensions is None else (True, False)
    for with_dimensions in sends_dimensions:
        for encoding in _ENCODINGS:
            yield RequestFormat(encoding, with_dimensions)


def price(tokens: float, price_per_million: float | None) -> float | None:
    """Return the cost of a number of tokens; None if the price is unknown."""
    return None if price_per_million is None else tokens * price_per_million / 1e6


@dataclass
class Spending:
    """The cost of all requests that this process made.

    For every attempt at a request, call `reserve` before it is sent, and `record_answer` or `release`
    afterwards.

    Attributes:
        price_per_million: price of a million tokens; None if it is unknown.
        limit: maximum cost; if None, there is no limit.
        requests: number of requests that were answered.
        tokens: number of tokens paid for so far, as the server counts them.
        pending: expected number of tokens in the requests in flight.
        largest_token_ratio: number of tokens that the server counted for a request, divided by the expected
            number of tokens; the largest such ratio among the answered requests, and at least 1. The expected
            number of tokens in pending requests is multiplied by this ratio to estimate their cost.
    """

    price_per_million: float | None = None
    limit: float | None = None
    requests: int = 0
    tokens: int = 0
    pending: float = 0.0
    largest_token_ratio: float = 1.0
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    @property
    def cost(self) -> float | None:
        return price(self.tokens, self.price_per_million)

    def reserve(self, tokens: float) -> None:
        """Reserve the cost of a request before it is sent.

        Args:
            tokens: expected number of tokens in the request.

        Raises:
            RunError: the request could exceed the limit.
        """
        with self._lock:
            # The server may count more tokens than expected, as it did in an earlier request.
            most_pending = (self.pending + tokens) * self.largest_token_ratio
            cost = price(self.tokens + most_pending, self.price_per_million)  # None if the price is unknown
            if self.limit is not None and cost is not None and cost > self.limit:
                raise RunError(
                    f"stopped at the maximum cost of {self.limit:g}: {self.requests:,} requests with "
                    f"{self.tokens:,} tokens cost {self.cost or 0.0:.4g}; {HOW_TO_CONTINUE}"
                )
            self.pending += tokens

    def record_answer(self, reserved: float, tokens: int) -> None:
        """Replace the tokens reserved for an answered request with the tokens that it cost."""
        with self._lock:
            self.requests += 1
            self.pending -= reserved
            self.tokens += tokens
            token_ratio = tokens / max(1.0, reserved)  # nothing is reserved for an empty text
            self.largest_token_ratio = max(self.largest_token_ratio, token_ratio)

    def release(self, reserved: float, paid: bool) -> None:
        """Release the tokens reserved for a request that failed; if it was paid for, they are spent."""
        with self._lock:
            self.pending -= reserved
            if paid:
                self.tokens += round(reserved)


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one request.

    Attributes:
        vectors: shape (n, d); rows of NaN for the texts in `problems`.
        tokens: number of tokens that the server counted; None if it does not count tokens.
        seconds: response time in seconds.
        problems: what is wrong with the vector of a text, keyed by the text's position. Texts with a usable
            vector have no entry.
    """

    vectors: NDArray[np.float32]
    tokens: int | None
    seconds: float
    problems: Mapping[int, str] = field(default_factory=dict)


class Client:
    """Sends one request, and turns every outcome into a reply or an error of this module.

    The retries of the `openai` library are switched off, because failed attempts that the server charges for
    would not count towards `max_cost`.

    Attributes:
        address: the server and the name of the model.
        options: the options for the server, such as the variable that holds the key, the price of tokens, and
            the spending and time limits.
        spending: the cost of all requests that this process made.
        request_format: the format of every request.
        most_texts: largest number of texts in a request that the server is known to take.
        last_answer: time of the last answer, on the monotonic clock; 0 before the first.
        stopped: set to end all pauses and retries.
    """

    def __init__(
        self,
        address: Address,
        options: EndpointOptions,
        spending: Spending,
        waits: Callable[[str, float], None] = lambda reason, seconds: None,
    ) -> None:
        """Open a client of the `openai` library; nothing is sent yet.

        Args:
            address: the server and the name of the model.
            options: the options for the server.
            spending: counts the cost of the requests.
            waits: called before a pause of at least a second, with the reason and the length in seconds.

        Raises:
            ModelError: the server needs a key, but the key is missing or malformed.
            MissingExtraError: the `openai` package is not installed.
        """
        self._key = read_key(address)
        for package in ("openai", "tenacity"):
            require_package(package, "a model behind an endpoint", "endpoint")
        has_key_in_fields = bool(self._key) and self._key.reveal() in (options.request_fields or "")
        if has_key_in_fields:
            raise InputError("request_fields contains the API key, but it is recorded in runs: leave it out")
        import openai

        self._sdk = openai
        self.address = address
        self.options = options
        self.spending = spending
        self.request_format = RequestFormat()
        self._tell_of_pause = waits
        self._api = openai.OpenAI(
            base_url=address.base_url,
            api_key=self._key.reveal() or "none",  # an empty key is refused before anything is sent
            max_retries=0,  # `request` sends failed requests again
            timeout=openai.Timeout(
                options.request_seconds, connect=min(options.request_seconds, _CONNECT_SECONDS)
            ),
        )
        # Without this, connections stay open until the garbage collector finds them.
        weakref.finalize(self, self._api.close)
        self.most_texts = MOST_TEXTS
        self.last_answer = 0.0
        self.stopped = threading.Event()

    def request(
        self,
        texts: Sequence[str],
        reserved: float,
        *,
        counts_tokens: bool = True,
        attempts: int | None = ATTEMPTS,
    ) -> Reply:
        """Send a request until it is answered or refused, and return the reply.

        Before every attempt, its expected cost is reserved; after it, its cost is recorded.

        Args:
            texts: texts of the request.
            reserved: number of tokens that an attempt is expected to cost.
            counts_tokens: whether to record the number of tokens that the server counts; otherwise,
                `reserved` is recorded.
            attempts: how often to send the request; if None, as often as the option `patience` allows.

        Raises:
            TemporaryError: the last failure of a request that may succeed later.
            RefusedError: the server refuses these texts.
            ModelError: no request will succeed.
            RunError: an attempt could exceed the spending limit.
        """
        import tenacity

        choose_random_pause = tenacity.wait_random_exponential(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)

        def choose_pause(state: RetryCallState) -> float:
            seconds = choose_random_pause(state)
            asked_seconds = _last_error(state).wait
            if asked_seconds is None:
                return seconds
            # Without the random part, all threads that the server asks to wait would return at once.
            return asked_seconds + seconds / 10

        def tell_of_pause(state: RetryCallState) -> None:
            seconds = state.upcoming_sleep
            if seconds >= 1:  # nobody notices a shorter one
                self._tell_of_pause(str(_last_error(state)), seconds)

        stop = tenacity.stop_any(
            tenacity.stop_before_delay(self.options.patience),
            tenacity.stop_when_event_set(self.stopped),
            tenacity.stop_never if attempts is None else tenacity.stop_after_attempt(attempts),
        )
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(TemporaryError),
            wait=choose_pause,
            stop=stop,
            sleep=tenacity.sleep_using_event(self.stopped),
            before_sleep=tell_of_pause,
            reraise=True,
        )
        reply: Reply = retrying(self._attempt, texts, reserved, counts_tokens)
        return reply

    def _attempt(self, texts: Sequence[str], reserved: float, counts_tokens: bool) -> Reply:
        """Send a request once, and record its cost. The arguments are those of `request`."""
        self.spending.reserve(reserved)
        try:
            reply = self._send(texts)
        except TemporaryError as error:
            self.spending.release(reserved, error.paid)
            raise
        except BaseException:  # a refusal, which costs nothing, or an interrupt by the user
            self.spending.release(reserved, paid=False)
            raise
        tokens = round(reserved)
        if counts_tokens and reply.tokens is not None:
            tokens = reply.tokens
        self.spending.record_answer(reserved, tokens)
        self.last_answer = time.monotonic()
        return reply

    def _send(self, texts: Sequence[str]) -> Reply:
        content, seconds = self._post(texts)
        try:
            answer = read_answer(content, len(texts))
        except ValueError as error:
            error_body = read_error(content)  # some servers send errors with status 200
            reason = error_body.message if error_body.is_error else str(error)
            raise TemporaryError(self._shorten_to_line_without_key(reason), Failure.UNUSABLE) from None
        return Reply(answer.vectors, answer.tokens, seconds, answer.problems)

    def _post(self, texts: Sequence[str]) -> tuple[str, float]:
        """Send the texts once; return the body of the response, and the response time in seconds."""
        body: dict[str, Any] = {"model": self.address.model, "input": list(texts)}
        body |= self.options.fields_of_requests
        if self.request_format.encoding != "omitted":
            body["encoding_format"] = self.request_format.encoding
        if self.request_format.dimensions and self.options.request_dimensions is not None:
            body["dimensions"] = self.options.request_dimensions
        started = time.perf_counter()
        problem: Exception | None = None
        content = ""
        try:
            content = self._api.post("/embeddings", cast_to=str, body=body)
        except self._sdk.APIError as error:
            problem = self._translate_sdk_error(error)
        if problem is not None:
            # Raised outside the except block, so that the SDK's error is not chained: it may contain the key.
            raise problem
        seconds = time.perf_counter() - started
        if is_web_page(content):
            raise TemporaryError("the server sent a web page instead of an answer", Failure.WEB_PAGE)
        return content, seconds

    def make_refusal_error(self, reason: object) -> ModelError:
        """Return the error to raise when the server refuses every request.

        Args:
            reason: the server's answer, which the message quotes.
        """
        return ModelError(
            f"{self.address.name}: the server refuses the request ({reason}): check the model and the options"
        )

    def advice_on_url(self) -> str | None:
        """Return advice to pass a URL that ends with ``/v1``; None if the URL already does.

        The advised URL does not end with ``/embeddings``, because requests add this path to it.
        """
        api_url = self.address.base_url.removesuffix("/embeddings")
        advised_url = api_url.removesuffix("/v1") + "/v1"
        if advised_url == self.address.base_url:
            return None
        return f"check the URL, which usually ends in /v1, as in {advised_url}#{self.address.model}"

    def _translate_sdk_error(self, error: Any) -> Exception:
        # The class of an error of httpx, on which the SDK is built.
        cause = type(error.__cause__).__name__
        if isinstance(error, self._sdk.APITimeoutError):
            if cause == "ConnectTimeout":
                return TemporaryError("no connection in time", Failure.UNREACHED)
            return TemporaryError(f"no answer within {self.options.request_seconds:g} s", Failure.LATE)
        if isinstance(error, self._sdk.APIStatusError):
            return self._error_for_status(error.status_code, error.response.content, error.response.headers)
        reason = self._shorten_to_line_without_key(str(error.__cause__ or error))
        return TemporaryError(reason, Failure.UNREACHED if cause == "ConnectError" else Failure.LOST)

    def _error_for_status(self, status: int, body: bytes, headers: Mapping[str, str]) -> Exception:
        """Return the error to raise for an HTTP status other than 200."""
        message = self._shorten_to_line_without_key(read_error(body).message)
        reason = f"HTTP {status}, {message}" if message else f"HTTP {status}"
        name = self.address.name
        if _NO_CREDIT in body or status == 402:
            return ModelError(
                f"{name}: the account has no credit left ({reason}): add some; {HOW_TO_CONTINUE}"
            )
        if status in _TEMPORARY or status >= 500:
            return TemporaryError(reason, Failure.REFUSED, seconds_to_wait(headers))
        # A refusal may concern only these texts. A wrong key or name is reported once other texts are refused
        # too.
        if status in (401, 403):
            if not self._key:
                return RefusedError(reason, make_missing_key_error(self.address))
            wrong_key = ModelError(
                f"{name}: the server refuses the key in the environment variable "
                f"{self.address.key_variable} ({reason}): set the right one, or name another variable "
                "(--set key-variable=NAME)"
            )
            return RefusedError(reason, wrong_key)
        if status in (404, 405):
            advice = self.advice_on_url() or "check the name of the model and the URL"
            wrong_name = ModelError(f"{name}: the server has no such model or path ({reason}): {advice}")
            return RefusedError(reason, wrong_name)
        return RefusedError(reason)

    def _shorten_to_line_without_key(self, text: str) -> str:
        line = " ".join(self._key.removed_from(text).split())
        return line if len(line) <= _SHOWN_REASON else line[: _SHOWN_REASON - 1] + "…"


def _last_error(state: RetryCallState) -> TemporaryError:
    error = state.outcome.exception() if state.outcome is not None else None
    if not isinstance(error, TemporaryError):  # the only kind of error that is retried
        raise TypeError(f"{error!r} is not retried")
    return error
