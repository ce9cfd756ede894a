"""Send one request once: the reply, or why there is none and what to do about it."""

from __future__ import annotations

import base64
import binascii
import email.utils
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from stickytoken.encoders.endpoint.options import Address, Secret, key_missing
from stickytoken.errors import ModelError, require_package

Encoding = Literal["base64", "float"]

KEPT = "its answers are kept, and the same command continues from there"
_WRONG_KEY = frozenset({401, 403})
_NOT_FOUND = frozenset({404, 405})
_PAYMENT_REQUIRED = 402
_CONNECT_SECONDS = 10.0
_SHOWN_REASON = 200
# Worth asking again: time-out, conflict, too many requests, and whatever goes wrong within a server.
_TEMPORARY = frozenset({408, 409, 429})
_SERVER_FAULT = 500
_TOO_MANY = frozenset({429, 503})
_BUSY = _TEMPORARY | _TOO_MANY
_MARKUP = b"<"
# What OpenAI says with 429 where waiting does not help.
_NO_CREDIT = b"insufficient_quota"
_ERROR_FIELDS = ("error", "message", "detail")


class Failure(StrEnum):
    """How a request failed."""

    REFUSED = "refused"
    """The server said that it cannot answer now."""
    UNREACHED = "unreached"
    """Nobody was there to take the request."""
    LATE = "late"
    """No answer within the time-out."""
    LOST = "lost"
    """The connection broke before the answer was whole."""
    UNUSABLE = "unusable"
    """An answer that does not match the request."""


class TemporaryError(Exception):
    """No usable answer this time.

    Attributes:
        failure: how the request failed.
        status: HTTP status, if there was one.
        wait: seconds after which the server wants to be asked again, if it said so.
    """

    def __init__(
        self, reason: str, failure: Failure, status: int | None = None, wait: float | None = None
    ) -> None:
        super().__init__(reason)
        self.failure = failure
        self.status = status
        self.wait = wait

    @property
    def unreachable(self) -> bool:
        """Whether nobody answered at all."""
        return self.failure in (Failure.UNREACHED, Failure.LATE, Failure.LOST)

    @property
    def busy(self) -> bool:
        """Whether the server may answer later, and is not broken."""
        return self.status in _BUSY

    @property
    def too_many(self) -> bool:
        """Whether the server gets more requests than it wants."""
        return self.status in _TOO_MANY

    @property
    def paid(self) -> bool:
        """Whether the server may have computed an answer, and count it."""
        return self.failure in (Failure.LATE, Failure.LOST, Failure.UNUSABLE)


class WebPageError(TemporaryError):
    """The answer is a web page: of a server in maintenance, or of one that is no API."""

    def __init__(self) -> None:
        super().__init__("a web page instead of an answer", Failure.REFUSED)


class RefusedError(Exception):
    """The server will never answer a request with these texts."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answered request.

    Attributes:
        vectors: shape (n, d).
        tokens: tokens that the server counted; None if it does not tell.
        seconds: from the request to its answer.
    """

    vectors: NDArray[np.float32]
    tokens: int | None
    seconds: float


class Requester:
    """Sends requests to one model. It may be used from several threads."""

    def __init__(self, address: Address, key: Secret, seconds: float, dimensions: int | None = None) -> None:
        require_package("openai", "a model behind an endpoint", "endpoint")
        import openai

        self._sdk = openai
        self.address = address
        self._key = key
        self._seconds = seconds
        self._dimensions = dimensions
        self._client = openai.OpenAI(
            base_url=address.base_url,
            api_key=key.reveal() or "none",
            max_retries=0,
            timeout=openai.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS)),
        )

    def send(self, texts: Sequence[str], encoding: Encoding) -> Reply:
        """Send texts once."""
        options: dict[str, Any] = {} if self._dimensions is None else {"dimensions": self._dimensions}
        started = time.perf_counter()
        content: bytes | TemporaryError | RefusedError | ModelError
        try:
            raw = self._client.embeddings.with_raw_response.create(
                model=self.address.model, input=list(texts), encoding_format=encoding, **options
            )
            content = raw.content
        except self._sdk.APIError as error:
            content = self._explained(error)
        if not isinstance(content, bytes):
            # Raised out here, so that it does not carry the error of the SDK: servers repeat keys in theirs.
            raise content
        seconds = time.perf_counter() - started
        if content.lstrip()[:1] == _MARKUP:
            raise WebPageError
        try:
            vectors, tokens = read_answer(content, len(texts))
        except _UnusableError as error:
            raise TemporaryError(self._shown(_refused_in(content) or str(error)), Failure.UNUSABLE) from None
        return Reply(vectors, tokens, seconds)

    def _explained(self, error: Any) -> TemporaryError | RefusedError | ModelError:
        """Turn an error of the SDK into one that says whether to ask again."""
        if isinstance(error, self._sdk.APITimeoutError):
            if type(error.__cause__).__name__ == "ConnectTimeout":
                return TemporaryError("no connection in time", Failure.UNREACHED)
            return TemporaryError(f"no answer within {self._seconds:g} s", Failure.LATE)
        if isinstance(error, self._sdk.APIStatusError):
            return self._of_status(error.status_code, error.response.content, error.response.headers)
        reason = self._shown(str(error.__cause__ or error))
        return TemporaryError(
            reason, Failure.UNREACHED if type(error.__cause__).__name__ == "ConnectError" else Failure.LOST
        )

    def _of_status(
        self, status: int, body: bytes, headers: Mapping[str, str]
    ) -> TemporaryError | RefusedError | ModelError:
        said = self._shown(_message(body))
        reason = f"HTTP {status}, {said}" if said else f"HTTP {status}"
        meant = _PAYMENT_REQUIRED if _NO_CREDIT in body else status
        if meant in _TEMPORARY or meant >= _SERVER_FAULT:
            return TemporaryError(reason, Failure.REFUSED, status, _wait(headers))
        final = _final(self.address, meant, reason, has_key=bool(self._key))
        return final or RefusedError(reason)

    def _shown(self, text: str) -> str:
        """Shorten what a server said to one line, without the key."""
        line = " ".join(self._key.removed_from(text).split())
        return line if len(line) <= _SHOWN_REASON else line[: _SHOWN_REASON - 1] + "…"


