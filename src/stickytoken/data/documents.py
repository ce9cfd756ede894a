"""Read documents as a stream, in every supported format. Records that cannot be read are skipped."""

from __future__ import annotations

import gzip
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from stickytoken.data._hub import HUB, hub_parts, open_hub
from stickytoken.data.rows import (
    DAMAGED_GZIP,
    JSON,
    LINES,
    PARQUET,
    SEPARATORS,
    TABLE_SUFFIXES,
    Dialect,
    Meter,
    ParquetFile,
    RepeatedKeys,
    Row,
    Skipped,
    decode,
    dialect_of,
    fields_with_text,
    format_of,
    json_rows,
    open_rows_file,
    plain_or_gzipped,
    read_separated_rows,
    text_rows,
    unicode_text,
    value_at,
)
from stickytoken.errors import InputError, reading
from stickytoken.settings.reading import ColumnChoice, Columns, columns_of
from stickytoken.validation import file_path, shown

STDIN = "-"
# Name of the collection that is read from standard input.
STDIN_COLLECTION = "standard input"


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
        columns: The columns that contain the text. Empty if the document does not come from columns.
        parts: The texts of these columns, or the only text of a document without columns.
        starts: For each part, the offsets in the text at which it begins; see `FilledText`.
    """

    number: int
    id: str
    text: str
    source: str | None = None
    path: str | None = None
    line: int | None = None
    is_whole_file: bool = False
    columns: tuple[str, ...] = field(default=(), compare=False)
    parts: tuple[str, ...] = field(default=(), compare=False)
    starts: tuple[tuple[int, ...], ...] = field(default=((0,),), compare=False)


Record: TypeAlias = Document | Skipped
DocumentSource: TypeAlias = str | Path | Iterable[Any]


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents that can be read one by one: those of a file, a folder or a list.

    Attributes:
        name: What messages call them.
        read: Function that yields the records in order and updates the meter. If the source is a stream, the
            function can be called only once.
        identity: What a stored scan recognises the collection by, such as its path. It does not depend on
            the content of the documents.
    """

    name: str
    read: Callable[[Meter], Iterator[Record]]
    identity: str


@dataclass(frozen=True, slots=True)
class NamedColumns:
    """The columns that the user named. Where a field is None, the column is looked up by its usual names.

    Attributes:
        column: The columns with the text.
        id_column: The column with the id.
        source_column: The column that says where each document comes from.
        sentence_pairs: Whether columns called sentence1 and sentence2 contain the texts, if there are both.
        queries: Whether the texts are queries, whose column has other usual names than that of documents.
    """

    column: ColumnChoice = None
    id_column: str | None = None
    source_column: str | None = None
    sentence_pairs: bool = False
    queries: bool = False

    @property
    def usual_names(self) -> tuple[str, ...]:
        """Usual names of the column with the text, the most common first."""
        return _QUERY_NAMES if self.queries else _TEXT_NAMES

    @property
    def text_columns(self) -> Columns:
        """The columns with the text, and how a record's text is made of them."""
        return columns_of(self.column)

    @property
    def all_names(self) -> tuple[str, ...]:
        """All columns that the user named and that must be there."""
        further_columns = [column for column in (self.id_column, self.source_column) if column is not None]
        return (*self.text_columns.names, *further_columns)


