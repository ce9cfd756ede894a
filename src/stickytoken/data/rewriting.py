"""Write documents back in their format, with edits in the text and no other change.

The records come from the reader of `data.documents`. In JSON, only the edited strings are written anew; in
CSV, only the edited fields; in Parquet, only values of the text columns.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

from stickytoken.data.documents import (
    STDIN,
    Document,
    NamedColumns,
    Reader,
    column_with,
    require_format,
)
from stickytoken.data.rows import (
    JSON,
    PARQUET,
    SEPARATORS,
    TABLE_SUFFIXES,
    Dialect,
    Meter,
    Row,
    Skipped,
    after_space,
    format_of,
    one_line,
    open_rows_file,
)
from stickytoken.errors import InputError, reading, require_package
from stickytoken.validation import file_path

Edits: TypeAlias = Sequence[tuple[int, int, str]]
"""Changes to a text, in order: the start and the end of each span, and the span's replacement."""

Revise: TypeAlias = Callable[[Document, Sequence[str]], Sequence[Edits] | None]
"""Function that takes a document and its texts, one per text column, and returns the edits of each text.

It returns None for a document that is to be set aside.

``Document.text`` consists of these texts, joined by spaces. A template is not filled in.
"""


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
        return self.compressed or self.suffix == PARQUET


def open_source(source: str | Path, columns: NamedColumns) -> Source:
    """Check that a file or standard input can be read and written back, and return it as a `Source`.

    Raises:
        InputError: The file does not exist, is a folder, or has an extension that belongs to no known format.
    """
    if str(source) == STDIN:
        suffix = JSON[0] if columns.all_names else ""
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
    if suffix == PARQUET:
        require_package("pyarrow", "writing a parquet file with its schema", "hub")
    return Source(str(path), path, suffix, compressed, columns)


# These extensions denote the same format. A .json file may contain lines or an array, and stays what it is.
_SAME_FORMATS = {".ndjson": ".jsonl", ".json": ".jsonl", ".txt": ""}


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
    if source.suffix == PARQUET and (suffix, compressed) != (PARQUET, False):
        raise InputError(f"{out} will contain parquet data: give it the extension {PARQUET}")
    names_format = suffix in (*TABLE_SUFFIXES, ".txt")
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
        if source.suffix == PARQUET:
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
            lines, file = stack.enter_context(open_rows_file(source.path))
            buffer = _Buffer(lines)
            rows = reader.rows(buffer, source.suffix, reader.meter, source.path)
            # Only the size of the compressed file is known, so its progress is counted in compressed bytes.
            bytes_done = file.tell if source.compressed else buffer.position
        for row in rows:
            reader.meter.done = bytes_done()
            record = reader.record_of(row)
            if isinstance(record, Skipped):
                # The record's bytes stay in the buffer, and are written before the next record.
                skip(record)
                continue
            edits = revise(replace(record, text=" ".join(record.parts)), record.parts)
            bytes_before_record = buffer.take(row.start)
            output.write(bytes_before_record)
            if is_first and set_aside is not None and source.suffix in SEPARATORS:
                set_aside.write(bytes_before_record)  # the header
            is_first = False
            raw_record = buffer.take(row.end)
            line_end = buffer.take_line_end()
            if edits is None:
                if set_aside is not None:
                    set_aside.write(raw_record + (line_end or b"\n"))
                continue
            if any(edits):
                columns = record.columns or ("",)
                changes = {
                    column: (text, text_edits)
                    for column, text, text_edits in zip(columns, record.parts, edits, strict=True)
                    if text_edits
                }
                edited = _edit_record(raw_record.decode("utf-8"), row, changes, source, reader.dialect)
                raw_record = edited.encode("utf-8")
            output.write(raw_record + line_end)
            if source.path is None:
                output.flush()
        # The remaining bytes belong to no record.
        output.write(buffer.take())


def _edit_record(
    raw: str,
    row: Row,
    changes: Mapping[str, tuple[str, Edits]],
    source: Source,
    dialect: Dialect | None,
) -> str:
    if source.suffix in JSON:
        edits = {column: text_edits for column, (_, text_edits) in changes.items()}
        return _with_strings(raw, edits)
    texts = {column: edit_text(text, text_edits) for column, (text, text_edits) in changes.items()}
    if dialect is not None:
        return _with_fields(raw, row, texts, dialect)
    (text,) = texts.values()
    if "\n" in text or "\r" in text:
        raise InputError(
            f"{source.name}, {row.place}: the replacement contains a line break, which would split the "
            "document in two: use another replacement"
        )
    return text


def edit_text(text: str, edits: Edits) -> str:
    """Apply edits to a text."""
    pieces = []
    copied_to = 0
    for start, end, replacement in edits:
        pieces += [text[copied_to:start], replacement]
        copied_to = end
    pieces.append(text[copied_to:])
    return "".join(pieces)


# JSON


# One character of a JSON string as it is written: two escapes of surrogates that belong together, another
# escape, or the character itself.
_WRITTEN = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|.", re.DOTALL
)


