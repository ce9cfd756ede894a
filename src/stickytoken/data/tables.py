"""Read tables and text files into memory, and check their columns.

This module rejects a damaged file. `data.documents` instead reads collections of documents as a stream, and
skips damaged records.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import polars as pl

from stickytoken.errors import InputError, reading, require_package

SEPARATORS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson")
PARQUET = ".parquet"
TABLE_SUFFIXES = (*SEPARATORS, *JSON_LINES, PARQUET)
DAMAGE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
"""The errors that Polars raises for a file that it cannot read."""

_USUAL_COLUMNS = (("sentence1", "sentence2"), ("sentence",), ("text",))


def read_table(path: Path) -> pl.DataFrame:
    """Read a csv, tsv, jsonl or parquet file. In csv and tsv files, all values are read as text."""
    content = read_bytes(path)
    suffix = path.suffix.lower()
    try:
        if suffix == PARQUET:
            return pl.read_parquet(content)
        text = decode(content, path)
        content = text.encode()
        if suffix in JSON_LINES:
            return pl.read_ndjson(content, infer_schema_length=None)
        # If the header cannot be parsed, `read_csv` below raises a clearer error.
        with suppress(csv.Error):
            rows = csv.reader(io.StringIO(text.lstrip("\r\n")), delimiter=SEPARATORS[suffix])
            require_distinct(next(rows, []), path)
        return pl.read_csv(content, separator=SEPARATORS[suffix], infer_schema=False)
    except (*DAMAGE, ValueError) as error:
        invalid_line = _invalid_json_line(content) if suffix in JSON_LINES else None
        reason = invalid_line or one_line(error)
        raise InputError(f"{path} is not a readable {suffix.lstrip('.')} file: {reason}") from error


def require_distinct(columns: Sequence[str], path: str | Path) -> None:
    """Raise an error if a header names a column twice, because Polars would silently rename one."""
    for name in columns:
        if columns.count(name) > 1:
            raise InputError(f"{path} has two columns called {name!r}: rename or remove one")


def one_line(error: BaseException) -> str:
    """Return the first 200 characters of an error message, on one line."""
    return " ".join(str(error).split())[:200]


def _invalid_json_line(content: bytes) -> str | None:
    """Return the number of the first line that is not JSON, and the reason; None if all lines are JSON."""

    def reject_constant(constant: str) -> None:
        raise ValueError(f"{constant} is not a valid number in JSON: remove the line")

    for number, line in enumerate(content.decode().split("\n"), start=1):
        try:
            if line.strip():
                json.loads(line, parse_constant=reject_constant)
        except ValueError as error:
            return f"line {number}: {error}"
    return None


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file. Raise an error if there is no such file, or if it is empty or a folder."""
    with reading(path):
        if path.is_dir():
            raise InputError(f"{path} is a folder: pass a file")
        if not path.is_file():
            raise InputError(f"no file {str(path)!r}")
        content = path.read_bytes()
    if not content.strip():
        raise InputError(f"{path} is empty")
    return content


def decode(content: bytes, path: Path) -> str:
    """Decode the content of a UTF-8 text file, and remove its byte order mark."""
    try:
        text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text (byte {error.start}): convert it, or pass another file"
        ) from error
    if "\0" in text:
        raise InputError(f"{path} is a binary file, not text")
    return text


def read_lines(path: Path, column: str | None) -> io.StringIO:
    """Return the lines of a text file. Raise an error if a column is named, because a text file has none."""
    if column is not None:
        raise InputError(f"{path} is a text file without columns: leave the column out")
    return io.StringIO(decode(read_bytes(path), path), newline=None)


def all_texts(path: Path, column: str | None = None) -> tuple[list[str | None], pl.DataFrame | None]:
    """Read every text of a file in order.

    Returns:
        The texts, including missing and blank ones, and a table of the other columns. The table is None for a
        text file.
    """
    if path.suffix.lower() not in TABLE_SUFFIXES:
        return [line.removesuffix("\n") for line in read_lines(path, column)], None
    frame = read_table(path)
    columns = (column,) if column else text_columns(frame, str(path))
    if len(columns) > 1:
        raise InputError(f"{path} has several text columns: name one of {', '.join(columns)}")
    return text_column(frame, columns[0], path), frame.drop(columns)


def text_columns(frame: pl.DataFrame, path: str | Path) -> tuple[str, ...]:
    """Return the columns that contain sentences: columns with usual names, or else the only text column.

    Raises:
        InputError: The table has none of the usual column names, and does not have exactly one text column.
    """
    for names in _USUAL_COLUMNS:
        if set(names) <= set(frame.columns):
            return names
    text_names = []
    for column in frame.select(pl.col(pl.String)):
        texts = column.drop_nulls()
        # Numbers in a csv file are read as text, so a column of numbers must be recognized here.
        has_only_numbers = not texts.is_empty() and not _as_numbers(texts).has_nulls()
        if not has_only_numbers:
            text_names.append(column.name)
    if len(text_names) != 1:
        listed = ", ".join(frame.columns) or "none"
        raise InputError(
            f"which column of {path} contains the sentences? It has {listed}: name one with the column option"
        )
    return (text_names[0],)


def require_columns(frame: pl.DataFrame, columns: Sequence[str], path: str | Path) -> None:
    """Raise an error if a table lacks one of the columns."""
    for column in columns:
        if column not in frame.columns:
            listed = ", ".join(frame.columns) or "none"
            raise InputError(f"{path} has no column {column!r}: it has {listed}")


