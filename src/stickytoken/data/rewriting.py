"""Write documents back in the format that they were read in, with other texts and nothing else changed.

The records come from the reader of `data.documents`, so that what is written is what was read. Only the
characters that an edit names are replaced: of a JSON line those inside the string of its column, of a row of
CSV those inside its field, of a parquet file the values of its column.
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
from typing import Any, BinaryIO, TypeAlias

from stickytoken.data import tables
from stickytoken.data.documents import (
    STDIN,
    Document,
    Meter,
    Reader,
    Row,
    Skipped,
    Wanted,
    format_of,
    opened_file,
    require_format,
    unicode_text,
)
from stickytoken.errors import InputError, reading, require_package
from stickytoken.validation import file_path

Edits: TypeAlias = Sequence[tuple[int, int, str]]
"""What to change in a text, in order: where a part starts, where it ends, and what replaces it."""

Revise: TypeAlias = Callable[[Document, Sequence[str]], Sequence[Edits]]
"""Returns the edits of the texts of a document, which are joined by spaces in ``Document.text``."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file of documents, or standard input, that can be written back.

    Attributes:
        name: What messages call it.
        path: The file; None for standard input.
        suffix: The ending that names the format; empty for lines of text.
        compressed: Whether gzip compresses it.
        wanted: The columns.
    """

    name: str
    path: Path | None
    suffix: str
    compressed: bool
    wanted: Wanted

    @property
    def is_binary(self) -> bool:
        """Whether what is written is no text."""
        return self.compressed or self.suffix == tables.PARQUET


def open_source(source: str | Path, wanted: Wanted) -> Source:
    """Check that documents can be read and written back.

    Raises:
        InputError: There is no such file, its ending names no format, or it is a folder.
    """
    if str(source) == STDIN:
        suffix = tables.JSON_LINES[0] if wanted.named else ""
        return Source("standard input", None, suffix, False, wanted)
    path = file_path("the documents", source)
    with reading(path):
        if path.is_dir():
            raise InputError(f"{path} is a folder: pass one file at a time")
        if not path.is_file():
            raise InputError(f"no file {str(path)!r}")
        path.open("rb").close()
    require_format(path, wanted)
    suffix, compressed = format_of(path)
    if suffix == tables.PARQUET:
        require_package("pyarrow", "writing a parquet file with its schema", "hub")
    return Source(str(path), path, suffix, compressed, wanted)


def require_same_format(source: Source, out: Path) -> None:
    """Refuse an output file whose ending names another format than that of the source.

    Raises:
        InputError: The endings differ in more than ``.gz``.
    """
    suffix, compressed = format_of(out)
    if source.suffix == tables.PARQUET and (suffix, compressed) != (tables.PARQUET, False):
        raise InputError(f"{out} would be a parquet file: end it in {tables.PARQUET}")
    named = suffix if suffix in (*tables.TABLE_SUFFIXES, ".txt") else ""
    alike = {".ndjson": ".jsonl", ".txt": ""}
    if named and alike.get(named, named) != alike.get(source.suffix, source.suffix):
        raise InputError(
            f"{out} names another format than {source.name}: the format stays, so end it in "
            f"{source.suffix or '.txt'}"
        )


def rewrite(
    source: Source,
    output: BinaryIO,
    revise: Revise,
    skip: Callable[[Skipped], None],
    *,
    compress: bool | None = None,
    meter: Meter | None = None,
) -> None:
    """Write every record of a source, those with edits changed and all others as they are.

    Args:
        source: What to read.
        output: Where to write.
        revise: Called with each document and its texts, one per column; returns their edits.
        skip: Called with each record that cannot be read; it is written as it is.
        compress: Compress the output by gzip. None does as the source.
        meter: Kept up to date with how much of the source has been read.

    Raises:
        InputError: The source cannot be read, or has no such column.
    """
    reader = Reader(source.wanted, meter or Meter(), source.name)
    if source.path is not None:
        reader.path = source.name
        reader.meter.total = source.path.stat().st_size
    if source.suffix == tables.PARQUET and source.path is not None:
        _rewrite_parquet(source.path, output, reader, revise, skip)
        return
    if source.compressed if compress is None else compress:
        # Without a time, the same documents give the same bytes.
        with gzip.GzipFile(filename="", fileobj=output, mode="wb", mtime=0) as packed:
            _rewrite_lines(source, packed, reader, revise, skip)
    else:
        _rewrite_lines(source, output, reader, revise, skip)


class _Kept:
    """The lines of a stream, which are kept until their bytes are taken."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = lines
        self._bytes = bytearray()
        self._start = 0  # place in the stream of the first byte that is kept

    def __iter__(self) -> Iterator[bytes]:
        for line in self._lines:
            self._bytes += line
            yield line

    def position(self) -> int:
        """Return how many bytes have been read."""
        return self._start + len(self._bytes)

    def take(self, end: int | None = None) -> bytes:
        """Return the bytes up to a place in the stream, or all, and forget them."""
        size = len(self._bytes) if end is None else end - self._start
        taken = bytes(self._bytes[:size])
        del self._bytes[:size]
        self._start += size
        return taken


