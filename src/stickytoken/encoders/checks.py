"""Check the inputs and outputs of an encoder, with errors that name the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import EncodingError, InputError

_SHOWN_CHARACTERS = 80


def require_list(texts: Sequence[str]) -> None:
    """Refuse a single text instead of a list, which would be read character by character.

    Raises:
        InputError: ``texts`` is a single text.
    """
    if isinstance(texts, str):
        raise InputError(f"encode takes a list of texts, got the text {shown(texts)}: put it in a list")


def require_usable(
    vectors: NDArray[np.float32], name: str, label: Callable[[int], str], *, allow_zero: bool
) -> None:
    """Refuse vectors that are not finite, and zero vectors unless they are allowed.

    Args:
        vectors: shape (n, d).
        name: name of the model.
        label: returns the text of a row for messages.
        allow_zero: accept zero vectors.

    Raises:
        EncodingError: A vector is not usable; the message names the first such text.
    """
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        row = int(np.flatnonzero(~finite)[0])
        raise EncodingError(
            f"{name}: the vector of the text {label(row)} is not finite: "
            "the weights are damaged or the precision is too low"
        )
    if not allow_zero and not (nonzero := vectors.any(axis=1)).all():
        row = int(np.flatnonzero(~nonzero)[0])
        raise EncodingError(
            f"{name}: the vector of the text {label(row)} is zero: it has no similarity to anything"
        )


def shown(text: str) -> str:
    """Quote and shorten a text for messages."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…")