def open_documents(source: DocumentSource, columns: NamedColumns) -> Documents:
    """Open a collection of documents, without reading it.

    Args:
        source: A file, a folder, ``hub:REPOSITORY``, ``-`` for standard input, or the texts or rows
            themselves.
        columns: The columns that the user named.

    Raises:
        InputError: The collection does not exist, or its format is not supported.
    """
    for column in columns.all_names:
        if not isinstance(column, str):
            raise InputError(f"{column!r} is not the name of a column: pass a string")
    is_file = isinstance(source, (str, Path)) and source != STDIN and not str(source).startswith(HUB)
    if not is_file and columns.text_columns.delimiter is not None:
        raise InputError("only csv and tsv files have a delimiter: leave it out")
    if not isinstance(source, (str, Path)):
        return _open_values(source, columns)
    if source == STDIN:
        return Documents(
            name=STDIN_COLLECTION,
            read=lambda meter: Reader(columns, meter, STDIN_COLLECTION).read_stdin(),
            identity=STDIN,
        )
    if isinstance(source, str) and source.startswith(HUB):
        hub_name = source.removeprefix(HUB)
        repository, _ = hub_parts(hub_name)
        return Documents(
            name=source,
            read=lambda meter: Reader(columns, meter, repository).read_hub(hub_name),
            identity=source,
        )
    path = file_path("the path", source)
    with reading(path):
        if path.is_dir():
            return _open_folder(path, columns)
        if not path.is_file():
            raise InputError(f"no file or folder {str(path)!r}")
        size = path.stat().st_size
        # A file that cannot be opened is reported here, before anything is read.
        path.open("rb").close()
    require_format(path, columns)
    return Documents(
        name=str(path),
        read=lambda meter: Reader(columns, meter, str(path)).read_file(path, size),
        identity=str(path.absolute()),
    )


def require_format(path: Path, columns: NamedColumns) -> None:
    """Raise an error if a file's format is unknown, or if columns are named for a format without columns."""
    suffix, compressed = format_of(path)
    if suffix == PARQUET and compressed:
        raise InputError(f"{path} is a compressed parquet file: unpack it with gunzip")
    if suffix not in (*TABLE_SUFFIXES, *LINES):
        raise InputError(
            f"{path} has the extension {suffix!r}: use a folder, or a file with the extension .txt, "
            f"{', '.join(TABLE_SUFFIXES)}, or one of these followed by .gz (except .parquet)"
        )
    if suffix in LINES and columns.all_names:
        raise InputError(f"{path} is a text file without columns: leave the names of columns out")
    if suffix not in SEPARATORS and columns.text_columns.delimiter is not None:
        raise InputError(f"{path} is not a csv or tsv file: leave the delimiter out")


# Methods that return the rows of a Polars, Arrow or pandas table as dictionaries, with their arguments.
_ROW_METHODS: dict[str, dict[str, Any]] = {
    "iter_rows": {"named": True},
    "to_pylist": {},
    "to_dict": {"orient": "records"},
}


def _open_values(values: Iterable[Any], columns: NamedColumns) -> Documents:
    """Return a collection made from texts, objects or table rows.

    A single string never arrives here, because the caller takes it for a path.
    """
    refusal = f"documents is {shown(values)}: pass a list of texts, a table, or a file"
    if isinstance(values, (bytes, bytearray, Mapping)):
        raise InputError(refusal)
    name = "the given texts"
    rows = values
    is_table = hasattr(values, "columns")
    if is_table:
        for method_name, options in _ROW_METHODS.items():
            read_rows = getattr(values, method_name, None)
            if callable(read_rows):
                rows = read_rows(**options)
                break
    try:
        iter(rows)  # only to find out whether the rows can be read one by one
    except TypeError:
        raise InputError(refusal) from None

    def read(meter: Meter) -> Iterator[Record]:
        if isinstance(values, Sized):  # a generator has no length
            meter.total = len(values)
        reader = Reader(columns, meter, name)
        return reader.make_records(reader.rows_of_values(rows))

    return Documents(name=name, read=read, identity=name)


def _list_files(folder: Path) -> tuple[list[Path], list[Skipped]]:
    """List what a folder and its subfolders have, except what is hidden.

    Returns:
        The files that may have documents, sorted by their paths; and what can't be read, such as a folder
        without permission or a link to another folder.
    """
    corpus = plain_or_gzipped(folder / "corpus.jsonl")
    # In the BEIR layout, the files besides corpus.jsonl hold queries and judgements, which are no documents.
    if corpus.is_file() and plain_or_gzipped(folder / "queries.jsonl").is_file():
        return [corpus], []
    paths: list[Path] = []
    skipped: list[Skipped] = []

    def note_unreadable_folder(error: OSError) -> None:
        unreadable = Path(os.fsdecode(error.filename or folder))  # the name may be bytes
        skipped.append(Skipped(_make_printable(unreadable), f"cannot be read: {error.strerror or error}"))

    # Without `onerror`, `os.walk` passes over folders that can't be listed.
    for parent, folder_names, file_names in os.walk(folder, onerror=note_unreadable_folder):
        folder_names[:] = sorted(name for name in folder_names if not name.startswith("."))
        for name in folder_names:
            if Path(parent, name).is_symlink():  # could lead back to this folder
                reason = "a link to a folder, which is not followed: pass that folder, too"
                skipped.append(Skipped(_make_printable(Path(parent, name)), reason))
        for name in sorted(file_names):
            path = Path(parent, name)
            if name.startswith("."):
                continue
            if path.is_file():
                paths.append(path)
            else:
                skipped.append(
                    Skipped(_make_printable(path), "no file that can be read, such as a broken link")
                )
    if not paths and not skipped:
        raise InputError(f"{folder} contains no files: pass a folder of documents")
    return sorted(paths), skipped


