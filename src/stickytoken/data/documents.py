"""Read documents as a stream, in every supported format. Records that cannot be read are skipped."""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import polars as pl

from stickytoken.data import tables
from stickytoken.errors import InputError, reading
from stickytoken.validation import file_path, shown

STDIN = "-"
# Name of the collection that is read from standard input.
STDIN_COLLECTION = "standard input"
GZIP = ".gz"
_LINES = (".txt", "")
_DAMAGED_GZIP = (gzip.BadGzipFile, EOFError, zlib.error)


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a collection.

    Attributes:
        number: 0-based position of the document among all records of the collection, including skipped ones.
        id: Id of the document. A record without an id is identified by its line, its row or its file name.
        text: Text of the document, in valid Unicode.
        source: Where the document comes from: the value of the source column or, for a document that is a
            whole file, the top-level subfolder that contains the file; None if there is no source column or
            subfolder.
        path: The file that contains the document; None if it does not come from a file.
        line: 1-based number of the line on which the document begins; None if it was not read from lines of
            text.
        is_whole_file: Whether the document is a whole file.
        columns: The columns whose texts, joined by a space, are the text of the document. Empty if the
            document does not come from columns.
    """

    number: int
    id: str
    text: str
    source: str | None = None
    path: str | None = None
    line: int | None = None
    is_whole_file: bool = False
    columns: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A record that cannot be read.

    Attributes:
        place: Where the record is: its file, its line or row, or both.
        reason: What is wrong with the record, including the position of the first invalid byte if known.
    """

    place: str
    reason: str


Record: TypeAlias = Document | Skipped
DocumentSource: TypeAlias = str | Path | Iterable[Any]


@dataclass(slots=True)
class Meter:
    """How much of a collection has been read, in bytes or in rows. An unknown ``total`` is None."""

    done: int = 0
    total: int | None = None

    @property
    def share(self) -> float | None:
        """Share of the collection that has been read; None if the total is not known."""
        return None if not self.total else min(1.0, self.done / self.total)


@dataclass(frozen=True, slots=True)
class Collection:
    """A collection of documents that can be read one by one.

    Attributes:
        name: Name of the collection in messages.
        read: Function that yields the records in order and updates the meter. If the source is a stream, the
            function can be called only once.
        key: A key that stands for the collection, such as its path. The key does not depend on the content of
            the documents.
    """

    name: str
    read: Callable[[Meter], Iterator[Record]]
    key: str


@dataclass(frozen=True, slots=True)
class NamedColumns:
    """The columns that the user named. Where a field is None, the column is looked up by its usual names.

    Attributes:
        column: The column with the text.
        id_column: The column with the id.
        source_column: The column that says where each document comes from.
    """

    column: str | None = None
    id_column: str | None = None
    source_column: str | None = None

    @property
    def any_named(self) -> bool:
        return any((self.column, self.id_column, self.source_column))


def open_documents(source: DocumentSource, columns: NamedColumns) -> Collection:
    """Open a collection of documents, without reading it.

    Args:
        source: A file, a folder, ``hub:REPOSITORY``, ``-`` for standard input, or the texts or rows
            themselves.
        columns: The columns that the user named.

    Raises:
        InputError: The collection does not exist, or its format is not supported.
    """
    for column in (columns.column, columns.id_column, columns.source_column):
        if not isinstance(column, str | None):
            raise InputError(f"{column!r} is not the name of a column: pass a string")
    if not isinstance(source, (str, Path)):
        return _from_values(source, columns)
    if source == STDIN:
        name = STDIN_COLLECTION
        return Collection(name, lambda meter: Reader(columns, meter, name).stdin(), STDIN)
    if isinstance(source, str) and source.startswith(tables.HUB):
        name = source.removeprefix(tables.HUB)
        repository, _ = tables.hub_parts(name)
        return Collection(source, lambda meter: Reader(columns, meter, repository).hub(name), source)
    path = file_path("documents", source)
    with reading(path):
        if path.is_dir():
            return _folder(path, columns)
        if not path.is_file():
            raise InputError(f"no file or folder {str(path)!r}")
        size = path.stat().st_size
        # A file that cannot be opened is reported here, before anything is read.
        path.open("rb").close()
    require_format(path, columns)
    return Collection(
        str(path), lambda meter: Reader(columns, meter, str(path)).file(path, size), str(path.absolute())
    )


