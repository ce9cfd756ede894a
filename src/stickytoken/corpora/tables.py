"""Read a user's file as a table of text columns, with errors that name the file."""

from __future__ import annotations

import codecs
import json
from pathlib import Path

import polars as pl

from stickytoken.errors import InputError

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
_SHOWN_REASON = 200


def read_table(path: Path) -> pl.DataFrame:
    """Read csv, tsv, jsonl or parquet.

    Raises:
        InputError: the file is missing, empty, not UTF-8 or not of its format.
    """
    content = read_bytes(path)
    suffix = path.suffix.lower()
    if suffix != ".parquet":
        content = decode(content, path).encode()
    try:
        if suffix == ".parquet":
            return pl.read_parquet(content)
        if suffix in (".jsonl", ".ndjson"):
            return pl.read_ndjson(content, infer_schema_length=None)
        separator = "\t" if suffix == ".tsv" else ","
        return pl.read_csv(content, separator=separator, infer_schema=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
        lines = suffix in (".jsonl", ".ndjson")
        reason = (_no_json(content) if lines else None) or " ".join(str(error).split())[:_SHOWN_REASON]
        raise InputError(f"{path} is not a readable {suffix.lstrip('.')} file: {reason}") from error


def _no_json(content: bytes) -> str | None:
    """The first line that is no JSON, and why; None where all are."""

    def refuse(constant: str) -> float:
        raise ValueError(f"{constant} is no number in JSON: leave the line out")

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
        InputError: it is missing, a folder, unreadable or empty.
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
    """Decode UTF-8, a byte-order mark allowed.

    Raises:
        InputError: the content is binary or in another encoding.
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
    """The values of one column as text.

    Raises:
        InputError: the column is missing or does not hold text.
    """
    if column not in frame.columns:
        raise InputError(f"{path} has no column {column!r}: it has {', '.join(frame.columns) or 'none'}")
    values = frame[column]
    if values.dtype != pl.String:
        raise InputError(f"column {column!r} of {path} holds {values.dtype}, not text")
    return values.to_list()