def _open_folder(folder: Path, columns: NamedColumns) -> Documents:
    """Return a folder as a collection. Each row of a table is a document; any other file is one document."""
    sizes: dict[Path, int] = {}  # size of each file in bytes
    paths, skipped = _list_files(folder)
    for path in paths:
        try:
            sizes[path] = path.stat().st_size
        except OSError:
            # The file has vanished since the folder was listed. Reading the file reports the error.
            sizes[path] = 0

    def read(meter: Meter) -> Iterator[Record]:
        """Yield what can't be read in the folder, then the records of the files in order.

        A table that cannot be read gives one `Skipped` record. A blank file that is not a table gives no
        record.
        """
        meter.total = sum(sizes.values())
        reader = Reader(columns, meter, str(folder))
        meter.records += len(skipped)
        yield from skipped
        for path, size in sizes.items():
            done_before = meter.done
            suffix, _ = format_of(path)
            if suffix in TABLE_SUFFIXES:
                try:
                    yield from reader.read_file(path)
                except InputError as error:
                    meter.records += 1
                    yield Skipped(_make_printable(path), str(error))
            else:
                record = _read_whole_file(path, folder, next(reader.numbers))
                if record is not None:
                    meter.records += 1
                    yield record
            # The file counts as read as a whole, however much of it the reader has counted.
            meter.done = done_before + size

    return Documents(name=str(folder), read=read, identity=str(folder.absolute()))


