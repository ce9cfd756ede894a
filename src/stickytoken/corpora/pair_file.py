"""Sentence pairs from a user's file, in place of sampled ones."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from stickytoken.corpora.pairs import SentencePair
from stickytoken.corpora.tables import TABLE_SUFFIXES, read_table, text_column
from stickytoken.errors import InputError

_COLUMNS = ("sentence1", "sentence2", "similarity")


def pairs_from_file(path: Path) -> list[SentencePair]:
    """Read pairs from a table with the columns sentence1, sentence2 and similarity.

    Raises:
        InputError: the file cannot be read, a column is missing, a sentence is blank or
            a similarity is no cosine.
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
    pairs = []
    for row, (left, right, similarity) in enumerate(zip(first, second, similarities, strict=True), start=1):
        if not (left or "").strip() or not (right or "").strip():
            raise InputError(f"{path}: pair {row} has a blank sentence")
        # Rounded similarities of equal sentences may lie a little above 1.
        if similarity is None or not -1.001 <= similarity <= 1.001:
            raise InputError(f"{path}: the similarity of pair {row} is no number between -1 and 1")
        pairs.append(SentencePair(str(left), str(right), similarity))
    if not pairs:
        raise InputError(f"{path} holds no pair")
    return pairs


def _numbers(values: pl.Series, path: Path) -> list[float | None]:
    if values.dtype == pl.String:
        values = values.str.strip_chars()
    elif not values.dtype.is_numeric() and values.dtype != pl.Null:
        raise InputError(f"column 'similarity' of {path} holds {values.dtype}, not numbers")
    return values.cast(pl.Float64, strict=False).to_list()
