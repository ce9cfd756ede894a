"""Files of `explain`: one folder per token, with explanation.json and one Parquet file per table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl
from pydantic import Field

from stickytoken.measurement.records import MeasurementRecord, Record

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
