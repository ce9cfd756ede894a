"""The sentences that a command draws its pairs from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stickytoken.errors import InputError

if TYPE_CHECKING:
    from stickytoken.corpora import Sentences


def chosen_sentences(sentences: str | None, column: str | None, pairs: Path | None) -> Sentences | None:
    """The corpus that the options name; None where pairs take its place.

    Raises:
        InputError: it cannot be read, or a column is named for pairs.
    """
    from stickytoken.corpora import load_sentences

    if pairs is None or sentences is not None:
        return load_sentences(sentences, column)
    if column is not None:
        raise InputError(
            f"column {column!r} is asked for without sentences: pairs are read from sentence1, sentence2 and "
            "similarity; leave the column out, or pass sentences in place of pairs"
        )
    return None
