"""Cut a stream of records into batches, each with a digest of its content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stickytoken.scanning.reading.documents import Document, Record, Skipped

_DOCUMENTS = 1024
_CHARACTERS = 4_000_000


@dataclass(frozen=True, slots=True)
class Batch:
    """Neighbouring records.

    Attributes:
        index: Place of the batch, from 0.
        documents: Its documents.
        skipped: Records that are no documents.
        keys: A hash of each document's text, to sample by.
        digest: SHA-256 of all of it.
    """

    index: int
    documents: tuple[Document, ...]
    skipped: tuple[Skipped, ...]
    keys: tuple[bytes, ...]
    digest: str

    @property
    def texts(self) -> list[str]:
        """The texts."""
        return [document.text for document in self.documents]


def batched(records: Iterable[Record]) -> Iterator[Batch]:
    """Yield batches of up to 1,024 records and, but for a single record, about 4 MB."""
    index, size = 0, 0
    pending: list[Record] = []
    for record in records:
        pending.append(record)
        size += len(record.text) if isinstance(record, Document) else 0
        if len(pending) >= _DOCUMENTS or size >= _CHARACTERS:
            yield _batch(index, pending)
            index, size, pending = index + 1, 0, []
    if pending:
        yield _batch(index, pending)


def _batch(index: int, records: list[Record]) -> Batch:
    documents = tuple(record for record in records if isinstance(record, Document))
    skipped = tuple(record for record in records if isinstance(record, Skipped))
    keys = tuple(hashlib.sha256(document.text.encode()).digest() for document in documents)
    digest = hashlib.sha256()
    for document, key in zip(documents, keys, strict=True):
        fields = (document.number, document.id, document.source, document.path, document.line)
        digest.update(repr(fields).encode() + key)
    for each in skipped:
        digest.update(repr((each.place, each.reason)).encode())
    return Batch(index, documents, skipped, keys, digest.hexdigest())