def text_column(frame: pl.DataFrame, column: str, path: str | Path) -> list[str | None]:
    """Return the texts of a column; None for a missing text."""
    require_columns(frame, (column,), path)
    values = frame[column]
    if values.dtype != pl.String:
        raise InputError(f"column {column!r} of {path} contains {values.dtype}, not text")
    return values.to_list()


def filled_texts(frame: pl.DataFrame, column: str, path: Path) -> tuple[str, ...]:
    """Return the texts of a column; no text may be missing or blank."""
    texts = text_column(frame, column, path)
    for row, text in enumerate(texts, start=1):
        if not (text or "").strip():
            raise InputError(
                f"{path}: {column} in row {row} is missing or blank: fill it in or remove the row"
            )
    return tuple(map(str, texts))


def text_lists(frame: pl.DataFrame, column: str, path: Path) -> list[tuple[str, ...]]:
    """Return a column whose values are lists of texts. No list may be empty, and no text may be blank."""
    values = frame[column]
    if values.dtype != pl.List(pl.String):
        raise InputError(f"column {column!r} of {path} contains {values.dtype}, not lists of texts")
    lists = [tuple(texts or ()) for texts in values.to_list()]
    for row, texts in enumerate(lists, start=1):
        if not texts or not all((text or "").strip() for text in texts):
            raise InputError(f"{path}: {column} in row {row} is an empty list or contains a blank text")
    return lists


def labels(frame: pl.DataFrame, column: str, path: Path) -> tuple[str, ...]:
    """Return the labels in a column of texts, whole numbers or booleans; no label may be missing."""
    values = frame[column]
    if not (values.dtype == pl.String or values.dtype.is_integer() or values.dtype == pl.Boolean):
        raise InputError(f"column {column!r} of {path} contains {values.dtype}, not labels")
    texts = values.cast(pl.String).to_list()
    for row, label in enumerate(texts, start=1):
        if not (label or "").strip():
            raise InputError(f"{path}: {column} in row {row} is missing: fill it in or remove the row")
    return tuple(texts)


def ids(frame: pl.DataFrame, column: str, path: Path) -> tuple[str, ...]:
    """Return a column of ids, which must be distinct."""
    values = labels(frame, column, path)
    earlier_ids = set()
    for row, value in enumerate(values, start=1):
        if value in earlier_ids:
            raise InputError(f"{path}: {column} {value!r} in row {row} is a duplicate: ids must be distinct")
        earlier_ids.add(value)
    return values


def numbers(frame: pl.DataFrame, column: str, path: Path) -> tuple[float, ...]:
    """Return a column of finite numbers; booleans count as 0 and 1."""
    values = numbers_or_none(frame[column], path, pl.Boolean())
    for row, number in enumerate(values, start=1):
        if number is None or not math.isfinite(number):
            wrong = frame[column][row - 1]
            wrong = wrong.strip() if isinstance(wrong, str) else wrong
            raise InputError(
                f"{path}: {column} in row {row} is {wrong!r}, not a finite number: correct or remove the row"
            )
    return tuple(values)


def numbers_or_none(values: pl.Series, path: Path, other_type: pl.DataType) -> list[Any]:
    """Return the values of a column as numbers; None for a value that is not a number.

    Raises:
        InputError: The type of the column is neither numeric, nor text, nor ``other_type``.
    """
    if values.dtype != pl.String and not values.dtype.is_numeric() and values.dtype != other_type:
        raise InputError(f"column {values.name!r} of {path} contains {values.dtype}, not numbers")
    return _as_numbers(values).to_list()


def _as_numbers(values: pl.Series) -> pl.Series:
    """Convert a column to numbers; a value that is not a number becomes null."""
    if values.dtype == pl.String:
        values = values.str.strip_chars()
    return values.cast(pl.Float64, strict=False)


HUB = "hub:"
"""Prefix of a source that is a Hub dataset."""
_USUAL_SPLIT = "train"


def hub_parts(name: str) -> tuple[str, str]:
    """Split ``REPOSITORY@SPLIT`` into repository and split. The split is empty if it is not named."""
    repository, _, split = name.partition("@")
    if not repository.strip():
        raise InputError(f"{HUB + name!r} names no data set: pass hub:REPOSITORY, or hub:REPOSITORY@SPLIT")
    require_package("datasets", f"reading {repository} from the hub", "hub")
    return repository, split


@contextmanager
def opened_hub(name: str, *, streaming: bool = False) -> Iterator[Any]:
    """Context manager that opens a Hub dataset, named as ``REPOSITORY`` or ``REPOSITORY@SPLIT``.

    If the dataset has several configurations, the English one is opened. If no split is named, the only split
    is opened, or ``train`` if there are several.
    """
    repository, split = hub_parts(name)
    import datasets
    from datasets.exceptions import DatasetsError

    try:
        configurations = datasets.get_dataset_config_names(repository)
        configuration = next((name for name in ("en", "en-en") if name in configurations), None)
        if not split:
            splits = datasets.get_dataset_split_names(repository, configuration)
            if len(splits) > 1 and _USUAL_SPLIT not in splits:
                raise InputError(
                    f"which split of {repository!r}? It has {', '.join(splits)}: pass hub:{repository}@SPLIT"
                )
            split = _USUAL_SPLIT if _USUAL_SPLIT in splits else splits[0]
        yield datasets.load_dataset(repository, configuration, split=split, streaming=streaming)
    except (OSError, ValueError, LookupError, RuntimeError, DatasetsError) as error:
        data_set = f"{repository!r} (split {split!r})" if split else repr(repository)
        reason = one_line(error.__cause__ or error)
        raise InputError(f"the data set {data_set} cannot be read: {reason}") from error
