"""Write documents back in their format, without some parts of their texts and with no other change.

The records come from the reader of `data.documents`. In JSON, the parts are left out where they stand; in
CSV, fields that change are written anew; in Parquet, values of the text columns.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

from stickytoken.data.documents import (
    STDIN,
    Document,
    NamedColumns,
    Reader,
    column_with,
    require_format,
    standard_input,
)
from stickytoken.data.rows import (
    JSON,
    PARQUET,
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

Cuts: TypeAlias = Sequence[tuple[int, int]]
"""The parts of a text to leave out, in order: the start and the end (exclusive) of each."""

Revise: TypeAlias = Callable[[Document], Sequence[Cuts] | None]
"""Function that takes a document and returns the cuts of each of its ``parts``; None to set it aside."""


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


# These extensions denote the same format. A .json file may contain lines or an array, which it keeps.
_SAME_FORMATS = {".ndjson": ".jsonl", ".json": ".jsonl", ".txt": ""}


def is_compressed(out: Path) -> bool:
    """Return whether the name of a file says that it is compressed."""
    return format_of(out)[1]


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
    if suffix in (".jsonl", ".ndjson") and source.suffix == ".json" and _holds_array(source):
        raise InputError(
            f"{source.name} is a JSON array, and the format cannot be changed: give {out} the extension .json"
        )
    if source.suffix == PARQUET and (suffix, compressed) != (PARQUET, False):
        raise InputError(f"{out} will contain parquet data: give it the extension {PARQUET}")
    names_format = suffix in (*TABLE_SUFFIXES, ".txt")
    if names_format and not names_format_of(source, out):
        raise InputError(
            f"the extension of {out} does not match the format of {source.name}, and the format cannot be "
            f"changed: use the extension {source.suffix or '.txt'}"
        )


def _holds_array(source: Source) -> bool:
    if source.path is None:
        return False
    with open_rows_file(source.path) as (lines, _):
        first_filled = next((line for line in lines if line.strip()), b"")
    return _ARRAY_BEGINNING.match(first_filled) is not None


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
    """Write every record of a source without what is to be left out of its texts.

    Args:
        source: The documents to read.
        output: The stream to write to.
        revise: Called with each document; says what to leave out.
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

        def compress_stream(stream: BinaryIO) -> BinaryIO:
            # Leave out the timestamp, so that the same documents always give the same bytes. The end of a
            # compressed stream is written when the stack closes it.
            return cast(BinaryIO, stack.enter_context(gzip.GzipFile("", "wb", fileobj=stream, mtime=0)))

        if compress:
            output = compress_stream(output)
            set_aside = None if set_aside is None else compress_stream(set_aside)
        _rewrite_lines(source, output, reader, revise, skip, set_aside)


_ARRAY_BEGINNING = re.compile(rb"(\xef\xbb\xbf)?\s*\[")  # perhaps with a byte order mark


class _Buffer:
    """Iterates over the lines of a stream, and keeps their bytes in memory until `take` is called."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = lines
        self._untaken = bytearray()
        self._untaken_offset = 0  # in the stream

    def __iter__(self) -> Iterator[bytes]:
        for line in self._lines:
            self._untaken += line
            yield line

    def position(self) -> int:
        """Return how many bytes of the stream have been read."""
        return self._untaken_offset + len(self._untaken)

    def take_all(self) -> bytes:
        return self.take_until(self._untaken_offset + len(self._untaken))

    def take_until(self, end: int) -> bytes:
        """Return the bytes in memory before an offset of the stream, and forget them."""
        size = end - self._untaken_offset
        taken = bytes(self._untaken[:size])
        del self._untaken[:size]
        self._untaken_offset += size
        return taken

    def begins_array(self) -> bool:
        """Return whether the bytes in memory are those of a JSON array, from its beginning."""
        return _ARRAY_BEGINNING.match(self._untaken) is not None

    def take_line_end(self) -> bytes:
        for line_end in (b"\r\n", b"\n", b"\r"):
            if self._untaken.startswith(line_end):
                return self.take_until(self._untaken_offset + len(line_end))
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
    line of standard input is answered before the next is read, because who wrote it may wait for the answer.
    """

    def lines_answered_at_once() -> Iterator[bytes]:
        """Yield the lines of standard input. Before each next line, write what is left in ``buffer``."""
        for line in standard_input():
            yield line
            # The reader asks for the next line, so the record of this line has been written. What is left in
            # the buffer belongs to no record: a blank or unreadable line, or a line ending.
            output.write(buffer.take_all())
            output.flush()

    with ExitStack() as stack:
        if source.path is None:
            buffer = _Buffer(lines_answered_at_once())
            rows = reader.read_stdin_rows(buffer, at_once=True)
            bytes_done = buffer.position
        else:
            lines, file = stack.enter_context(open_rows_file(source.path))
            buffer = _Buffer(lines)
            rows = reader.read_rows(buffer, source.suffix, source.path)
            # Only the size of the compressed file is known, so its progress is counted in compressed bytes.
            bytes_done = file.tell if source.compressed else buffer.position
        first_row = list(islice(rows, 1))  # the reader has read the header now
        is_array = source.suffix == ".json" and buffer.begins_array()
        if is_array and set_aside is not None:
            _split_array(source, chain(first_row, rows), reader, revise, skip, buffer, output, set_aside)
            return
        last_line_end = b"\n"
        if reader.header_end:
            header = buffer.take_until(reader.header_end)
            line_end = buffer.take_line_end()
            last_line_end = line_end or last_line_end
            for stream in (output, set_aside):
                if stream is not None:
                    stream.write(header + line_end)
        for row in chain(first_row, rows):
            reader.meter.done = bytes_done()
            record = reader.make_record(row)
            if isinstance(record, Skipped):
                # The record's bytes stay in the buffer, and are written before the next record.
                skip(record)
                continue
            cuts_by_part = revise(record)
            output.write(buffer.take_until(row.start))
            raw_record = buffer.take_until(row.end)
            line_end = buffer.take_line_end()
            last_line_end = line_end or last_line_end
            if cuts_by_part is None:
                if set_aside is not None:
                    # The last line of the source may have no line ending.
                    set_aside.write(raw_record + last_line_end)
                continue
            if any(cuts_by_part):
                raw_record = _revise_record(raw_record, row, record, cuts_by_part, source, reader.dialect)
            output.write(raw_record + line_end)
        # The remaining bytes belong to no record.
        output.write(buffer.take_all())


