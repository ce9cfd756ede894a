"""Sentences from a user's file."""

from __future__ import annotations

import codecs
import csv
import io
import json
from pathlib import Path

import polars as pl

from stickytoken.corpora.corpus import Sentences, collect_sentences
from stickytoken.errors import InputError, MissingExtraError

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_SHOWN_REASON = 200


def read_table(path: Path) -> pl.DataFrame:
    """Read a csv, tsv, jsonl or parquet file."""
    content = read_bytes(path)
    suffix = path.suffix.lower()
    if suffix != ".parquet":
        text = decode(content, path)
        if suffix in _SEPARATORS:
            _require_distinct_columns(text, _SEPARATORS[suffix], path)
        content = text.encode()
    try:
        if suffix == ".parquet":
            return pl.read_parquet(content)
        if suffix in (".jsonl", ".ndjson"):
            return pl.read_ndjson(content, infer_schema_length=None)
        return pl.read_csv(content, separator=_SEPARATORS[suffix], infer_schema=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
        lines = suffix in (".jsonl", ".ndjson")
        reason = (_no_json(content) if lines else None) or " ".join(str(error).split())[:_SHOWN_REASON]
        raise InputError(f"{path} is not a readable {suffix.lstrip('.')} file: {reason}") from error


def _require_distinct_columns(text: str, separator: str, path: Path) -> None:
    """Refuse a header that names a column twice; polars would rename one silently."""
    try:
        header = next(csv.reader(io.StringIO(text.lstrip("\r\n")), delimiter=separator), [])
    except csv.Error:  # no table: reading it says what is wrong
        return
    if repeated := next((name for name in header if header.count(name) > 1), None):
        raise InputError(f"{path} has two columns called {repeated!r}: rename or remove one")


def _no_json(content: bytes) -> str | None:
    """Describe the first line that is not JSON; None if all lines are."""

    def refuse(constant: str) -> float:
        raise ValueError(f"{constant} is not a number in JSON: leave the line out")

    for number, line in enumerate(content.decode().split("\n"), start=1):
        try:
            if line.strip():
                json.loads(line, parse_constant=refuse)
        except ValueError as error:
            return f"line {number}: {error}"
    return None


def read_bytes(path: Path) -> bytes:
    """Read a whole file."""
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder: pass a file")
        if not path.is_file():
            raise InputError(f"no file {str(path)!r}")
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    if not content.strip():
        raise InputError(f"{path} is empty")
    return content


def decode(content: bytes, path: Path) -> str:
    """Decode UTF-8, with or without a byte-order mark."""
    try:
        text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text (byte {error.start}): convert it, or pass another file"
        ) from error
    if "\0" in text:
        raise InputError(f"{path} is a binary file, not text")
    return text


def text_column(frame: pl.DataFrame, column: str, path: str) -> list[str | None]:
    """Return the values of a text column."""
    if column not in frame.columns:
        raise InputError(f"{path} has no column {column!r}: it has {', '.join(frame.columns) or 'none'}")
    values = frame[column]
    if values.dtype != pl.String:
        raise InputError(f"column {column!r} of {path} contains {values.dtype}, not text")
    return values.to_list()


_USUAL_COLUMNS = (("sentence1", "sentence2"), ("sentence",), ("text",))


def sentences_from_file(path: Path, column: str | None = None) -> Sentences:
    """Read sentences from txt (one per line), csv, tsv, jsonl or parquet.

    Args:
        path: The file.
        column: The column with the sentences; None takes ``sentence1`` and ``sentence2``,
            ``sentence``, ``text``, or the only text column.

    Raises:
        InputError: The file or the column cannot be used.
    """
    suffix = path.suffix.lower()
    if suffix in TABLE_SUFFIXES:
        frame = read_table(path)
        columns = (column,) if column else text_columns(frame, str(path))
        texts = [text for name in columns for text in text_column(frame, name, str(path))]
        return collect_sentences(texts, str(path))
    if suffix not in (".txt", ""):
        raise InputError(f"{path} has the ending {suffix!r}: use .txt, {', '.join(TABLE_SUFFIXES)}")
    if column is not None:
        raise InputError(f"{path} is a text file without columns: leave the column out")
    return collect_sentences(io.StringIO(decode(read_bytes(path), path), newline=None), str(path))


