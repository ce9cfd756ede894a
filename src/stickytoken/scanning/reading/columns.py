"""Find the columns with the text, the id and the source of a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stickytoken.errors import InputError
from stickytoken.scanning.reading.documents import Document, Skipped, unicode_text

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

    Args:
        present: The columns of the table.
        wanted: Those that the user names.
        name: The table, in messages.
        textual: The columns that hold text.

    Raises:
        InputError: A named column is missing, or no column, or more than one, could be the text.
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
    """Turn a row of a table into a document.

    Args:
        values: The row.
        columns: Which of its columns to read.
        number: Its place in the collection.
        path: The file that it is in.
        place: Where in the file it is.
    """
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