def _split_array(
    source: Source,
    rows: Iterable[Row],
    reader: Reader,
    revise: Revise,
    skip: Callable[[Skipped], None],
    buffer: _Buffer,
    output: BinaryIO,
    set_aside: BinaryIO,
) -> None:
    """Write the elements of a JSON array to two arrays: those that ``revise`` sets aside, and the others.

    Both arrays begin and end as the source does. Before each element but the first of an array stands what
    stands before it in the source: a comma with the white space around it.
    """
    opening = None  # the bracket, with the white space around it
    begun: set[BinaryIO] = set()  # outputs that have an element
    for row in rows:
        record = reader.make_record(row)
        separator = buffer.take_until(row.start)
        element = buffer.take_until(row.end)
        target = output
        if isinstance(record, Skipped):
            skip(record)
        else:
            cuts_by_part = revise(record)
            if cuts_by_part is None:
                target = set_aside
            elif any(cuts_by_part):
                element = _revise_record(element, row, record, cuts_by_part, source, reader.dialect)
        if opening is None:
            opening = separator
        target.write((separator if target in begun else opening) + element)
        begun.add(target)
    closing = buffer.take_all()
    for target in (output, set_aside):
        target.write(closing if target in begun else (opening or b"") + closing)


def _revise_record(
    raw_record: bytes,
    row: Row,
    document: Document,
    cuts_by_part: Sequence[Cuts],
    source: Source,
    dialect: Dialect | None,
) -> bytes:
    """Return a record without the cuts, in the format of the source. ``raw_record`` are its bytes there."""
    raw = raw_record.decode("utf-8")
    # A line of text, and a JSON string that is a document by itself, have no column. The column of their only
    # part is None; an empty name is that of a column.
    columns = document.columns or (None,)
    cuts_by_column: dict[str | None, Cuts] = {}
    new_texts: dict[str | None, str] = {}
    for column, text, cuts in zip(columns, document.parts, cuts_by_part, strict=True):
        if cuts:
            cuts_by_column[column] = cuts
            new_texts[column] = cut(text, cuts)
    if source.suffix in JSON:
        revised = _cut_strings(raw, cuts_by_column)
    elif dialect is not None:  # a row of a CSV or TSV file
        revised = _replace_fields(raw, row, new_texts, dialect)
    else:
        (revised,) = new_texts.values()  # a line of text, which has one part
    return revised.encode("utf-8")


def cut(text: str, cuts: Cuts) -> str:
    """Return a text without some of its parts."""
    kept_pieces = []
    piece_start = 0
    for cut_start, cut_end in cuts:
        kept_pieces.append(text[piece_start:cut_start])
        piece_start = cut_end
    kept_pieces.append(text[piece_start:])
    return "".join(kept_pieces)


# JSON


# One character of a JSON string as it is written: two escapes of surrogates that belong together, another
# escape, or the character itself.
_WRITTEN_CHARACTER = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|.", re.DOTALL
)


