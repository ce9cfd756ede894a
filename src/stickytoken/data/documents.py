"""Documents of every kind, read as a stream: what cannot be read costs one record, not the collection."""

from __future__ import annotations

import codecs
import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import polars as pl

from stickytoken.data import tables
from stickytoken.errors import InputError
from stickytoken.validation import file_path, shown

STDIN = "-"
_LINES = (".txt", "")


@dataclass(frozen=True, slots=True)
class Document:
    number: int  # place in the collection, from 0; records that were skipped count
    id: str  # its own, or its place: a line, a row or a file name
    text: str  # valid Unicode
    source: str | None = None  # where it came from, if the collection says so
    path: str | None = None  # the file that it is in; None for texts from elsewhere
    line: int | None = None  # of the file, from 1, where it begins
    whole: bool = False  # it is the whole file, so that its lines are those of the file


@dataclass(frozen=True, slots=True)
class Skipped:
    place: str  # the file and the line or row
    reason: str  # what is wrong, with the byte where it is known


Record: TypeAlias = Document | Skipped
DocumentSource: TypeAlias = str | Path | Iterable[Any]


@dataclass(slots=True)
class Meter:
    done: int = 0
    total: int | None = None  # None where nobody knows

    @property
    def share(self) -> float | None:
        return None if not self.total else min(1.0, self.done / self.total)


@dataclass(frozen=True, slots=True)
class Collection:
    name: str  # in messages
    # Yields the records in order, and keeps the meter up to date; a stream can be read only once.
    read: Callable[[Meter], Iterator[Record]]
    key: str  # what tells this collection from others: where it lies, not what is in it


@dataclass(frozen=True, slots=True)
class Wanted:
    """Columns that the user names; None for those to be found by name."""

    text: str | None = None
    id: str | None = None
    source: str | None = None

    @property
    def named(self) -> bool:
        return any((self.text, self.id, self.source))


def open_documents(source: DocumentSource, wanted: Wanted) -> Collection:
    for name in (wanted.text, wanted.id, wanted.source):
        if name is not None and not isinstance(name, str):
            raise InputError(f"a column is {name!r}: pass the name of a column")
    if not isinstance(source, (str, Path)):
        return _given(source, wanted)
    if source == STDIN:

        def read_stdin(meter: Meter) -> Iterator[Record]:
            reader = _Reader(wanted, meter, "standard input")
            return (reader.json_lines if wanted.named else reader.text_lines)(sys.stdin.buffer)

        return Collection("standard input", read_stdin, STDIN)
    if isinstance(source, str) and source.startswith(tables.HUB):
        repository, _ = tables.hub_parts(source.removeprefix(tables.HUB))

        def read_hub(meter: Meter) -> Iterator[Record]:
            with tables.hub_stream(source.removeprefix(tables.HUB)) as (rows, meter.total):
                yield from _Reader(wanted, meter, repository).objects(rows)

        return Collection(source, read_hub, source)
    path = file_path("documents", source)
    try:
        if path.is_dir():
            return _folder(path, wanted)
        if not path.is_file():
            raise InputError(f"no file or folder {str(path)!r}")
        size = path.stat().st_size
        with path.open("rb"):
            pass
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    suffix = path.suffix.lower()
    if suffix not in (*tables.TABLE_SUFFIXES, *_LINES):
        raise InputError(
            f"{path} has the ending {suffix!r}: use .txt, {', '.join(tables.TABLE_SUFFIXES)}, or a folder"
        )
    if suffix in _LINES and wanted.named:
        raise InputError(f"{path} is a text file without columns: leave the names of columns out")

    def read_file(meter: Meter) -> Iterator[Record]:
        meter.total = size
        return _Reader(wanted, meter, str(path)).file(path)

    return Collection(str(path), read_file, str(path.absolute()))