def _rewrite_lines(
    source: Source,
    output: BinaryIO | gzip.GzipFile,
    reader: Reader,
    revise: Revise,
    skip: Callable[[Skipped], None],
) -> None:
    with ExitStack() as stack:
        if source.path is None:
            kept = _Kept(sys.stdin.buffer)
            rows = reader.stdin_rows(kept)
            position = kept.position
        else:
            lines, file = stack.enter_context(opened_file(source.path))
            kept = _Kept(lines)
            rows = reader.rows(kept, source.suffix, Meter())
            position = file.tell if source.compressed else kept.position
        for row in rows:
            reader.meter.done = position()
            record = reader.record_of(row)
            if isinstance(record, Skipped):
                skip(record)
                continue
            columns = _columns(reader, row)
            edits = revise(record, [unicode_text(text) for text in columns.values()])
            output.write(kept.take(row.start))
            raw = kept.take(row.end)
            if any(edits):
                edits_by_column = dict(zip(columns, edits, strict=True))
                raw = _edited(raw.decode("utf-8"), row, edits_by_column, source).encode("utf-8")
            output.write(raw)
        # Whatever else there is, such as the end of the last line, belongs to no record.
        output.write(kept.take())


def _columns(reader: Reader, row: Row) -> dict[str, str]:
    """Return the texts of a document by column; a line of text is in the column ''."""
    return {"": row.value} if isinstance(row.value, str) else reader.texts_of(row.value)


def _edited(raw: str, row: Row, edits_by_column: dict[str, Edits], source: Source) -> str:
    """Return the raw record with edits in some of its columns."""
    if source.suffix in tables.SEPARATORS:
        edited = _edited_fields(raw, row, edits_by_column, tables.SEPARATORS[source.suffix])
    elif source.suffix in tables.JSON_LINES:
        edited = _edited_json(raw, row, edits_by_column)
    else:
        edited = edited_text(raw, edits_by_column[""])
        if "\n" in edited or "\r" in edited:
            raise InputError(
                f"{source.name}, {row.place}: the replacement contains the end of a line, which would make "
                "two documents of one: use another replacement"
            )
    return edited


def edited_text(text: str, edits: Edits) -> str:
    """Return a text with its edits."""
    parts = []
    done = 0
    for start, end, replacement in edits:
        parts += [text[done:start], replacement]
        done = end
    return "".join([*parts, text[done:]])


@dataclass(frozen=True, slots=True)
class _Literal:
    """A text as it is written in a file.

    Attributes:
        start: Where it starts in its record, with its opening quote.
        end: Where it ends, with its closing quote.
        value: The text.
        places: Where each character of the text starts in the record, and where the last one ends.
    """

    start: int
    end: int
    value: str
    places: Sequence[int]


