"""Open documents from any supported source."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from stickytoken.errors import InputError
from stickytoken.scanning.reading._files import collection_in
from stickytoken.scanning.reading._given import given_collection
from stickytoken.scanning.reading._hub import HUB, hub_collection
from stickytoken.scanning.reading._json_lines import json_documents
from stickytoken.scanning.reading._text_file import line_documents
from stickytoken.scanning.reading.columns import Wanted
from stickytoken.scanning.reading.documents import Collection, Meter, Numbering, Record
from stickytoken.validation import file_path

STDIN = "-"
_STDIN_NAME = "standard input"

DocumentSource: TypeAlias = str | Path | Iterable[Any]


def open_documents(source: DocumentSource, wanted: Wanted) -> Collection:
    """Return the documents that a source names.

    Args:
        source: A file or folder; ``hub:REPOSITORY`` or ``hub:REPOSITORY@SPLIT``; ``-`` for standard input:
            one document per line, or with columns one JSON object per line; or the documents themselves:
            texts, mappings, or a table.
        wanted: Names of columns.

    Raises:
        InputError: It cannot be read.
        MissingExtraError: A data set of the Hub without the extra ``hub``.
    """
    for name in (wanted.text, wanted.id, wanted.source):
        if name is not None and not isinstance(name, str):
            raise InputError(f"a column is {name!r}: pass the name of a column")
    if not isinstance(source, (str, Path)):
        return given_collection(source, wanted)
    if source == STDIN:
        return Collection(_STDIN_NAME, lambda meter: _stdin(wanted, meter), STDIN)
    if isinstance(source, str) and source.startswith(HUB):
        return hub_collection(source.removeprefix(HUB), wanted)
    return collection_in(file_path("documents", source), wanted)


def _stdin(wanted: Wanted, meter: Meter) -> Iterator[Record]:
    stream = sys.stdin.buffer
    if wanted.named:
        return json_documents(stream, _STDIN_NAME, None, wanted, Numbering(), meter)
    return line_documents(stream, _STDIN_NAME, None, Numbering(), meter)
