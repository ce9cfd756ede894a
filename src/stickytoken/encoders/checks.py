"""Checks of what goes into an encoder and what comes out, with errors that name the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import EncodingError, InputError

_SHOWN_CHARACTERS = 80


def require_list(texts: Sequence[str]) -> None:
    """Refuse one text in place of a list, which would be read character by character.

    Raises:
        InputError: shows the text.
    """
    if isinstance(texts, str):
        raise InputError(f"encode takes a list of texts, got the text {shown(texts)}: put it in a list")


def require_usable(
    vectors: NDArray[np.float32], name: str, label: Callable[[int], str], *, allow_zero: bool
) -> None:
    """Refuse vectors that are not finite, and zero ones unless these are allowed.

    Args:
        vectors: shape (n, d).
        name: of the model.
        label: names the text of a row.
        allow_zero: let zero vectors pass.

    Raises:
        EncodingError: the message names the first such text.
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
    """A text as messages show it."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…")
