"""Parse the responses of a server: vectors, token counts, error messages and retry times."""

from __future__ import annotations

import base64
import email.utils
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

# First character of every HTML or XML document. No JSON document begins with it.
_MARKUP = "<"
# Fields that hold an error message, outermost first: OpenAI nests ``message`` in ``error``.
_ERROR_FIELDS = ("error", "message", "detail")
# Smallest cosine between two answers to the same text. Wrongly decoded, a vector has a cosine near 0.
_LEAST_AGREEMENT = 0.9
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
    index: Any = None
    # Either base64 of float32 numbers, or a list of numbers; `_vector` checks it. Servers write NaN as null.
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
    body = _items(content, count)
    rows: dict[int, NDArray[np.float32]] = {}
    problems: dict[int, str] = {}
    for position, item in zip(_positions(body.data), body.data, strict=True):
        try:
            rows[position] = _vector(item.embedding)
        except ValueError as error:
            problems[position] = str(error)
    if not rows:
        raise ValueError(next(iter(problems.values()), "no vectors"))
    lengths = {len(row) for row in rows.values()}
    if len(lengths) > 1:
        raise ValueError(
            f"the vectors have different numbers of components: from {min(lengths)} to {max(lengths)}"
        )
    vectors = np.full((count, lengths.pop()), np.nan, np.float32)
    for position, row in rows.items():
        vectors[position] = row
    return Answer(vectors, _read_count(body.usage), problems)


def _items(content: str | bytes, count: int) -> _Body:
    try:
        body = _Body.model_validate_json(content)
    except ValidationError as error:
        first_error = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first_error["loc"]) or "the body"
        raise ValueError(f"{where}: {first_error['msg']}") from None
    if len(body.data) != count:
        raise ValueError(f"{len(body.data)} vectors for {count} texts")
    return body


def _positions(items: Sequence[_Item]) -> list[int]:
    """Return, for each item of the answer, the position (from 0) of its text in the request.

    Servers differ in how they number vectors: some send no indices, some omit only the index 0 (because their
    JSON library drops zeros), some send 0 for every vector, and some count from 1. If exactly one item has no
    index, the item gets the only position that is left. If several items have no index, each of these items
    gets its own position in the answer.

    Raises:
        ValueError: the indices do not say which vector belongs to which text.
    """
    count = len(items)
    in_order = list(range(count))
    indices = [_index(item.index) for item in items]
    numbers = [index for index in indices if index is not None]
    if not numbers:
        return in_order
    all_have_index = len(numbers) == count
    if all_have_index and len(set(numbers)) == 1:  # equal indices say nothing about the order
        return in_order
    if all_have_index and sorted(numbers) == list(range(1, count + 1)):  # the server counts texts from 1
        return [number - 1 for number in numbers]
    free_positions = sorted(set(in_order) - set(numbers))
    if len(numbers) == count - 1 and len(free_positions) == 1:
        positions = [free_positions[0] if index is None else index for index in indices]
    else:
        positions = [position if index is None else index for position, index in enumerate(indices)]
    if sorted(positions) != in_order:
        raise ValueError("vectors whose indices do not match the texts")
    return positions


def _index(value: Any) -> int | None:
    if value is None or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return int(number) if number.is_integer() else None


def read_encoded_vectors(content: str | bytes, count: int) -> list[bytes] | None:
    """Return the bytes of each vector in an answer to `count` texts; None if they are not in base64.

    Raises:
        ValueError: the answer does not match the request.
    """
    items = _items(content, count).data
    encoded: list[bytes] = []
    for item in items:
        if not isinstance(item.embedding, str):
            return None
        encoded.append(base64.b64decode(item.embedding, validate=True))
    return encoded


def kind_of_numbers(encoded: bytes, vector: NDArray[np.float32]) -> str:
    """Say how a vector is encoded, by comparing its bytes with the same vector, sent as a list.

    Args:
        encoded: the bytes.
        vector: the vector, shape (d,).

    Returns:
        ``float32``, which is how the API encodes vectors, or what the numbers are instead.
    """
    size = len(vector)
    if len(encoded) == size:
        return "8-bit integers"
    if 8 * len(encoded) == size:
        return "packed bits"
    decoded: dict[str, NDArray[Any]] = {}
    if len(encoded) == 4 * size:
        decoded["float32"] = np.frombuffer(encoded, "<f4")
        decoded["float32 in big-endian order"] = np.frombuffer(encoded, ">f4")
    elif len(encoded) == 8 * size:
        decoded["float64"] = np.frombuffer(encoded, "<f8")
    elif len(encoded) == 2 * size:
        decoded["float16"] = np.frombuffer(encoded, "<f2")
        # The 16 bits of a bfloat16 number are the upper half of a float32 number.
        upper_halves = np.frombuffer(encoded, "<u2").astype("<u4") << 16
        decoded["bfloat16"] = upper_halves.view("<f4")
    for kind, numbers in decoded.items():
        if _agree(numbers, vector):
            return kind
    return f"{len(encoded)} bytes for {size} components"


def _agree(numbers: NDArray[Any], vector: NDArray[np.float32]) -> bool:
    if not np.isfinite(numbers).all():
        return False
    first = numbers.astype(np.float64)
    second = vector.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        cosine = first @ second / (np.linalg.norm(first) * np.linalg.norm(second))
    return bool(cosine > _LEAST_AGREEMENT)


def _vector(embedding: Any) -> NDArray[np.float32]:
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


def _read_count(usage: Any) -> int | None:
    if not isinstance(usage, dict):
        return None
    for name in ("prompt_tokens", "total_tokens"):
        count = usage.get(name)
        if isinstance(count, (int, float)) and 0 < count < _IMPOSSIBLE_TOKENS:
            return math.ceil(count)
    return None


def is_web_page(content: str | bytes) -> bool:
    """Whether the body of a response is HTML or XML."""
    text = content if isinstance(content, str) else content[:64].decode("utf-8", "replace")
    return text.lstrip()[:1] == _MARKUP


def error_message(content: str | bytes) -> tuple[bool, str]:
    """Extract the error message from the body of a response.

    Returns:
        Whether the body is a JSON object with an error, and the message. For example, the message is ``too
        long`` if the body is ``{"error": {"message": "too long"}}``. If the body is JSON without an error,
        the message is the whole body, and if it is not JSON, its text; but if the body is HTML or XML, the
        message is ``a web page``. A message that is not a string is returned as JSON.
    """
    if is_web_page(content):
        return False, "a web page"
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return False, content if isinstance(content, str) else content.decode("utf-8", "replace")
    is_error = isinstance(body, dict) and any(name in body for name in _ERROR_FIELDS)
    message = body
    for name in _ERROR_FIELDS:
        # The names are ordered from the outermost to the innermost field. If a field holds an object rather
        # than a message, the next name is looked up in this object.
        if isinstance(message, dict) and name in message:
            message = message[name]
    return is_error, message if isinstance(message, str) else json.dumps(message)


def seconds_to_wait(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds the server asks the client to wait before a retry; None if it does not say.

    Retry-After is a number of seconds or a date. Some servers send retry-after-ms, in milliseconds.
    """
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
