"""Documents of every kind, read as a stream: what cannot be read costs one record, not the collection."""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import polars as pl

from stickytoken.data import tables
from stickytoken.errors import InputError, reading
from stickytoken.validation import file_path, shown

STDIN = "-"
# Name of the collection that is read from there.
STDIN_COLLECTION = "standard input"
GZIP = ".gz"
_LINES = (".txt", "")
_DAMAGED_GZIP = (gzip.BadGzipFile, EOFError, zlib.error)


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
        name = STDIN_COLLECTION
        return Collection(name, lambda meter: Reader(wanted, meter, name).stdin(), STDIN)
    if isinstance(source, str) and source.startswith(tables.HUB):
        name = source.removeprefix(tables.HUB)
        repository, _ = tables.hub_parts(name)
        return Collection(source, lambda meter: Reader(wanted, meter, repository).hub(name), source)
    path = file_path("documents", source)
    with reading(path):
        if path.is_dir():
            return _folder(path, wanted)
        if not path.is_file():
            raise InputError(f"no file or folder {str(path)!r}")
        size = path.stat().st_size
        path.open("rb").close()
    require_format(path, wanted)
    return Collection(
        str(path), lambda meter: Reader(wanted, meter, str(path)).file(path, size), str(path.absolute())
    )


def format_of(path: Path) -> tuple[str, bool]:
    """Return the ending that names the format of a file, in lower case, and whether gzip compresses it."""
    if path.suffix.lower() != GZIP:
        return path.suffix.lower(), False
    return Path(path.stem).suffix.lower(), True


def require_format(path: Path, wanted: Wanted) -> None:
    """Refuse a file whose ending names no format of documents, or columns of a file that has none."""
    suffix, compressed = format_of(path)
    if suffix == tables.PARQUET and compressed:
        raise InputError(f"{path} is a compressed parquet file: unpack it with gunzip")
    if suffix not in (*tables.TABLE_SUFFIXES, *_LINES):
        raise InputError(
            f"{path} has the ending {suffix!r}: use .txt, {', '.join(tables.TABLE_SUFFIXES)}, one of these "
            "but parquet with .gz behind it, or a folder"
        )
    if suffix in _LINES and wanted.named:
        raise InputError(f"{path} is a text file without columns: leave the names of columns out")


@contextmanager
def opened_file(path: Path) -> Iterator[tuple[Iterable[bytes], BinaryIO]]:
    """Open a file by its ending. Return its lines, unpacked, and the file itself, whose position is in it."""
    with reading(path), path.open("rb") as file:
        _, compressed = format_of(path)
        if compressed:
            yield _unpacked(file, str(path)), file
        else:
            yield file, file


def _unpacked(file: BinaryIO, name: str) -> Iterator[bytes]:
    with gzip.open(file) as stream:
        while True:
            try:
                line = stream.readline()
            except _DAMAGED_GZIP as error:
                raise InputError(f"{name} is damaged or is not compressed by gzip: {error}") from error
            if not line:
                return
            yield line


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
        reader = Reader(wanted, meter, name)
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
        reader = Reader(wanted, meter, str(folder))
        for path, size in sizes.items():
            name, inside = _unicode_name(path), path.relative_to(folder)
            if format_of(path)[0] in tables.TABLE_SUFFIXES:
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
            if format_of(path)[1]:
                try:
                    content = gzip.decompress(content)
                except _DAMAGED_GZIP as error:
                    yield Skipped(name, f"damaged, or not compressed by gzip: {error}")
                    continue
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


class Row(NamedTuple):
    """A record before its text is known to be one."""

    place: str  # in messages, such as "line 3"
    line: int | None  # of the file, from 1
    value: Any  # a text, an object, or what is wrong as Skipped
    start: int = 0  # its bytes in the file without the end of the line; 0 and 0 if it has none
    end: int = 0


_TEXTS = ("text", "document", "content", "passage", "body", "sentence")
_IDS = ("_id", "id", "doc_id", "docid", "document_id")


