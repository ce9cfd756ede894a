"""Read documents of any kind as a stream."""

from __future__ import annotations

import codecs
import csv
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias

import polars as pl

from stickytoken.errors import InputError, require_package
from stickytoken.scanning.documents import (
    Collection,
    Columns,
    Document,
    Meter,
    Numbering,
    Place,
    Record,
    Skipped,
    Wanted,
    choose_columns,
    given_collection,
    record_of,
    unicode_text,
)
from stickytoken.validation import file_path

if TYPE_CHECKING:
    from _csv import Reader


_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Line(NamedTuple):
    """A line without its end.

    Attributes:
        number: From 1.
        offset: Byte of the file where it begins.
        content: Its bytes.
    """

    number: int
    offset: int
    content: bytes


class UnreadableError(Exception):
    """Bytes that are not text; the message says which byte."""


def lines(stream: BinaryIO, name: str, meter: Meter) -> Iterator[Line]:
    """Yield the lines of a stream, whatever ends them, without a byte-order mark."""
    offset, number = 0, 0
    try:
        for content in stream:
            if not offset:
                _require_bytes(content, name)
            start = len(codecs.BOM_UTF8) if not offset and content.startswith(codecs.BOM_UTF8) else 0
            for part in _split(content[start:]):
                number += 1
                yield Line(number, offset + start, part.rstrip(b"\r\n"))
                start += len(part)
            offset += len(content)
            meter.done += len(content)
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}") from error


def decoded(line: Line) -> str:
    """Decode a line as UTF-8."""
    return decoded_bytes(line.content, line.offset)


def decoded_bytes(content: bytes, offset: int = 0) -> str:
    """Decode bytes that begin at an offset of a file; see `decoded`."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        found = content[error.start]
        raise UnreadableError(f"byte {offset + error.start} (0x{found:02x}) is not UTF-8") from None
    if (place := content.find(b"\0")) >= 0:
        raise UnreadableError(f"byte {offset + place} is zero, as in a binary file")
    return text


def _split(content: bytes) -> list[bytes]:
    """Split at carriage returns, where they alone end lines."""
    if b"\r" not in content.removesuffix(b"\r\n"):
        return [content]
    return content.splitlines(keepends=True)


def _require_bytes(content: bytes, name: str) -> None:
    if content.startswith(_UTF_16):
        raise InputError(f"{name} is UTF-16 text: convert it to UTF-8, for example with iconv")


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


_ROWS = 4096
_DAMAGE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)


def parquet_documents(path: Path, wanted: Wanted, numbering: Numbering, meter: Meter) -> Iterator[Record]:
    """Yield the document of each row."""
    name = os.fsencode(path).decode("utf-8", "backslashreplace")
    try:
        size = path.stat().st_size
        table = pl.scan_parquet(path, glob=False)
        schema = table.collect_schema()
        rows = table.select(pl.len()).collect().item()
    except _DAMAGE as error:
        raise InputError(
            f"{name} is not a readable parquet file: {' '.join(str(error).split())[:200]}"
        ) from error
    textual = [column for column, kind in schema.items() if kind == pl.String]
    columns = choose_columns(schema.names(), wanted, name, textual)
    for column in columns.texts:
        if column not in textual:
            raise InputError(f"column {column!r} of {name} contains {schema[column]}, not text")
    row = 0
    try:
        for batch in table.select(columns.all).collect_batches(chunk_size=_ROWS):
            for values in batch.iter_rows(named=True):
                row += 1
                yield record_of(values, columns, numbering.take(), name, Place(row=row))
            meter.done += round(size * batch.height / max(1, rows))
    except _DAMAGE as error:
        raise InputError(
            f"{name} is damaged after row {row}: {' '.join(str(error).split())[:200]}"
        ) from error


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


def line_documents(
    stream: BinaryIO, name: str, path: str | None, numbering: Numbering, meter: Meter
) -> Iterator[Record]:
    """Yield each line that is not blank as a document."""
    for line in lines(stream, name, meter):
        if not line.content.strip():
            continue
        number = numbering.take()
        try:
            yield Document(number, f"line {line.number}", decoded(line), None, path, line.number)
        except UnreadableError as error:
            yield Skipped(Place(line=line.number).named(name), str(error))


def whole_file(
    path: Path, name: str, identifier: str, source: str | None, numbering: Numbering, meter: Meter
) -> Iterator[Record]:
    """Yield a file as one document, unless it is blank."""
    number = numbering.take()
    try:
        content = path.read_bytes()
    except OSError as error:
        yield Skipped(name, f"cannot be read: {error.strerror or error}")
        return
    meter.done += len(content)
    try:
        text = decoded_bytes(content).removeprefix("\ufeff")
    except UnreadableError as error:
        yield Skipped(name, str(error))
        return
    if text.strip():
        yield Document(number, identifier, text, source, name, 1, True)


_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_JSON_LINES = (".jsonl", ".ndjson")
_PARQUET = ".parquet"
_TABLES = (*_SEPARATORS, *_JSON_LINES, _PARQUET)
_LINES = (".txt", "")
_BEIR_CORPUS, _BEIR_QUERIES = "corpus.jsonl", "queries.jsonl"


def collection_in(path: Path, wanted: Wanted) -> Collection:
    """Return the documents of a file or folder."""
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
    if suffix not in (*_TABLES, *_LINES):
        raise InputError(f"{path} has the ending {suffix!r}: use .txt, {', '.join(_TABLES)}, or a folder")
    if suffix in _LINES and wanted.named:
        raise InputError(f"{path} is a text file without columns: leave the names of columns out")

    def read(meter: Meter) -> Iterator[Record]:
        meter.total = size
        return _file_records(path, wanted, Numbering(), meter)

    return Collection(str(path), read, str(path.absolute()))


def _file_records(path: Path, wanted: Wanted, numbering: Numbering, meter: Meter) -> Iterator[Record]:
    """Read a table, or a text file with a document on each line."""
    suffix, name = path.suffix.lower(), _shown(path)
    if suffix == _PARQUET:
        yield from parquet_documents(path, wanted, numbering, meter)
        return
    try:
        with path.open("rb") as stream:
            if suffix in _JSON_LINES:
                yield from json_documents(stream, name, name, wanted, numbering, meter)
            elif suffix in _SEPARATORS:
                yield from separated_documents(stream, name, _SEPARATORS[suffix], wanted, numbering, meter)
            else:
                yield from line_documents(stream, name, name, numbering, meter)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def _folder(folder: Path, wanted: Wanted) -> Collection:
    """Return the documents of a folder: those in its tables, and every other file as one document."""
    beir = (folder / _BEIR_CORPUS).is_file() and (folder / _BEIR_QUERIES).is_file()
    paths = (
        [folder / _BEIR_CORPUS]
        if beir
        else [path for path in sorted(folder.rglob("*")) if _counts(path, folder)]
    )
    if not paths:
        raise InputError(f"{folder} contains no files: pass a folder of documents")

    def read(meter: Meter) -> Iterator[Record]:
        meter.total = sum(_size(path) for path in paths)
        numbering = Numbering()
        for path in paths:
            if path.suffix.lower() in _TABLES:
                yield from _table_in_folder(path, wanted, numbering, meter)
            else:
                inside = path.relative_to(folder)
                source = _shown(Path(inside.parts[0])) if len(inside.parts) > 1 else None
                yield from whole_file(path, _shown(path), _shown(inside), source, numbering, meter)

    return Collection(str(folder), read, str(folder.absolute()))


def _table_in_folder(path: Path, wanted: Wanted, numbering: Numbering, meter: Meter) -> Iterator[Record]:
    """Read a table; one that cannot be read costs none of the others."""
    end = meter.done + _size(path)
    try:
        yield from _file_records(path, wanted, numbering, meter)
    except InputError as error:
        yield Skipped(_shown(path), str(error))
    meter.done = end


def _counts(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return not hidden and path.is_file()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _shown(path: Path) -> str:
    """Return the name of a file as valid Unicode."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


