"""Documents that are passed as objects: texts, rows, a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

from stickytoken.errors import InputError
from stickytoken.scanning.reading.columns import Columns, Place, Wanted, choose_columns, record_of
from stickytoken.scanning.reading.documents import (
    Collection,
    Document,
    Meter,
    Numbering,
    Record,
    Skipped,
    unicode_text,
)
from stickytoken.validation import shown

_NAME = "the given texts"


def given_collection(values: Iterable[Any], wanted: Wanted) -> Collection:
    """Return documents from texts, from mappings such as the rows of a data set, or from a table."""
    if isinstance(values, (bytes, bytearray, Mapping)):
        raise InputError(f"documents is {shown(values)}: pass a list of texts, a table, or a file")
    rows = _rows_of(values)
    try:
        iter(rows)
    except TypeError:
        raise InputError(f"documents is {shown(values)}: pass a list of texts, a table, or a file") from None

    def read(meter: Meter) -> Iterator[Record]:
        meter.total = len(values) if isinstance(values, Sized) else None
        return _records(rows, wanted, meter)

    return Collection(_NAME, read, _NAME)


def _rows_of(values: Any) -> Iterable[Any]:
    """Return the rows of a Polars, pandas or Arrow table; anything else as it is."""
    for method, options in (
        ("iter_rows", {"named": True}),
        ("to_pylist", {}),
        ("to_dict", {"orient": "records"}),
    ):
        if hasattr(values, "columns") and callable(read := getattr(values, method, None)):
            rows: Iterable[Any] = read(**options)
            return rows
    found: Iterable[Any] = values
    return found


def _records(rows: Iterable[Any], wanted: Wanted, meter: Meter) -> Iterator[Record]:
    numbering, columns = Numbering(), None
    for value in rows:
        number = numbering.take()
        meter.done += 1
        place = Place(row=number + 1)
        if isinstance(value, str):
            if wanted.named:
                raise InputError("the given texts have no columns: leave the names of columns out")
            yield Document(number, str(number), unicode_text(value))
        elif isinstance(value, Mapping):
            columns = columns or _columns(value, wanted)
            yield record_of(value, columns, number, None, place)
        else:
            what = "missing" if value is None else f"{type(value).__name__}, not text"
            yield Skipped(str(place), f"the text is {what}")


def _columns(row: Mapping[Any, Any], wanted: Wanted) -> Columns:
    present = [str(key) for key in row]
    textual = [str(key) for key, value in row.items() if isinstance(value, str)]
    return choose_columns(present, wanted, _NAME, textual)
