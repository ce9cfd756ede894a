"""Sentence pairs from the user, used instead of sampled ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from stickytoken.corpora.corpus import LONGEST_SENTENCE
from stickytoken.corpora.pairs import SentencePair
from stickytoken.corpora.tables import TABLE_SUFFIXES, read_table, text_column
from stickytoken.errors import InputError
from stickytoken.validation import shown

_COLUMNS = ("sentence1", "sentence2", "similarity")
_LIMIT = 1.001


def pairs_from_file(path: Path) -> list[SentencePair]:
    """Read pairs from a table with the columns sentence1, sentence2 and similarity.

    Raises:
        InputError: The file cannot be read, a column is missing, a sentence is blank, or a similarity is
            not a cosine.
    """
    if path.suffix.lower() not in TABLE_SUFFIXES:
        raise InputError(f"{path}: pairs are read from {', '.join(TABLE_SUFFIXES)}")
    frame = read_table(path)
    missing = [column for column in _COLUMNS if column not in frame.columns]
    if missing:
        raise InputError(
            f"{path} lacks the column {missing[0]!r}: pairs need {', '.join(_COLUMNS)}, "
            f"it has {', '.join(frame.columns)}"
        )
    first = text_column(frame, "sentence1", str(path))
    second = text_column(frame, "sentence2", str(path))
    similarities = _numbers(frame["similarity"], path)
    pairs = [
        checked_pair(left, right, similarity, where=f"{path}: pair {row}")
        for row, (left, right, similarity) in enumerate(zip(first, second, similarities, strict=True), 1)
    ]
    if not pairs:
        raise InputError(f"{path} has no pairs")
    return pairs


def checked_pair(sentence1: object, sentence2: object, similarity: object, where: str) -> SentencePair:
    """Check the parts of a pair and put them together."""
    texts = []
    for sentence in (sentence1, sentence2):
        if not isinstance(sentence, str | None):
            raise InputError(f"{where} has {shown(sentence)} for a sentence: pass text")
        if not (sentence or "").strip():
            raise InputError(f"{where} has a blank sentence")
        if len(str(sentence)) > LONGEST_SENTENCE:
            raise InputError(f"{where} has a sentence longer than {LONGEST_SENTENCE:,} characters")
        texts.append(str(sentence))
    # Rounded similarities of equal sentences may lie a little above 1.
    if not isinstance(similarity, (int, float, np.number)) or not -_LIMIT <= float(similarity) <= _LIMIT:
        raise InputError(f"{where} has the similarity {shown(similarity)}: it must be between -1 and 1")
    return SentencePair(texts[0], texts[1], float(similarity))


def _numbers(values: pl.Series, path: Path) -> list[float | None]:
    if values.dtype == pl.String:
        values = values.str.strip_chars()
    elif not values.dtype.is_numeric() and values.dtype != pl.Null:
        raise InputError(f"column 'similarity' of {path} contains {values.dtype}, not numbers")
    return values.cast(pl.Float64, strict=False).to_list()