HUB = "hub:"
_USUAL_SPLIT = "train"


def hub_collection(name: str, wanted: Wanted) -> Collection:
    """Return the documents of ``REPOSITORY`` or ``REPOSITORY@SPLIT``, read as a stream."""
    require_package("datasets", f"reading {name} from the hub", "hub")
    repository, _, split = name.partition("@")
    if not repository.strip():
        raise InputError(f"{HUB + name!r} names no data set: pass hub:REPOSITORY, or hub:REPOSITORY@SPLIT")

    def read(meter: Meter) -> Iterator[Record]:
        return _records(repository, split, wanted, meter)

    return Collection(f"{HUB}{name}", read, f"{HUB}{name}")


def _records(repository: str, split: str, wanted: Wanted, meter: Meter) -> Iterator[Record]:
    import datasets
    from datasets.exceptions import DatasetsError

    numbering = Numbering()
    try:
        loaded = datasets.load_dataset(repository, split=split or None, streaming=True)
        if isinstance(loaded, Mapping):
            loaded = _only_split(loaded, repository)
        rows: Iterator[Mapping[str, Any]] = iter(loaded)
        first = next(rows, None)
        if first is None:
            return
        textual = [name for name, value in first.items() if isinstance(value, str)]
        columns = choose_columns(list(first), wanted, repository, textual)
        info = loaded.info.splits
        meter.total = info[str(loaded.split)].num_examples if info and str(loaded.split) in info else None
        for values in _with(first, rows):
            meter.done += 1
            number = numbering.take()
            yield record_of(values, columns, number, None, Place(row=number + 1))
    except (OSError, ValueError, LookupError, RuntimeError, DatasetsError) as error:
        reason = " ".join(str(error.__cause__ or error).split())[:200]
        raise InputError(f"the data set {repository!r} cannot be read: {reason}") from error


def _only_split(splits: Mapping[str, Any], repository: str) -> Any:
    if len(splits) == 1:
        return next(iter(splits.values()))
    if _USUAL_SPLIT in splits:
        return splits[_USUAL_SPLIT]
    raise InputError(
        f"which split of {repository!r}? It has {', '.join(splits)}: pass hub:{repository}@SPLIT"
    )


def _with(first: Mapping[str, Any], rest: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    yield first
    yield from rest


STDIN = "-"
_STDIN_NAME = "standard input"

DocumentSource: TypeAlias = str | Path | Iterable[Any]


def open_documents(source: DocumentSource, wanted: Wanted) -> Collection:
    """Return the documents that a source names."""
    for name in (wanted.text, wanted.id, wanted.source):
        if name is not None and not isinstance(name, str):
            raise InputError(f"a column is {name!r}: pass the name of a column")
    if not isinstance(source, (str, Path)):
        return given_collection(source, wanted)
    if source == STDIN:
        return Collection(_STDIN_NAME, lambda meter: _stdin(wanted, meter), STDIN)
    if isinstance(source, str) and source.startswith(HUB):
        return hub_collection(source.removeprefix(HUB), wanted)
    return collection_in(file_path("documents", source), wanted)


def _stdin(wanted: Wanted, meter: Meter) -> Iterator[Record]:
    stream = sys.stdin.buffer
    if wanted.named:
        return json_documents(stream, _STDIN_NAME, None, wanted, Numbering(), meter)
    return line_documents(stream, _STDIN_NAME, None, Numbering(), meter)
