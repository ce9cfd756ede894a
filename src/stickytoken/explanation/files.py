"""Write, continue and read explanations in folders. Reading needs no model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from stickytoken.errors import RunError
from stickytoken.explanation._measuring import Checkpoints
from stickytoken.machine import digest
from stickytoken.measurement.atomic import require_writable
from stickytoken.measurement.resume import IdentityRecord, Kind, MeasurementRecord, Record, resumed
from stickytoken.measurement.store import (
    IDENTITY_FILE,
    RUN_FILE,
    ResultFolder,
    read_json,
    repair_advice,
    validated,
)

# Version 2 added the identity.
EXPLANATION_SCHEMA_VERSION = 2
EXPLANATION_FILE = "explanation.json"
# Folder inside a run folder; holds one folder per explained token, named by id.
EXPLANATIONS_FOLDER = "explain"

# A value with its interval, and the mean and interval of the benign tokens.
NUMBERS = ("value", "low", "high", "benign_mean", "benign_low", "benign_high", "deviations")
MEASURES_SCHEMA = {
    "token_id": pl.Int64,
    "token": pl.String,
    "area": pl.String,
    "measure": pl.String,
    "layer": pl.Int64,
    **dict.fromkeys(NUMBERS, pl.Float64),
    "outside": pl.Boolean,
    "share_below": pl.Float64,
    "benign_tokens": pl.Int64,
    "carriers": pl.Int64,
}
HEADS_SCHEMA = {
    "token_id": pl.Int64,
    "token": pl.String,
    "layer": pl.Int64,
    "head": pl.Int64,
    **dict.fromkeys(NUMBERS, pl.Float64),
    "outside": pl.Boolean,
    **dict.fromkeys(("wasserstein", "wasserstein_benign", "kl", "kl_benign"), pl.Float64),
}
ATTRIBUTION_SCHEMA = {
    "token_id": pl.Int64,
    "pair": pl.Int64,
    "row": pl.Int64,
    "row_token": pl.String,
    "row_part": pl.String,
    "column": pl.Int64,
    "column_token": pl.String,
    "value": pl.Float64,
}
PAIRS_SCHEMA = {
    "token_id": pl.Int64,
    "pair": pl.Int64,
    "carrier": pl.String,
    "anchor": pl.String,
    **dict.fromkeys(
        (
            "similarity_before",
            "similarity",
            "sum",
            "completeness_error",
            "from_copies",
            "from_carrier",
            "from_reference",
        ),
        pl.Float64,
    ),
}
NEIGHBOURS_SCHEMA = {
    "token_id": pl.Int64,
    "rank": pl.Int64,
    "neighbour_id": pl.Int64,
    "neighbour": pl.String,
    "cosine": pl.Float64,
}
BENIGN_SCHEMA = {
    "token_id": pl.Int64,
    "benign_id": pl.Int64,
    "benign": pl.String,
    "category": pl.String,
    "characters": pl.Int64,
    "attributed": pl.Boolean,
}
# Tables by name, which is also the stem of the file.
TABLE_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "measures": MEASURES_SCHEMA,
    "heads": HEADS_SCHEMA,
    "pairs": PAIRS_SCHEMA,
    "attribution": ATTRIBUTION_SCHEMA,
    "benign": BENIGN_SCHEMA,
    "neighbours": NEIGHBOURS_SCHEMA,
}


class FindingRecord(Record):
    """A measure in which a token differs from benign tokens."""

    area: str
    measure: str
    begins: int | None = Field(
        description="first layer outside the benign interval; null if the measure has no layers"
    )
    layer: int | None = Field(description="layer where the token is furthest from the benign tokens")
    value: float
    benign_mean: float
    deviations: float | None
    called: str = Field(description="the measure in words")


class ExplainedTokenRecord(Record):
    """One token; readers take its tables from the Parquet files."""

    token_id: int
    token: str
    category: str
    run_verdict: str | None
    verdict: str = Field(description="one sentence")
    findings: list[FindingRecord]
    same_category: bool
    measures: list[dict[str, Any]]
    heads: list[dict[str, Any]]
    pairs: list[dict[str, Any]]
    benign: list[dict[str, Any]]
    neighbours: list[dict[str, Any]]


class ExplanationRecord(MeasurementRecord):
    """explanation.json."""

    model: str
    pooling: str | None
    carriers: int
    source: str
    settings: dict[str, Any]
    vocabulary: dict[str, float]
    notes: list[str]
    tokens: list[ExplainedTokenRecord]
    versions: dict[str, str]


# Schema version of explanations that do not record which model they belong to.


@dataclass(frozen=True)
class ExplanationContent:
    """The explanation of one token.

    Attributes:
        record: record of the whole explanation.
        token: record of the token.
        tables: tables by name, as in `Explanation.of_token`.
    """

    record: ExplanationRecord
    token: ExplainedTokenRecord
    tables: dict[str, pl.DataFrame]


@dataclass(frozen=True)
class StoredExplanation(ExplanationContent):
    """The explanation of one token, read from a folder."""

    path: Path


def stored_explanation(
    folder: Path, parts: dict[str, Any], compute: Callable[[Checkpoints], ExplanationContent]
) -> ExplanationContent:
    """Return the explanation that a folder holds, or compute and commit it."""
    files = ResultFolder(folder)
    claim = IdentityRecord(kind=_KIND.name, identity=digest(parts), identity_parts=parts)
    with resumed(files, _KIND, claim) as held:
        if held.finished:
            files.remove_shards()  # an earlier call may have been killed before it came to that
            return read_explanation(folder)
        held.begin()
        content = compute(Checkpoints(files))
        write_tables(files, content)
        held.finish(content.record)
        files.remove_shards()
    return content


def require_place(folder: Path) -> None:
    """Refuse a folder that cannot take explanations, without creating it."""
    require_writable(folder)
    if any((folder / name).exists() for name in (RUN_FILE, IDENTITY_FILE)):
        raise RunError(
            f"{folder} is the folder of a run or another measurement: choose another one, such as "
            f"{folder / EXPLANATIONS_FOLDER}"
        )


def write_tables(files: ResultFolder, content: ExplanationContent) -> None:
    """Write the tables of one token, which count once explanation.json is there."""
    for name, table in content.tables.items():
        files.write_table(f"{name}.parquet", table)


def _continued(folder: ResultFolder) -> ExplanationRecord:
    return _record(folder.path / EXPLANATION_FILE)


def _is_finished(record: MeasurementRecord, folder: ResultFolder) -> bool:
    del record
    return all((folder.path / f"{name}.parquet").is_file() for name in TABLE_SCHEMAS)


_KIND: Kind[MeasurementRecord] = Kind("explanation", EXPLANATION_FILE, _continued, _is_finished)


def explanation_folders(folder: Path) -> list[Path]:
    """List the folders of explained tokens in a folder, in order of token id."""
    try:
        found = [path.parent for path in folder.glob(f"*/{EXPLANATION_FILE}")]
    except OSError as error:
        raise RunError(f"{folder} cannot be read: {error.strerror or error}") from error
    return sorted(found, key=lambda path: (len(path.name), path.name))


def read_explanation(folder: Path) -> StoredExplanation:
    """Read the folder of one token."""
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
    raw = read_json(path)
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != EXPLANATION_SCHEMA_VERSION:
        raise RunError(
            f"{path} has schema version {json.dumps(version)[:40]}, but this stickytoken reads version "
            f"{EXPLANATION_SCHEMA_VERSION}: run explain again in another folder"
        )
    record = validated(ExplanationRecord, raw, path)
    if len(record.tokens) != 1:
        raise RunError(f"{path} has {len(record.tokens)} tokens instead of one: {repair_advice(path)}")
    return record


def _require_types(path: Path, table: pl.DataFrame, schema: Any) -> None:
    for name, dtype in schema.items():
        if table.schema[name] != dtype:
            raise RunError(
                f"{path} has {table.schema[name]} values in column {name!r} instead of {dtype}: "
                "delete it and run explain again"
            )