def _cut_strings(raw: str, cuts_by_column: Mapping[str | None, Cuts]) -> str:
    """Return a record in JSON without parts of its strings; every other character stays as it is written."""
    raw_cuts = []
    for column, cuts in cuts_by_column.items():
        start, end = _find_value(raw, after_space(raw, 0), column)
        # Within the quotation marks, one match for each character of the string, which may be an escape.
        characters = _WRITTEN_CHARACTER.finditer(raw, start + 1, end - 1)
        # Where each character of the text stands in `raw`; a cut may also end after the last.
        raw_offsets = [*(character.start() for character in characters), end - 1]
        raw_cuts += [(raw_offsets[cut_start], raw_offsets[cut_end]) for cut_start, cut_end in cuts]
    return cut(raw, sorted(raw_cuts))


def _find_value(raw: str, position: int, column: str | None) -> tuple[int, int]:
    """Return where the value of a column begins and ends (exclusive) in JSON text.

    The column is looked up in the object at ``position``. It exists, because `value_at` has found it. If it
    is None, its value is the whole JSON value at ``position``.
    """
    decoder = json.JSONDecoder()
    if column is None:
        _, end = decoder.raw_decode(raw, position)
        return position, end
    starts = {}  # where the values of the object begin, keyed by name
    position = after_space(raw, position + 1)  # behind the opening bracket
    while raw[position] != "}":
        key, key_end = decoder.raw_decode(raw, position)
        colon = after_space(raw, key_end)
        starts[key] = after_space(raw, colon + 1)
        _, value_end = decoder.raw_decode(raw, starts[key])
        position = after_space(raw, value_end)
        if raw[position] == ",":
            position = after_space(raw, position + 1)
    if column in starts:
        return _find_value(raw, starts[column], None)
    # A nested field: like `value_at`, take the shortest name before a dot that is the name of an object.
    outer_names = [name for name in starts if column.startswith(f"{name}.") and raw[starts[name]] == "{"]
    outer = min(outer_names, key=len)
    return _find_value(raw, starts[outer], column.removeprefix(f"{outer}."))


# Rows of CSV and TSV


_LINE_END = re.compile("\r\n|\r|\n")


def _replace_fields(raw: str, row: Row, texts: Mapping[str | None, str], dialect: Dialect) -> str:
    """Return a row of a CSV or TSV file with new texts, which are keyed by column.

    ``raw`` is the row as it was read. A new text is quoted if the old one was, or if it must be.
    """
    spans = _find_fields(raw, dialect)
    columns = list(row.value)
    if len(spans) != len(columns):
        raise InputError(f"{row.place} has quotes that cannot be written back: correct the quotes")
    new_fields = []
    for column, text in texts.items():
        start, end = spans[columns.index(column)]
        new_field = text
        # A row with a single, empty, unquoted field would be read as an empty line, not as a record. Where
        # quotation marks belong to the text, a space keeps the row.
        is_empty_row = len(spans) == 1 and not text
        if is_empty_row and not dialect.quoted:
            new_field = " "
        was_quoted = raw.startswith('"', start)
        if dialect.quoted and (was_quoted or is_empty_row or text.startswith('"')):
            new_field = '"' + text.replace('"', '""') + '"'
        # The reader has made "\n" of the line endings within a field, which may differ.
        line_ends = _LINE_END.findall(raw, start, end)
        lines = new_field.split("\n")
        if len(lines) == len(line_ends) + 1:
            line_ends_after = [*line_ends, ""]
            new_field = "".join(chain.from_iterable(zip(lines, line_ends_after, strict=True)))
        elif line_ends:
            new_field = line_ends[0].join(lines)
        new_fields.append((start, end, new_field))
    revised = raw
    # From the end, so that the offsets of the fields that are still to be replaced stay true.
    for start, end, new_field in sorted(new_fields, reverse=True):
        revised = revised[:start] + new_field + revised[end:]
    return revised


