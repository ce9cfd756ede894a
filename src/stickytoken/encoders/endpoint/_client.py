"""The client of a model behind an endpoint: requests with retries, several at a time, and their cost."""

from __future__ import annotations

import base64
import email.utils
import json
import math
import random
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from stickytoken.encoders.endpoint import Address, EndpointOptions, key_missing, key_of
from stickytoken.errors import ModelError, RunError, require_package

if TYPE_CHECKING:
    from stickytoken.encoders.endpoint._server import Capabilities

Encoding = Literal["base64", "float"]

_KEPT = "its answers are kept, and the same command continues from there"
_SHOWN_REASON = 200
# Worth asking again: time-out, conflict, too many requests, and whatever goes wrong within a server.
_TEMPORARY = frozenset({408, 409, 429})
_TOO_MANY = frozenset({429, 503})
# What OpenAI says with 429 where waiting does not help.
_NO_CREDIT = b"insufficient_quota"
_MARKUP = b"<"
_ERROR_FIELDS = ("error", "message", "detail")
_FIRST_PAUSE = 0.5
_TRUSTED_WAITS = 8
_LONGEST_PAUSE = 30.0
_MOST_DOUBLED = 10
_MOST_UNREACHED = 2
# Requests in flight: enough to hide most of the waiting, and few enough for small servers.
_AT_ONCE = 4
# After an interrupt or an error, answers that are on their way are paid for: wait for them a little.
_GRACE = 5.0


class Failure(Enum):
    REFUSED = auto()  # the server said that it cannot answer now
    WEB_PAGE = auto()  # of a server in maintenance, or of one that is no API
    UNREACHED = auto()  # nobody was there to take the request
    LATE = auto()  # no answer within the time-out
    LOST = auto()  # the connection broke before the answer was whole
    UNUSABLE = auto()  # an answer that does not match the request


class TemporaryError(Exception):
    def __init__(
        self, reason: str, failure: Failure, status: int | None = None, wait: float | None = None
    ) -> None:
        super().__init__(reason)
        self.failure = failure
        self.wait = wait  # seconds after which the server wants to be asked again
        self.unreachable = failure in (Failure.UNREACHED, Failure.LATE, Failure.LOST)
        self.busy = status in _TEMPORARY | _TOO_MANY  # and not broken
        self.too_many = status in _TOO_MANY
        # The server may have computed an answer, and count it.
        self.paid = failure in (Failure.LATE, Failure.LOST, Failure.UNUSABLE)


class RefusedError(Exception):
    """The server will never answer a request with these texts."""


class NoAnswerError(Exception):
    def __init__(self, reason: str, last: TemporaryError) -> None:
        super().__init__(reason)
        self.last = last


class _OverError(Exception):
    """Another request failed, or the user interrupted."""


def price(tokens: float, price_per_million: float | None) -> float | None:
    return None if price_per_million is None else tokens * price_per_million / 1e6


@dataclass
class Spending:  # of this process: each attempt is reserved, then answered or failed
    price_per_million: float | None = None
    limit: float | None = None
    requests: int = 0  # answered
    tokens: int = 0  # paid for, as the server counts them
    pending: float = 0.0  # tokens expected of requests in flight
    excess: float = 1.0  # how many times more the server counted than was expected, at most
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    @property
    def cost(self) -> float | None:
        return price(self.tokens, self.price_per_million)

    def reserve(self, tokens: float) -> None:
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
        with self._lock:
            self.requests += 1
            self.pending -= reserved
            self.tokens += tokens
            self.excess = max(self.excess, tokens / max(1.0, reserved))

    def failed(self, reserved: float, paid: bool) -> None:
        with self._lock:
            self.pending -= reserved
            if paid:
                self.tokens += round(reserved)


@dataclass
class Attempts:  # at one request, that failed
    patience: float  # seconds for which it may fail
    most: int | None = None  # failures, refusals of a busy server apart; fewer where no server answers
    failed: int = 0
    counted: int = 0
    unreached: int = 0
    since: float | None = None  # on the monotonic clock

    def pause_after(self, error: TemporaryError, now: float) -> float | None:  # seconds; None to give up
        self.failed += 1
        self.counted += not error.busy
        self.unreached += error.unreachable
        self.since = now if self.since is None else self.since
        # What the server asks for and a little more; ever longer ones at random if it says nothing, or still
        # refuses after the time that it asked for.
        jitter = random.SystemRandom()
        longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self.failed, _MOST_DOUBLED))
        pause = 0.0
        if error.wait is not None:
            pause = error.wait + jitter.uniform(0.0, 0.1 * min(error.wait, longest) + 0.01)
        if error.wait is None or self.failed > _TRUSTED_WAITS:
            pause = max(pause, jitter.uniform(longest / 2, longest))
        over = self.most is not None and (
            self.counted >= self.most
            or self.unreached >= _MOST_UNREACHED
            or error.failure is Failure.WEB_PAGE
        )
        return None if over or now + pause - self.since > self.patience else pause


class Reply(NamedTuple):
    vectors: NDArray[np.float32]  # shape (n, d)
    tokens: int | None  # if the server counts them
    seconds: float