def _given(values: Iterable[Any], wanted: Wanted) -> Collection:
    refusal = f"documents is {shown(values)}: pass a list of texts, a table, or a file"
    if isinstance(values, (bytes, bytearray, Mapping)):
        raise InputError(refusal)
    rows, name = values, "the given texts"
    # The rows of a Polars, Arrow or pandas table.
    readers: dict[str, dict[str, Any]] = {
        "iter_rows": {"named": True},
        "to_pylist": {},
        "to_dict": {"orient": "records"},
    }
    for method, options in readers.items():
        if hasattr(values, "columns") and callable(read_rows := getattr(values, method, None)):
            rows = read_rows(**options)
            break
    try:
        iter(rows)
    except TypeError:
        raise InputError(refusal) from None

    def read(meter: Meter) -> Iterator[Record]:
        meter.total = len(values) if isinstance(values, Sized) else None
        return _Reader(wanted, meter, name).objects(rows)

    return Collection(name, read, name)


def _folder(folder: Path, wanted: Wanted) -> Collection:
    """Return the documents of a folder: those in its tables, and every other file as one document."""
    paths = [folder / "corpus.jsonl"]
    if not (paths[0].is_file() and (folder / "queries.jsonl").is_file()):  # not the layout of BEIR
        paths = [
            path
            for path in sorted(folder.rglob("*"))
            if not any(part.startswith(".") for part in path.relative_to(folder).parts) and path.is_file()
        ]
    if not paths:
        raise InputError(f"{folder} contains no files: pass a folder of documents")

    def size(path: Path) -> int:
        try:
            return path.stat().st_size
        except OSError:
            return 0

    def read(meter: Meter) -> Iterator[Record]:
        meter.total = sum(map(size, paths))
        reader = _Reader(wanted, meter, str(folder))
        for path in paths:
            if path.suffix.lower() not in tables.TABLE_SUFFIXES:
                yield from reader.whole_file(path, folder)
                continue
            end = meter.done + size(path)
            try:
                yield from reader.file(path)
            except InputError as error:  # a table that cannot be read costs none of the others
                yield Skipped(_unicode_name(path), str(error))
            meter.done = end

    return Collection(str(folder), read, str(folder.absolute()))


