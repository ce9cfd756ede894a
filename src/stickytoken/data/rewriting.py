"""Write documents back in their format, with edits in the text and no other change.

The records come from the reader of `data.documents`. In a JSON line, only the edited characters of the text
column's string change. In a CSV row, only the edited characters of the text column's field change. In a
parquet file, only values of the text column change.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

from stickytoken.data import tables
from stickytoken.data.documents import (
    STDIN,
    Document,
    Meter,
    NamedColumns,
    Reader,
    Row,
    Skipped,
    format_of,
    opened_file,
    require_format,
    unicode_text,
)
from stickytoken.errors import InputError, reading, require_package
from stickytoken.validation import file_path

Edits: TypeAlias = Sequence[tuple[int, int, str]]
"""Changes to a text, in order: the start and the end of each span, and the span's replacement."""

Revise: TypeAlias = Callable[[Document, Sequence[str]], Sequence[Edits] | None]
"""Function that takes a document and its texts, one per text column, and returns the edits of each text.

It returns None for a document that is to be set aside.

``Document.text`` consists of these texts, joined by spaces.
"""

# Stands for a column in a document that has no columns: a line of text, or a line of JSON that is a string.
_NO_COLUMN = ""


@dataclass(frozen=True, slots=True)
class Source:
    """A file of documents, or standard input, that can be written back.

    Attributes:
        name: Name of the source in messages.
        path: The file; None for standard input.
        suffix: The extension that names the format; empty for lines of text.
        compressed: Whether the file is compressed with gzip.
        columns: The columns that the user named.
    """

    name: str
    path: Path | None
    suffix: str
    compressed: bool
    columns: NamedColumns

    @property
    def is_binary(self) -> bool:
        """Whether the output is binary, so that a terminal cannot show it."""
        return self.compressed or self.suffix == tables.PARQUET


def open_source(source: str | Path, columns: NamedColumns) -> Source:
    """Check that a file or standard input can be read and written back, and return it as a `Source`.

    Raises:
        InputError: The file does not exist, is a folder, or has an extension that belongs to no known format.
    """
    if str(source) == STDIN:
        suffix = tables.JSON_LINES[0] if columns.any_named else ""
        return Source("standard input", path=None, suffix=suffix, compressed=False, columns=columns)
    path = file_path("the documents", source)
    with reading(path):
        if path.is_dir():
            raise InputError(f"{path} is a folder: pass one file at a time")
        if not path.is_file():
            raise InputError(f"no file {str(path)!r}")
        path.open("rb").close()
    require_format(path, columns)
    suffix, compressed = format_of(path)
    if suffix == tables.PARQUET:
        require_package("pyarrow", "writing a parquet file with its schema", "hub")
    return Source(str(path), path, suffix, compressed, columns)


# The extensions .ndjson and .jsonl denote the same format, as do .txt and no extension.
_SAME_FORMATS = {".ndjson": ".jsonl", ".txt": ""}


def names_format_of(source: Source, out: Path) -> bool:
    """Return whether the extension of a file names the format of the source, compressed or not."""
    suffix, _ = format_of(out)
    return _SAME_FORMATS.get(suffix, suffix) == _SAME_FORMATS.get(source.suffix, source.suffix)


def require_same_format(source: Source, out: Path) -> None:
    """Check that the extension of an output file agrees with the format of the source.

    Raises:
        InputError: The extension names another format. ``.gz`` may be added or left out, except for parquet
            files.
    """
    suffix, compressed = format_of(out)
    if source.suffix == tables.PARQUET and (suffix, compressed) != (tables.PARQUET, False):
        raise InputError(f"{out} will contain parquet data: give it the extension {tables.PARQUET}")
    names_format = suffix in (*tables.TABLE_SUFFIXES, ".txt")
    if names_format and not names_format_of(source, out):
        raise InputError(
            f"the extension of {out} does not match the format of {source.name}, and the format cannot be "
            f"changed: use the extension {source.suffix or '.txt'}"
        )


