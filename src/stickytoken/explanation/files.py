"""Write, continue and read explanations. Reading needs no model."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pydantic import Field

from stickytoken.errors import RunError
from stickytoken.explanation.statistics import NUMBERS
from stickytoken.machine import digest
from stickytoken.measurement import resume, store

# Version 2 added the identity. In version 3, attribution has no references.
EXPLANATION_SCHEMA_VERSION = 3
EXPLANATION_FILE = "explanation.json"
# Folder inside a run folder, with one folder per explained token, named after the token's id.
EXPLANATIONS_FOLDER = "explain"

# Columns of each table, keyed by the name of the table. The file of a table has the same name, with the
# extension .parquet.
TABLE_SCHEMAS: dict[str, dict[str, Any]] = {
    "measures": {
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
    },
    "heads": {
        "token_id": pl.Int64,
        "token": pl.String,
        "layer": pl.Int64,
        "head": pl.Int64,
        **dict.fromkeys(NUMBERS, pl.Float64),
        "outside": pl.Boolean,
        "wasserstein": pl.Float64,
        "wasserstein_benign": pl.Float64,
        "kl": pl.Float64,
        "kl_benign": pl.Float64,
    },
    "pairs": {
        "token_id": pl.Int64,
        "pair": pl.Int64,
        "carrier": pl.String,
        "anchor": pl.String,
        "similarity_before": pl.Float64,
        "similarity": pl.Float64,
        "from_copies": pl.Float64,
        "from_carrier": pl.Float64,
    },
    "attribution": {
        "token_id": pl.Int64,
        "pair": pl.Int64,
        "row": pl.Int64,
        "row_token": pl.String,
        "row_part": pl.String,
        "column": pl.Int64,
        "column_token": pl.String,
        "value": pl.Float64,
    },
    "benign": {
        "token_id": pl.Int64,
        "benign_id": pl.Int64,
        "benign": pl.String,
        "category": pl.String,
        "characters": pl.Int64,
        "attributed": pl.Boolean,
    },
    "neighbours": {
        "token_id": pl.Int64,
        "rank": pl.Int64,
        "neighbour_id": pl.Int64,
        "neighbour": pl.String,
        "cosine": pl.Float64,
    },
}


class Finding(resume.Record):
    """A measure in which a token differs from benign tokens."""

    area: str
    measure: str
    begins: int | None  # First layer outside the benign interval; null if the measure has no layers.
    layer: int | None  # Layer at which the token is furthest from the benign tokens.
    value: float
    benign_mean: float
    deviations: float | None
    called: str  # a phrase that names the measure in a sentence


class TokenExplanation(resume.Record):
    """A token's verdict and findings, with the rows of its tables."""

    token_id: int
    token: str
    category: str
    run_verdict: str | None
    verdict: str  # the verdict in one or more sentences
    findings: tuple[Finding, ...]
    same_category: bool  # whether the benign tokens have the token's category
    measures: list[dict[str, Any]] = Field(repr=False)
    heads: list[dict[str, Any]] = Field(repr=False)
    pairs: list[dict[str, Any]] = Field(repr=False)
    benign: list[dict[str, Any]] = Field(repr=False)
    neighbours: list[dict[str, Any]] = Field(repr=False)


class ExplanationRecord(resume.MeasurementRecord):
    """explanation.json: the explanation of one token, except for its tables."""

    schema_version: int = EXPLANATION_SCHEMA_VERSION
    model: str
    pooling: str | None
    carriers: int
    source: str
    settings: dict[str, Any]
    vocabulary: dict[str, float]
    notes: list[str]
    tokens: list[TokenExplanation] = Field(min_length=1)
    versions: dict[str, str]


@dataclass(frozen=True)
class StoredExplanation:
    """The explanation of one token: its record and its tables."""

    record: ExplanationRecord
    tables: dict[str, pl.DataFrame]

    @property
    def token(self) -> TokenExplanation:
        return self.record.tokens[0]