def _unicode_name(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")


@dataclass(slots=True)
class _Reader:
    wanted: Wanted
    meter: Meter
    name: str  # of what is being read, in messages
    path: str | None = None  # of the file that is being read
    numbers: Iterator[int] = field(default_factory=count)  # places of the records that come next

    def whole_file(self, path: Path, folder: Path) -> Iterator[Record]:
        number, name, inside = next(self.numbers), _unicode_name(path), path.relative_to(folder)
        try:
            content = path.read_bytes()
        except OSError as error:
            yield Skipped(name, f"cannot be read: {error.strerror or error}")
            return
        self.meter.done += len(content)
        try:
            text = _decoded(content).removeprefix("\ufeff")
        except _UnreadableError as error:
            yield Skipped(name, str(error))
            return
        if text.strip():
            source = _unicode_name(Path(inside.parts[0])) if len(inside.parts) > 1 else None
            yield Document(number, _unicode_name(inside), text, source, name, 1, True)

    def file(self, path: Path) -> Iterator[Record]:
        suffix, self.name = path.suffix.lower(), _unicode_name(path)
        self.path = self.name
        if suffix == tables.PARQUET:
            yield from self.parquet(path)
            return
        try:
            with path.open("rb") as stream:
                if suffix in tables.JSON_LINES:
                    yield from self.json_lines(stream)
                elif suffix in tables.SEPARATORS:
                    yield from self.separated(stream, tables.SEPARATORS[suffix])
                else:
                    yield from self.text_lines(stream)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}") from error

    def text_lines(self, stream: BinaryIO) -> Iterator[Record]:
        for line in lines(stream, self.name, self.meter):
            if line.content.strip():
                number, place = next(self.numbers), f"line {line.number}"
                try:
                    text = _decoded(line.content, line.offset)
                    yield Document(number, place, text, None, self.path, line.number)
                except _UnreadableError as error:
                    yield Skipped(f"{self.name}, {place}", str(error))

    def json_lines(self, stream: BinaryIO) -> Iterator[Record]:
        def parsed() -> Iterator[tuple[int, Any]]:
            for line in lines(stream, self.name, self.meter):
                if not line.content.strip():
                    continue
                try:
                    yield line.number, json.loads(_decoded(line.content, line.offset))
                except (_UnreadableError, ValueError, RecursionError) as error:
                    reason = str(error) if isinstance(error, _UnreadableError) else f"not JSON: {error}"
                    yield line.number, Skipped(f"{self.name}, line {line.number}", reason)

        rows = parsed()
        first = list(islice(rows, 100))
        objects = [value for _, value in first if isinstance(value, Mapping)]
        if not objects and self.wanted.named:
            raise InputError(f"{self.name} has no columns: its lines are not JSON objects")
        columns = self.columns_of(objects) if objects else None
        for line, value in chain(first, rows):
            number, place = next(self.numbers), f"line {line}"
            if isinstance(value, Skipped):
                yield value
            elif isinstance(value, str):
                yield Document(number, place, unicode_text(value), None, self.path, line)
            elif isinstance(value, Mapping) and columns is not None:
                yield self.record(value, columns, number, place, line)
            else:
                reason = f"JSON of type {type(value).__name__}, not an object"
                yield Skipped(f"{self.name}, {place}", reason)

    def separated(self, stream: BinaryIO, separator: str) -> Iterator[Record]:
        damage: list[str] = []

        def text() -> Iterator[str]:
            for line in lines(stream, self.name, self.meter):
                try:
                    yield _decoded(line.content, line.offset) + "\n"
                except _UnreadableError as error:
                    damage.append(str(error))
                    yield line.content.replace(b"\0", b"?").decode("utf-8", "replace") + "\n"

        # Documents may be longer than the csv module allows, which has one limit for the whole process.
        earlier = csv.field_size_limit(2**31 - 1)
        try:
            rows = csv.reader(text(), delimiter=separator)
            try:
                header = next((row for row in rows if row), [])
            except csv.Error as error:
                raise InputError(f"{self.name} is not a readable table: {error}") from error
            if not header:
                raise InputError(f"{self.name} is empty")
            tables.require_distinct(header, self.name)
            columns = self.choose_columns(header, header)
            while True:
                line = rows.line_num + 1
                row, problem = [], None
                try:
                    row = next(rows)
                except StopIteration:
                    return
                except csv.Error as error:
                    problem = str(error)
                if damage:
                    problem = damage[0]
                    damage.clear()
                if row == [] and problem is None:
                    continue
                number, place = next(self.numbers), f"line {line}"
                if problem is None and len(row) != len(header):
                    problem = f"{len(row)} fields, and the header has {len(header)}"
                if problem is not None:
                    yield Skipped(f"{self.name}, {place}", problem)
                else:
                    yield self.record(dict(zip(header, row, strict=True)), columns, number, place, line)
        finally:
            csv.field_size_limit(earlier)

    def parquet(self, path: Path) -> Iterator[Record]:
        try:
            size = path.stat().st_size
            table = pl.scan_parquet(path, glob=False)
            schema = table.collect_schema()
            rows = table.select(pl.len()).collect().item()
        except tables.DAMAGE as error:
            reason = tables.one_line(error)
            raise InputError(f"{self.name} is not a readable parquet file: {reason}") from error
        textual = [column for column, kind in schema.items() if kind in (pl.String, pl.Categorical, pl.Enum)]
        columns = self.choose_columns(schema.names(), textual)
        for column in columns.texts:
            if column not in textual:
                raise InputError(f"column {column!r} of {self.name} contains {schema[column]}, not text")
        read = list(dict.fromkeys([*columns.texts, *filter(None, (columns.id, columns.source))]))
        row = 0
        try:
            for batch in table.select(read).collect_batches(chunk_size=4096):
                for values in batch.iter_rows(named=True):
                    row += 1
                    yield self.record(values, columns, next(self.numbers), f"row {row}")
                self.meter.done += round(size * batch.height / max(1, rows))
        except tables.DAMAGE as error:
            raise InputError(f"{self.name} is damaged after row {row}: {tables.one_line(error)}") from error

    def objects(self, rows: Iterable[Any]) -> Iterator[Record]:
        columns = None
        for value in rows:
            number = next(self.numbers)
            self.meter.done += 1
            place = f"row {number + 1}"
            if isinstance(value, str):
                if self.wanted.named:
                    raise InputError(f"{self.name} have no columns: leave the names of columns out")
                yield Document(number, str(number), unicode_text(value))
            elif isinstance(value, Mapping):
                columns = columns or self.columns_of([value])
                yield self.record(value, columns, number, place)
            else:
                yield Skipped(place, f"the text is {_no_text(value)}")

    def columns_of(self, rows: Sequence[Mapping[Any, Any]]) -> _Columns:
        present = list(dict.fromkeys(str(key) for row in rows for key in row))
        textual = [key for key in present if any(isinstance(row.get(key), str) for row in rows)]
        return self.choose_columns(present, textual)

    def choose_columns(self, present: Sequence[str], textual: Sequence[str]) -> _Columns:
        """In the layout of BEIR (``_id``, ``title`` and ``text``), a document is its title and its text."""
        wanted, listed = self.wanted, ", ".join(present) or "none"
        for column in filter(None, (wanted.text, wanted.id, wanted.source)):
            if column not in present:
                raise InputError(f"{self.name} has no column {column!r}: it has {listed}")
        identifier = wanted.id or next((each for each in _IDS if each in present), None)
        source = wanted.source or ("source" if "source" in present and wanted.text != "source" else None)
        if wanted.text is not None:
            return _Columns((wanted.text,), identifier, source)
        if "_id" in present and "title" in textual and "text" in textual:
            return _Columns(("title", "text"), identifier, source)
        if not textual:
            raise InputError(f"no column of {self.name} contains text: it has {listed}")
        usual = [each for each in _TEXTS if each in textual]
        others = [each for each in textual if each not in (identifier, source, "title")]
        if not usual and len(others) != 1:
            raise InputError(
                f"which column of {self.name} contains the text? It has {listed}: name it with the column "
                "option"
            )
        return _Columns(((usual or others)[0],), identifier, source)

    def record(
        self, values: Mapping[str, Any], columns: _Columns, number: int, place: str, line: int | None = None
    ) -> Record:
        where = place if self.path is None else f"{self.path}, {place}"
        texts = []
        for column in columns.texts:
            text = values.get(column)
            if isinstance(text, str):
                texts.append(text)
            elif text is not None or len(columns.texts) == 1:
                return Skipped(where, f"column {column!r} is {_no_text(text)}")
        if not texts:
            return Skipped(where, f"columns {' and '.join(columns.texts)} are missing")
        identifier = None if columns.id is None else values.get(columns.id)
        source = None if columns.source is None else values.get(columns.source)
        return Document(
            number,
            unicode_text(place if identifier is None else str(identifier)),
            unicode_text(" ".join(texts)),
            None if source is None else unicode_text(str(source)),
            self.path,
            line,
        )