def all_texts(path: Path, column: str | None = None) -> tuple[list[str | None], pl.DataFrame | None]:
    """Read every text of a file in order, including repeated and blank ones."""
    if path.suffix.lower() not in TABLE_SUFFIXES:
        if column is not None:
            raise InputError(f"{path} is a text file without columns: leave the column out")
        # Only line ends separate texts: a form feed or a paragraph separator is part of one.
        lines = io.StringIO(decode(read_bytes(path), path), newline=None)
        return [line.removesuffix("\n") for line in lines], None
    frame = read_table(path)
    columns = (column,) if column else text_columns(frame, str(path))
    if len(columns) > 1:
        raise InputError(f"{path} has several text columns: name one of {', '.join(columns)}")
    return text_column(frame, columns[0], str(path)), frame.drop(columns)


def text_columns(frame: pl.DataFrame, path: str) -> tuple[str, ...]:
    """Choose the columns that usually hold sentences, or the only text column."""
    for names in _USUAL_COLUMNS:
        if all(name in frame.columns for name in names):
            return names
    strings = [
        name for name, dtype in frame.schema.items() if dtype == pl.String and not _numeric(frame[name])
    ]
    if len(strings) == 1:
        return (strings[0],)
    raise InputError(
        f"which column of {path} contains the sentences? It has {', '.join(frame.columns) or 'none'}: "
        "name one with the column option"
    )


def _numeric(values: pl.Series) -> bool:
    """Check whether a text column, as read from csv, holds only numbers."""
    present = values.drop_nulls()
    return len(present) > 0 and present.str.strip_chars().cast(pl.Float64, strict=False).null_count() == 0


PAPER_NAME = "paper"
# The datasets of the published runs; of multilingual ones the English configuration is read.
PAPER_DATASETS = (
    "mteb/sts13-sts",
    "mteb/sts22-crosslingual-sts",
    "mteb/sts12-sts",
    "mteb/stsbenchmark-sts",
    "mteb/sickr-sts",
    "mteb/sts14-sts",
    "mteb/biosses-sts",
    "mteb/sts16-sts",
    "mteb/sts15-sts",
    "mteb/stsb_multi_mt",
    "mteb/sts17-crosslingual-sts",
)
_ENGLISH_CONFIGURATIONS = ("en", "en-en")


def sentences_from_hub(names: tuple[str, ...], column: str | None = None) -> Sentences:
    """Read sentences from one or more Hub datasets.

    Args:
        names: Repositories, each optionally followed by ``@split``; the test split by default.
        column: The column with the sentences; None chooses as for files.

    Raises:
        MissingExtraError: `datasets` is not installed.
        InputError: A dataset cannot be reached or has no such column.
    """
    texts: list[str | None] = []
    for name in names:
        repository, _, split = name.partition("@")
        if not repository.strip():
            raise InputError(
                f"{'hub:' + name!r} names no data set: pass hub:REPOSITORY, or hub:REPOSITORY@SPLIT"
            )
        frame = _load(repository, split or "test")
        columns = (column,) if column else text_columns(frame, name)
        texts += [text for each in columns for text in text_column(frame, each, name)]
    shown = names[0] if len(names) == 1 else f"{len(names)} hub data sets"
    return collect_sentences(texts, shown)


def _load(repository: str, split: str) -> pl.DataFrame:
    try:
        import datasets
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise MissingExtraError(f"reading {repository} from the hub", "hub") from error
    try:
        configurations = datasets.get_dataset_config_names(repository)
        wanted = next((name for name in _ENGLISH_CONFIGURATIONS if name in configurations), None)
        loaded = datasets.load_dataset(repository, wanted, split=split)
    except (OSError, ValueError, LookupError, RuntimeError, DatasetsError) as error:
        reason = " ".join(str(error.__cause__ or error).split())[:200]
        raise InputError(f"the data set {repository!r} (split {split!r}) cannot be read: {reason}") from error
    frame = pl.from_arrow(loaded.data.table)
    if not isinstance(frame, pl.DataFrame):
        raise InputError(f"the data set {repository!r} (split {split!r}) is not a table")
    return frame
