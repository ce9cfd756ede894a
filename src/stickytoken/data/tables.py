"""Read tables and text files into memory, and check their columns.

The rows are those of `data.rows`. A table with a row that cannot be read is rejected, whereas
`data.documents` skips such rows.
"""

from __future__ import annotations

import codecs
import gzip
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from stickytoken.data.rows import (
    DAMAGED_GZIP,
    PARQUET,
    SEPARATORS,
    Meter,
    ParquetFile,
    RepeatedKeys,
    Row,
    Skipped,
    dialect_of,
    format_of,
    json_rows,
    open_rows_file,
    read_separated_rows,
    unicode_text,
)
from stickytoken.errors import InputError, reading
from stickytoken.validation import shown


@dataclass(frozen=True)
class Table:
    """A table in memory. Rows are numbered from 1 in messages.

    Attributes:
        path: The file.
        columns: The names of the columns.
        values_of: Function that returns all values of a column; a missing value is None. Values of a csv or
            tsv file are texts.
        height: The number of rows.
        meter: What was read.
    """

    path: Path
    columns: tuple[str, ...]
    values_of: Callable[[str], list[Any]]
    height: int
    meter: Meter = field(default_factory=Meter)

    def require(self, columns: Sequence[str]) -> None:
        """Raise an error if the table lacks one of the columns."""
        for column in columns:
            if column not in self.columns:
                listed = ", ".join(self.columns) or "none"
                raise InputError(f"{self.path} has no column {column!r}: it has {listed}")

    def rows_with(self, column: str, label: str) -> Table:
        """Return a table of the rows that have this label in a column."""
        chosen_rows = [row for row, value in enumerate(self.labels(column)) if value == label]

        def values_of(name: str) -> list[Any]:
            values = self.values_of(name)
            return [values[row] for row in chosen_rows]

        return Table(self.path, self.columns, values_of, len(chosen_rows), self.meter)

    def texts(self, column: str) -> list[str | None]:
        """Return the texts of a column; None for a missing text."""
        self.require((column,))
        values = self.values_of(column)
        for row, value in enumerate(values, start=1):
            if not isinstance(value, str | None):
                raise InputError(f"{self.path}: {column} in row {row} is {shown(value)}, not text")
        return [None if value is None else unicode_text(value) for value in values]

    def filled_texts(self, column: str) -> tuple[str, ...]:
        """Return the texts of a column; no text may be missing or blank."""
        filled_texts = []
        for row, text in enumerate(self.texts(column), start=1):
            if text is None or not text.strip():
                raise InputError(
                    f"{self.path}: {column} in row {row} is missing or blank: fill it in or remove the row"
                )
            filled_texts.append(text)
        return tuple(filled_texts)

    def labels(self, column: str) -> tuple[str, ...]:
        """Return a column of texts, whole numbers or booleans as texts; no label may be missing."""
        labels = []
        for row, value in enumerate(self.values_of(column), start=1):
            if value is None or (isinstance(value, str) and not value.strip()):
                raise InputError(
                    f"{self.path}: {column} in row {row} is missing: fill it in or remove the row"
                )
            if not isinstance(value, str | int):
                raise InputError(f"{self.path}: {column} in row {row} is {shown(value)}, not a label")
            # A boolean becomes "true" or "false", as JSON and csv files write it.
            labels.append(unicode_text(value) if isinstance(value, str) else str(value).lower())
        return tuple(labels)

    def ids(self, column: str) -> tuple[str, ...]:
        """Return a column of ids, which must be distinct."""
        values = self.labels(column)
        earlier_ids = set()
        for row, value in enumerate(values, start=1):
            if value in earlier_ids:
                raise InputError(
                    f"{self.path}: {column} {value!r} in row {row} is a duplicate: ids must be distinct"
                )
            earlier_ids.add(value)
        return values

    def numbers(self, column: str) -> tuple[float, ...]:
        """Return a column of finite numbers; booleans count as 0 and 1."""
        numbers = []
        for row, value in enumerate(self.values_of(column), start=1):
            number = float(value) if isinstance(value, bool) else number_of(value)
            if number is None or not math.isfinite(number):
                wrong = value.strip() if isinstance(value, str) else value
                raise InputError(
                    f"{self.path}: {column} in row {row} is {wrong!r}, not a finite number: correct or "
                    "remove the row"
                )
            numbers.append(number)
        return tuple(numbers)


def number_of(value: object) -> float | None:
    """Return a number, or the number that a text spells; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def read_table(path: Path) -> Table:
    """Read a csv, tsv, json, jsonl or parquet file, which may be compressed.

    Raises:
        InputError: The file or one of its rows cannot be read.
    """
    _require_file(path)
    suffix, _ = format_of(path)
    if suffix == PARQUET:
        parquet = ParquetFile(path)

        def read_parquet_column(column: str) -> list[Any]:
            return [row.value[column] for row in parquet.rows([column], Meter())]

        return Table(path, parquet.columns, read_parquet_column, parquet.height)
    meter = Meter()
    with open_rows_file(path) as (stream, _):
        column_set: dict[str, None] = {}  # an ordered set: the keys are the names
        if suffix in SEPARATORS:
            rows = read_separated_rows(stream, str(path), meter, dialect_of(path, suffix, delimiter=None))
            header = next(rows).value  # the first row
            column_set = dict.fromkeys(header)
        else:
            rows = json_rows(stream, str(path), meter, suffix)
        objects = [_require_object(row, path) for row in rows]
    meter.records = len(objects)
    for values in objects:
        column_set |= dict.fromkeys(values)

    def read_column(column: str) -> list[Any]:
        return [values.get(column) for values in objects]

    return Table(path, tuple(column_set), read_column, len(objects), meter)


def _require_object(row: Row, path: Path) -> Mapping[str, Any]:
    value = row.value
    if isinstance(value, Skipped):
        raise InputError(f"{value.place}: {value.reason}")
    if isinstance(value, RepeatedKeys):
        raise InputError(f"{path}, {row.place}: the key {value.key!r} occurs twice: remove one")
    if not isinstance(value, Mapping):
        raise InputError(f"{path}, {row.place}: JSON of type {type(value).__name__}, not an object")
    return value


def _require_file(path: Path) -> None:
    with reading(path):
        if path.is_dir():
            raise InputError(f"{path} is a folder: pass a file")
        if not path.is_file():
            raise InputError(f"no file {str(path)!r}")
        if not path.stat().st_size:
            raise InputError(f"{path} is empty")


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 text file, without ``\\n``; a token may end with ``\\r``, so that stays.

    The file may be compressed.
    """
    _require_file(path)
    _, is_compressed = format_of(path)
    with reading(path):
        content = path.read_bytes()
        if is_compressed:
            try:
                content = gzip.decompress(content)
            except DAMAGED_GZIP as error:
                raise InputError(f"{path} is damaged, or not compressed with gzip: {error}") from error
        text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    if not text.strip():
        raise InputError(f"{path} is empty")
    if "\0" in text:  # text has no such character
        raise InputError(f"{path} is a binary file, not text")
    return text.split("\n")
