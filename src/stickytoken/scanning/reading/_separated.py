"""Documents of a csv or tsv file."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from stickytoken.errors import InputError
from stickytoken.scanning.reading._lines import UnreadableError, decoded_bytes, lines
from stickytoken.scanning.reading.columns import Place, Wanted, choose_columns, record_of
from stickytoken.scanning.reading.documents import Meter, Numbering, Record, Skipped

if TYPE_CHECKING:
    from _csv import Reader

_LONGEST_FIELD = 2**31 - 1


def separated_documents(
    stream: BinaryIO, path: str, separator: str, wanted: Wanted, numbering: Numbering, meter: Meter
) -> Iterator[Record]:
    """Yield the document of each row below the header."""
    text = _Lines(stream, path, meter)
    with _long_fields():
        rows = csv.reader(text, delimiter=separator)
        header = _header(rows, path)
        columns = choose_columns(header, wanted, path, header)
        for place, row in _rows(rows):
            damage, text.damage = text.damage, None
            if row == [] and damage is None:
                continue
            number = numbering.take()
            if damage is not None or isinstance(row, str):
                yield Skipped(place.named(path), damage or str(row))
            elif len(row) != len(header):
                yield Skipped(place.named(path), f"{len(row)} fields, and the header has {len(header)}")
            else:
                yield record_of(dict(zip(header, row, strict=True)), columns, number, path, place)


def _rows(rows: Reader) -> Iterator[tuple[Place, list[str] | str]]:
    """Yield where each row begins, and its fields or what is wrong with it."""
    while True:
        place = Place(line=rows.line_num + 1)
        try:
            yield place, next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield place, str(error)


class _Lines:
    """Lines for the csv reader; what is not UTF-8 reaches it as marks, and is remembered."""

    def __init__(self, stream: BinaryIO, path: str, meter: Meter) -> None:
        self._lines = lines(stream, path, meter)
        self.damage: str | None = None

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        try:
            return decoded_bytes(line.content, line.offset) + "\n"
        except UnreadableError as error:
            self.damage = self.damage or str(error)
            return line.content.replace(b"\0", b"?").decode("utf-8", "replace") + "\n"


def _header(rows: Iterator[list[str]], path: str) -> list[str]:
    try:
        header = next((row for row in rows if row), [])
    except csv.Error as error:
        raise InputError(f"{path} is not a readable table: {error}") from error
    if not header:
        raise InputError(f"{path} is empty")
    if repeated := next((name for name in header if header.count(name) > 1), None):
        raise InputError(f"{path} has two columns called {repeated!r}: rename or remove one")
    return header


@contextmanager
def _long_fields() -> Iterator[None]:
    """Allow documents longer than the csv module does, which has one limit for the whole process."""
    earlier = csv.field_size_limit(_LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(earlier)