def rewrite(
    source: Source,
    output: BinaryIO,
    revise: Revise,
    skip: Callable[[Skipped], None],
    *,
    set_aside: BinaryIO | None = None,
    compress: bool | None = None,
    meter: Meter | None = None,
) -> None:
    """Write every record of a source with its edits. A record without edits is written unchanged.

    Args:
        source: The documents to read.
        output: The stream to write to.
        revise: Called with each document and its texts, one per column; returns the edits of each text.
        skip: Called with each record that cannot be read. The record is written unchanged.
        set_aside: Where to write, in the format of the source, the records that ``revise`` sets aside.
        compress: Whether to compress the output with gzip. If None, the output is compressed if the source
            is. Parquet files are never compressed with gzip, because Parquet compresses its own columns.
        meter: Counts how much of the source has been read.

    Raises:
        InputError: The source cannot be read, or lacks a column that the user named.
    """
    reader = Reader(source.columns, meter or Meter(), source.name)
    if source.path is not None:
        # Standard input has a name for messages, but no path to store in its documents, and no known size.
        reader.path = source.name
        reader.meter.total = source.path.stat().st_size
        if source.suffix == tables.PARQUET:
            _rewrite_parquet(source.path, output, reader, revise, skip, set_aside)
            return
    if compress is None:
        compress = source.compressed
    with ExitStack() as stack:

        def packed(stream: BinaryIO) -> BinaryIO:
            # Leave out the timestamp, so that the same documents always give the same bytes.
            return cast(BinaryIO, stack.enter_context(gzip.GzipFile("", "wb", fileobj=stream, mtime=0)))

        if compress:
            output = packed(output)
            set_aside = None if set_aside is None else packed(set_aside)
        _rewrite_lines(source, output, reader, revise, skip, set_aside)


