"""Read the body of an answer, and refuse one that is not a vector for every text."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError


class UnusableAnswerError(Exception):
    """An answer that does not match the request; a retry may succeed."""


class _Item(BaseModel):
    """The vector of one text."""

    index: int | None = None
    embedding: str | list[float | None]
    """base64 of float32, or numbers; servers write NaN as null."""


class _Usage(BaseModel):
    """What the server counted."""

    prompt_tokens: int | None = None
    total_tokens: int | None = None


class _Answer(BaseModel):
    """The body of an answer."""

    data: list[_Item]
    usage: _Usage | None = None


def read_answer(content: bytes, texts: int) -> tuple[NDArray[np.float32], int | None]:
    """Return the vectors in the order of the texts, shape (n, d), and the tokens that the server counted."""
    try:
        answer = _Answer.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        raise UnusableAnswerError(f"{where}: {first['msg']}") from None
    if len(answer.data) != texts:
        raise UnusableAnswerError(f"{len(answer.data)} vectors for {texts} texts")
    rows = [_vector(item.embedding) for item in _in_order(answer.data)]
    lengths = sorted({len(row) for row in rows})
    if lengths[0] == 0:
        raise UnusableAnswerError("an empty vector")
    if len(lengths) > 1:
        raise UnusableAnswerError(f"vectors of {lengths[0]} and of {lengths[-1]} components")
    vectors = np.stack(rows)
    if not np.isfinite(vectors).all():
        raise UnusableAnswerError("a vector that is not finite")
    counted = None if answer.usage is None else answer.usage.prompt_tokens or answer.usage.total_tokens
    return vectors, counted or None


def _in_order(items: Sequence[_Item]) -> list[_Item]:
    """Put vectors into the order of the texts; without any index they are in it already."""
    places = [item.index for item in items]
    if all(place is None for place in places):
        return list(items)
    known = [place for place in places if place is not None]
    if sorted(known) != list(range(len(items))):
        raise UnusableAnswerError("vectors whose indices do not match the texts")
    return [items[place] for place in np.argsort(known).tolist()]


def _vector(embedding: str | list[float | None]) -> NDArray[np.float32]:
    if isinstance(embedding, str):
        try:
            return np.frombuffer(base64.b64decode(embedding, validate=True), dtype="<f4").astype(np.float32)
        except (binascii.Error, ValueError):
            raise UnusableAnswerError("a vector that is neither numbers nor base64 of numbers") from None
    return np.array(embedding, dtype=np.float64).astype(np.float32)
