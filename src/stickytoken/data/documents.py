"""Documents of every kind, read as a stream: what cannot be read costs one record, not the collection."""

from __future__ import annotations

import codecs
import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import polars as pl

from stickytoken.data import tables
from stickytoken.errors import InputError, reading
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
    column: str | None = None  # with the text; None finds it by name, and so the others
    id_column: str | None = None
    source_column: str | None = None

    @property
    def named(self) -> bool:
        return any((self.column, self.id_column, self.source_column))


def open_documents(source: DocumentSource, wanted: Wanted) -> Collection:
    for column in (wanted.column, wanted.id_column, wanted.source_column):
        if not isinstance(column, str | None):
            raise InputError(f"a column is {column!r}: pass the name of a column")
    if not isinstance(source, (str, Path)):
        return _given(source, wanted)
    if source == STDIN:
        name = "standard input"
        return Collection(name, lambda meter: _Reader(wanted, meter, name).stdin(), STDIN)
    if isinstance(source, str) and source.startswith(tables.HUB):
        name = source.removeprefix(tables.HUB)
        repository, _ = tables.hub_parts(name)
        return Collection(source, lambda meter: _Reader(wanted, meter, repository).hub(name), source)
    path = file_path("documents", source)
    with reading(path):
        if path.is_dir():
            return _folder(path, wanted)
        if not path.is_file():
            raise InputError(f"no file or folder {str(path)!r}")
        size = path.stat().st_size
        path.open("rb").close()
    suffix = path.suffix.lower()
    if suffix not in (*tables.TABLE_SUFFIXES, *_LINES):
        raise InputError(
            f"{path} has the ending {suffix!r}: use .txt, {', '.join(tables.TABLE_SUFFIXES)}, or a folder"
        )
    if suffix in _LINES and wanted.named:
        raise InputError(f"{path} is a text file without columns: leave the names of columns out")
    return Collection(
        str(path), lambda meter: _Reader(wanted, meter, str(path)).file(path, size), str(path.absolute())
    )


def _given(values: Iterable[Any], wanted: Wanted) -> Collection:
    refusal = f"documents is {shown(values)}: pass a list of texts, a table, or a file"
    if isinstance(values, (bytes, bytearray, Mapping)):
        raise InputError(refusal)
    rows, name = values, "the given texts"
    # The rows of a Polars, Arrow or pandas table.
    tabular: dict[str, Any] = {"iter_rows": {"named": True}, "to_pylist": {}}
    for method, options in (tabular | {"to_dict": {"orient": "records"}}).items():
        if hasattr(values, "columns") and callable(read_rows := getattr(values, method, None)):
            rows = read_rows(**options)
            break
    try:
        iter(rows)
    except TypeError:
        raise InputError(refusal) from None

    def read(meter: Meter) -> Iterator[Record]:
        meter.total = len(values) if isinstance(values, Sized) else None
        reader = _Reader(wanted, meter, name)
        return reader.records(reader.objects(rows))

    return Collection(name, read, name)


def _folder(folder: Path, wanted: Wanted) -> Collection:
    paths = [folder / "corpus.jsonl"]
    if not (paths[0].is_file() and (folder / "queries.jsonl").is_file()):  # not the layout of BEIR
        paths = [
            path
            for path in sorted(folder.rglob("*"))
            if not any(part.startswith(".") for part in path.relative_to(folder).parts) and path.is_file()
        ]
    if not paths:
        raise InputError(f"{folder} contains no files: pass a folder of documents")
    sizes = {}
    for path in paths:
        sizes[path] = 0
        with suppress(OSError):  # it has just vanished: reading it says so
            sizes[path] = path.stat().st_size

    def read(meter: Meter) -> Iterator[Record]:
        meter.total = sum(sizes.values())
        reader = _Reader(wanted, meter, str(folder))
        for path, size in sizes.items():
            name, inside = _unicode_name(path), path.relative_to(folder)
            if path.suffix.lower() in tables.TABLE_SUFFIXES:
                end = meter.done + size
                try:
                    yield from reader.file(path)
                except InputError as error:  # a table that cannot be read costs none of the others
                    yield Skipped(name, str(error))
                meter.done = end
                continue
            number = next(reader.numbers)
            try:
                content = path.read_bytes()
            except OSError as error:
                yield Skipped(name, f"cannot be read: {error.strerror or error}")
                continue
            meter.done += len(content)
            text, damage = _decoded(content)
            if damage:
                yield Skipped(name, damage)
            elif text.removeprefix("\ufeff").strip():
                source = _unicode_name(Path(inside.parts[0])) if len(inside.parts) > 1 else None
                text = text.removeprefix("\ufeff")
                yield Document(number, _unicode_name(inside), text, source, name, 1, True)

    return Collection(str(folder), read, str(folder.absolute()))