def _spliced(raw: str, literal: _Literal, edits: Edits, write: Callable[[str], str]) -> str:
    """Return the literal with edits; ``write`` turns a replacement into what stands for it in the file."""
    parts = []
    done = literal.start
    for start, end, replacement in edits:
        parts += [raw[done : literal.places[start]], write(replacement)]
        done = literal.places[end]
    return "".join([*parts, raw[done : literal.end]])


# JSON lines


def _edited_json(raw: str, row: Row, edits_by_column: dict[str, Edits]) -> str:
    spans = _json_members(raw)
    replaced = []
    for column, edits in edits_by_column.items():
        start, end = spans[column]
        literal = _json_literal(raw, start, end)
        original = row.value if isinstance(row.value, str) else row.value[column]
        write = _json_writer(raw[start:end])
        if literal.value == original and len(unicode_text(original)) == len(original):
            edited = _spliced(raw, literal, edits, write)
        else:  # cannot happen with what the json module reads; the whole string is written again if it does
            edited = f'"{write(edited_text(unicode_text(original), edits))}"'
        replaced.append((start, end, edited))
    return edited_text(raw, sorted(replaced))


def _json_members(raw: str) -> dict[str, tuple[int, int]]:
    """Return where the value of each key stands in a JSON object; a JSON string is the value of the key ''.

    Of a key that occurs twice the last counts, as it does for `json.loads`.
    """
    decoder = json.JSONDecoder()
    place = _behind_space(raw, 0)
    if raw[place] == '"':
        return {"": (place, decoder.raw_decode(raw, place)[1])}
    members = {}
    place = _behind_space(raw, place + 1)
    while raw[place] != "}":
        key, place = decoder.raw_decode(raw, place)
        colon = _behind_space(raw, place)
        start = _behind_space(raw, colon + 1)
        _, end = decoder.raw_decode(raw, start)
        members[key] = (start, end)
        place = _behind_space(raw, end)
        if raw[place] == ",":
            place = _behind_space(raw, place + 1)
    return members


def _behind_space(raw: str, place: int) -> int:
    while raw[place] in " \t\n\r":
        place += 1
    return place


def _json_literal(raw: str, start: int, end: int) -> _Literal:
    places = []
    place = start + 1
    while place < end - 1:
        places.append(place)
        if raw[place] != "\\":
            place += 1
        elif raw[place + 1] != "u":
            place += 2
        else:
            place += 6
            high = int(raw[place - 4 : place], 16)
            is_pair = 0xD800 <= high <= 0xDBFF and raw[place : place + 2] == "\\u"
            if is_pair and 0xDC00 <= int(raw[place + 2 : place + 6], 16) <= 0xDFFF:
                place += 6
    places.append(end - 1)
    return _Literal(start, end, json.loads(raw[start:end]), places)


def _json_writer(literal: str) -> Callable[[str], str]:
    ascii_only = literal.isascii()
    return lambda text: json.dumps(text, ensure_ascii=ascii_only)[1:-1]


# Rows of CSV and TSV


@dataclass(frozen=True, slots=True)
class _Field(_Literal):
    quoted: bool  # the whole of it, from the first character to the last


def _edited_fields(raw: str, row: Row, edits_by_column: dict[str, Edits], separator: str) -> str:
    fields = _fields(raw, separator)
    values = list(row.value.values())
    parsed = [field.value for field in fields]
    # A field whose quotes are never closed ends the file, with or without an end of the line.
    if parsed != values and parsed != [*values[:-1], f"{values[-1]}\n"]:
        raise InputError(f"{row.place} is quoted in a way that cannot be written back: correct it")
    columns = list(row.value)
    replaced = []
    for column, edits in edits_by_column.items():
        field = fields[columns.index(column)]
        value = edited_text(field.value, edits)
        edited = _spliced(raw, field, edits, _doubled_quotes if field.quoted else str)
        if not _says(edited, value, separator) or (len(fields) == 1 and not edited):
            # The field needs quotes that it did not have; without them, an empty row would be no row.
            edited = f'"{_doubled_quotes(value)}"'
        replaced.append((field.start, field.end, edited))
    return edited_text(raw, sorted(replaced))