def _message(body: bytes) -> str:
    """Return what the body of an error says, in any of the forms that servers use."""
    if body.lstrip()[:1] == _MARKUP:
        return "a web page"
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")
    for name in _ERROR_FIELDS:
        if isinstance(found, dict) and name in found:
            found = found[name]
    return found if isinstance(found, str) else json.dumps(found)


def _refused_in(content: bytes) -> str | None:
    """Return what an error says that came with status 200; None for anything else."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    named = isinstance(found, dict) and any(name in found for name in _ERROR_FIELDS)
    return _message(content) if named else None


def _wait(headers: Mapping[str, str]) -> float | None:
    """Read Retry-After: seconds, or a date; also the header in milliseconds that some servers send."""
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
        if np.isfinite(seconds):
            return max(0.0, seconds)
    return None


class _UnusableError(Exception):
    """An answer that does not match the request."""


class _Item(BaseModel):
    index: int | None = None
    embedding: str | list[float | None]
    """base64 of float32, or numbers; servers write NaN as null."""


class _Usage(BaseModel):
    prompt_tokens: int | None = None
    total_tokens: int | None = None


class _Answer(BaseModel):
    data: list[_Item]
    usage: _Usage | None = None


def read_answer(content: bytes, texts: int) -> tuple[NDArray[np.float32], int | None]:
    """Return the vectors in the order of the texts, shape (n, d), and the tokens that the server counted."""
    try:
        answer = _Answer.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        raise _UnusableError(f"{where}: {first['msg']}") from None
    if len(answer.data) != texts:
        raise _UnusableError(f"{len(answer.data)} vectors for {texts} texts")
    rows = [_vector(item.embedding) for item in _in_order(answer.data)]
    lengths = sorted({len(row) for row in rows})
    if lengths[0] == 0:
        raise _UnusableError("an empty vector")
    if len(lengths) > 1:
        raise _UnusableError(f"vectors of {lengths[0]} and of {lengths[-1]} components")
    vectors = np.stack(rows)
    if not np.isfinite(vectors).all():
        raise _UnusableError("a vector that is not finite")
    counted = None if answer.usage is None else answer.usage.prompt_tokens or answer.usage.total_tokens
    return vectors, counted or None


def _in_order(items: Sequence[_Item]) -> list[_Item]:
    """Put vectors into the order of the texts; without any index they are in it already."""
    places = [item.index for item in items]
    if all(place is None for place in places):
        return list(items)
    known = [place for place in places if place is not None]
    if sorted(known) != list(range(len(items))):
        raise _UnusableError("vectors whose indices do not match the texts")
    return [items[place] for place in np.argsort(known).tolist()]


def _vector(embedding: str | list[float | None]) -> NDArray[np.float32]:
    if isinstance(embedding, str):
        try:
            return np.frombuffer(base64.b64decode(embedding, validate=True), dtype="<f4").astype(np.float32)
        except (binascii.Error, ValueError):
            raise _UnusableError("a vector that is neither numbers nor base64 of numbers") from None
    return np.array(embedding, dtype=np.float64).astype(np.float32)


def _final(address: Address, status: int, said: str, *, has_key: bool) -> ModelError | None:
    """Explain a status after which no request will be answered; None for any other status."""
    if status in _WRONG_KEY and not has_key:
        return key_missing(address)
    if status in _WRONG_KEY:
        return ModelError(
            f"{address.name}: the server refuses the key in the environment variable {address.key_variable} "
            f"({said}): set the right one, or name another variable (--key-variable)"
        )
    if status == _PAYMENT_REQUIRED:
        return ModelError(f"{address.name}: the account has no credit left ({said}): add some; {KEPT}")
    if status in _NOT_FOUND:
        what = _other_url(address) or "check the name of the model and the URL"
        return ModelError(f"{address.name}: the server knows no such model or path ({said}): {what}")
    return None


def not_an_api(address: Address) -> ModelError:
    """Explain that a web page answered."""
    what = _other_url(address) or "check the URL, or try later if the server is in maintenance"
    return ModelError(f"{address.name}: a web page answers there, not an API: {what}")


def refused(name: str, said: object) -> ModelError:
    """Explain that the server refuses a request for what is in it."""
    return ModelError(f"{name}: the server refuses the request ({said}): check the model and the options")


def given_up(name: str, why: str, *, kept: str = "") -> ModelError:
    """Explain that a request got no usable answer in time."""
    return ModelError(f"{name} {why}: check the server, or try later{kept and f'; {kept}'}")


def _other_url(address: Address) -> str | None:
    """Name the URL that was probably meant; None if it has the usual form."""
    usual = address.base_url.removesuffix("/embeddings").removesuffix("/v1") + "/v1"
    if usual == address.base_url:
        return None
    return f"check the URL, which usually ends in /v1, as in {usual}#{address.model}"
