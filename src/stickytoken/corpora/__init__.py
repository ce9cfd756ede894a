"""Sentences and pairs from files, the Hub, lists, or the package itself."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from stickytoken.corpora.corpus import (
    Sentences,
    bundled_frame,
    bundled_sentences,
    given_sentences,
    text_kinds,
    text_kinds_frame,
)
from stickytoken.corpora.files import PAPER_DATASETS, PAPER_NAME, sentences_from_file, sentences_from_hub
from stickytoken.corpora.pairs import pairs_from_file
from stickytoken.errors import InputError
from stickytoken.validation import file_path, shown

__all__ = [
    "PAPER_DATASETS",
    "Sentences",
    "bundled_frame",
    "bundled_sentences",
    "load_sentences",
    "pairs_from_file",
    "sentences_from_file",
    "sentences_from_hub",
    "text_kinds",
    "text_kinds_frame",
]

BUNDLED_NAME = "bundled"
_HUB_PREFIX = "hub:"


def load_sentences(
    source: Sentences | str | Path | Iterable[str] | None = None, column: str | None = None
) -> Sentences:
    """Load a corpus.

    Args:
        source: A file; ``hub:repository`` or ``hub:repository@split``; ``paper`` for the eleven STS
            datasets of the paper; None or ``bundled`` for the package's own corpus; or the sentences
            themselves, as a list or a column of a table.
        column: The column with the sentences, for files and Hub datasets.

    Raises:
        InputError: The corpus cannot be read or is empty.
        MissingExtraError: A Hub dataset is requested without the extra ``hub``.
    """
    if column is not None and not isinstance(column, str):
        raise InputError(f"column is {column!r}: pass the name of a column")
    if not isinstance(source, (str, Path)):
        if column is not None:
            raise InputError("there are no columns to choose from: omit the column")
        if source is None or isinstance(source, Sentences):
            return bundled_sentences() if source is None else source
        return given_sentences(source)
    name = str(source)
    if name == BUNDLED_NAME:
        return load_sentences(None, column)
    if name == PAPER_NAME:
        return sentences_from_hub(PAPER_DATASETS, column)
    if name.startswith(_HUB_PREFIX):
        return sentences_from_hub((name.removeprefix(_HUB_PREFIX),), column)
    path = file_path("sentences", source)
    if isinstance(source, str) and not _is_there(path):
        raise InputError(f"no file {shown(source)} (in Python, pass sentences themselves as a list)")
    return sentences_from_file(path, column)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # reading it says why
        return True
