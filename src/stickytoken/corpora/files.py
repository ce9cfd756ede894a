"""Sentences from a user's file."""

from __future__ import annotations

import io
from pathlib import Path

import polars as pl

from stickytoken.corpora.corpus import Sentences, collect_sentences
from stickytoken.corpora.tables import TABLE_SUFFIXES, decode, read_bytes, read_table, text_column
from stickytoken.errors import InputError

_USUAL_COLUMNS = (("sentence1", "sentence2"), ("sentence",), ("text",))


def sentences_from_file(path: Path, column: str | None = None) -> Sentences:
    """Read sentences from txt (one per line), csv, tsv, jsonl or parquet.

    Args:
        path: The file.
        column: The column with the sentences; None takes ``sentence1`` and ``sentence2``,
            ``sentence``, ``text``, or the only text column.

    Raises:
        InputError: The file or the column cannot be used.
    """
    suffix = path.suffix.lower()
    if suffix in TABLE_SUFFIXES:
        frame = read_table(path)
        columns = (column,) if column else text_columns(frame, str(path))
        texts = [text for name in columns for text in text_column(frame, name, str(path))]
        return collect_sentences(texts, str(path))
    if suffix not in (".txt", ""):
        raise InputError(f"{path} has the ending {suffix!r}: use .txt, {', '.join(TABLE_SUFFIXES)}")
    if column is not None:
        raise InputError(f"{path} is a text file without columns: leave the column out")
    return collect_sentences(io.StringIO(decode(read_bytes(path), path), newline=None), str(path))


def all_texts(path: Path, column: str | None = None) -> tuple[list[str | None], pl.DataFrame | None]:
    """Read every text of a file in order, including repeated and blank ones.

    Args:
        path: A txt file with one text per line, or csv, tsv, jsonl, parquet.
        column: The column with the texts; None takes ``sentence``, ``text``, or the only text column.

    Returns:
        The texts, None where a row has none, and the other columns of a table.

    Raises:
        InputError: The file or the column cannot be used.
    """
    if path.suffix.lower() not in TABLE_SUFFIXES:
        if column is not None:
            raise InputError(f"{path} is a text file without columns: leave the column out")
        # Only line ends separate texts: a form feed or a paragraph separator is part of one.
        lines = io.StringIO(decode(read_bytes(path), path), newline=None)
        return [line.removesuffix("\n") for line in lines], None
    frame = read_table(path)
    columns = (column,) if column else text_columns(frame, str(path))
    if len(columns) > 1:
        raise InputError(f"{path} has several text columns: name one of {', '.join(columns)}")
    return text_column(frame, columns[0], str(path)), frame.drop(columns)


def text_columns(frame: pl.DataFrame, path: str) -> tuple[str, ...]:
    """Choose the columns that usually hold sentences, or the only text column.

    Raises:
        InputError: No column, or more than one, could be meant.
    """
    for names in _USUAL_COLUMNS:
        if all(name in frame.columns for name in names):
            return names
    strings = [
        name for name, dtype in frame.schema.items() if dtype == pl.String and not _numeric(frame[name])
    ]
    if len(strings) == 1:
        return (strings[0],)
    raise InputError(
        f"which column of {path} contains the sentences? It has {', '.join(frame.columns) or 'none'}: "
        "name one with the column option"
    )


def _numeric(values: pl.Series) -> bool:
    """Check whether a text column, as read from csv, holds only numbers."""
    present = values.drop_nulls()
    return len(present) > 0 and present.str.strip_chars().cast(pl.Float64, strict=False).null_count() == 0