@dataclass(slots=True)
class Reader:
    """Reads the records of one collection, in every format; `data.rewriting` writes them back."""

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
        return self.records(self.stdin_rows(sys.stdin.buffer))

    def stdin_rows(self, stream: Iterable[bytes]) -> Iterator[Row]:
        """Yield the rows of standard input: JSON lines if a column is named, else lines of text."""
        return self.json_rows(stream, self.meter) if self.wanted.named else self.lines(stream, self.meter)

    def hub(self, name: str) -> Iterator[Record]:
        with tables.opened_hub(name, streaming=True) as rows:
            splits, split = rows.info.splits or {}, str(rows.split)
            self.meter.total = splits[split].num_examples if split in splits else None
            yield from self.records(self.objects(rows))

    def file(self, path: Path, size: int | None = None) -> Iterator[Record]:
        self.meter.total = size or self.meter.total  # that of a folder is known already
        suffix, _ = format_of(path)
        self.texts = ()
        self.name = self.path = _unicode_name(path)
        if suffix == tables.PARQUET:
            yield from self.records(self.parquet_rows(path))
            return
        compressed = format_of(path)[1]
        begin = self.meter.done
        with opened_file(path) as (stream, file):
            for row in self.rows(stream, suffix, Meter() if compressed else self.meter):
                if compressed:
                    self.meter.done = begin + file.tell()
                yield self.record_of(row)
            if compressed:
                self.meter.done = begin + file.tell()

    def rows(self, stream: Iterable[bytes], suffix: str, meter: Meter) -> Iterator[Row]:
        """Yield the rows of a file that consists of lines; its ending names the format."""
        if suffix in tables.JSON_LINES:
            return self.json_rows(stream, meter)
        if suffix in tables.SEPARATORS:
            return self.separated_rows(stream, tables.SEPARATORS[suffix], meter)
        return self.lines(stream, meter)

    def records(self, rows: Iterable[Row]) -> Iterator[Record]:
        for row in rows:
            yield self.record_of(row)

    def record_of(self, row: Row) -> Record:
        """Return the document of a row, or why it is none."""
        number = next(self.numbers)
        place, line, value = row.place, row.line, row.value
        if isinstance(value, Skipped):
            return value
        if isinstance(value, str):
            return Document(number, place, unicode_text(value), None, self.path, line)
        if not isinstance(value, Mapping) or not self.texts:
            reason = f"JSON of type {type(value).__name__}, not an object"
            return Skipped(f"{self.name}, {place}", reason)
        where = place if self.path is None else f"{self.path}, {place}"
        for column in self.texts:
            text = value.get(column)
            if not isinstance(text, str) and (text is not None or len(self.texts) == 1):
                return Skipped(where, f"column {column!r} is {_no_text(text)}")
        texts = self.texts_of(value)
        if not texts:
            return Skipped(where, f"columns {' and '.join(self.texts)} are missing")
        identifier = value.get(self.id) if self.id else None
        source = value.get(self.source) if self.source else None
        return Document(
            number,
            unicode_text(place if identifier is None else str(identifier)),
            unicode_text(" ".join(texts.values())),
            None if source is None else unicode_text(str(source)),
            self.path,
            line,
        )

    def texts_of(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Return the texts of an object by column; joined by a space, they are the document."""
        texts = {}
        for column in self.texts:
            text = values.get(column)
            if isinstance(text, str):
                texts[column] = text
        return texts

    def lines(self, stream: Iterable[bytes], meter: Meter) -> Iterator[Row]:
        for line in lines(stream, self.name, meter):
            if line.content.strip():
                place = f"line {line.number}"
                text, damage = _decoded(line.content, line.offset)
                value = Skipped(f"{self.name}, {place}", damage) if damage else text
                yield Row(place, line.number, value, line.offset, line.end)

    def json_rows(self, stream: Iterable[bytes], meter: Meter) -> Iterator[Row]:
        def parsed() -> Iterator[Row]:
            for row in self.lines(stream, meter):
                value = row.value
                if isinstance(value, str):
                    try:
                        value = json.loads(value)
                    except (ValueError, RecursionError) as error:
                        value = Skipped(f"{self.name}, {row.place}", f"not JSON: {error}")
                yield row._replace(value=value)

        rows = parsed()
        first = list(islice(rows, 100))
        objects = [row.value for row in first if isinstance(row.value, Mapping)]
        if not objects and self.wanted.named:
            raise InputError(f"{self.name} has no columns: its lines are not JSON objects")
        if objects:
            self.choose_columns_of(objects)
        yield from chain(first, rows)

    def separated_rows(self, stream: Iterable[bytes], separator: str, meter: Meter) -> Iterator[Row]:
        """Read the rows of a csv or tsv file, whose first row names the columns."""
        damages: list[str] = []
        record_lines: list[Line] = []  # of the record that is read

        def texts() -> Iterator[str]:
            for line in lines(stream, self.name, meter):
                record_lines.append(line)
                text, damage = _decoded(line.content, line.offset)
                if damage:
                    damages.append(damage)
                yield text

        records = separated_records(texts(), separator)
        header = next((fields for _, fields in records if fields), [])
        if not header:
            raise InputError(f"{self.name} is empty")
        tables.require_distinct(header, self.name)
        self.choose_columns(header, header)
        damages.clear()
        record_lines.clear()
        for number, fields in records:
            offset, end = record_lines[0].offset, record_lines[-1].end
            record_lines.clear()
            problem = ""
            if damages:
                problem = damages[0]
                damages.clear()
            elif fields and len(fields) != len(header):
                problem = f"{len(fields)} fields, and the header has {len(header)}"
            place = f"line {number}"
            if problem:
                yield Row(place, number, Skipped(f"{self.name}, {place}", problem))
            elif fields:
                yield Row(place, number, dict(zip(header, fields, strict=True)), offset, end)

    def parquet_rows(self, path: Path) -> Iterator[Row]:
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
                    yield Row(f"row {row}", None, values)
                self.meter.done += round(size * batch.height / max(1, rows))
        except tables.DAMAGE as error:
            raise InputError(f"{self.name} is damaged after row {row}: {tables.one_line(error)}") from error

    def objects(self, values: Iterable[Any]) -> Iterator[Row]:
        for number, value in enumerate(values):
            self.meter.done += 1
            place = f"row {number + 1}"
            if isinstance(value, str):
                if self.wanted.named:
                    raise InputError(f"{self.name} have no columns: leave the names of columns out")
                yield Row(str(number), None, value)
            elif isinstance(value, Mapping):
                if not self.texts:
                    self.choose_columns_of([value])
                yield Row(place, None, value)
            else:
                yield Row(place, None, Skipped(place, f"the text is {_no_text(value)}"))

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


_QUOTE = '"'


def separated_records(lines: Iterable[str], separator: str) -> Iterator[tuple[int, list[str]]]:
    """Split lines without their ends into records of fields, as `csv.reader` does.

    The csv module refuses long fields, and its limit is one for the whole process. A field that begins with a
    quotation mark ends at the next single one; two stand for one. It may contain separators and line breaks.
    A field that is open at the end of the file ends there.

    Args:
        lines: lines of the file.
        separator: the character between fields.

    Yields:
        The number of the line on which a record begins, from 1, and its fields; none for an empty line.
    """
    fields: list[str] = []
    quoted: list[str] | None = None  # pieces of the field that is open
    first = 1
    for number, line in enumerate(lines, start=1):
        place = 0
        if quoted is None:
            first = number
            fields = []
            whole = _whole_record(line, separator)
            if whole is not None:
                yield first, whole
                continue
        else:
            quoted.append("\n")
        while True:
            if quoted is None and line.startswith(_QUOTE, place):
                quoted = []
                place += 1
            field = ""
            if quoted is not None:
                place, closed = _read_quoted(line, place, quoted)
                if not closed:
                    break
                field = "".join(quoted)
                quoted = None
            end = line.find(separator, place)
            fields.append(field + line[place : end if end >= 0 else len(line)])
            if end < 0:
                yield first, fields
                break
            place = end + 1
    if quoted is not None:
        fields.append("".join(quoted))
        yield first, fields


def _whole_record(line: str, separator: str) -> list[str] | None:
    """Return the fields of a line that is a record by itself; None if that takes a closer look.

    This is the fast way, by compiled code: the limit of the csv module is read, and never set.
    """
    if not line:
        return []
    if _QUOTE not in line:
        return line.split(separator)
    if len(line) > csv.field_size_limit():
        return None
    try:
        return next(csv.reader([line], delimiter=separator, strict=True))
    except csv.Error:  # a field is open, or goes on behind its quotation mark
        return None


def _read_quoted(line: str, place: int, pieces: list[str]) -> tuple[int, bool]:
    """Add the rest of a quoted field to its pieces; return where it ends, and whether it ends on the line."""
    while True:
        end = line.find(_QUOTE, place)
        if end < 0:
            pieces.append(line[place:])
            return len(line), False
        pieces.append(line[place:end])
        if not line.startswith(_QUOTE, end + 1):
            return end + 1, True
        pieces.append(_QUOTE)
        place = end + 2


def _no_text(value: object) -> str:
    return "missing" if value is None else f"{type(value).__name__}, not text"


class Line(NamedTuple):
    number: int  # from 1
    content: bytes
    offset: int  # byte of the file where it begins

    @property
    def end(self) -> int:
        """The byte of the file behind its content, where the end of the line begins."""
        return self.offset + len(self.content)


def lines(stream: Iterable[bytes], name: str, meter: Meter) -> Iterator[Line]:
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
