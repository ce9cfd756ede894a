"""Parse the responses of a server: vectors, token counts, error messages and retry times."""

from __future__ import annotations

import base64
import email.utils
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

# First character of every HTML or XML document. No JSON document begins with it.
_MARKUP = "<"
# Fields that hold an error message, outermost first: OpenAI nests ``message`` in ``error``.
_ERROR_FIELDS = ("error", "message", "detail")
# A count of at least this many tokens for one request must be wrong.
_IMPOSSIBLE_TOKENS = 2**40


@dataclass(frozen=True, slots=True)
class Answer:
    """The server's answer to one request, with the vectors of its texts.

    Attributes:
        vectors: shape (n, d); rows of NaN for the texts in `problems`.
        tokens: number of tokens that the server counted; None if the count is missing or impossible.
        problems: what is wrong with the vector of a text, keyed by the text's position in the request. Texts
            with a usable vector have no entry.
    """

    vectors: NDArray[np.float32]
    tokens: int | None
    problems: Mapping[int, str] = field(default_factory=dict)


class _Item(BaseModel):
    index: int | None = None  # position of the text in the request
    # Either base64 of float32 numbers, or a list of numbers; `_decode_vector` checks it. Servers write NaN as
    # null.
    embedding: Any = None


class _Body(BaseModel):
    data: list[_Item]
    usage: Any = None


def read_answer(content: str | bytes, count: int) -> Answer:
    """Parse the answer to a request with `count` texts.

    If a vector is missing, empty or not finite, the problem is noted in `Answer.problems`; the other vectors
    remain valid.

    Raises:
        ValueError: the answer does not match the request, or none of its vectors is usable.
    """
    body = _parse_body(content, count)
    vector_of: dict[int, NDArray[np.float32]] = {}  # keyed by the position of the text
    problems: dict[int, str] = {}
    for position, item in zip(_find_positions_in_request(body.data), body.data, strict=True):
        try:
            vector_of[position] = _decode_vector(item.embedding)
        except ValueError as error:
            problems[position] = str(error)
    if not vector_of:
        first_problem = next(iter(problems.values()), "no vectors")
        raise ValueError(first_problem)
    dimensions = {len(vector) for vector in vector_of.values()}
    if len(dimensions) > 1:
        raise ValueError(
            f"the vectors have different numbers of components: from {min(dimensions)} to {max(dimensions)}"
        )
    (dimension,) = dimensions
    vectors = np.full((count, dimension), np.nan, np.float32)
    for position, vector in vector_of.items():
        vectors[position] = vector
    return Answer(vectors, _read_token_count(body.usage), problems)


def _parse_body(content: str | bytes, count: int) -> _Body:
    try:
        body = _Body.model_validate_json(content)
    except ValidationError as error:
        first_error = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first_error["loc"]) or "the body"
        raise ValueError(f"{where}: {first_error['msg']}") from None
    if len(body.data) != count:
        raise ValueError(f"{len(body.data)} vectors for {count} texts")
    return body


def _find_positions_in_request(items: Sequence[_Item]) -> list[int]:
    """Return the position in the request of each item's text."""
    in_order = list(range(len(items)))
    # Some servers send no indices, or 0 for every vector. The vectors of such servers are in the order of the
    # texts.
    all_indices_are_equal = len({item.index for item in items}) == 1  # all None, or all 0
    if all_indices_are_equal:
        return in_order
    unnamed_positions = set(in_order).difference(item.index for item in items if item.index is not None)
    positions: list[int] = []
    for item in items:
        if item.index is not None:
            positions.append(item.index)
        elif len(unnamed_positions) == 1:  # some servers omit the index 0: their JSON library drops zeros
            positions.extend(unnamed_positions)
    if sorted(positions) != in_order:  # an index is missing, repeated, or too large
        raise ValueError("vectors whose indices do not match the texts")
    return positions


def _decode_vector(embedding: Any) -> NDArray[np.float32]:
    """Decode one vector, and return it with shape (d,).

    Raises:
        ValueError: the vector is missing, empty or not finite, or is neither a list of numbers nor base64.
    """
    if embedding is None:
        raise ValueError("no vector")
    if isinstance(embedding, str):
        try:
            vector = np.frombuffer(base64.b64decode(embedding, validate=True), dtype="<f4").astype(np.float32)
        except ValueError:
            raise ValueError("a vector that is neither a list of numbers nor base64") from None
    elif not isinstance(embedding, list):
        raise ValueError("a vector that is neither a list of numbers nor base64")
    elif any(isinstance(number, list) for number in embedding):
        raise ValueError("a list of lists for one text, not one vector: its server may not pool tokens")
    else:
        # Numbers too large for float32 become infinite, and the last check rejects the vector.
        with np.errstate(over="ignore"):
            try:
                vector = np.array(embedding, dtype=np.float64).astype(np.float32)
            except (TypeError, ValueError):
                raise ValueError("a vector that is neither a list of numbers nor base64") from None
    if not len(vector):
        raise ValueError("an empty vector")
    if not np.isfinite(vector).all():
        raise ValueError("a vector that is not finite")
    return vector


def _read_token_count(usage: Any) -> int | None:
    if not isinstance(usage, dict):
        return None
    for name in ("prompt_tokens", "total_tokens"):  # some servers have only one of them
        count = usage.get(name)
        # A server that does not count may write 0.
        if isinstance(count, (int, float)) and 0 < count < _IMPOSSIBLE_TOKENS:
            return math.ceil(count)
    return None


def is_web_page(content: str | bytes) -> bool:
    """Whether the body of a response is HTML or XML."""
    # The first bytes are enough: before the first character, there is at most some white space.
    text = content if isinstance(content, str) else content[:64].decode("utf-8", "replace")
    return text.lstrip().startswith(_MARKUP)


class ErrorBody(NamedTuple):
    """What the body of a response says about an error."""

    is_error: bool  # whether it is a JSON object with an error
    message: str


def read_error(content: str | bytes) -> ErrorBody:
    """Read the error message in the body of a response.

    For example, the message is ``too long`` if the body is ``{"error": {"message": "too long"}}``. If the
    body is JSON without an error, the message is the whole body, and if it is not JSON, its text; but if the
    body is HTML or XML, the message is ``a web page``. A message that is not a string is returned as JSON.
    """
    if is_web_page(content):
        return ErrorBody(False, "a web page")
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        text = content if isinstance(content, str) else content.decode("utf-8", "replace")
        return ErrorBody(False, text)
    is_error = isinstance(body, dict) and any(name in body for name in _ERROR_FIELDS)
    message = body
    for name in _ERROR_FIELDS:
        # The names are ordered from the outermost to the innermost field. If a field holds an object rather
        # than a message, the next name is looked up in this object.
        if isinstance(message, dict) and name in message:
            message = message[name]
    return ErrorBody(is_error, message if isinstance(message, str) else json.dumps(message))


def seconds_to_wait(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds the server asks the client to wait before a retry; None if it does not say.

    Retry-After is a number of seconds or a date. Some servers send retry-after-ms, in milliseconds.
    """
    for name, seconds_per_unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * seconds_per_unit
        except ValueError:  # not a number, so perhaps a date
            try:
                seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
            except ValueError:
                continue
        if np.isfinite(seconds) and seconds >= 0:
            return seconds
    return None