class _Buffer:
    """Iterates over the lines of a stream, and keeps their bytes in memory until `take` is called."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = lines
        self._bytes = bytearray()
        self._start = 0  # offset in the stream of the first byte in memory

    def __iter__(self) -> Iterator[bytes]:
        for line in self._lines:
            self._bytes += line
            yield line

    def position(self) -> int:
        """Return how many bytes have been read."""
        return self._start + len(self._bytes)

    def take(self, end: int | None = None) -> bytes:
        """Return the bytes up to a position in the stream, and drop these bytes from memory.

        Args:
            end: The position, counted from the first byte of the stream. If None, all bytes that are held in
                memory are returned.
        """
        size = len(self._bytes) if end is None else end - self._start
        taken = bytes(self._bytes[:size])
        del self._bytes[:size]
        self._start += size
        return taken

    def take_line_end(self) -> bytes:
        """Return the end of a line if the bytes in memory begin with it, and drop it from memory."""
        for line_end in (b"\r\n", b"\n"):
            if self._bytes.startswith(line_end):
                return self.take(self._start + len(line_end))
        return b""


def _rewrite_lines(
    source: Source,
    output: BinaryIO,
    reader: Reader,
    revise: Revise,
    skip: Callable[[Skipped], None],
    set_aside: BinaryIO | None,
) -> None:
    """Write the revised records of a line-based file or of standard input.

    The bytes between the records, and the bytes of records that cannot be read, are written unchanged. Each
    record of standard input is written as soon as it has been read.
    """
    is_first = True
    with ExitStack() as stack:
        if source.path is None:
            buffer = _Buffer(sys.stdin.buffer)
            rows = reader.stdin_rows(buffer)
            bytes_done = buffer.position
        else:
            lines, file = stack.enter_context(opened_file(source.path))
            buffer = _Buffer(lines)
            rows = reader.rows(buffer, source.suffix, Meter())
            # Only the size of the compressed file is known, so its progress is counted in compressed bytes.
            bytes_done = file.tell if source.compressed else buffer.position
        for row in rows:
            reader.meter.done = bytes_done()
            record = reader.record_of(row)
            if isinstance(record, Skipped):
                # The record's bytes stay in the buffer, and are written before the next record.
                skip(record)
                continue
            texts_by_column = _texts_by_column(reader, row)
            edits = revise(record, [unicode_text(text) for text in texts_by_column.values()])
            bytes_before_record = buffer.take(row.start)
            output.write(bytes_before_record)
            if is_first and set_aside is not None and source.suffix in tables.SEPARATORS:
                set_aside.write(bytes_before_record)  # the header
            is_first = False
            raw_record = buffer.take(row.end)
            line_end = buffer.take_line_end()
            if edits is None:
                if set_aside is not None:
                    set_aside.write(raw_record + (line_end or b"\n"))
                continue
            if any(edits):
                edits_by_column = dict(zip(texts_by_column, edits, strict=True))
                edited = _edited_record(raw_record.decode("utf-8"), row, edits_by_column, source)
                raw_record = edited.encode("utf-8")
            output.write(raw_record + line_end)
            if source.path is None:
                output.flush()
        # The remaining bytes belong to no record.
        output.write(buffer.take())


def _texts_by_column(reader: Reader, row: Row) -> dict[str, str]:
    """Return the texts of a document, keyed by column; `_NO_COLUMN` is the key of a text without columns."""
    return {_NO_COLUMN: row.value} if isinstance(row.value, str) else reader.texts_of(row.value)


def _edited_record(raw: str, row: Row, edits_by_column: dict[str, Edits], source: Source) -> str:
    """Apply the edits of each column to a raw record, and return the edited record.

    Args:
        raw: The record as the file writes it, without its line ending.
        row: The record as it was read.
        edits_by_column: Edits of the column's text, keyed by column; `_NO_COLUMN` for a text without columns.
        source: The source of the record.

    Raises:
        InputError: The edits would add a line break to a line of text, or the quotes of a CSV row cannot be
            written back.
    """
    if source.suffix in tables.SEPARATORS:
        return _edited_fields(raw, row, edits_by_column, tables.SEPARATORS[source.suffix])
    if source.suffix in tables.JSON_LINES:
        return _edited_json(raw, edits_by_column)
    edited = edited_text(raw, edits_by_column[_NO_COLUMN])
    if "\n" in edited or "\r" in edited:
        raise InputError(
            f"{source.name}, {row.place}: the replacement contains a line break, which would split the "
            "document in two: use another replacement"
        )
    return edited


def edited_text(text: str, edits: Edits) -> str:
    """Apply edits to a text."""
    pieces = []
    copied_to = 0
    for start, end, replacement in edits:
        pieces += [text[copied_to:start], replacement]
        copied_to = end
    pieces.append(text[copied_to:])
    return "".join(pieces)


@dataclass(frozen=True, slots=True)
class _Literal:
    """The written form of a text in a record, with its quotes and escapes.

    All positions are 0-based, in characters of the raw record. For example, the record ``1,"a""b"`` has the
    literal ``"a""b"`` with the start 2, the end 8, the value ``a"b`` and the positions 3, 4, 6 and 7.

    Attributes:
        start: First position of the literal.
        end: Position after the literal.
        value: The text.
        positions: The position of each of the text's characters, followed by the position of the closing
            quotation mark, or by ``end`` if the literal does not end with a closing quotation mark.
    """

    start: int
    end: int
    value: str
    positions: Sequence[int]


def _spliced(raw: str, literal: _Literal, edits: Edits, write: Callable[[str], str]) -> str:
    """Return the written form of an edited literal, in which unedited characters are written as before.

    Args:
        raw: The raw record.
        literal: The literal before the edits.
        edits: Edits of the text.
        write: Function that escapes a replacement as the file's format requires.
    """
    pieces = []
    copied_to = literal.start
    for start, end, replacement in edits:
        pieces += [raw[copied_to : literal.positions[start]], write(replacement)]
        copied_to = literal.positions[end]
    pieces.append(raw[copied_to : literal.end])
    return "".join(pieces)


# JSON lines


def _edited_json(raw: str, edits_by_column: dict[str, Edits]) -> str:
    """Apply the edits of each column to a JSON line, and return the edited line."""
    spans = _json_value_spans(raw)
    replacements = []
    for column, edits in edits_by_column.items():
        start, end = spans[column]
        literal = _json_literal(raw, start, end)
        escape = _json_writer(raw[start:end])  # escapes text as the rest of the string does
        edited = _spliced(raw, literal, edits, escape)
        # The edits were made after `unicode_text` had replaced each lone surrogate by one character. If an
        # edit joins two lone surrogates into one character, the whole string is written again.
        cleaned = edited_text(unicode_text(literal.value), edits)
        if unicode_text(json.loads(edited)) != cleaned:
            edited = f'"{escape(cleaned)}"'
        replacements.append((start, end, edited))
    return edited_text(raw, sorted(replacements))


def _json_value_spans(raw: str) -> dict[str, tuple[int, int]]:
    """Return the start and the end of each value in a JSON object, keyed by the value's key.

    If a key occurs twice, the span is that of the last value, which `json.loads` returns too. For a line that
    is just a JSON string, return the span of the string, with the key `_NO_COLUMN`.
    """
    decoder = json.JSONDecoder()
    position = _skip_space(raw, 0)
    if raw[position] == '"':
        _, end = decoder.raw_decode(raw, position)
        return {_NO_COLUMN: (position, end)}
    spans = {}
    position = _skip_space(raw, position + 1)
    while raw[position] != "}":
        key, position = decoder.raw_decode(raw, position)
        colon = _skip_space(raw, position)
        start = _skip_space(raw, colon + 1)
        _, end = decoder.raw_decode(raw, start)
        spans[key] = (start, end)
        position = _skip_space(raw, end)
        if raw[position] == ",":
            position = _skip_space(raw, position + 1)
    return spans


def _skip_space(raw: str, position: int) -> int:
    """Return the position of the first character at or after ``position`` that is not white space."""
    while raw[position] in " \t\n\r":
        position += 1
    return position


def _json_literal(raw: str, start: int, end: int) -> _Literal:
    """Return the JSON string from ``start`` to ``end`` as a literal."""
    positions = []
    position = start + 1
    while position < end - 1:
        positions.append(position)
        position += _length_of_json_character(raw, position)
    positions.append(end - 1)
    return _Literal(start, end, json.loads(raw[start:end]), positions)


def _length_of_json_character(raw: str, position: int) -> int:
    """Return the number of characters that a JSON string uses to write the character at ``position``.

    The number is 1 for a plain character, and 2, 6 or 12 for an escape sequence.
    """
    if raw[position] != "\\":
        return 1
    if raw[position + 1] != "u":
        return 2
    first = int(raw[position + 2 : position + 6], 16)
    is_high_surrogate = 0xD800 <= first <= 0xDBFF
    if is_high_surrogate and raw[position + 6 : position + 8] == "\\u":
        second = int(raw[position + 8 : position + 12], 16)
        if 0xDC00 <= second <= 0xDFFF:
            return 12
    return 6


def _json_writer(literal: str) -> Callable[[str], str]:
    """Return a function that escapes text for a JSON string, without adding quotes.

    If ``literal``, the string that is edited, is pure ASCII, the function also escapes non-ASCII characters.
    """
    ascii_only = literal.isascii()
    return lambda text: json.dumps(text, ensure_ascii=ascii_only)[1:-1]


# Rows of CSV and TSV


@dataclass(frozen=True, slots=True)
class _Field(_Literal):
    """A field of a row.

    Attributes:
        is_quoted: Whether the whole field is in quotes.
        is_open: Whether the field begins with a quotation mark, and its quotes are never closed.
    """

    is_quoted: bool
    is_open: bool


def _edited_fields(raw: str, row: Row, edits_by_column: dict[str, Edits], separator: str) -> str:
    """Apply the edits of each column to a CSV or TSV row, and return the edited row.

    An edited field is put in quotes if it would be read differently without them.

    Raises:
        InputError: `separated_records` and `_fields` read different values from the row.
    """
    fields = _fields(raw, separator)
    # `separated_records` has read the row, and `_fields` parses it again for the positions. Both must find
    # the same values.
    if [field.value for field in fields] != list(row.value.values()):
        raise InputError(f"{row.place} has quotes that cannot be written back: correct the quotes")
    columns = list(row.value)
    replacements = []
    for column, edits in edits_by_column.items():
        field = fields[columns.index(column)]
        edited_value = edited_text(field.value, edits)
        # Keep the written form of all characters that are not edited, if the result is read correctly.
        written = _spliced(raw, field, edits, _doubled_quotes if field.is_quoted else str)
        # A row with a single, empty, unquoted field would be read as an empty line, not as a record.
        would_be_empty_row = len(fields) == 1 and not written
        # If an edit opens quotes that nothing closes, the quotes would include the fields that follow. Quotes
        # may stay open only in the last field, and only if they were open before the edit.
        opens_quotes = _fields(written, separator)[-1].is_open and not field.is_open
        if would_be_empty_row or opens_quotes or not _is_read_as(written, edited_value, separator):
            written = f'"{_doubled_quotes(edited_value)}"'
        replacements.append((field.start, field.end, written))
    return edited_text(raw, sorted(replacements))


def _doubled_quotes(text: str) -> str:
    return text.replace('"', '""')


def _is_read_as(raw: str, value: str, separator: str) -> bool:
    """Return whether the raw text is read as a single field with the given value."""
    return [field.value for field in _fields(raw, separator)] == [value]


def _fields(raw: str, separator: str) -> list[_Field]:
    """Split a row as the csv module does, and return each field with the positions of its characters."""
    fields = [_field_from(raw, 0, separator)]
    while fields[-1].end < len(raw):
        fields.append(_field_from(raw, fields[-1].end + 1, separator))
    return fields


def _field_from(raw: str, start: int, separator: str) -> _Field:
    """Return the field of a row that starts at the position ``start``.

    A line break within quotes is read as a single ``\\n``, even if it is written as ``\\r\\n``. A field whose
    quotes are never closed extends to the end of the row.

    For example, the field ``"a""b"`` is quoted and has the value ``a"b``. In the field ``"a"b``, text follows
    the closing quotation mark, so this field has the value ``ab`` and does not count as quoted.
    """
    characters: list[str] = []
    positions: list[int] = []
    has_opening_quote = raw.startswith('"', start)
    in_quotes = has_opening_quote
    closing_quote = -1  # position of the closing quotation mark; -1 if there is none
    position = start + 1 if has_opening_quote else start
    while position < len(raw):
        character = raw[position]
        width = 1
        if in_quotes and character == '"':
            if not raw.startswith('""', position):
                in_quotes = False
                closing_quote = position
                position += 1
                continue
            width = 2
        elif not in_quotes and character in (separator, "\r", "\n"):
            # A line break outside quotes ends the field. Only an edit can insert a line break outside quotes,
            # because in the original file the record would end there.
            break
        elif character == "\r":
            width = 2 if raw.startswith("\r\n", position) else 1
            character = "\n"
        characters.append(character)
        positions.append(position)
        position += width
    last_position = position - 1
    # A field with text after its closing quotation mark counts as unquoted.
    is_quoted = has_opening_quote and closing_quote == last_position
    end_of_text = closing_quote if is_quoted else position  # the last entry of `_Literal.positions`
    return _Field(
        start, position, "".join(characters), [*positions, end_of_text], is_quoted, is_open=in_quotes
    )


# Parquet


def _rewrite_parquet(
    path: Path,
    output: BinaryIO,
    reader: Reader,
    revise: Revise,
    skip: Callable[[Skipped], None],
    set_aside: BinaryIO | None,
) -> None:
    """Write the row groups one by one. The schema, its metadata and columns without edits do not change."""
    import pyarrow as pa
    from pyarrow import ArrowException, parquet

    rows = reader.parquet_rows(path)
    # The columns are chosen when the first row is read, which must happen before anything is written.
    first_row = next(rows, None)
    if first_row is not None:
        rows = chain([first_row], rows)
    try:
        with ExitStack() as stack:
            file = stack.enter_context(parquet.ParquetFile(path))
            compression = _compressions(file)
            writer = stack.enter_context(
                parquet.ParquetWriter(output, file.schema_arrow, compression=compression)
            )
            aside_writer = None
            if set_aside is not None:
                aside_writer = stack.enter_context(
                    parquet.ParquetWriter(set_aside, file.schema_arrow, compression=compression)
                )
            for group in range(file.num_row_groups):
                table = file.read_row_group(group)
                changed, aside = _revised(table.num_rows, rows, reader, revise, skip)
                for column, texts in changed.items():
                    table = _with_texts(table, column, texts)
                if aside and aside_writer is not None:
                    aside_writer.write_table(table.take(aside))
                    table = table.filter(pa.array([row not in aside for row in range(table.num_rows)]))
                writer.write_table(table, row_group_size=max(1, table.num_rows))
    except (ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be written back: {tables.one_line(error)}") from error


def _revised(
    count: int, rows: Iterator[Row], reader: Reader, revise: Revise, skip: Callable[[Skipped], None]
) -> tuple[dict[str, dict[int, str]], list[int]]:
    """Return what became of the next ``count`` rows.

    Returns:
        The changed texts, keyed by column, then by index in these rows; and the indices of the rows that are
        set aside.
    """
    changed: dict[str, dict[int, str]] = {}
    aside: list[int] = []
    for number, row in enumerate(islice(rows, count)):
        record = reader.record_of(row)
        if isinstance(record, Skipped):
            skip(record)
            continue
        texts = reader.texts_of(row.value)
        revised = revise(record, list(texts.values()))
        if revised is None:
            aside.append(number)
            continue
        for column, edits in zip(texts, revised, strict=True):
            if edits:
                changed.setdefault(column, {})[number] = edited_text(texts[column], edits)
    return changed, aside


def _with_texts(table: Any, column: str, texts: dict[int, str]) -> Any:
    """Return an Arrow table in which some values of a column are replaced. The column keeps its type.

    Args:
        table: The table.
        column: Name of the column.
        texts: The new values, keyed by the 0-based index of their row.
    """
    from pyarrow import array

    column_index = table.schema.get_field_index(column)
    field = table.schema.field(column_index)
    values = table.column(column_index).to_pylist()
    for row, text in texts.items():
        values[row] = text
    return table.set_column(column_index, field, array(values, type=field.type))


def _compressions(file: Any) -> dict[str, str] | str:
    """Return the compression of each column, keyed by column path, in the form that the writer expects."""
    if not file.num_row_groups:
        # There are no columns to read a compression from, so use the writer's default.
        return "snappy"
    columns = file.metadata.row_group(0)
    compressions = {}
    for index in range(columns.num_columns):
        column = columns.column(index)
        codec = column.compression.lower()
        compressions[column.path_in_schema] = "none" if codec == "uncompressed" else codec
    return compressions
