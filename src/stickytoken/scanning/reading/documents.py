"""What is read from a collection: documents, and records that are not documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias


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