def load_or_explain(
    folder: Path,
    identity_parts: dict[str, Any],
    compute: Callable[[store.ResultFolder], StoredExplanation],
) -> StoredExplanation:
    """Return the finished explanation in a folder; if there is none, compute and write the explanation.

    Raises:
        RunError: The folder holds an explanation with another identity, or cannot be used.
    """
    files = store.ResultFolder(folder)
    claim = resume.IdentityRecord(
        kind=_KIND.name, identity=digest(identity_parts), identity_parts=identity_parts
    )
    with resume.resumed(files, _KIND, claim) as held:
        if held.finished:
            explanation = read_explanation(folder)
        else:
            held.prepare()
            files.begin()
            explanation = compute(files)
            write_tables(files, explanation.tables)
            held.finish(explanation.record)
        # The shards of a finished explanation are still there if an earlier call was killed before removing
        # them.
        files.remove_shards()
    return explanation


def read_or_compute(
    folder: store.ResultFolder | None,
    stage: str,
    index: int,
    token_id: int,
    compute: Callable[[], dict[str, Any]],
) -> tuple[dict[str, Any], bool]:
    """Read a result from a shard; if there is none, compute the result and write it.

    A newly computed result is converted to JSON and back, so that it equals the result that a later call
    reads.

    Returns:
        The result, and whether it was computed by this call.
    """
    shard = None if folder is None else folder.read_shard(stage, index, [token_id])
    if shard is not None:
        return json.loads(shard["content"][0]), False
    started = time.perf_counter()
    content = json.dumps(compute(), default=np.ndarray.tolist)  # arrays become lists
    if folder is not None:
        cost = store.ShardCost(time.perf_counter() - started, 1)
        folder.write_shard(stage, index, [{"token_id": token_id, "content": content}], cost)
    return json.loads(content), True


def refuse_run_folder(folder: Path) -> None:
    """Raise an error if a folder cannot be written, or is itself the folder of a run or measurement."""
    store.require_writable(folder)
    if any((folder / name).exists() for name in (store.RUN_FILE, store.IDENTITY_FILE)):
        raise RunError(
            f"{folder} is the folder of a run or another measurement: choose a different one, such as "
            f"{folder / EXPLANATIONS_FOLDER}"
        )


def write_tables(files: store.ResultFolder, tables: Mapping[str, pl.DataFrame]) -> None:
    for name, table in tables.items():
        files.write_table(f"{name}.parquet", table)


def explanation_folders(folder: Path) -> list[Path]:
    """Return the subfolders of a folder that hold explained tokens, in order of token id."""
    try:
        folders = [path.parent for path in folder.glob(f"*/{EXPLANATION_FILE}")]
    except OSError as error:
        raise RunError(f"{folder} cannot be read: {error.strerror or error}") from error
    return sorted(folders, key=lambda path: (len(path.name), path.name))  # 99 before 100


# Columns that may be null. For example, a row of zeros has no cosine.
_NULLABLE = {*NUMBERS, "outside", "layer", "head", "share_below", "carriers"}


def read_explanation(folder: Path) -> StoredExplanation:
    """Read the explanation of one token.

    Raises:
        RunError: A file is missing or damaged, or was written by another version.
    """
    files = store.ResultFolder(folder)
    record = _read_record(files)
    if record is None:
        raise RunError(f"there is no explanation in {str(folder)!r}: it has no {EXPLANATION_FILE}")
    tables = {}
    for name, schema in TABLE_SCHEMAS.items():
        required_columns = [column for column in schema if column not in _NULLABLE]
        tables[name] = files.read_table(f"{name}.parquet", schema, required_columns)
    return StoredExplanation(record, tables)


def _read_record(folder: store.ResultFolder) -> ExplanationRecord | None:
    return folder.read_record(EXPLANATION_FILE, ExplanationRecord, EXPLANATION_SCHEMA_VERSION, "explain")


def _has_all_tables(record: resume.MeasurementRecord, folder: store.ResultFolder) -> bool:
    del record
    return all((folder.path / f"{name}.parquet").is_file() for name in TABLE_SCHEMAS)


_KIND: resume.MeasurementKind[resume.MeasurementRecord] = resume.MeasurementKind(
    "explanation",
    EXPLANATION_FILE,
    _read_record,
    _has_all_tables,
)