def _no_text(value: object) -> str:
    return "missing" if value is None else f"{type(value).__name__}, not text"


_TEXTS = ("text", "document", "content", "passage", "body", "sentence")
_IDS = ("_id", "id", "doc_id", "docid", "document_id")


class _Columns(NamedTuple):
    texts: tuple[str, ...]  # their texts, joined by a space, make a document
    id: str | None
    source: str | None


class Line(NamedTuple):
    number: int  # from 1
    content: bytes
    offset: int  # byte of the file where it begins


def lines(stream: BinaryIO, name: str, meter: Meter) -> Iterator[Line]:
    """Yield the lines of a stream, whatever ends them, without a byte-order mark."""
    offset, number = 0, 0
    try:
        for content in stream:
            if not offset and content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                raise InputError(f"{name} is UTF-16 text: convert it to UTF-8, for example with iconv")
            start = len(codecs.BOM_UTF8) if not offset and content.startswith(codecs.BOM_UTF8) else 0
            parts = [content[start:]]
            if b"\r" in parts[0].removesuffix(b"\r\n"):  # carriage returns alone end lines too
                parts = parts[0].splitlines(keepends=True)
            for part in parts:
                number += 1
                yield Line(number, part.rstrip(b"\r\n"), offset + start)
                start += len(part)
            offset += len(content)
            meter.done += len(content)
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}") from error


class _UnreadableError(Exception):
    """Bytes that are not text; the message says which byte."""


def _decoded(content: bytes, offset: int = 0) -> str:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        found = content[error.start]
        raise _UnreadableError(f"byte {offset + error.start} (0x{found:02x}) is not UTF-8") from None
    if (place := content.find(b"\0")) >= 0:
        raise _UnreadableError(f"byte {offset + place} is zero, as in a binary file")
    return text


def unicode_text(text: str) -> str:
    """Replace lone surrogates, which are not valid in UTF-8 or Parquet files."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