def format_of(path: Path) -> tuple[str, bool]:
    """Return a file's extension, without ``.gz`` and in lower case, and whether the file is gzipped."""
    if path.suffix.lower() != GZIP:
        return path.suffix.lower(), False
    return Path(path.stem).suffix.lower(), True


def require_format(path: Path, columns: NamedColumns) -> None:
    """Raise an error if a file's format is unknown, or if columns are named for a format without columns."""
    suffix, compressed = format_of(path)
    if suffix == tables.PARQUET and compressed:
        raise InputError(f"{path} is a compressed parquet file: unpack it with gunzip")
    if suffix not in (*tables.TABLE_SUFFIXES, *_LINES):
        raise InputError(
            f"{path} has the extension {suffix!r}: use a folder, or a file with the extension .txt, "
            f"{', '.join(tables.TABLE_SUFFIXES)}, or one of these followed by .gz (except .parquet)"
        )
    if suffix in _LINES and columns.any_named:
        raise InputError(f"{path} is a text file without columns: leave the names of columns out")


@contextmanager
def opened_file(path: Path) -> Iterator[tuple[Iterable[bytes], BinaryIO]]:
    """Open a file, and yield its lines and the file object.

    If the name of the file ends in .gz, the lines are decompressed, but the position in the file object is
    counted in compressed bytes.
    """
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
                raise InputError(f"{name} is damaged or is not compressed with gzip: {error}") from error
            if not line:
                return
            yield line


# Methods that return the rows of a Polars, Arrow or pandas table as dictionaries, with their arguments.
_ROWS_OF_TABLES: dict[str, dict[str, Any]] = {
    "iter_rows": {"named": True},
    "to_pylist": {},
    "to_dict": {"orient": "records"},
}


def _from_values(values: Iterable[Any], columns: NamedColumns) -> Collection:
    """Return a collection made from texts, objects or table rows.

    A single string never arrives here, because the caller takes it for a path.
    """
    refusal = f"documents is {shown(values)}: pass a list of texts, a table, or a file"
    if isinstance(values, (bytes, bytearray, Mapping)):
        raise InputError(refusal)
    name = "the given texts"
    rows = values
    if hasattr(values, "columns"):
        for method, options in _ROWS_OF_TABLES.items():
            read_rows = getattr(values, method, None)
            if callable(read_rows):
                rows = read_rows(**options)
                break
    try:
        iter(rows)
    except TypeError:
        raise InputError(refusal) from None

    def read(meter: Meter) -> Iterator[Record]:
        meter.total = len(values) if isinstance(values, Sized) else None
        reader = Reader(columns, meter, name)
        return reader.records(reader.objects(rows))

    return Collection(name=name, read=read, key=name)


def _paths_of_documents(folder: Path) -> list[Path]:
    """Return the sorted files of a folder, without hidden files; in the BEIR layout, only the corpus file."""
    corpus = folder / "corpus.jsonl"
    if corpus.is_file() and (folder / "queries.jsonl").is_file():
        return [corpus]
    paths = []
    for path in sorted(folder.rglob("*")):
        is_hidden = any(name.startswith(".") for name in path.relative_to(folder).parts)
        if not is_hidden and path.is_file():
            paths.append(path)
    if not paths:
        raise InputError(f"{folder} contains no files: pass a folder of documents")
    return paths


def _folder(folder: Path, columns: NamedColumns) -> Collection:
    """Return a folder as a collection. Each row of a table is a document; any other file is one document."""
    sizes: dict[Path, int] = {}  # size of each file in bytes
    for path in _paths_of_documents(folder):
        try:
            sizes[path] = path.stat().st_size
        except OSError:
            # The file has vanished since the folder was listed. Reading the file reports the error.
            sizes[path] = 0

    def read(meter: Meter) -> Iterator[Record]:
        """Yield the records of the files in order.

        A table that cannot be read gives one `Skipped` record. A blank file that is not a table gives no
        record.
        """
        meter.total = sum(sizes.values())
        reader = Reader(columns, meter, str(folder))
        for path, size in sizes.items():
            done_before = meter.done
            suffix, _ = format_of(path)
            if suffix in tables.TABLE_SUFFIXES:
                try:
                    yield from reader.file(path)
                except InputError as error:
                    yield Skipped(_unicode_name(path), str(error))
            else:
                record = _whole_file(path, folder, next(reader.numbers))
                if record is not None:
                    yield record
            meter.done = done_before + size

    return Collection(str(folder), read, str(folder.absolute()))


