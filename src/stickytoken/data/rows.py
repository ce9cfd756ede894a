"""Split files of every format into rows, and say where in the file each row stands.

Lines of text, JSON, CSV, TSV and Parquet are read here and nowhere else.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import polars as pl

from stickytoken.errors import InputError, reading
from stickytoken.validation import beginning
from stickytoken.words import counted

SEPARATORS = {".csv": ",", ".tsv": "\t"}
JSON = (".jsonl", ".ndjson", ".json")
PARQUET = ".parquet"
TABLE_SUFFIXES = (*SEPARATORS, *JSON, PARQUET)
LINES = (".txt", "")
GZIP = ".gz"
DAMAGED_GZIP = (gzip.BadGzipFile, EOFError, zlib.error)
_DAMAGED_PARQUET = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A record that cannot be read.

    Attributes:
        place: Where the record is: its file, its line or row, or both.
        reason: What is wrong with the record, including the position of the first invalid byte if known.
        line: Number of its first line in its file; None if it isn't one of a file's lines.
    """

    place: str
    reason: str
    line: int | None = None


@dataclass(slots=True)
class Meter:
    """How much of a collection has been read, and what was read of it.

    Attributes:
        done: Bytes or rows read so far.
        total: Bytes or rows of the whole collection; None if unknown.
        records: Number of records read, including skipped ones.
        spanning: Number of records that span several lines, because a quoted field has line breaks.
        spanned_lines: Number of lines of these records.
        columns: Columns whose text was read.
        unread: Columns that contain text and were not read.
    """

    done: int = 0
    total: int | None = None
    records: int = 0
    spanning: int = 0
    spanned_lines: int = 0
    columns: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    @property
    def share(self) -> float | None:
        """Share of the collection that has been read; None if the total is not known."""
        return None if not self.total else min(1.0, self.done / self.total)

    def summary(self) -> str:
        """Say how many records were read, from which columns, and which columns with text were not read."""
        sentence = counted(self.records, "record")
        if self.columns:
            sentence += f", text from {', '.join(self.columns)}"
        if self.spanning:
            sentence += f"; {self.spanning:,} of them span {self.spanned_lines:,} lines, because of quoting"
        if self.unread:
            sentence += f"; not read, although they contain text: {list_columns(self.unread)}"
        return sentence


_LISTED_COLUMNS = 10
_SHOWN_NAME = 80  # characters; a field in nested objects has all their names in its own


def list_columns(names: Sequence[str]) -> str:
    """Return the names of columns in one phrase, at most ten of them, and the beginnings of long names."""
    listed_names = ", ".join(beginning(name, _SHOWN_NAME) for name in names[:_LISTED_COLUMNS])
    unlisted_count = len(names) - _LISTED_COLUMNS
    return f"{listed_names} and {unlisted_count} more" if unlisted_count > 0 else listed_names


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


def format_of(path: Path) -> tuple[str, bool]:
    """Return a file's extension, without ``.gz`` and in lower case, and whether the file is gzipped."""
    if path.suffix.lower() != GZIP:
        return path.suffix.lower(), False
    return Path(path.stem).suffix.lower(), True


def plain_or_gzipped(path: Path) -> Path:
    """Return a file, or the gzipped one beside it, such as ``corpus.jsonl.gz``, if only that exists."""
    gzipped = path.with_name(f"{path.name}{GZIP}")
    return gzipped if gzipped.is_file() and not path.is_file() else path


@contextmanager
def open_rows_file(path: Path) -> Iterator[tuple[Iterable[bytes], BinaryIO]]:
    """Open a file, and yield its lines and the file object.

    If the name of the file ends in .gz, the lines are decompressed, but the position in the file object is
    counted in compressed bytes.
    """
    with reading(path), path.open("rb") as file:
        _, compressed = format_of(path)
        if compressed:
            yield _read_gzip_lines(file, str(path)), file
        else:
            yield file, file


def _read_gzip_lines(file: BinaryIO, name: str) -> Iterator[bytes]:
    with gzip.open(file) as stream:
        while True:
            try:
                line = stream.readline()
            except DAMAGED_GZIP as error:
                raise InputError(f"{name} is damaged or is not compressed with gzip: {error}") from error
            if not line:
                return
            yield line


# Lines of text


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
                content = _strip_byte_order_mark(chunk, name)
                offset = len(chunk) - len(content)
            lines_of_chunk = [content]
            # A carriage return directly before the line feed belongs to the line ending. Any other carriage
            # return ends a line by itself.
            has_lone_return = b"\r" in content.removesuffix(b"\r\n")
            if has_lone_return:
                lines_of_chunk = content.splitlines(keepends=True)
            for line in lines_of_chunk:
                number += 1
                yield Line(number, line.rstrip(b"\r\n"), offset)
                offset += len(line)
            meter.done += len(chunk)