class Client:
    def __init__(self, address: Address, options: EndpointOptions, spending: Spending) -> None:
        self._key = key_of(address)
        require_package("openai", "a model behind an endpoint", "endpoint")
        import openai

        self._sdk = openai
        self.address, self.options, self.spending = address, options, spending
        self._api = openai.OpenAI(
            base_url=address.base_url,
            api_key=self._key.reveal() or "none",
            max_retries=0,
            timeout=openai.Timeout(options.request_seconds, connect=min(options.request_seconds, 10.0)),
        )
        weakref.finalize(self, self._api.close)  # or its connections stay open until they are collected
        # On the monotonic clock: a server that is too busy for one request is for all.
        self.held_until = 0.0
        self._tokenizing = threading.Lock()  # tokenizers are for one thread at a time

    def send(self, texts: Sequence[str], encoding: Encoding) -> Reply:
        dimensions = self.options.dimensions
        options: dict[str, Any] = {} if dimensions is None else {"dimensions": dimensions}
        started = time.perf_counter()
        found: Any
        try:
            found = self._api.embeddings.with_raw_response.create(
                model=self.address.model, input=list(texts), encoding_format=encoding, **options
            )
        except self._sdk.APIError as error:
            found = self._explained(error)
        if isinstance(found, Exception):
            # Raised out here, so that it does not carry the error of the SDK: servers repeat keys in theirs.
            raise found
        seconds = time.perf_counter() - started
        content = found.content
        if content.lstrip()[:1] == _MARKUP:
            raise TemporaryError("a web page instead of an answer", Failure.WEB_PAGE)
        try:
            vectors, tokens = read_answer(content, len(texts))
        except ValueError as error:
            is_error, said = _said(content)  # some servers send errors with status 200
            raise TemporaryError(self._shown(said if is_error else str(error)), Failure.UNUSABLE) from None
        return Reply(vectors, tokens, seconds)

    def ask(
        self,
        texts: Sequence[str],
        encoding: Encoding,
        attempts: Attempts,
        reserved: float,
        rest: Callable[[TemporaryError, float], None] = lambda error, pause: time.sleep(pause),
    ) -> Reply:
        while True:
            self.spending.reserve(reserved)
            try:
                return self.send(texts, encoding)
            except TemporaryError as error:
                self.spending.failed(reserved, error.paid)
                last = error
            except Exception:
                self.spending.failed(reserved, paid=False)
                raise
            pause = attempts.pause_after(last, time.monotonic())
            if pause is None:
                reason = f"gave no usable answer in {attempts.failed} attempts ({last})"
                if attempts.failed == 1 and last.wait is not None and last.wait > attempts.patience:
                    longer = f"longer than the {attempts.patience:,.0f} s allowed"
                    reason = f"asks to wait for {last.wait:,.0f} s, {longer} ({last})"
                raise NoAnswerError(reason, last)
            rest(last, pause)

    def send_all(
        self,
        batches: Sequence[Sequence[str]],
        known: Capabilities,
        expected: Callable[[Sequence[str]], float],
        keep: Callable[[Mapping[str, NDArray[np.float32]]], None],
        without_vector: Callable[[str, str], None] | None = None,
        waits: Callable[[str, float], None] = lambda reason, seconds: None,
    ) -> None:
        waiting = iter(batches)
        over = threading.Event()

        def pause(seconds: float) -> None:
            until = time.monotonic() + seconds
            while (left := max(until, self.held_until) - time.monotonic()) > 0:
                over.wait(left)
                if over.is_set():
                    raise _OverError

        def answer(texts: Sequence[str], attempts: Attempts) -> None:
            pause(0.0)
            with self._tokenizing:
                reserved = expected(texts)

            def rest(error: TemporaryError, seconds: float) -> None:
                if seconds >= 1:
                    waits(str(error), seconds)
                if error.failure is Failure.LATE and len(texts) > 1:
                    raise RefusedError
                if error.too_many:
                    self.held_until = max(self.held_until, time.monotonic() + seconds)
                pause(seconds)

            try:
                reply = self.ask(texts, known.encoding, attempts, reserved, rest)
            except NoAnswerError as error:
                raise ModelError(
                    f"{self.address.name} {error}: check the server, or try later; {_KEPT}"
                ) from None
            except RefusedError as error:
                reason = str(error)
            else:
                counted = reply.tokens if known.counts_tokens else None
                self.spending.answered(reserved, round(reserved) if counted is None else counted)
                keep(dict(zip(texts, reply.vectors, strict=True)))
                return
            if len(texts) > 1:  # fewer are answered sooner, and in the end the refused one is alone
                middle = len(texts) // 2
                for half in (texts[:middle], texts[middle:]):
                    answer(half, replace(attempts))
            elif without_vector is None:
                raise self.refused(reason)
            else:
                without_vector(texts[0], reason)

        def work() -> None:
            while (texts := next(waiting, None)) is not None and not over.is_set():
                answer(texts, Attempts(self.options.patience))

        _in_threads(work, min(_AT_ONCE, len(batches)), over)

    def refused(self, said: object) -> ModelError:
        return ModelError(
            f"{self.address.name}: the server refuses the request ({said}): check the model and the options"
        )

    def _explained(self, error: Any) -> Exception:
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
        said = self._shown(_said(body)[1])
        reason = f"HTTP {status}, {said}" if said else f"HTTP {status}"
        if _NO_CREDIT in body or status == 402:
            return ModelError(
                f"{self.address.name}: the account has no credit left ({reason}): add some; {_KEPT}"
            )
        if status in _TEMPORARY or status >= 500:
            return TemporaryError(reason, Failure.REFUSED, status, _wait(headers))
        if status in (401, 403):
            if not self._key:
                return key_missing(self.address)
            return ModelError(
                f"{self.address.name}: the server refuses the key in the environment variable "
                f"{self.address.key_variable} ({reason}): set the right one, or name another variable "
                "(--set key-variable=NAME)"
            )
        if status in (404, 405):
            what = self.other_url() or "check the name of the model and the URL"
            return ModelError(
                f"{self.address.name}: the server knows no such model or path ({reason}): {what}"
            )
        return RefusedError(reason)

    def _shown(self, text: str) -> str:
        line = " ".join(self._key.removed_from(text).split())
        return line if len(line) <= _SHOWN_REASON else line[: _SHOWN_REASON - 1] + "…"

    def other_url(self) -> str | None:
        usual = self.address.base_url.removesuffix("/embeddings").removesuffix("/v1") + "/v1"
        if usual == self.address.base_url:
            return None
        return f"check the URL, which usually ends in /v1, as in {usual}#{self.address.model}"