def _doubled_quotes(text: str) -> str:
    return text.replace('"', '""')


def _says(raw: str, value: str, separator: str) -> bool:
    return [field.value for field in _fields(raw, separator)] == [value]


def _fields(raw: str, separator: str) -> list[_Field]:
    """Divide a row as the csv module does, and say where each character of a value stands.

    An end of a line within quotes is one character, ``\\n``, however it is written; see `Reader`. The module
    also adds one to a field whose quotes are never closed.
    """
    fields = []
    place = 0
    while True:
        start = place
        characters: list[str] = []
        places: list[int] = []
        in_quotes = place < len(raw) and raw[place] == '"'
        opened = in_quotes
        closed_at = -1
        if opened:
            place += 1
        while place < len(raw):
            character = raw[place]
            width = 1
            if in_quotes and character == '"':
                if raw[place : place + 2] != '""':
                    in_quotes = False
                    closed_at = place
                    place += 1
                    continue
                width = 2
            elif not in_quotes and character in (separator, "\r", "\n"):
                break  # a record has no end of a line here, so what an edit brings in ends the field
            elif character == "\r":
                width = 2 if raw[place : place + 2] == "\r\n" else 1
                character = "\n"
            characters.append(character)
            places.append(place)
            place += width
        if in_quotes:
            characters.append("\n")
            places.append(place)
        whole = opened and closed_at == place - 1
        places.append(place - 1 if whole else place)
        fields.append(_Field(start, place, "".join(characters), places, whole))
        if place == len(raw):
            return fields
        place += 1


# Parquet


def _rewrite_parquet(
    path: Path, output: BinaryIO, reader: Reader, revise: Revise, skip: Callable[[Skipped], None]
) -> None:
    """Write row groups one by one; Arrow keeps the schema, its metadata and the columns without edits."""
    from pyarrow import ArrowException, parquet

    rows = reader.parquet_rows(path)
    first = next(rows, None)  # the columns are chosen before anything is written
    rows = rows if first is None else chain([first], rows)
    try:
        with (
            parquet.ParquetFile(path) as file,
            parquet.ParquetWriter(output, file.schema_arrow, compression=_compressions(file)) as writer,
        ):
            for group in range(file.num_row_groups):
                table = file.read_row_group(group)
                for column, texts in _revised(table.num_rows, rows, reader, revise, skip).items():
                    table = _with_texts(table, column, texts)
                writer.write_table(table, row_group_size=max(1, table.num_rows))
    except (ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be written back: {tables.one_line(error)}") from error


def _revised(
    count: int, rows: Iterator[Row], reader: Reader, revise: Revise, skip: Callable[[Skipped], None]
) -> dict[str, dict[int, str]]:
    """Return the texts that change in the next rows, by column and place among them."""
    changed: dict[str, dict[int, str]] = {}
    for place, row in enumerate(islice(rows, count)):
        record = reader.record_of(row)
        if isinstance(record, Skipped):
            skip(record)
            continue
        texts = reader.texts_of(row.value)
        for column, edits in zip(texts, revise(record, list(texts.values())), strict=True):
            if edits:
                changed.setdefault(column, {})[place] = edited_text(texts[column], edits)
    return changed


def _with_texts(table: Any, column: str, texts: dict[int, str]) -> Any:
    """Return an Arrow table with other texts at some places of a column, whose type stays."""
    from pyarrow import array

    place = table.schema.get_field_index(column)
    field = table.schema.field(place)
    values = table.column(place).to_pylist()
    for row, text in texts.items():
        values[row] = text
    return table.set_column(place, field, array(values, type=field.type))


def _compressions(file: Any) -> dict[str, str] | str:
    """Return the compression of each column by its path, as the writer takes them."""
    if not file.num_row_groups:
        return "snappy"  # no column has one; this is the writer's own default
    columns = file.metadata.row_group(0)
    compressions = {}
    for place in range(columns.num_columns):
        column = columns.column(place)
        codec = column.compression.lower()
        compressions[column.path_in_schema] = "none" if codec == "uncompressed" else codec
    return compressions
