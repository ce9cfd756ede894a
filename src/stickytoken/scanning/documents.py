"""What is read from a collection: documents, and records that are not documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from stickytoken.errors import InputError
from stickytoken.validation import shown


@dataclass(frozen=True, slots=True)
class Document:
    """One document.

    Attributes:
        number: Place in the collection, from 0; records that were skipped count.
        id: Its own id, or its place: a line, a row or a file name.
        text: The text; valid Unicode.
        source: Where it came from, if the collection says so.
        path: The file that it is in; None for texts from elsewhere.
        line: Line of the file, from 1, where it begins.
        whole: Whether it is the whole file, so that its lines are those of the file.
    """

    number: int
    id: str
    text: str
    source: str | None = None
    path: str | None = None
    line: int | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Skipped:
    """A record without readable text.

    Attributes:
        place: The file and the line or row.
        reason: What is wrong, with the byte where it is known.
    """

    place: str
    reason: str


Record: TypeAlias = Document | Skipped


@dataclass(slots=True)
class Meter:
    """How much of a collection has been read.

    Attributes:
        done: Bytes, rows or texts that were read.
        total: All of them; None where nobody knows.
    """

    done: int = 0
    total: int | None = None

    @property
    def share(self) -> float | None:
        """The share that was read; None where the total is not known."""
        return None if not self.total else min(1.0, self.done / self.total)


class Reader(Protocol):
    """Reads the records of a collection once."""

    def __call__(self, meter: Meter) -> Iterator[Record]:
        """Yield the records in order, and keep the meter up to date."""


@dataclass(frozen=True, slots=True)
class Collection:
    """Documents to scan.

    Attributes:
        name: Name in messages.
        read: Reads them; a stream can be read only once.
        key: What tells this collection from others: where it lies, not what is in it.
    """

    name: str
    read: Reader
    key: str


@dataclass(slots=True)
class Numbering:
    """Gives each record its place in the collection."""

    next: int = field(default=0)

    def take(self) -> int:
        """Return the place of the next record."""
        number = self.next
        self.next += 1
        return number


def unicode_text(text: str) -> str:
    """Replace lone surrogates, which are not valid in UTF-8 or Parquet files."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


_TEXTS = ("text", "document", "content", "passage", "body", "sentence")
_IDS = ("_id", "id", "doc_id", "docid", "document_id")
_SOURCE = "source"
_TITLE = "title"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Columns that the user names; None for those to be found by name."""

    text: str | None = None
    id: str | None = None
    source: str | None = None

    @property
    def named(self) -> bool:
        """Whether any column is named."""
        return any((self.text, self.id, self.source))


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of one table.

    Attributes:
        texts: The columns whose texts make a document, joined by a space.
        id: The column with the id, if any.
        source: The column with the source, if any.
    """

    texts: tuple[str, ...]
    id: str | None
    source: str | None

    @property
    def all(self) -> list[str]:
        """Every column that is read."""
        return list(dict.fromkeys([*self.texts, *filter(None, (self.id, self.source))]))


def choose_columns(present: Sequence[str], wanted: Wanted, name: str, textual: Sequence[str]) -> Columns:
    """Choose the columns of a table.

    In the layout of BEIR (``_id``, ``title`` and ``text``), a document is its title and its text.
    """
    listed = ", ".join(present) or "none"
    for column in filter(None, (wanted.text, wanted.id, wanted.source)):
        if column not in present:
            raise InputError(f"{name} has no column {column!r}: it has {listed}")
    identifier = wanted.id or next((each for each in _IDS if each in present), None)
    source = wanted.source or (_SOURCE if _SOURCE in present and wanted.text != _SOURCE else None)
    if wanted.text is not None:
        return Columns((wanted.text,), identifier, source)
    if "_id" in present and _TITLE in textual and "text" in textual:
        return Columns((_TITLE, "text"), identifier, source)
    usual = next((each for each in _TEXTS if each in textual), None)
    others = [each for each in textual if each not in (identifier, source, _TITLE)]
    if usual is None and len(others) != 1:
        raise InputError(
            f"which column of {name} contains the text? It has {listed}: name it with the column option"
        )
    return Columns((usual or others[0],), identifier, source)


def record_of(
    values: Mapping[str, Any], columns: Columns, number: int, path: str | None, place: Place
) -> Document | Skipped:
    """Turn a row of a table into a document."""
    texts = []
    for column in columns.texts:
        text = values.get(column)
        if isinstance(text, str):
            texts.append(text)
        elif text is not None or len(columns.texts) == 1:
            what = "missing" if text is None else f"{type(text).__name__}, not text"
            return Skipped(place.named(path), f"column {column!r} is {what}")
    if not texts:
        return Skipped(place.named(path), f"columns {' and '.join(columns.texts)} are missing")
    identifier = None if columns.id is None else values.get(columns.id)
    source = None if columns.source is None else values.get(columns.source)
    return Document(
        number,
        unicode_text(str(place) if identifier is None else str(identifier)),
        unicode_text(" ".join(texts)),
        None if source is None else unicode_text(str(source)),
        path,
        place.line,
    )


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a file a record is.

    Attributes:
        line: Its line, from 1, if the file has lines.
        row: Its row, from 1, if the file has none.
    """

    line: int | None = None
    row: int | None = None

    def __str__(self) -> str:
        return f"line {self.line}" if self.line is not None else f"row {self.row}"

    def named(self, path: str | None) -> str:
        """Name the file too, if there is one."""
        return str(self) if path is None else f"{path}, {self}"


_NAME = "the given texts"


def given_collection(values: Iterable[Any], wanted: Wanted) -> Collection:
    """Return documents from texts, from mappings such as the rows of a data set, or from a table."""
    if isinstance(values, (bytes, bytearray, Mapping)):
        raise InputError(f"documents is {shown(values)}: pass a list of texts, a table, or a file")
    rows = _rows_of(values)
    try:
        iter(rows)
    except TypeError:
        raise InputError(f"documents is {shown(values)}: pass a list of texts, a table, or a file") from None

    def read(meter: Meter) -> Iterator[Record]:
        meter.total = len(values) if isinstance(values, Sized) else None
        return _records(rows, wanted, meter)

    return Collection(_NAME, read, _NAME)


def _rows_of(values: Any) -> Iterable[Any]:
    """Return the rows of a Polars, pandas or Arrow table; anything else as it is."""
    for method, options in (
        ("iter_rows", {"named": True}),
        ("to_pylist", {}),
        ("to_dict", {"orient": "records"}),
    ):
        if hasattr(values, "columns") and callable(read := getattr(values, method, None)):
            rows: Iterable[Any] = read(**options)
            return rows
    found: Iterable[Any] = values
    return found


def _records(rows: Iterable[Any], wanted: Wanted, meter: Meter) -> Iterator[Record]:
    numbering, columns = Numbering(), None
    for value in rows:
        number = numbering.take()
        meter.done += 1
        place = Place(row=number + 1)
        if isinstance(value, str):
            if wanted.named:
                raise InputError("the given texts have no columns: leave the names of columns out")
            yield Document(number, str(number), unicode_text(value))
        elif isinstance(value, Mapping):
            columns = columns or _columns(value, wanted)
            yield record_of(value, columns, number, None, place)
        else:
            what = "missing" if value is None else f"{type(value).__name__}, not text"
            yield Skipped(str(place), f"the text is {what}")


def _columns(row: Mapping[Any, Any], wanted: Wanted) -> Columns:
    present = [str(key) for key in row]
    textual = [str(key) for key, value in row.items() if isinstance(value, str)]
    return choose_columns(present, wanted, _NAME, textual)
