"""Documents of a file of any kind, and of a folder of files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from stickytoken.errors import InputError
from stickytoken.scanning.reading._json_lines import json_documents
from stickytoken.scanning.reading._parquet import parquet_documents
from stickytoken.scanning.reading._separated import separated_documents
from stickytoken.scanning.reading._text_file import line_documents, whole_file
from stickytoken.scanning.reading.columns import Wanted
from stickytoken.scanning.reading.documents import Collection, Meter, Numbering, Record, Skipped

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_JSON_LINES = (".jsonl", ".ndjson")
_PARQUET = ".parquet"
_TABLES = (*_SEPARATORS, *_JSON_LINES, _PARQUET)
_LINES = (".txt", "")
_BEIR_CORPUS, _BEIR_QUERIES = "corpus.jsonl", "queries.jsonl"


def collection_in(path: Path, wanted: Wanted) -> Collection:
    """Return the documents of a file or folder."""
    try:
        if path.is_dir():
            return _folder(path, wanted)
        if not path.is_file():
            raise InputError(f"no file or folder {str(path)!r}")
        size = path.stat().st_size
        with path.open("rb"):
            pass
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    suffix = path.suffix.lower()
    if suffix not in (*_TABLES, *_LINES):
        raise InputError(f"{path} has the ending {suffix!r}: use .txt, {', '.join(_TABLES)}, or a folder")
    if suffix in _LINES and wanted.named:
        raise InputError(f"{path} is a text file without columns: leave the names of columns out")

    def read(meter: Meter) -> Iterator[Record]:
        meter.total = size
        return _file_records(path, wanted, Numbering(), meter)

    return Collection(str(path), read, str(path.absolute()))


def _file_records(path: Path, wanted: Wanted, numbering: Numbering, meter: Meter) -> Iterator[Record]:
    """Read a table, or a text file with a document on each line."""
    suffix, name = path.suffix.lower(), _shown(path)
    if suffix == _PARQUET:
        yield from parquet_documents(path, wanted, numbering, meter)
        return
    try:
        with path.open("rb") as stream:
            if suffix in _JSON_LINES:
                yield from json_documents(stream, name, name, wanted, numbering, meter)
            elif suffix in _SEPARATORS:
                yield from separated_documents(stream, name, _SEPARATORS[suffix], wanted, numbering, meter)
            else:
                yield from line_documents(stream, name, name, numbering, meter)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def _folder(folder: Path, wanted: Wanted) -> Collection:
    """Return the documents of a folder: those in its tables, and every other file as one document.

    In the layout of BEIR, only corpus.jsonl holds documents.
    """
    beir = (folder / _BEIR_CORPUS).is_file() and (folder / _BEIR_QUERIES).is_file()
    paths = (
        [folder / _BEIR_CORPUS]
        if beir
        else [path for path in sorted(folder.rglob("*")) if _counts(path, folder)]
    )
    if not paths:
        raise InputError(f"{folder} contains no files: pass a folder of documents")

    def read(meter: Meter) -> Iterator[Record]:
        meter.total = sum(_size(path) for path in paths)
        numbering = Numbering()
        for path in paths:
            if path.suffix.lower() in _TABLES:
                yield from _table_in_folder(path, wanted, numbering, meter)
            else:
                inside = path.relative_to(folder)
                source = _shown(Path(inside.parts[0])) if len(inside.parts) > 1 else None
                yield from whole_file(path, _shown(path), _shown(inside), source, numbering, meter)

    return Collection(str(folder), read, str(folder.absolute()))


def _table_in_folder(path: Path, wanted: Wanted, numbering: Numbering, meter: Meter) -> Iterator[Record]:
    """Read a table; one that cannot be read costs none of the others."""
    end = meter.done + _size(path)
    try:
        yield from _file_records(path, wanted, numbering, meter)
    except InputError as error:
        yield Skipped(_shown(path), str(error))
    meter.done = end


def _counts(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return not hidden and path.is_file()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _shown(path: Path) -> str:
    """Return the name of a file as valid Unicode."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
