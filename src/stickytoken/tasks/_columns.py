"""Read and check the columns of a task file. Errors name the file and the row."""

from __future__ import annotations

import math
from pathlib import Path

import polars as pl

from stickytoken.errors import InputError


def filled_texts(frame: pl.DataFrame, column: str, path: Path) -> tuple[str, ...]:
    """Read texts of a column."""
    values = frame[column]
    if values.dtype != pl.String:
        raise InputError(f"column {column!r} of {path} contains {values.dtype}, not text")
    for row, text in enumerate(values.to_list(), start=1):
        if not (text or "").strip():
            raise InputError(
                f"{path}: {column} in row {row} is missing or blank: fill it in or remove the row"
            )
    return tuple(values.to_list())


def numbers(frame: pl.DataFrame, column: str, path: Path) -> tuple[float, ...]:
    """Read finite numbers of a column."""
    values = frame[column]
    if values.dtype == pl.String:
        values = values.str.strip_chars()
    elif not values.dtype.is_numeric() and values.dtype != pl.Boolean:
        raise InputError(f"column {column!r} of {path} contains {values.dtype}, not numbers")
    found = values.cast(pl.Float64, strict=False).to_list()
    for row, number in enumerate(found, start=1):
        if number is None or not math.isfinite(number):
            raise InputError(
                f"{path}: {column} in row {row} is {values[row - 1]!r}, not a finite number: "
                "correct or remove the row"
            )
    return tuple(found)


def labels(frame: pl.DataFrame, column: str, path: Path) -> tuple[str, ...]:
    """Read labels of a column as text."""
    values = frame[column]
    if not (values.dtype == pl.String or values.dtype.is_integer() or values.dtype == pl.Boolean):
        raise InputError(f"column {column!r} of {path} contains {values.dtype}, not labels")
    found = values.cast(pl.String).to_list()
    for row, label in enumerate(found, start=1):
        if label is None or not label.strip():
            raise InputError(f"{path}: {column} in row {row} is missing: fill it in or remove the row")
    return tuple(found)


def text_lists(frame: pl.DataFrame, column: str, path: Path) -> list[tuple[str, ...]]:
    """Read lists of texts of a column, with at least one text each."""
    values = frame[column]
    if values.dtype != pl.List(pl.String):
        raise InputError(f"column {column!r} of {path} contains {values.dtype}, not lists of texts")
    found = [tuple(texts or ()) for texts in values.to_list()]
    for row, texts in enumerate(found, start=1):
        if not texts or not all((text or "").strip() for text in texts):
            raise InputError(f"{path}: {column} in row {row} is empty or has a blank text")
    return found


def ids(frame: pl.DataFrame, column: str, path: Path) -> tuple[str, ...]:
    """Read distinct ids of a column as text."""
    found = labels(frame, column, path)
    seen: set[str] = set()
    for row, each in enumerate(found, start=1):
        if each in seen:
            raise InputError(f"{path}: {column} {each!r} in row {row} is a duplicate: ids must be distinct")
        seen.add(each)
    return found


def require_columns(frame: pl.DataFrame, columns: tuple[str, ...], path: Path) -> None:
    """Check that a table has columns."""
    for column in columns:
        if column not in frame.columns:
            raise InputError(f"{path} has no column {column!r}: it has {', '.join(frame.columns) or 'none'}")
