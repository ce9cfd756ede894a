"""Read a user's file as a table; errors name the file."""

from __future__ import annotations

import codecs
import csv
import io
import json
from pathlib import Path

import polars as pl

from stickytoken.errors import InputError

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_SHOWN_REASON = 200


def read_table(path: Path) -> pl.DataFrame:
    """Read a csv, tsv, jsonl or parquet file.

    Raises:
        InputError: The file is missing, empty, not UTF-8 or not of its format, or names a column twice.
    """
    content = read_bytes(path)
    suffix = path.suffix.lower()
    if suffix != ".parquet":
        text = decode(content, path)
        if suffix in _SEPARATORS:
            _require_distinct_columns(text, _SEPARATORS[suffix], path)
        content = text.encode()
    try:
        if suffix == ".parquet":
            return pl.read_parquet(content)
        if suffix in (".jsonl", ".ndjson"):
            return pl.read_ndjson(content, infer_schema_length=None)
        return pl.read_csv(content, separator=_SEPARATORS[suffix], infer_schema=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
        lines = suffix in (".jsonl", ".ndjson")
        reason = (_no_json(content) if lines else None) or " ".join(str(error).split())[:_SHOWN_REASON]
        raise InputError(f"{path} is not a readable {suffix.lstrip('.')} file: {reason}") from error


def _require_distinct_columns(text: str, separator: str, path: Path) -> None:
    """Refuse a header that names a column twice; polars would rename one silently."""
    try:
        header = next(csv.reader(io.StringIO(text.lstrip("\r\n")), delimiter=separator), [])
    except csv.Error:  # no table: reading it says what is wrong
        return
    if repeated := next((name for name in header if header.count(name) > 1), None):
        raise InputError(f"{path} has two columns called {repeated!r}: rename or remove one")


def _no_json(content: bytes) -> str | None:
    """Describe the first line that is not JSON; None if all lines are."""

    def refuse(constant: str) -> float:
        raise ValueError(f"{constant} is not a number in JSON: leave the line out")

    for number, line in enumerate(content.decode().split("\n"), start=1):
        try:
            if line.strip():
                json.loads(line, parse_constant=refuse)
        except ValueError as error:
            return f"line {number}: {error}"
    return None


def read_bytes(path: Path) -> bytes:
    """Read a whole file.

    Raises:
        InputError: The file is missing, a folder, unreadable or empty.
    """
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder: pass a file")
        if not path.is_file():
            raise InputError(f"no file {str(path)!r}")
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    if not content.strip():
        raise InputError(f"{path} is empty")
    return content


def decode(content: bytes, path: Path) -> str:
    """Decode UTF-8, with or without a byte-order mark.

    Raises:
        InputError: The content is binary or in another encoding.
    """
    try:
        text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text (byte {error.start}): convert it, or pass another file"
        ) from error
    if "\0" in text:
        raise InputError(f"{path} is a binary file, not text")
    return text


def text_column(frame: pl.DataFrame, column: str, path: str) -> list[str | None]:
    """Return the values of a text column.

    Raises:
        InputError: The column is missing or does not hold text.
    """
    if column not in frame.columns:
        raise InputError(f"{path} has no column {column!r}: it has {', '.join(frame.columns) or 'none'}")
    values = frame[column]
    if values.dtype != pl.String:
        raise InputError(f"column {column!r} of {path} contains {values.dtype}, not text")
    return values.to_list()