def _in_threads(work: Callable[[], None], count: int, over: threading.Event) -> None:
    failures: list[Exception] = []

    def run() -> None:
        try:
            work()
        except _OverError:
            return
        except Exception as error:  # noqa: BLE001 - raised in the thread that waits
            failures.append(error)
            over.set()

    threads = [threading.Thread(target=run, name="endpoint", daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive() and not over.is_set():
                thread.join(0.2)
    finally:
        over.set()
        end = time.monotonic() + _GRACE
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
    if failures:
        raise failures[0]


def _said(body: bytes) -> tuple[bool, str]:
    if body.lstrip()[:1] == _MARKUP:
        return False, "a web page"
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return False, body.decode("utf-8", "replace")
    is_error = isinstance(found, dict) and any(name in found for name in _ERROR_FIELDS)
    for name in _ERROR_FIELDS:
        if isinstance(found, dict) and name in found:
            found = found[name]
    return is_error, found if isinstance(found, str) else json.dumps(found)


def _wait(headers: Mapping[str, str]) -> float | None:
    """Read Retry-After, in seconds or as a date, or the header in milliseconds that some servers send."""
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * scale
        except ValueError:
            try:
                seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
            except ValueError:
                continue
        if np.isfinite(seconds) and seconds >= 0:
            return seconds
    return None


_MOST_COUNTED = 2**40  # tokens in a request


class _Item(BaseModel):
    index: int | None = None
    embedding: str | list[float | None]  # base64 of float32, or numbers; servers write NaN as null


class _Answer(BaseModel):
    data: list[_Item]
    usage: Any = None


def read_answer(content: bytes, texts: int) -> tuple[NDArray[np.float32], int | None]:
    # The tokens are None without a possible number. A ValueError says what does not match the request.
    try:
        answer = _Answer.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        raise ValueError(f"{where}: {first['msg']}") from None
    items = answer.data
    if len(items) != texts:
        raise ValueError(f"{len(items)} vectors for {texts} texts")
    indices = [item.index for item in items if item.index is not None]
    if indices:  # without any index they are in order already
        if sorted(indices) != list(range(texts)):
            raise ValueError("vectors whose indices do not match the texts")
        items = [items[place] for place in np.argsort(indices).tolist()]
    rows = [_vector(item.embedding) for item in items]
    shortest, longest = min(map(len, rows)), max(map(len, rows))
    if shortest == 0:
        raise ValueError("an empty vector")
    if shortest < longest:
        raise ValueError(f"vectors of {shortest} and of {longest} components")
    vectors = np.stack(rows)
    if not np.isfinite(vectors).all():
        raise ValueError("a vector that is not finite")
    usage = answer.usage if isinstance(answer.usage, dict) else {}
    counts = (usage.get(name) for name in ("prompt_tokens", "total_tokens"))
    possible = (each for each in counts if isinstance(each, (int, float)) and 0 < each < _MOST_COUNTED)
    return vectors, next(map(math.ceil, possible), None)


def _vector(embedding: str | list[float | None]) -> NDArray[np.float32]:
    if not isinstance(embedding, str):
        with np.errstate(over="ignore"):  # refused as not finite
            return np.array(embedding, dtype=np.float64).astype(np.float32)
    try:
        return np.frombuffer(base64.b64decode(embedding, validate=True), dtype="<f4").astype(np.float32)
    except ValueError:
        raise ValueError("a vector that is neither numbers nor base64 of numbers") from None