def _read_whole_file(path: Path, folder: Path, number: int) -> Record | None:
    """Return a whole file as one document, or as Skipped if it cannot be read; None if it is blank."""
    name = _make_printable(path)
    _, is_compressed = format_of(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        return Skipped(name, f"cannot be read: {error.strerror or error}")
    if is_compressed:
        try:
            content = gzip.decompress(content)
        except DAMAGED_GZIP as error:
            return Skipped(name, f"damaged, or not compressed with gzip: {error}")
    text, damage = decode(content)
    if damage:
        return Skipped(name, damage)
    text = text.removeprefix("\ufeff")  # the byte order mark
    if not text.strip():
        return None
    relative_path = path.relative_to(folder)
    # Findings are counted by source, and the files of a subfolder have one source, as its name says.
    subfolder = None
    if len(relative_path.parts) > 1:
        subfolder = _make_printable(Path(relative_path.parts[0]))
    return Document(
        number=number,
        id=_make_printable(relative_path),
        text=text,
        source=subfolder,
        path=name,
        line=1,
        is_whole_file=True,
        parts=(text,),
    )


def _make_printable(path: Path) -> str:
    # The bytes of a file name need not be UTF-8.
    return os.fsencode(path).decode("utf-8", "backslashreplace")


# Usual names of the text and id columns, the most common first.
_TEXT_NAMES = ("text", "document", "content", "passage", "body", "sentence")
# Those of queries. A passage or document beside them is what a user found, or was to find.
_QUERY_NAMES = ("query", "question", "text", "content", "sentence")
# Columns with the source of a document, if the user names none.
_SOURCE_NAMES = ("source", "topic")
ID_NAMES = ("_id", "id", "doc_id", "docid", "document_id")
PAIR_NAMES = ("sentence1", "sentence2")
# Number of rows that are read before the columns are chosen, because objects may differ in their keys.
_ROWS_TO_CHOOSE_BY = 100


def standard_input() -> BinaryIO:
    """Return standard input, of which Ctrl-C ends a read that waits for more."""
    # Polars installs a handler after which the system goes on reading, and Python isn't told of the signal.
    if hasattr(signal, "siginterrupt") and threading.current_thread() is threading.main_thread():
        signal.siginterrupt(signal.SIGINT, True)
    return sys.stdin.buffer


@dataclass(slots=True)
class Reader:
    """Reads the records of one collection, in any format.

    `data.rewriting` also uses this reader, in order to write edited documents back.

    Attributes:
        columns: The columns that the user named.
        meter: Tracks how much of the collection has been read.
        name: Name of the collection, or of the file that is being read, for messages.
        path: The file that is being read; None if the records do not come from a file.
        text_columns: The columns that contain the text. They are chosen before the first document of a file
            is returned.
        id_column: The column with the id; None if there is none.
        source_column: The column with the source; None if there is none.
        numbers: Iterator over the positions of records in the collection. Each record takes the next
            position.
        columns_with_text: The columns in which the rows so far have text, used or not.
        dialect: How the CSV or TSV file that is being read is divided; None for other formats.
        header_end: Offset in the CSV or TSV file after the last byte of its header; 0 for other formats.
        text_choice: The columns with the text that the user named, and how a text is made of them.
    """

    columns: NamedColumns
    meter: Meter
    name: str
    path: str | None = None
    text_columns: tuple[str, ...] = ()
    id_column: str | None = None
    source_column: str | None = None
    numbers: Iterator[int] = field(default_factory=count)
    columns_with_text: set[Any] = field(default_factory=set)
    dialect: Dialect | None = None
    header_end: int = 0
    text_choice: Columns = field(init=False)

    def __post_init__(self) -> None:
        self.text_choice = self.columns.text_columns

    def read_stdin(self) -> Iterator[Record]:
        return self.make_records(self.read_stdin_rows(standard_input()))

    def read_stdin_rows(self, stream: Iterable[bytes], *, at_once: bool = False) -> Iterator[Row]:
        """Read standard input as JSON lines if a column is named, else as text, and yield the rows.

        With ``at_once``, each row is yielded before the next line is read.
        """
        if self.columns.all_names:
            rows = json_rows(stream, self.name, self.meter, suffix=".jsonl")
            return self.with_columns_at_once(rows) if at_once else self.with_columns(rows)
        lines = iter(stream)
        first_line = next(lines, b"")  # empty if the stream is empty
        if first_line.lstrip().startswith(b'{"'):
            raise InputError(
                f"{self.name} contains JSON: name the column with the text, such as --column text, or save "
                "it as a .txt file if each line is a text"
            )
        return self.read_rows(chain([first_line], lines), suffix="")  # lines of text

    def read_hub(self, name: str) -> Iterator[Record]:
        with open_hub(name) as rows:
            described_splits = rows.info.splits or {}  # a data set need not describe them
            split = str(rows.split)
            if split in described_splits:
                self.meter.total = described_splits[split].num_examples
            yield from self.make_records(self.rows_of_values(rows))

    def read_file(self, path: Path, size: int | None = None) -> Iterator[Record]:
        """Yield the records of a file, whose extension names the format.

        ``size`` is the size of a single file in bytes. For the files of a folder, ``size`` is None, because
        the meter already has the total size.
        """
        if size is not None:
            self.meter.total = size
        suffix, is_compressed = format_of(path)
        self.text_columns = ()  # each file of a folder may have other columns
        self.path = _make_printable(path)
        self.name = self.path
        if suffix == PARQUET:
            yield from self.make_records(self.read_parquet_rows(path))
            return
        done_before = self.meter.done
        with open_rows_file(path) as (stream, file):
            if not is_compressed:
                yield from self.make_records(self.read_rows(stream, suffix, path))
                return
            # Only the size of the compressed file is known, so progress is counted in compressed bytes.
            for row in self.read_rows(stream, suffix, path):
                self.meter.done = done_before + file.tell()
                yield self.make_record(row)
            self.meter.done = done_before + file.tell()

    def read_rows(self, stream: Iterable[bytes], suffix: str, path: Path | None = None) -> Iterator[Row]:
        """Yield the rows of a JSON, CSV, TSV or plain text file.

        Args:
            stream: The lines of the file.
            suffix: The file's extension, such as ``.csv``.
            path: The file; None for standard input, which is neither CSV nor TSV.
        """
        if suffix in JSON:
            return self.with_columns(json_rows(stream, self.name, self.meter, suffix))
        if suffix in SEPARATORS and path is not None:
            delimiter = self.text_choice.delimiter
            self.dialect = dialect_of(path, suffix, delimiter)
            rows = read_separated_rows(
                stream, self.name, self.meter, self.dialect, named_delimiter=delimiter is not None
            )
            return self.with_columns(rows)
        return text_rows(stream, self.name, self.meter)

    def with_columns(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Choose the columns by the first `_ROWS_TO_CHOOSE_BY` rows, and then yield all rows.

        The header of a CSV or TSV file, which is its first row, is not yielded.
        """
        first_rows = list(islice(rows, _ROWS_TO_CHOOSE_BY))
        header: tuple[str, ...] = ()
        if first_rows and isinstance(first_rows[0].value, tuple):  # only of a CSV or TSV file
            header_row = first_rows.pop(0)
            header = header_row.value
            self.header_end = header_row.end
        objects = [row.value for row in first_rows if isinstance(row.value, Mapping)]
        if objects or header:
            self.choose_columns(objects, header)
        elif first_rows and self.columns.all_names:
            raise InputError(f"{self.name} has no columns: its rows are not objects")
        yield from chain(first_rows, rows)

    def with_columns_at_once(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Yield each row before the next is read: who writes to standard input may wait for an answer.

        The columns are chosen by the first object alone, which may lack a column that the user named. If none
        of the first `_ROWS_TO_CHOOSE_BY` rows has this column, the error is raised after these rows, or at
        the end of a shorter stream.
        """
        first_rows = []
        objects: list[Mapping[Any, Any]] = []
        for row in islice(rows, _ROWS_TO_CHOOSE_BY):
            first_rows.append(row)
            if isinstance(row.value, Mapping):
                objects.append(row.value)
                if len(objects) == 1:
                    self._set_columns(objects, header=())
                else:
                    self._note_unread([row.value])
            yield row
        if objects:
            self._require_named_columns(_collect_columns(objects))
        elif first_rows:
            raise InputError(f"{self.name} has no columns: its rows are not objects")
        yield from rows

    def make_records(self, rows: Iterable[Row]) -> Iterator[Record]:
        """Yield the record of each row; see `make_record`."""
        for row in rows:
            yield self.make_record(row)

    def make_record(self, row: Row) -> Record:
        """Return the document of a row, or a `Skipped` that says why the row cannot be read.

        Raises:
            InputError: An object has a key twice, so that programs differ in what they read.
        """
        number = next(self.numbers)
        self.meter.records += 1
        value = row.value
        if isinstance(value, Skipped):
            return replace(value, line=row.line)
        if isinstance(value, str):  # the whole row is a text, in no column
            text = unicode_text(value)
            return Document(
                number=number, id=row.place, text=text, path=self.path, line=row.line, parts=(text,)
            )
        place = row.place if self.path is None else f"{self.path}, {row.place}"
        if not isinstance(value, Mapping):
            return Skipped(place, f"JSON of type {type(value).__name__}, not an object")
        if not self.text_columns:
            return Skipped(place, "an object, although the first rows are texts")
        self._note_unread([value])
        value_of_column = {column: value_at(value, column) for column in self.text_columns}
        document_id = value_at(value, self.id_column) if self.id_column else None
        source = value_at(value, self.source_column) if self.source_column else None
        # If a value was looked up in a nested object that has a key twice, `value_at` returned this object.
        for value_read in (value, *value_of_column.values(), document_id, source):
            if isinstance(value_read, RepeatedKeys):
                line = "" if row.line is None else f", line {row.line}"
                raise InputError(f"{self.name}{line}: the key {value_read.key!r} occurs twice: remove one")
        problem = _describe_problem(value_of_column)
        if problem:
            return Skipped(place, problem)
        # If there are several text columns, a record may lack some of them.
        texts = {
            column: unicode_text(text) for column, text in value_of_column.items() if isinstance(text, str)
        }
        filled = self.text_choice.fill(texts)
        return Document(
            number=number,
            id=unicode_text(row.place if document_id is None else str(document_id)),
            text=filled.text,
            source=None if source in (None, "") else unicode_text(str(source)),
            path=self.path,
            line=row.line,
            columns=tuple(texts),
            parts=tuple(texts.values()),
            starts=tuple(filled.starts.values()),
        )

    def read_parquet_rows(self, path: Path) -> Iterator[Row]:
        """Yield the rows of a Parquet file, with only the needed columns."""
        file = ParquetFile(path)
        columns_with_text = file.columns_with_text()
        self.choose_columns(file.first_rows(columns_with_text, _ROWS_TO_CHOOSE_BY), file.columns)
        # The column of the file to read, keyed by the name that the user or this reader chose. A nested field
        # is read with the column that contains it. The source column may be missing.
        column_of: dict[str, str] = {}
        for name in (*self.text_columns, self.id_column, self.source_column):
            column = None if name is None else column_with(name, file.columns)
            if name is not None and column is not None:
                column_of[name] = column
        for name in self.text_columns:
            column = column_of[name]
            if column not in columns_with_text:
                raise InputError(f"column {name!r} of {self.name} contains {file.type_of(column)}, not text")
        distinct_columns = list(dict.fromkeys(column_of.values()))
        # The rows that are read lack the other columns, in which text may begin later.
        known_columns = self.columns_with_text.union(distinct_columns)
        other_columns = [column for column in columns_with_text if column not in known_columns]
        for values in file.filled_rows(other_columns):
            self._note_unread([values])
        return file.rows(distinct_columns, self.meter)

    def rows_of_values(self, values: Iterable[Any]) -> Iterator[Row]:
        """Yield a row for each text or mapping in an iterable.

        The columns are chosen from the first mapping. If a value is neither a text nor a mapping, its row
        contains a `Skipped`.

        The place of a row, by which messages refer to it, is also the id of its document, unless the row has
        an id column. The place of a text is its 0-based index, with which the caller finds the text in the
        list. A mapping is a row of a table, so its place is "row 1", "row 2" and so on, as in a Parquet file.
        """
        for index, value in enumerate(values):
            self.meter.done += 1
            place = f"row {index + 1}"
            if isinstance(value, str):
                if self.columns.all_names:
                    raise InputError(f"{self.name} have no columns: do not pass names of columns")
                yield Row(str(index), line=None, value=value)
            elif isinstance(value, Mapping):
                if not self.text_columns:
                    self.choose_columns([value])
                yield Row(place, line=None, value=value)
            else:
                yield Row(place, line=None, value=Skipped(place, f"the text is {_describe_type(value)}"))

    def choose_columns(self, objects: Sequence[Mapping[Any, Any]], header: Sequence[str] = ()) -> None:
        """Set `text_columns`, `id_column` and `source_column`.

        In the BEIR layout (``_id``, ``title`` and ``text``), a document consists of its title and its text.

        Args:
            objects: The first rows.
            header: The columns, if the format names them; otherwise they are the keys of the first rows.

        Raises:
            InputError: A column that the user named is missing, or the text column cannot be determined.
        """
        self._require_named_columns(_collect_columns(objects, header))
        self._set_columns(objects, header)

    def _require_named_columns(self, present: Sequence[str]) -> None:
        for name in self.columns.all_names:
            if column_with(name, present) is None:
                listed = ", ".join(present) or "none"
                raise InputError(f"{self.name} has no column {name!r}: it has {listed}")

    def _set_columns(self, objects: Sequence[Mapping[Any, Any]], header: Sequence[str]) -> None:
        """Set the columns as `choose_columns` does, without checking that the named columns are present."""
        present = _collect_columns(objects, header)
        textual = {str(key) for values in objects for key, value in values.items() if isinstance(value, str)}
        textual = textual or set(header)  # without rows, any column of the header may have strings
        usual_ids = [name for name in ID_NAMES if name in present]
        self.id_column = self.columns.id_column or next(iter(usual_ids), None)
        self.source_column = self.columns.source_column
        if self.source_column is None and len(present) > 1:  # a single column is the text
            usual_sources = [name for name in _SOURCE_NAMES if name in present]
            free_sources = [name for name in usual_sources if name not in self.text_choice.names]
            self.source_column = next(iter(free_sources), None)
        is_beir = "_id" in present and textual.issuperset(("title", "text")) and not self.columns.queries
        if self.text_choice.names:
            self.text_columns = self.text_choice.names
        elif self.columns.sentence_pairs and textual.issuperset(PAIR_NAMES):
            self.text_columns = PAIR_NAMES
        elif is_beir:
            self.text_columns = ("title", "text")
        elif objects or textual.intersection(self.columns.usual_names):
            self.text_columns = (self._find_text_column(objects, present, textual),)
        # Otherwise there are no rows. A header without a usual name is no error then: `text_columns` stays
        # empty.
        for column in self.text_columns:
            if column not in self.meter.columns:
                self.meter.columns.append(column)
        self.columns_with_text = set()  # forget the columns of an earlier file
        self._note_unread(objects)

    def _note_unread(self, objects: Iterable[Mapping[Any, Any]]) -> None:
        """Add columns that contain text and are not read to the meter, whose summary names them.

        Text may begin in any row. In a column in which an earlier call found text, none is looked for.
        """
        column_of_field: dict[str, Any] = {}
        for values in objects:
            for column, value in values.items():
                if column not in self.columns_with_text:
                    column_of_field |= dict.fromkeys(fields_with_text({column: value}), column)
        if column_of_field:
            self.columns_with_text.update(column_of_field.values())
            used_or_noted = {*self.text_columns, self.id_column, self.source_column, *self.meter.unread}
            self.meter.unread += [name for name in column_of_field if name not in used_or_noted]

    def _find_text_column(
        self, objects: Sequence[Mapping[Any, Any]], present: Sequence[str], textual: set[str]
    ) -> str:
        """Return the text column with a usual name, or else the only column that can hold the text.

        ``present`` has the names of all columns, ``textual`` those of the columns with strings, which may be
        blank or numbers.
        """
        for name in self.columns.usual_names:
            if name in textual:
                return name
        with_text = list(dict.fromkeys(name for values in objects for name in fields_with_text(values)))
        other_uses = (self.id_column, self.source_column, "title")
        # A nested field is not among the columns. It is used only if the user names it.
        candidates = [name for name in with_text if name in present and name not in other_uses]
        if len(candidates) == 1:
            return candidates[0]
        if not with_text:
            raise InputError(
                f"no column of {self.name} contains text (columns: {', '.join(present) or 'none'})"
            )
        advice = "Pass the name of the column as column (in a command, --column)"
        if self.columns.queries:  # whoever passes queries can name the columns of documents only
            advice = f"Rename the column with the queries to {_QUERY_NAMES[0]!r}"
        raise InputError(
            f"which column of {self.name} contains the text? {advice}. Columns: {', '.join(present)}; with "
            f"text: {', '.join(with_text)}"
        )


def _collect_columns(objects: Iterable[Mapping[Any, Any]], header: Sequence[str] = ()) -> list[str]:
    keys = (str(key) for values in objects for key in values)
    return list(dict.fromkeys([*header, *keys]))


def column_with(name: str, present: Sequence[str]) -> str | None:
    """Return the column with this name, or the column that contains the nested field with this name.

    For ``metadata.summary``, this may be the column ``metadata``. The result is None if neither is present.
    """
    column = name
    while column not in present:  # of "a.b.c", try "a.b", then "a"
        column, dot, _ = column.rpartition(".")
        if not dot:
            return None
    return column


def _describe_problem(value_of_column: Mapping[str, Any]) -> str:
    """Return why a record has no text, by the values of its text columns; empty if it has one."""
    for column, value in value_of_column.items():
        if value is not None and not isinstance(value, str):
            return f"column {column!r} is {_describe_type(value)}"
    if any(value is not None for value in value_of_column.values()):
        return ""
    if len(value_of_column) == 1:
        return f"column {next(iter(value_of_column))!r} is missing"
    return f"columns {' and '.join(value_of_column)} are missing"


def _describe_type(value: object) -> str:
    return "missing" if value is None else f"{type(value).__name__}, not text"