def _whole_file(path: Path, folder: Path, number: int) -> Record | None:
    """Return a whole file as one document, or as Skipped if it cannot be read; None if it is blank."""
    name = _unicode_name(path)
    _, is_compressed = format_of(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        return Skipped(name, f"cannot be read: {error.strerror or error}")
    if is_compressed:
        try:
            content = gzip.decompress(content)
        except _DAMAGED_GZIP as error:
            return Skipped(name, f"damaged, or not compressed with gzip: {error}")
    text, damage = _decoded(content)
    if damage:
        return Skipped(name, damage)
    text = text.removeprefix("\ufeff")
    if not text.strip():
        return None
    inside = path.relative_to(folder)
    source = _unicode_name(Path(inside.parts[0])) if len(inside.parts) > 1 else None
    return Document(number, _unicode_name(inside), text, source, name, line=1, is_whole_file=True)


def _unicode_name(path: Path) -> str:
    """Return a path as valid Unicode; bytes that are not UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


class Row(NamedTuple):
    """A raw record, before its text is extracted.

    Attributes:
        place: How messages refer to the record, such as "line 3". If the record has no id, this is also the
            id of its document.
        line: 1-based number of the line on which the record begins; None if it was not read from lines of
            text.
        value: The content of the record: a text, an object or another JSON value. If the record cannot be
            read, the value is a `Skipped` that says why.
        start: Offset of the record's first byte in the file; 0 if the record does not come from lines.
        end: Offset after the last byte of the record's content; 0 if the record does not come from lines.
    """

    place: str
    line: int | None
    value: Any
    start: int = 0
    end: int = 0


# Usual names of the text and id columns, the most common first.
_TEXT_NAMES = ("text", "document", "content", "passage", "body", "sentence")
_ID_NAMES = ("_id", "id", "doc_id", "docid", "document_id")
# Number of JSON lines that are read before the columns are chosen, because objects may differ in their keys.
_ROWS_TO_CHOOSE_BY = 100


@dataclass(slots=True)
class Reader:
    """Reads the records of one collection, in any format.

    `data.rewriting` also uses this reader, in order to write edited documents back.

    Attributes:
        columns: The columns that the user named.
        meter: Tracks how much of the collection has been read.
        name: Name of the collection, or of the file that is being read, for messages.
        path: The file that is being read; None if the records do not come from a file.
        text_columns: The columns that contain the text; a document joins their texts with spaces. The text
            columns are chosen before the first document of a file is returned.
        id_column: The column with the id; None if there is none.
        source_column: The column with the source; None if there is none.
        numbers: Iterator over the positions of records in the collection. Each record takes the next
            position.
    """

    columns: NamedColumns
    meter: Meter
    name: str
    path: str | None = None
    text_columns: tuple[str, ...] = ()
    id_column: str | None = None
    source_column: str | None = None
    numbers: Iterator[int] = field(default_factory=count)

    def stdin(self) -> Iterator[Record]:
        return self.records(self.stdin_rows(sys.stdin.buffer))

    def stdin_rows(self, stream: Iterable[bytes]) -> Iterator[Row]:
        """Read standard input as JSON lines if a column is named, else as text, and yield the rows."""
        if self.columns.any_named:
            return self.json_rows(stream, self.meter)
        return self.lines(stream, self.meter)

    def hub(self, name: str) -> Iterator[Record]:
        with tables.opened_hub(name, streaming=True) as rows:
            splits = rows.info.splits or {}
            split = str(rows.split)
            self.meter.total = splits[split].num_examples if split in splits else None
            yield from self.records(self.objects(rows))

    def file(self, path: Path, size: int | None = None) -> Iterator[Record]:
        """Yield the records of a file, whose extension names the format.

        ``size`` is the size of a single file in bytes. For the files of a folder, ``size`` is None, because
        the meter already has the total size.
        """
        self.meter.total = size or self.meter.total
        suffix, is_compressed = format_of(path)
        self.text_columns = ()
        self.path = _unicode_name(path)
        self.name = self.path
        if suffix == tables.PARQUET:
            yield from self.records(self.parquet_rows(path))
            return
        begin = self.meter.done
        with opened_file(path) as (stream, file):
            if not is_compressed:
                yield from self.records(self.rows(stream, suffix, self.meter))
                return
            # Only the size of the compressed file is known, so progress is counted in compressed bytes.
            for row in self.rows(stream, suffix, Meter()):
                self.meter.done = begin + file.tell()
                yield self.record_of(row)
            self.meter.done = begin + file.tell()

    def rows(self, stream: Iterable[bytes], suffix: str, meter: Meter) -> Iterator[Row]:
        """Yield the rows of a JSON, csv, tsv or plain text file.

        ``suffix`` is the file's extension, such as ``.csv``.
        """
        if suffix in tables.JSON_LINES:
            return self.json_rows(stream, meter)
        if suffix in tables.SEPARATORS:
            return self.separated_rows(stream, tables.SEPARATORS[suffix], meter)
        return self.lines(stream, meter)

    def records(self, rows: Iterable[Row]) -> Iterator[Record]:
        for row in rows:
            yield self.record_of(row)

    def record_of(self, row: Row) -> Record:
        """Return the document of a row, or a `Skipped` that says why the row cannot be read."""
        number = next(self.numbers)
        value = row.value
        if isinstance(value, Skipped):
            return value
        if isinstance(value, str):
            return Document(number, row.place, unicode_text(value), path=self.path, line=row.line)
        if not isinstance(value, Mapping):
            reason = f"JSON of type {type(value).__name__}, not an object"
            return Skipped(f"{self.name}, {row.place}", reason)
        if not self.text_columns:
            reason = "an object, although the first rows are texts"
            return Skipped(f"{self.name}, {row.place}", reason)
        texts = self.texts_of(value)
        problem = self._problem_with(value)
        if problem:
            return Skipped(row.place if self.path is None else f"{self.path}, {row.place}", problem)
        document_id = value.get(self.id_column) if self.id_column else None
        source = value.get(self.source_column) if self.source_column else None
        return Document(
            number,
            unicode_text(row.place if document_id is None else str(document_id)),
            unicode_text(" ".join(texts.values())),
            None if source is None else unicode_text(str(source)),
            self.path,
            row.line,
            columns=tuple(texts),
        )

    def _problem_with(self, values: Mapping[str, Any]) -> str:
        """Return what is wrong with the text columns of an object; an empty string if nothing is wrong.

        If there are several text columns, some may be missing, but not all.
        """
        for column in self.text_columns:
            text = values.get(column)
            if isinstance(text, str):
                continue
            if text is not None or len(self.text_columns) == 1:
                return f"column {column!r} is {_type_in_words(text)}"
        if not self.texts_of(values):
            return f"columns {' and '.join(self.text_columns)} are missing"
        return ""

    def texts_of(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Return the texts of an object, keyed by column. The document is the texts, joined by spaces."""
        texts = {}
        for column in self.text_columns:
            text = values.get(column)
            if isinstance(text, str):
                texts[column] = text
        return texts

    def lines(self, stream: Iterable[bytes], meter: Meter) -> Iterator[Row]:
        """Yield each line that is not blank."""
        for line in lines(stream, self.name, meter):
            if line.content.strip():
                place = f"line {line.number}"
                text, damage = _decoded(line.content, line.offset)
                value = Skipped(f"{self.name}, {place}", damage) if damage else text
                yield Row(place, line.number, value, line.offset, line.end)

    def json_rows(self, stream: Iterable[bytes], meter: Meter) -> Iterator[Row]:
        """Yield each line as parsed JSON. The columns are chosen from the first hundred lines."""
        rows = map(self._parsed, self.lines(stream, meter))
        first_rows = list(islice(rows, _ROWS_TO_CHOOSE_BY))
        objects = [row.value for row in first_rows if isinstance(row.value, Mapping)]
        if not objects and self.columns.any_named:
            raise InputError(f"{self.name} has no columns: its lines are not JSON objects")
        if objects:
            self.choose_columns_of(objects)
        yield from chain(first_rows, rows)

    def _parsed(self, row: Row) -> Row:
        """Return a row of text as parsed JSON, or as Skipped if it is not JSON."""
        if not isinstance(row.value, str):
            return row
        try:
            value = json.loads(row.value)
        except (ValueError, RecursionError) as error:
            value = Skipped(f"{self.name}, {row.place}", f"not JSON: {error}")
        return row._replace(value=value)

    def separated_rows(self, stream: Iterable[bytes], separator: str, meter: Meter) -> Iterator[Row]:
        """Yield the rows of a csv or tsv file, whose first record names the columns.

        The value of a row is a mapping from columns to texts. If the record cannot be decoded, or does not
        have one field per column, the value is a `Skipped`. Empty lines yield no rows.
        """
        # A record may span several lines. These lists hold the lines of the current record, and the problems
        # found while decoding them. `separated_records` takes only the lines of one record from
        # `decoded_lines` before it yields the record, so the lists are read and emptied after each record.
        record_lines: list[Line] = []
        damages: list[str] = []

        def decoded_lines() -> Iterator[str]:
            """Yield the text of each line. Add the line to ``record_lines``, and a problem to ``damages``."""
            for line in lines(stream, self.name, meter):
                record_lines.append(line)
                text, damage = _decoded(line.content, line.offset)
                if damage:
                    damages.append(damage)
                yield text

        records = separated_records(decoded_lines(), separator)
        header = next((fields for _, fields in records if fields), [])
        if not header:
            raise InputError(f"{self.name} is empty")
        tables.require_distinct(header, self.name)
        self.choose_columns(header, header)
        damages.clear()
        record_lines.clear()
        for number, fields in records:
            start = record_lines[0].offset
            end = record_lines[-1].end
            record_lines.clear()
            problem = ""
            if damages:
                problem = damages[0]
                damages.clear()
            elif fields and len(fields) != len(header):
                problem = f"{len(fields)} fields, but the header has {len(header)}"
            place = f"line {number}"
            if problem:
                yield Row(place, number, Skipped(f"{self.name}, {place}", problem))
            elif fields:
                yield Row(place, number, dict(zip(header, fields, strict=True)), start, end)

    def parquet_rows(self, path: Path) -> Iterator[Row]:
        """Yield the rows of a parquet file, with only the needed columns. The file is read in batches."""
        try:
            size = path.stat().st_size
            table = pl.scan_parquet(path, glob=False)
            schema = table.collect_schema()
            row_count = table.select(pl.len()).collect().item()
        except tables.DAMAGE as error:
            reason = tables.one_line(error)
            raise InputError(f"{self.name} is not a readable parquet file: {reason}") from error
        textual = [column for column, kind in schema.items() if kind in (pl.String, pl.Categorical, pl.Enum)]
        self.choose_columns(schema.names(), textual)
        for column in self.text_columns:
            if column not in textual:
                raise InputError(f"column {column!r} of {self.name} contains {schema[column]}, not text")
        used_columns = [*self.text_columns, self.id_column, self.source_column]
        needed = table.select(list(dict.fromkeys(column for column in used_columns if column)))
        number = 0
        try:
            for batch in needed.collect_batches(chunk_size=4096):
                for values in batch.iter_rows(named=True):
                    number += 1
                    yield Row(f"row {number}", line=None, value=values)
                self.meter.done += round(size * batch.height / max(1, row_count))
        except tables.DAMAGE as error:
            reason = tables.one_line(error)
            raise InputError(f"{self.name} is damaged after row {number}: {reason}") from error

    def objects(self, values: Iterable[Any]) -> Iterator[Row]:
        """Yield a row for each text or mapping in an iterable.

        The columns are chosen from the first mapping. If a value is neither a text nor a mapping, its row
        contains a `Skipped`.

        The place of a row is also the id of its document, unless the row has an id column. The place of a
        text is its 0-based index, with which the caller finds the text in the list. A mapping is a row of a
        table, so its place is "row 1", "row 2" and so on, as in a Parquet file.
        """
        for index, value in enumerate(values):
            self.meter.done += 1
            place = f"row {index + 1}"
            if isinstance(value, str):
                if self.columns.any_named:
                    raise InputError(f"{self.name} have no columns: do not pass names of columns")
                yield Row(str(index), line=None, value=value)
            elif isinstance(value, Mapping):
                if not self.text_columns:
                    self.choose_columns_of([value])
                yield Row(place, line=None, value=value)
            else:
                problem = f"the text is {_type_in_words(value)}"
                yield Row(place, line=None, value=Skipped(place, problem))

    def choose_columns_of(self, objects: Sequence[Mapping[Any, Any]]) -> None:
        """Choose the columns from the keys and values of the first objects."""
        present: list[str] = []
        textual: list[str] = []
        for values in objects:
            for key, value in values.items():
                column = str(key)
                if column not in present:
                    present.append(column)
                if isinstance(value, str) and column not in textual:
                    textual.append(column)
        textual.sort(key=present.index)
        self.choose_columns(present, textual)

    def choose_columns(self, present: Sequence[str], textual: Sequence[str]) -> None:
        """Set `text_columns`, `id_column` and `source_column`.

        In the BEIR layout (``_id``, ``title`` and ``text``), a document consists of its title and its text.

        Args:
            present: All columns.
            textual: The columns that contain text, in the same order as in ``present``.

        Raises:
            InputError: A column that the user named is missing, or the text column cannot be determined.
        """
        listed = ", ".join(present) or "none"
        for column in (self.columns.column, self.columns.id_column, self.columns.source_column):
            if column and column not in present:
                raise InputError(f"{self.name} has no column {column!r}: it has {listed}")
        self.id_column = self.columns.id_column or next((name for name in _ID_NAMES if name in present), None)
        self.source_column = self.columns.source_column
        if self.source_column is None and "source" in present and self.columns.column != "source":
            self.source_column = "source"
        if self.columns.column is not None:
            self.text_columns = (self.columns.column,)
        elif "_id" in present and "title" in textual and "text" in textual:
            self.text_columns = ("title", "text")
        else:
            self.text_columns = (self._only_text_column(textual, listed),)

    def _only_text_column(self, textual: Sequence[str], listed: str) -> str:
        """Return the text column with a usual name, or else the only column that can hold the text."""
        if not textual:
            raise InputError(f"no column of {self.name} contains text (columns: {listed})")
        for name in _TEXT_NAMES:
            if name in textual:
                return name
        not_text = (self.id_column, self.source_column, "title")
        candidates = [column for column in textual if column not in not_text]
        if len(candidates) != 1:
            raise InputError(
                f"which column of {self.name} contains the text? Pass the name of the column as column (in a "
                f"command, --column). Columns: {listed}"
            )
        return candidates[0]


_QUOTE = '"'


def separated_records(lines: Iterable[str], separator: str) -> Iterator[tuple[int, list[str]]]:
    """Split the lines of a file into records, and the records into fields, as `csv.reader` does.

    The csv module is not used for every record, because it rejects long fields, and its limit can be changed
    only for the whole process.

    A field that begins with a quotation mark is quoted. Within the quotes, separators and line breaks belong
    to the field, and two quotation marks stand for one. The next single quotation mark closes the quotes.
    Text between the closing quotation mark and the next separator also belongs to the field. If the quotes
    are never closed, the field extends to the end of the file. For example, the lines ``a,"b`` and ``c",d``
    are a single record with the fields ``a``, ``b\\nc`` and ``d``.

    Args:
        lines: The lines of the file, without their line endings.
        separator: The character between fields.

    Yields:
        The 1-based number of the line on which a record begins, and the fields of the record. An empty line
        is a record without fields.
    """
    fields: list[str] = []
    open_pieces: list[str] | None = None  # pieces of a quoted field that is still open
    first_line = 1
    for number, line in enumerate(lines, start=1):
        position = 0
        if open_pieces is None:
            first_line = number
            fields = []
            simple_record = _record_on_one_line(line, separator)
            if simple_record is not None:
                yield first_line, simple_record
                continue
        else:
            open_pieces.append("\n")
        # Read one field after another, until the line ends. The last field may still be open at the end.
        while True:
            if open_pieces is None and line.startswith(_QUOTE, position):
                open_pieces = []
                position += 1
            field = ""
            if open_pieces is not None:
                position, is_closed = _read_quoted(line, position, open_pieces)
                if not is_closed:
                    break  # the field continues on the next line
                field = "".join(open_pieces)
                open_pieces = None
            end = line.find(separator, position)
            fields.append(field + line[position : end if end >= 0 else len(line)])
            if end < 0:
                yield first_line, fields
                break  # the record ends with this line
            position = end + 1
    if open_pieces is not None:  # the file ends within quotes
        fields.append("".join(open_pieces))
        yield first_line, fields


def _record_on_one_line(line: str, separator: str) -> list[str] | None:
    """Return the fields of a line that is a complete record; None if `separated_records` must parse the line.

    This is the fast path, which uses the compiled code of the csv module without changing its field limit.
    """
    if not line:
        return []
    if _QUOTE not in line:
        return line.split(separator)
    if len(line) > csv.field_size_limit():
        return None
    try:
        return next(csv.reader([line], delimiter=separator, strict=True))
    except csv.Error:
        # A quoted field is not closed on this line, or text follows its closing quotation mark.
        return None


def _read_quoted(line: str, position: int, pieces: list[str]) -> tuple[int, bool]:
    """Append the rest of a quoted field on this line to ``pieces``.

    Returns:
        The position after the quoted text, and whether the closing quotation mark is on this line.
    """
    while True:
        end = line.find(_QUOTE, position)
        if end < 0:
            pieces.append(line[position:])
            return len(line), False
        pieces.append(line[position:end])
        if not line.startswith(_QUOTE, end + 1):
            return end + 1, True
        pieces.append(_QUOTE)
        position = end + 2


def _type_in_words(value: object) -> str:
    return "missing" if value is None else f"{type(value).__name__}, not text"


class Line(NamedTuple):
    """A line of a file.

    Attributes:
        number: 1-based number of the line.
        content: Bytes of the line, without its line ending.
        offset: Offset of the line's first byte in the file.
    """

    number: int
    content: bytes
    offset: int

    @property
    def end(self) -> int:
        """Offset after the last byte of the content."""
        return self.offset + len(self.content)


def lines(stream: Iterable[bytes], name: str, meter: Meter) -> Iterator[Line]:
    """Yield the lines of a stream with their positions.

    A lone carriage return also ends a line. A byte order mark at the beginning belongs to no line.

    Args:
        stream: The bytes, split at line feeds.
        name: Name of the stream in messages.
        meter: Counts the bytes that have been read.

    Raises:
        InputError: The stream begins with the byte order mark of UTF-16.
    """
    number = 0
    offset = 0  # number of bytes in the stream before the next line
    with reading(name):
        for chunk in stream:
            content = chunk
            is_first_chunk = offset == 0
            if is_first_chunk:
                if chunk.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    raise InputError(f"{name} is UTF-16 text: convert it to UTF-8, for example with iconv")
                content = chunk.removeprefix(codecs.BOM_UTF8)
                offset = len(chunk) - len(content)
            file_lines = [content]
            # A carriage return directly before the line feed belongs to the line ending. Any other carriage
            # return ends a line by itself.
            has_lone_return = b"\r" in content.removesuffix(b"\r\n")
            if has_lone_return:
                file_lines = content.splitlines(keepends=True)
            for line in file_lines:
                number += 1
                yield Line(number, line.rstrip(b"\r\n"), offset)
                offset += len(line)
            meter.done += len(chunk)


def _decoded(content: bytes, offset: int = 0) -> tuple[str, str]:
    """Decode bytes as UTF-8.

    Returns:
        The text, with unreadable bytes replaced, and a description of an unreadable byte. The description is
        empty if all bytes can be read.
    """
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
    """Return a text as valid Unicode. Lone surrogates, which JSON may contain, are replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