def _with_strings(raw: str, edits: Mapping[str, Edits]) -> str:
    """Edit strings of a JSON value where they stand, so that every other character stays as it is written."""
    raw_edits = []
    for column, text_edits in edits.items():
        start, end = _span_of(raw, after_space(raw, 0), column)
        is_ascii = raw[start:end].isascii()
        inside = range(start + 1, end - 1)  # without the quotation marks
        begins = [match.start() for match in _WRITTEN.finditer(raw, inside.start, inside.stop)]
        begins.append(inside.stop)
        for first, last, replacement in text_edits:
            written = json.dumps(replacement, ensure_ascii=is_ascii)[1:-1]
            raw_edits.append((begins[first], begins[last], written))
    return edit_text(raw, sorted(raw_edits))


def _span_of(raw: str, position: int, column: str) -> tuple[int, int]:
    """Return where a field of the JSON value at a position begins and ends; the value itself without a name.

    `value_at` has found the field, so it exists.
    """
    decoder = json.JSONDecoder()
    if not column:
        _, end = decoder.raw_decode(raw, position)
        return position, end
    # Positions of the values, keyed by name.
    starts = {}
    position = after_space(raw, position + 1)
    while raw[position] != "}":
        key, key_end = decoder.raw_decode(raw, position)
        colon = after_space(raw, key_end)
        starts[key] = after_space(raw, colon + 1)
        _, value_end = decoder.raw_decode(raw, starts[key])
        position = after_space(raw, value_end)
        if raw[position] == ",":
            position = after_space(raw, position + 1)
    if column in starts:
        return _span_of(raw, starts[column], "")
    containing = [name for name in starts if column.startswith(f"{name}.") and raw[starts[name]] == "{"]
    outer = min(containing, key=len)
    return _span_of(raw, starts[outer], column.removeprefix(f"{outer}."))


# Rows of CSV and TSV


def _with_fields(raw: str, row: Row, texts: Mapping[str, str], dialect: Dialect) -> str:
    """Return a row with new fields, keyed by column. They are quoted if they were, or if they must be.

    Raises:
        InputError: A file without quoting cannot hold the text.
    """
    spans = _field_spans(raw, dialect)
    columns = list(row.value)
    if len(spans) != len(columns):
        raise InputError(f"{row.place} has quotes that cannot be written back: correct the quotes")
    pieces = []
    for column, text in texts.items():
        start, end = spans[columns.index(column)]
        breaks_field = dialect.delimiter in text or "\n" in text or "\r" in text
        if not dialect.quoted:
            if breaks_field:
                raise InputError(
                    f"{row.place}: the replacement contains a tab or a line break, which cannot be written "
                    "without quoting: use another replacement"
                )
            pieces.append((start, end, text))
            continue
        was_quoted = raw.startswith('"', start)
        # A row with a single, empty, unquoted field would be read as an empty line, not as a record.
        is_empty_row = len(spans) == 1 and not text
        if was_quoted or breaks_field or is_empty_row or text.startswith('"'):
            text = '"' + text.replace('"', '""') + '"'  # noqa: PLW2901
        if "\r\n" in raw[start:end]:
            text = text.replace("\n", "\r\n")  # noqa: PLW2901
        pieces.append((start, end, text))
    return edit_text(raw, sorted(pieces))


def _field_spans(raw: str, dialect: Dialect) -> list[tuple[int, int]]:
    unquoted = f"[^{re.escape(dialect.delimiter)}]*"
    quoted = rf'"[^"]*(?:""[^"]*)*"{unquoted}|'
    field = re.compile((quoted if dialect.quoted else "") + unquoted)
    spans = []
    position = 0
    while position <= len(raw):
        match = field.match(raw, position)
        if match is None:
            break
        spans.append(match.span())
        position = match.end() + 1
    return spans


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
                changed, aside = _revise_rows(table.num_rows, rows, reader, revise, skip)
                for column, texts in changed.items():
                    table = _with_texts(table, column, texts)
                if aside and aside_writer is not None:
                    aside_writer.write_table(table.take(aside))
                    table = table.filter(pa.array([row not in aside for row in range(table.num_rows)]))
                writer.write_table(table, row_group_size=max(1, table.num_rows))
    except (ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be written back: {one_line(error)}") from error


def _revise_rows(
    count: int, rows: Iterator[Row], reader: Reader, revise: Revise, skip: Callable[[Skipped], None]
) -> tuple[dict[str, dict[int, str]], list[int]]:
    changed: dict[str, dict[int, str]] = {}
    aside: list[int] = []
    for number, row in enumerate(islice(rows, count)):
        record = reader.record_of(row)
        if isinstance(record, Skipped):
            skip(record)
            continue
        revised = revise(replace(record, text=" ".join(record.parts)), record.parts)
        if revised is None:
            aside.append(number)
            continue
        for column, text, edits in zip(record.columns, record.parts, revised, strict=True):
            if edits:
                changed.setdefault(column, {})[number] = edit_text(text, edits)
    return changed, aside


def _with_texts(table: Any, name: str, texts: dict[int, str]) -> Any:
    from pyarrow import array

    column = column_with(name, table.schema.names) or name
    column_index = table.schema.get_field_index(column)
    field = table.schema.field(column_index)
    values = table.column(column_index).to_pylist()
    for row, text in texts.items():
        values[row] = _with_text_at(values[row], name.removeprefix(column).removeprefix("."), text)
    return table.set_column(column_index, field, array(values, type=field.type))


def _with_text_at(value: Any, name: str, text: str) -> Any:
    if not name:
        return text
    outer = column_with(name, list(value)) or name
    return value | {outer: _with_text_at(value[outer], name.removeprefix(outer).removeprefix("."), text)}


def _compressions(file: Any) -> dict[str, str] | str:
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
