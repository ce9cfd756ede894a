"""Where sentences and pairs come from: bundled, a file, the hub."""

from __future__ import annotations

from pathlib import Path

from stickytoken.corpora.bundled import BUNDLED_NAME, bundled_frame, bundled_sentences
from stickytoken.corpora.corpus import Sentences
from stickytoken.corpora.files import sentences_from_file
from stickytoken.corpora.hub import PAPER_DATASETS, PAPER_NAME, sentences_from_hub
from stickytoken.corpora.pair_file import pairs_from_file
from stickytoken.errors import InputError

__all__ = [
    "PAPER_DATASETS",
    "Sentences",
    "bundled_frame",
    "bundled_sentences",
    "load_sentences",
    "pairs_from_file",
    "sentences_from_file",
    "sentences_from_hub",
]

_HUB_PREFIX = "hub:"


def load_sentences(source: str | Path | None = None, column: str | None = None) -> Sentences:
    """Load a corpus.

    Args:
        source: a file; ``hub:repository`` or ``hub:repository@split``; ``paper`` for the
            eleven STS sets of the paper; None or ``bundled`` for the package's own.
        column: the column with the sentences, for files and hub data sets.

    Raises:
        InputError: the corpus cannot be read or is empty.
        MissingExtraError: a hub data set is asked for without the extra ``hub``.
    """
    if source is None or source == BUNDLED_NAME:
        if column is not None:
            raise InputError("the bundled corpus has no columns to choose from: leave the column out")
        return bundled_sentences()
    name = str(source)
    if name == PAPER_NAME:
        return sentences_from_hub(PAPER_DATASETS, column)
    if name.startswith(_HUB_PREFIX):
        return sentences_from_hub((name.removeprefix(_HUB_PREFIX),), column)
    return sentences_from_file(Path(name).expanduser(), column)