def _unicode_name(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")


# The place of a record, its line in the file, and its content: a text, an object, or what is wrong.
_Row: TypeAlias = tuple[str, int | None, Any]
_TEXTS = ("text", "document", "content", "passage", "body", "sentence")
_IDS = ("_id", "id", "doc_id", "docid", "document_id")


@dataclass(slots=True)
class _Reader:
    wanted: Wanted
    meter: Meter
    name: str  # of what is being read, in messages
    path: str | None = None  # of the file that is being read
    # Columns, chosen before the first object of a file is read; the texts, joined by a space, are a document.
    texts: tuple[str, ...] = ()
    id: str | None = None
    source: str | None = None
    numbers: Iterator[int] = field(default_factory=count)  # places of the records that come next

    def stdin(self) -> Iterator[Record]:
        return self.records((self.json_rows if self.wanted.named else self.lines)(sys.stdin.buffer))

    def hub(self, name: str) -> Iterator[Record]:
        with tables.opened_hub(name, streaming=True) as rows:
            splits, split = rows.info.splits or {}, str(rows.split)
            self.meter.total = splits[split].num_examples if split in splits else None
            yield from self.records(self.objects(rows))

    def file(self, path: Path, size: int | None = None) -> Iterator[Record]:
        self.meter.total = size or self.meter.total  # that of a folder is known already
        suffix, self.texts = path.suffix.lower(), ()
        self.name = self.path = _unicode_name(path)
        if suffix == tables.PARQUET:
            yield from self.records(self.parquet_rows(path))
            return
        with reading(path), path.open("rb") as stream:
            if suffix in tables.JSON_LINES:
                rows = self.json_rows(stream)
            elif suffix in tables.SEPARATORS:
                rows = self.separated_rows(stream, tables.SEPARATORS[suffix])
            else:
                rows = self.lines(stream)
            yield from self.records(rows)

    def records(self, rows: Iterable[_Row]) -> Iterator[Record]:
        for place, line, value in rows:
            number = next(self.numbers)
            if isinstance(value, Skipped):
                yield value
            elif isinstance(value, str):
                yield Document(number, place, unicode_text(value), None, self.path, line)
            elif isinstance(value, Mapping) and self.texts:
                yield self.record(value, number, place, line)
            else:
                reason = f"JSON of type {type(value).__name__}, not an object"
                yield Skipped(f"{self.name}, {place}", reason)

    def record(self, values: Mapping[str, Any], number: int, place: str, line: int | None) -> Record:
        where = place if self.path is None else f"{self.path}, {place}"
        texts = []
        for column in self.texts:
            text = values.get(column)
            if isinstance(text, str):
                texts.append(text)
            elif text is not None or len(self.texts) == 1:
                return Skipped(where, f"column {column!r} is {_no_text(text)}")
        if not texts:
            return Skipped(where, f"columns {' and '.join(self.texts)} are missing")
        identifier, source = (each and values.get(each) for each in (self.id, self.source))
        return Document(
            number,
            unicode_text(place if identifier is None else str(identifier)),
            unicode_text(" ".join(texts)),
            None if source is None else unicode_text(str(source)),
            self.path,
            line,
        )

    def lines(self, stream: BinaryIO) -> Iterator[_Row]:
        for line in lines(stream, self.name, self.meter):
            if line.content.strip():
                place = f"line {line.number}"
                text, damage = _decoded(line.content, line.offset)
                yield place, line.number, Skipped(f"{self.name}, {place}", damage) if damage else text

    def json_rows(self, stream: BinaryIO) -> Iterator[_Row]:
        def parsed() -> Iterator[_Row]:
            for place, line, text in self.lines(stream):
                value = text
                if isinstance(text, str):
                    try:
                        value = json.loads(text)
                    except (ValueError, RecursionError) as error:
                        value = Skipped(f"{self.name}, {place}", f"not JSON: {error}")
                yield place, line, value

        rows = parsed()
        first = list(islice(rows, 100))
        objects = [value for *_, value in first if isinstance(value, Mapping)]
        if not objects and self.wanted.named:
            raise InputError(f"{self.name} has no columns: its lines are not JSON objects")
        if objects:
            self.choose_columns_of(objects)
        yield from chain(first, rows)

    def separated_rows(self, stream: BinaryIO, separator: str) -> Iterator[_Row]:
        damage: list[str] = []

        def texts() -> Iterator[str]:
            for line in lines(stream, self.name, self.meter):
                text, found = _decoded(line.content, line.offset)
                damage.extend([found] if found else [])
                yield text + "\n"

        # Documents may be longer than the csv module allows, which has one limit for the whole process.
        earlier = csv.field_size_limit(2**31 - 1)
        try:
            rows = csv.reader(texts(), delimiter=separator)
            try:
                header = next((row for row in rows if row), [])
            except csv.Error as error:
                raise InputError(f"{self.name} is not a readable table: {error}") from error
            if not header:
                raise InputError(f"{self.name} is empty")
            tables.require_distinct(header, self.name)
            self.choose_columns(header, header)
            while True:
                line = rows.line_num + 1
                row, problem = [], ""
                try:
                    row = next(rows)
                except StopIteration:
                    return
                except csv.Error as error:
                    problem = str(error)
                if damage:
                    problem = damage[0]
                    damage.clear()
                if row and not problem and len(row) != len(header):
                    problem = f"{len(row)} fields, and the header has {len(header)}"
                place = f"line {line}"
                if problem:
                    yield place, line, Skipped(f"{self.name}, {place}", problem)
                elif row:
                    yield place, line, dict(zip(header, row, strict=True))
        finally:
            csv.field_size_limit(earlier)

    def parquet_rows(self, path: Path) -> Iterator[_Row]:
        try:
            size = path.stat().st_size
            table = pl.scan_parquet(path, glob=False)
            schema = table.collect_schema()
            rows = table.select(pl.len()).collect().item()
        except tables.DAMAGE as error:
            reason = tables.one_line(error)
            raise InputError(f"{self.name} is not a readable parquet file: {reason}") from error
        textual = [column for column, kind in schema.items() if kind in (pl.String, pl.Categorical, pl.Enum)]
        self.choose_columns(schema.names(), textual)
        for column in self.texts:
            if column not in textual:
                raise InputError(f"column {column!r} of {self.name} contains {schema[column]}, not text")
        read = list(dict.fromkeys(filter(None, (*self.texts, self.id, self.source))))
        row = 0
        try:
            for batch in table.select(read).collect_batches(chunk_size=4096):
                for values in batch.iter_rows(named=True):
                    row += 1
                    yield f"row {row}", None, values
                self.meter.done += round(size * batch.height / max(1, rows))
        except tables.DAMAGE as error:
            raise InputError(f"{self.name} is damaged after row {row}: {tables.one_line(error)}") from error

    def objects(self, values: Iterable[Any]) -> Iterator[_Row]:
        for number, value in enumerate(values):
            self.meter.done += 1
            place = f"row {number + 1}"
            if isinstance(value, str):
                if self.wanted.named:
                    raise InputError(f"{self.name} have no columns: leave the names of columns out")
                yield str(number), None, value
            elif isinstance(value, Mapping):
                if not self.texts:
                    self.choose_columns_of([value])
                yield place, None, value
            else:
                yield place, None, Skipped(place, f"the text is {_no_text(value)}")

    def choose_columns_of(self, rows: Sequence[Mapping[Any, Any]]) -> None:
        present = list(dict.fromkeys(str(key) for row in rows for key in row))
        self.choose_columns(
            present, [key for key in present if any(isinstance(row.get(key), str) for row in rows)]
        )

    def choose_columns(self, present: Sequence[str], textual: Sequence[str]) -> None:
        """In the layout of BEIR (``_id``, ``title`` and ``text``), a document is its title and its text."""
        wanted, listed = self.wanted, ", ".join(present) or "none"
        for column in filter(None, (wanted.column, wanted.id_column, wanted.source_column)):
            if column not in present:
                raise InputError(f"{self.name} has no column {column!r}: it has {listed}")
        self.id = wanted.id_column or next((each for each in _IDS if each in present), None)
        unnamed = "source" if "source" in present and wanted.column != "source" else None
        self.source = wanted.source_column or unnamed
        if wanted.column is not None:
            self.texts = (wanted.column,)
        elif "_id" in present and "title" in textual and "text" in textual:
            self.texts = ("title", "text")
        elif not textual:
            raise InputError(f"no column of {self.name} contains text: it has {listed}")
        else:
            usual = [each for each in _TEXTS if each in textual]
            others = [each for each in textual if each not in (self.id, self.source, "title")]
            if not usual and len(others) != 1:
                raise InputError(
                    f"which column of {self.name} contains the text? It has {listed}: name it with the "
                    "column option"
                )
            self.texts = ((usual or others)[0],)


def _no_text(value: object) -> str:
    return "missing" if value is None else f"{type(value).__name__}, not text"


class Line(NamedTuple):
    number: int  # from 1
    content: bytes
    offset: int  # byte of the file where it begins


def lines(stream: BinaryIO, name: str, meter: Meter) -> Iterator[Line]:
    offset, number = 0, 0
    with reading(name):
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


def _decoded(content: bytes, offset: int = 0) -> tuple[str, str]:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        damage = f"byte {offset + error.start} (0x{content[error.start]:02x}) is not UTF-8"
    else:
        if "\0" not in text:
            return text, ""
        damage = f"byte {offset + content.index(0)} is zero, as in a binary file"
    return content.replace(b"\0", b"?").decode("utf-8", "replace"), damage


def unicode_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