def _find_fields(raw: str, dialect: Dialect) -> list[tuple[int, int]]:
    """Return where each field of a row begins and ends (exclusive), with its quotation marks."""
    unquoted = f"[^{re.escape(dialect.delimiter)}]*"  # everything up to the next delimiter
    # A quoted field may contain delimiters and doubled quotation marks. Text may follow it, as in the csv
    # module.
    quoted = rf'"[^"]*(?:""[^"]*)*"{unquoted}'
    field_pattern = re.compile(f"{quoted}|{unquoted}" if dialect.quoted else unquoted)
    spans = []
    position = 0
    while position <= len(raw):  # after a delimiter at the end, there is one more field, which is empty
        match = field_pattern.match(raw, position)
        if match is None:  # never: the pattern also matches an empty field
            break
        spans.append(match.span())
        position = match.end() + len(dialect.delimiter)
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
    """Write the revised rows of a Parquet file, one row group at a time.

    The schema, its metadata and columns without edits do not change.
    """
    import pyarrow as pa
    from pyarrow import ArrowException, parquet

    rows = reader.read_parquet_rows(path)
    try:
        with ExitStack() as stack:
            file = stack.enter_context(parquet.ParquetFile(path))
            _require_no_int96(file, path)
            compression = _read_compressions(file)
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
                group_rows = islice(rows, table.num_rows)
                new_texts, aside_rows = _revise_rows(group_rows, reader, revise, skip)
                for column, text_of_row in new_texts.items():
                    table = _replace_texts(table, column, text_of_row)
                if aside_rows and aside_writer is not None:
                    aside_writer.write_table(table.take(aside_rows))
                    aside_set = set(aside_rows)
                    is_kept = [row not in aside_set for row in range(table.num_rows)]
                    table = table.filter(pa.array(is_kept))
                # The row group stays a single one, even if it has no row left: a size of 0 would be refused.
                writer.write_table(table, row_group_size=max(1, table.num_rows))
    except (ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be written back: {one_line(error)}") from error


def _require_no_int96(file: Any, path: Path) -> None:
    # pyarrow reads such times as nanoseconds in 64 bits, which end in 2262 (9999-12-31 becomes a day
    # in 1816), and writes them in another type.
    leaves = [file.schema.column(index) for index in range(len(file.schema))]
    int96_columns = [leaf.path for leaf in leaves if leaf.physical_type == "INT96"]
    if int96_columns:
        raise InputError(
            f"{path} cannot be written back: its column {int96_columns[0]!r} has the type INT96, whose times "
            "might change: write the file with timestamps in microseconds first (in Spark: "
            "spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS)"
        )


def _revise_rows(
    rows: Iterable[Row], reader: Reader, revise: Revise, skip: Callable[[Skipped], None]
) -> tuple[dict[str, dict[int, str]], list[int]]:
    """Return the new texts, keyed by column and then by row index, and the indices of the rows to set aside.

    The first of ``rows`` has the index 0.
    """
    new_texts: dict[str, dict[int, str]] = {}
    aside_rows: list[int] = []
    for row_index, row in enumerate(rows):
        record = reader.make_record(row)
        if isinstance(record, Skipped):
            skip(record)
            continue
        cuts_by_part = revise(record)
        if cuts_by_part is None:
            aside_rows.append(row_index)
            continue
        for column, text, cuts in zip(record.columns, record.parts, cuts_by_part, strict=True):
            if cuts:
                new_texts.setdefault(column, {})[row_index] = cut(text, cuts)
    return new_texts, aside_rows


def _replace_texts(table: Any, name: str, text_of_row: Mapping[int, str]) -> Any:
    """Return a pyarrow table with new texts, keyed by row index, in a column or a nested field."""
    from pyarrow import concat_arrays

    column = column_with(name, table.schema.names) or name  # it exists, because the texts were read from it
    # For example, "summary" of "metadata.summary"; empty if the texts are in the column itself.
    nested_name = name.removeprefix(column).removeprefix(".")
    column_index = table.schema.get_field_index(column)
    values = concat_arrays(table.column(column_index).chunks)
    replaced = _replace_nested(values, nested_name, text_of_row)
    return table.set_column(column_index, table.schema.field(column_index), replaced)


def _replace_nested(values: Any, name: str, text_of_row: Mapping[int, str]) -> Any:
    """Return a pyarrow array with new texts in the nested field of this name, or in itself if it is empty.

    Only the array of the texts is rebuilt: of other types, Python's values are less precise.
    """
    from pyarrow import StructArray, array

    if not name:
        texts = values.to_pylist()
        for row, text in text_of_row.items():
            texts[row] = text
        return array(texts, type=values.type)
    fields = list(values.type)
    names = [field.name for field in fields]
    outer = column_with(name, names) or name  # it exists, because the old text was read from it
    inner_name = name.removeprefix(outer).removeprefix(".")
    children = [values.field(index) for index in range(len(fields))]
    index = names.index(outer)
    children[index] = _replace_nested(children[index], inner_name, text_of_row)
    return StructArray.from_arrays(children, fields=fields, mask=values.is_null())


def _read_compressions(file: Any) -> dict[str, str] | str:
    """Return the compressions of a pyarrow `ParquetFile` by column, as its `ParquetWriter` takes them."""
    if not file.num_row_groups:
        return "snappy"  # the usual compression, because a file without rows names none
    first_group = file.metadata.row_group(0)
    compressions = {}
    for index in range(first_group.num_columns):
        column = first_group.column(index)
        codec = column.compression.lower()
        compressions[column.path_in_schema] = "none" if codec == "uncompressed" else codec
    return compressions
