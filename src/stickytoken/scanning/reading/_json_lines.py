"""Documents of a file with one JSON value per line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from stickytoken.errors import InputError
from stickytoken.scanning.reading._lines import Line, UnreadableError, decoded, lines
from stickytoken.scanning.reading.columns import Columns, Place, Wanted, choose_columns, record_of
from stickytoken.scanning.reading.documents import Document, Meter, Numbering, Record, Skipped, unicode_text

# Rows that are looked at to learn which columns there are.
_LOOKED_AT = 100


def json_documents(
    stream: BinaryIO, name: str, path: str | None, wanted: Wanted, numbering: Numbering, meter: Meter
) -> Iterator[Record]:
    """Yield the document of each line: a column of an object, or a string."""
    rows = (_parsed(line, name) for line in lines(stream, name, meter) if line.content.strip())
    first = [row for _, row in zip(range(_LOOKED_AT), rows, strict=False)]
    columns = _columns([value for _, value in first if isinstance(value, Mapping)], wanted, name)
    for part in (first, rows):
        for place, value in part:
            yield _record(value, columns, numbering.take(), path, name, place)


def _parsed(line: Line, name: str) -> tuple[Place, Any]:
    """Return a line's value, or what is wrong with it."""
    place = Place(line=line.number)
    try:
        return place, json.loads(decoded(line))
    except UnreadableError as error:
        return place, Skipped(place.named(name), str(error))
    except (ValueError, RecursionError) as error:
        return place, Skipped(place.named(name), f"not JSON: {error}")


def _record(
    value: Any, columns: Columns | None, number: int, path: str | None, name: str, place: Place
) -> Record:
    if isinstance(value, Skipped):
        return value
    if isinstance(value, str):
        return Document(number, str(place), unicode_text(value), None, path, place.line)
    if isinstance(value, Mapping) and columns is not None:
        return record_of(value, columns, number, path, place)
    return Skipped(place.named(name), f"JSON of type {type(value).__name__}, not an object")


def _columns(rows: list[Mapping[str, Any]], wanted: Wanted, name: str) -> Columns | None:
    if not rows:
        if wanted.named:
            raise InputError(f"{name} has no columns: its lines are not JSON objects")
        return None
    present = list(dict.fromkeys(str(key) for row in rows for key in row))
    textual = [key for key in present if any(isinstance(row.get(key), str) for row in rows)]
    return choose_columns(present, wanted, name, textual)
