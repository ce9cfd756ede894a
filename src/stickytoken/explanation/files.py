"""Explanations read back from their folders, for reports; no model is needed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import ValidationError

from stickytoken.errors import RunError
from stickytoken.explanation.record import (
    EXPLANATION_FILE,
    EXPLANATION_SCHEMA_VERSION,
    TABLE_SCHEMAS,
    ExplainedTokenRecord,
    ExplanationRecord,
)
from stickytoken.measurement.store import ResultFolder


@dataclass(frozen=True)
class ExplanationContent:
    """The explanation of one token.

    Attributes:
        record: of the whole explanation.
        token: of the token.
        tables: by name, as `Explanation.of_token` gives them.
    """

    record: ExplanationRecord
    token: ExplainedTokenRecord
    tables: dict[str, pl.DataFrame]


@dataclass(frozen=True)
class StoredExplanation(ExplanationContent):
    """The explanation of one token, read from a folder.

    Attributes:
        path: the folder.
    """

    path: Path


def explanation_folders(folder: Path) -> list[Path]:
    """Folders of explained tokens in a folder, in order of their ids; none where there is none.

    Raises:
        RunError: the folder cannot be listed.
    """
    try:
        found = [path.parent for path in folder.glob(f"*/{EXPLANATION_FILE}")]
    except OSError as error:
        raise RunError(f"{folder} cannot be read: {error.strerror or error}") from error
    return sorted(found, key=lambda path: (len(path.name), path.name))


def read_explanation(folder: Path) -> StoredExplanation:
    """Read the folder of one token.

    Raises:
        RunError: it is damaged, or of another schema.
    """
    record = _record(folder / EXPLANATION_FILE)
    (token,) = record.tokens
    files = ResultFolder(folder)
    tables = {
        name: files.read_table(f"{name}.parquet", tuple(schema)) for name, schema in TABLE_SCHEMAS.items()
    }
    for name, table in tables.items():
        _require_types(folder / f"{name}.parquet", table, TABLE_SCHEMAS[name])
    return StoredExplanation(record, token, tables, folder)


def _record(path: Path) -> ExplanationRecord:
    try:
        raw = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged ({error}): explain the token again") from error
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != EXPLANATION_SCHEMA_VERSION:
        raise RunError(
            f"{path} has schema version {json.dumps(version)[:40]}, this stickytoken reads "
            f"{EXPLANATION_SCHEMA_VERSION}: explain the token again"
        )
    try:
        record = ExplanationRecord.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        raise RunError(
            f"{path} is not what explain writes ({_place(first['loc'])}: {first['msg']}): explain the token "
            "again"
        ) from error
    if len(record.tokens) != 1:
        raise RunError(f"{path} has {len(record.tokens)} tokens, one is expected: explain the token again")
    return record


def _place(location: Sequence[int | str]) -> str:
    return ".".join(str(part) for part in location) or "the document"


def _require_types(path: Path, table: pl.DataFrame, schema: Any) -> None:
    for name, dtype in schema.items():
        if table.schema[name] != dtype:
            raise RunError(f"{path} has {name!r} as {table.schema[name]}: explain the token again")
