"""Send one request, once: what came back, or why nothing did and whether to ask again."""

from __future__ import annotations

import email.utils
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.endpoint._answer import UnusableAnswerError, read_answer
from stickytoken.encoders.endpoint._secret import Secret
from stickytoken.encoders.endpoint.address import Address
from stickytoken.errors import require_package

Encoding = Literal["base64", "float"]

_CONNECT_SECONDS = 10.0
_SHOWN_REASON = 200
# Worth asking again: time-out, conflict, too many requests, and whatever goes wrong within a server.
_TEMPORARY = frozenset({408, 409, 429})
_SERVER_FAULT = 500
_MARKUP = b"<"


class TemporaryError(Exception):
    """No usable answer this time.

    Attributes:
        status: HTTP status, if there was one.
        wait: seconds after which the server wants to be asked again, if it said so.
    """

    def __init__(self, reason: str, status: int | None = None, wait: float | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.wait = wait

    @property
    def unreachable(self) -> bool:
        """Whether nobody answered at all."""
        return self.status is None and not isinstance(self.__cause__, UnusableAnswerError)


class RefusedError(Exception):
    """The server understood the request and will never answer it.

    Attributes:
        status: HTTP status.
    """

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


class WebPageError(Exception):
    """What answered is a web page, not an API."""


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
    """Sends requests to one model. It may be used from several threads.

    Args:
        address: the model.
        key: key of the server.
        seconds: longest wait for an answer.
        dimensions: number of components to ask for; None leaves it to the model.

    Raises:
        MissingExtraError: the SDK is not installed.
    """

    def __init__(self, address: Address, key: Secret, seconds: float, dimensions: int | None = None) -> None:
        require_package("openai", "a model behind an endpoint", "endpoint")
        import openai

        self._sdk = openai
        self._key = key
        self._model = address.model
        self._seconds = seconds
        self._dimensions = dimensions
        self._client = openai.OpenAI(
            base_url=address.base_url,
            api_key=key.reveal() or "none",
            max_retries=0,
            timeout=openai.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS)),
        )

    def send(self, texts: Sequence[str], encoding: Encoding) -> Reply:
        """Send texts once.

        Raises:
            TemporaryError: there was no usable answer; ask again.
            RefusedError: there will never be one.
            WebPageError: a web page answered.
        """
        options: dict[str, Any] = {} if self._dimensions is None else {"dimensions": self._dimensions}
        started = time.perf_counter()
        try:
            raw = self._client.embeddings.with_raw_response.create(
                model=self._model, input=list(texts), encoding_format=encoding, **options
            )
            content = raw.content
        except self._sdk.APITimeoutError:
            raise TemporaryError(f"no answer within {self._seconds:g} s") from None
        except self._sdk.APIConnectionError as error:
            raise TemporaryError(self._shown(str(error.__cause__ or error))) from None
        except self._sdk.APIStatusError as error:
            raise self._of_status(error.status_code, error.response.content, error.response.headers) from None
        except self._sdk.APIError as error:
            raise TemporaryError(self._shown(str(error))) from None
        seconds = time.perf_counter() - started
        if content.lstrip()[:1] == _MARKUP:
            raise WebPageError
        try:
            vectors, tokens = read_answer(content, len(texts))
        except UnusableAnswerError as error:
            raise TemporaryError(self._shown(str(error))) from error
        return Reply(vectors, tokens, seconds)

    def _of_status(
        self, status: int, body: bytes, headers: Mapping[str, str]
    ) -> TemporaryError | RefusedError:
        said = self._shown(_message(body))
        reason = f"HTTP {status}, {said}" if said else f"HTTP {status}"
        if status in _TEMPORARY or status >= _SERVER_FAULT:
            return TemporaryError(reason, status, _wait(headers))
        return RefusedError(reason, status)

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
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and name in found:
            found = found[name]
    return found if isinstance(found, str) else json.dumps(found)


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