def _strip_byte_order_mark(content: bytes, name: str) -> bytes:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InputError(f"{name} is UTF-16 text: convert it to UTF-8, for example with iconv")
    return content.removeprefix(codecs.BOM_UTF8)


def text_rows(stream: Iterable[bytes], name: str, meter: Meter) -> Iterator[Row]:
    """Yield each line that is not blank."""
    for line in lines(stream, name, meter):
        if line.content.strip():
            place = f"line {line.number}"
            text, damage = decode(line.content, line.offset)
            value = Skipped(f"{name}, {place}", damage) if damage else text
            yield Row(place, line.number, value, line.offset, line.end)


def decode(content: bytes, offset: int = 0) -> tuple[str, str]:
    """Decode bytes as UTF-8. ``offset`` is the position of the first byte in the file.

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
    readable_text = content.replace(b"\0", b"?").decode("utf-8", "replace")
    return readable_text, damage


def unicode_text(text: str) -> str:
    """Return a text as valid Unicode. Lone surrogates, which JSON may contain, are replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # In UTF-16, two surrogates that belong together become the character that they stand for.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


# JSON


class RepeatedKeys(dict[str, Any]):
    """A JSON object in which a key occurs twice, so that programs differ in the value that they read."""

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        names = [name for name, _ in pairs]
        self.key = next(name for name in names if names.count(name) > 1)


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    has_repeated_key = len(values) < len(pairs)
    return RepeatedKeys(pairs) if has_repeated_key else values


_DECODER = json.JSONDecoder(object_pairs_hook=_make_object)


def json_rows(stream: Iterable[bytes], name: str, meter: Meter, suffix: str) -> Iterator[Row]:
    """Yield the values of a JSON file, one on each line.

    A file with the extension ``.json`` may contain a single array instead. The elements of the array are its
    rows.

    Raises:
        InputError: The file is ``.json`` and contains neither, or the array is damaged.
    """
    file_lines = iter(stream)
    if suffix == ".json":
        beginning = list(_take_until_content(file_lines))
        file_lines = chain(beginning, file_lines)
        is_array = b"".join(beginning).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")
        if is_array:
            yield from _read_array_rows(b"".join(file_lines), name, meter)
            return
    for row_index, row in enumerate(text_rows(file_lines, name, meter)):
        value = row.value
        if not isinstance(value, Skipped):  # a line that could be decoded
            value = _parse_json(value, name, row.place)
        if suffix == ".json" and row_index == 0 and isinstance(value, Skipped):
            raise InputError(
                f"{name} contains neither an array nor one JSON value on each line: write it as one of these"
            )
        yield row._replace(value=value)


def _take_until_content(file_lines: Iterator[bytes]) -> Iterator[bytes]:
    for line in file_lines:
        yield line
        if line.removeprefix(codecs.BOM_UTF8).strip():
            return


def _parse_json(text: str, name: str, place: str) -> Any:
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        return Skipped(f"{name}, {place}", f"not JSON: {error}")


def _read_array_rows(content: bytes, name: str, meter: Meter) -> Iterator[Row]:
    """Yield the elements of a JSON array, with their places in the file.

    Positions are counted in characters of the decoded text, offsets in bytes of the file.
    """
    json_bytes = _strip_byte_order_mark(content, name)
    offset = len(content) - len(json_bytes)  # offset in the file of the character at `position`
    text, damage = decode(json_bytes, offset)
    if damage:
        raise InputError(f"{name} is a damaged JSON file: {damage}")
    meter.done += len(content)
    line_number = 1  # of the character at `position`
    position = 0  # after the last element that was read
    number = 0
    try:
        # Looking for a character behind the end of the text raises an IndexError: the array isn't closed.
        bracket_position = after_space(text, 0)
        value_start = after_space(text, bracket_position + 1)
        while text[value_start] != "]":
            value, value_end = _DECODER.raw_decode(text, value_start)
            number += 1
            line_number += text.count("\n", position, value_start)
            start_offset = offset + len(text[position:value_start].encode())
            end_offset = start_offset + len(text[value_start:value_end].encode())
            yield Row(f"row {number}", line_number, value, start_offset, end_offset)
            line_number += text.count("\n", value_start, value_end)
            position = value_end
            offset = end_offset
            value_start = after_space(text, value_end)
            if text[value_start] == ",":
                value_start = after_space(text, value_start + 1)
            elif text[value_start] != "]":
                raise InputError(f"{name} is damaged after row {number}: a comma or ] is missing")
    except (ValueError, RecursionError, IndexError) as error:
        reason = "the array is not closed" if isinstance(error, IndexError) else error
        raise InputError(f"{name} is a damaged JSON file after row {number}: {reason}") from error
    if text[value_start + 1 :].strip():
        raise InputError(f"{name} has more JSON after its array: write one array, or one value on each line")


