"""Documents of a text file: one per line, or the whole file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from stickytoken.scanning.reading._lines import UnreadableError, decoded, decoded_bytes, lines
from stickytoken.scanning.reading.columns import Place
from stickytoken.scanning.reading.documents import Document, Meter, Numbering, Record, Skipped


def line_documents(
    stream: BinaryIO, name: str, path: str | None, numbering: Numbering, meter: Meter
) -> Iterator[Record]:
    """Yield each line that is not blank as a document."""
    for line in lines(stream, name, meter):
        if not line.content.strip():
            continue
        number = numbering.take()
        try:
            yield Document(number, f"line {line.number}", decoded(line), None, path, line.number)
        except UnreadableError as error:
            yield Skipped(Place(line=line.number).named(name), str(error))


def whole_file(
    path: Path, name: str, identifier: str, source: str | None, numbering: Numbering, meter: Meter
) -> Iterator[Record]:
    """Yield a file as one document, unless it is blank.

    Args:
        path: The file.
        name: The same, as valid Unicode.
        identifier: Its name in the folder.
        source: Where it came from.
        numbering: Counts the records.
        meter: Counts the bytes.
    """
    number = numbering.take()
    try:
        content = path.read_bytes()
    except OSError as error:
        yield Skipped(name, f"cannot be read: {error.strerror or error}")
        return
    meter.done += len(content)
    try:
        text = decoded_bytes(content).removeprefix("\ufeff")
    except UnreadableError as error:
        yield Skipped(name, str(error))
        return
    if text.strip():
        yield Document(number, identifier, text, source, name, 1, True)