def after_space(text: str, position: int) -> int:
    """Return the position of the first character at or after ``position`` that is not white space.

    Raises:
        IndexError: There is none.
    """
    while text[position] in " \t\n\r":
        position += 1
    return position


# CSV and TSV


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the lines of a file are divided into fields.

    Attributes:
        delimiter: The character between fields.
        quoted: Whether a field may stand in quotation marks, within which delimiters and line breaks belong
            to it, and two quotation marks stand for one.
    """

    delimiter: str
    quoted: bool = True

    def records(self, texts: Iterable[str]) -> Iterator[list[str]]:
        """Split lines, each with its line ending, into records, and the records into fields."""
        quoting: Any = csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE
        return _read_long_fields(csv.reader(texts, delimiter=self.delimiter, quoting=quoting))


# Maximum number of characters in a field. The default of the csv module, 128 KiB, is shorter than documents.
_LONGEST_FIELD = min(sys.maxsize, 2**31 - 1)


def _read_long_fields(reader: Iterator[list[str]]) -> Iterator[list[str]]:
    """Yield the records of a csv reader, whose fields may have up to `_LONGEST_FIELD` characters.

    The csv module has a single limit for the whole process, so it is raised only while a record is read.
    """
    while True:
        limit = csv.field_size_limit(_LONGEST_FIELD)
        try:
            fields = next(reader)
        except StopIteration:
            return
        finally:
            csv.field_size_limit(limit)
        yield fields


def dialect_of(path: Path, suffix: str, delimiter: str | None) -> Dialect:
    """Return the dialect of a CSV or TSV file.

    In CSV, fields may be quoted. TSV often has no quoting, so that a quotation mark is a character like any
    other. TSV is read with quoting only where the file proves it: every field that begins with a quotation
    mark is quoted correctly, and without quoting

    - fewer records would have as many fields as the header, or
    - a name of the header would be in quotes, or a quoted field would have doubled quotation marks.
    """
    quoted = Dialect(delimiter or SEPARATORS[suffix])
    if suffix != ".tsv":
        return quoted
    unquoted = Dialect(quoted.delimiter, quoted=False)
    unquoted_count = 0  # number of records if read without quoting
    unquoted_damaged = 0  # number of these records that have not as many fields as the header
    header: list[str] = []
    has_quotes = False
    has_doubled_quotes = False
    for fields in unquoted.records(_read_lines_to_sniff(path)):
        if not fields:  # an empty line
            continue
        header = header or fields  # the first record
        unquoted_count += 1
        unquoted_damaged += len(fields) != len(header)
        for value in fields:
            if value.startswith('"'):
                has_quotes = True
                if '""' in value[1:-1]:
                    has_doubled_quotes = True
    if not has_quotes:
        return unquoted
    # Count the records again, now read with quoting, and the damaged ones among them.
    quoted_header: list[str] = []
    quoted_count = 0
    quoted_damaged = 0
    try:
        strict_reader = csv.reader(_read_lines_to_sniff(path), delimiter=quoted.delimiter, strict=True)
        for fields in _read_long_fields(strict_reader):
            if fields:
                quoted_header = quoted_header or fields
                quoted_count += 1
                quoted_damaged += len(fields) != len(quoted_header)
    except csv.Error:  # a field that begins with a quotation mark is not quoted correctly
        return unquoted
    if quoted_damaged != unquoted_damaged:
        return quoted if quoted_damaged < unquoted_damaged else unquoted
    # Both ways of reading fit the file equally well. What is one record of several lines with quoting may as
    # well be several records with stray quotes.
    spans_lines = quoted_count < unquoted_count
    is_proven = has_doubled_quotes or header[0].startswith('"')
    return quoted if is_proven and not spans_lines else unquoted


def _read_lines_to_sniff(path: Path) -> Iterator[str]:
    """Yield the decoded lines of a file for `dialect_of`.

    The rows are read again afterwards. That reading counts progress and reports damage; here, both are
    discarded.
    """
    with open_rows_file(path) as (stream, _):
        for line in lines(stream, str(path), Meter()):
            text, _damage = decode(line.content)
            yield f"{text}\n"


_OTHER_DELIMITERS = (";", "\t", "|", ",")


def read_separated_rows(
    stream: Iterable[bytes], name: str, meter: Meter, dialect: Dialect, *, named_delimiter: bool = False
) -> Iterator[Row]:
    """Yield the rows of a CSV or TSV file, whose first record names the columns.

    The value of the first row is the header, as a tuple. The value of every other row is a mapping from
    columns to texts, or a `Skipped` if the record cannot be decoded or does not have one field per column.
    Empty lines yield no rows.

    Raises:
        InputError: The file is empty, its header names a column twice or seems to use another delimiter, or
            a quotation mark opens a field and is never closed.
    """
    # A record may span several lines. These lists hold the lines of the current record, and the problems
    # found while decoding them. `Dialect.records` yields a record before it asks `line_texts` for further
    # lines, so the lists are read and emptied after each record.
    record_lines: list[Line] = []
    record_texts: list[str] = []
    damages: list[str] = []

    def line_texts() -> Iterator[str]:
        for line in lines(stream, name, meter):
            text, damage = decode(line.content, line.offset)
            record_lines.append(line)
            record_texts.append(f"{text}\n")
            if damage:
                damages.append(damage)
            yield record_texts[-1]

    header: tuple[str, ...] = ()
    for fields in dialect.records(line_texts()):
        first_line = record_lines[0]
        last_line = record_lines[-1]
        line_count = len(record_lines)
        texts = list(record_texts)
        problem = damages[0] if damages else ""
        record_lines.clear()
        record_texts.clear()
        damages.clear()
        if not fields:  # an empty line
            continue
        # The last field of a file is still open if it ends with the line ending.
        if fields[-1].endswith("\n") and _is_continued_on_next_line(texts, dialect):
            raise InputError(
                f"{name}: a quotation mark in line {first_line.number} opens a field and is never closed: "
                "close or double it"
            )
        if not header:
            header = tuple(fields)
            _require_header(header, name, dialect.delimiter, named_delimiter=named_delimiter)
            yield Row("the header", first_line.number, header, first_line.offset, last_line.end)
            continue
        place = f"line {first_line.number}"
        if not problem and len(fields) != len(header):
            problem = f"{counted(len(fields), 'field')}, but the header has {len(header)}"
        if problem:
            yield Row(place, first_line.number, Skipped(f"{name}, {place}", problem))
            continue
        if line_count > 1:
            meter.spanning += 1
            meter.spanned_lines += line_count
        values = dict(zip(header, fields, strict=True))
        yield Row(place, first_line.number, values, first_line.offset, last_line.end)
    if not header:
        raise InputError(f"{name} is empty")


def _is_continued_on_next_line(texts: Sequence[str], dialect: Dialect) -> bool:
    # An empty line after the record is a second record, unless a quotation mark of the first is still open.
    records_with_next_line = list(dialect.records([*texts, "\n"]))
    return len(records_with_next_line) == 1


def _require_header(header: Sequence[str], name: str, delimiter: str, *, named_delimiter: bool) -> None:
    """Raise an error if a header names a column twice, or shows that the file has another delimiter.

    A header of one column with another delimiter in its name is accepted if the user named the delimiter.
    """
    for column in header:
        if header.count(column) > 1:
            raise InputError(f"{name} has two columns called {column!r}: rename or remove one")
    if header[0].lower().startswith("sep="):  # a line of Excel, such as "sep=;"
        separator = header[0][len("sep=") :] or delimiter  # of "sep=,", read with commas, only "sep=" is left
        raise InputError(
            f"the first line of {name} tells Excel the delimiter: delete it, and pass {separator!r} as "
            f"the delimiter (in a command, --set delimiter={separator!r})"
        )
    if len(header) > 1 or named_delimiter:
        return
    for other in _OTHER_DELIMITERS:
        if other in header[0]:
            raise InputError(
                f"{name} seems to be divided by {other!r}: its only column is called {header[0]!r}. Pass "
                f"{other!r} as the delimiter, or {delimiter!r} if this is the name of one column (in a "
                f"command, --set delimiter={other!r})"
            )


# Parquet


class ParquetFile:
    """A Parquet file, of which only the columns asked for are read.

    Attributes:
        columns: All columns.
        height: Number of rows.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._table = pl.scan_parquet(path, glob=False)
            self._schema = self._table.collect_schema()
            self.height = int(self._table.select(pl.len()).collect().item())
        except _DAMAGED_PARQUET as error:
            raise InputError(f"{path} is not a readable parquet file: {one_line(error)}") from error
        self.columns = tuple(self._schema.names())

    def columns_with_text(self) -> list[str]:
        """Return the columns that can contain text, also within structures and lists."""
        return [column for column, kind in self._schema.items() if _contains_text(kind)]

    def type_of(self, column: str) -> str:
        return str(self._schema[column])

    def first_value(self, column: str) -> Any:
        """Return the first value of a column that is neither null nor an empty list, or None."""
        is_filled = pl.col(column).is_not_null()
        if isinstance(self._schema[column], pl.List):
            is_filled &= pl.col(column).list.len() > 0
        values = self._collect(self._table.select(column).filter(is_filled).head(1)).to_series().to_list()
        return values[0] if values else None

    def first_rows(self, columns: Sequence[str], count: int) -> list[dict[str, Any]]:
        """Return the values of some columns in the first rows."""
        return self._collect(self._table.select(columns).head(count)).to_dicts()

    def column(self, name: str) -> pl.Series:
        """Return a column as a whole."""
        return self._collect(self._table.select(name)).to_series()

    def _collect(self, query: pl.LazyFrame) -> pl.DataFrame:
        try:
            return query.collect()
        except _DAMAGED_PARQUET as error:
            raise InputError(f"{self._path} is damaged: {one_line(error)}") from error

    def filled_rows(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the values of some columns in the rows in which one of them is not null."""
        if not columns:
            return
        filled = self._table.select(columns).filter(pl.any_horizontal(pl.col(columns).is_not_null()))
        try:
            for batch in filled.collect_batches(chunk_size=4096):
                yield from batch.iter_rows(named=True)
        except _DAMAGED_PARQUET as error:
            raise InputError(f"{self._path} is damaged: {one_line(error)}") from error

    def rows(self, columns: Sequence[str], meter: Meter) -> Iterator[Row]:
        """Yield the rows, with the values of some columns. The file is read in batches."""
        size = self._path.stat().st_size
        number = 0
        try:
            for batch in self._table.select(columns).collect_batches(chunk_size=4096):
                for values in batch.iter_rows(named=True):
                    number += 1
                    yield Row(f"row {number}", line=None, value=values)
                # The meter counts bytes, so all rows are taken to have the same size.
                meter.done += round(size * batch.height / max(1, self.height))
        except _DAMAGED_PARQUET as error:
            raise InputError(f"{self._path} is damaged after row {number}: {one_line(error)}") from error


def _contains_text(kind: pl.DataType) -> bool:
    if isinstance(kind, pl.Struct):
        return any(_contains_text(struct_field.dtype) for struct_field in kind.fields)  # type: ignore[arg-type]
    if isinstance(kind, pl.List | pl.Array):
        return _contains_text(kind.inner)  # type: ignore[arg-type]
    return isinstance(kind, pl.String | pl.Categorical | pl.Enum)


def one_line(error: BaseException) -> str:
    """Return the first 200 characters of an error message, on one line."""
    return " ".join(str(error).split())[:200]


# Nested fields


def value_at(values: Mapping[Any, Any], name: str) -> Any:
    """Return the value of a column, or of a nested field such as ``metadata.summary``; None if missing.

    If the field is in an object that has a key twice, return this object, which the caller refuses.
    """
    if name in values:
        return values[name]
    # Keys may contain dots. Of "a.b.c", the object may be called "a" or "a.b".
    outer_name, dot, inner_name = name.partition(".")
    while dot:
        outer_value = values.get(outer_name)
        if isinstance(outer_value, RepeatedKeys):
            return outer_value
        if isinstance(outer_value, Mapping):
            return value_at(outer_value, inner_name)
        next_part, dot, inner_name = inner_name.partition(".")
        outer_name = f"{outer_name}.{next_part}"
    return None


def fields_with_text(values: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    """Yield the names of the fields of an object that contain text, nested ones as ``metadata.summary``.

    A string is text unless it is blank or a number.
    """
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from fields_with_text(value, f"{name}.")
        elif isinstance(value, list):
            if any(map(_is_or_has_text, value)):
                yield name
        elif _is_text(value):
            yield name


def _is_or_has_text(item: object) -> bool:
    if isinstance(item, Mapping):
        return any(fields_with_text(item))
    return _is_text(item)


def _is_text(value: object) -> bool:
    # A number written as a string is data, not text.
    return isinstance(value, str) and bool(value.strip()) and not is_number(value)


def is_number(text: str) -> bool:
    """Return whether a text spells a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
