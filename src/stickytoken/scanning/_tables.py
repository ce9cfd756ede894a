"""The table of documents with findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from pydantic import Field

from stickytoken.measurement.resume import MeasurementRecord, Record
from stickytoken.methods.entry import SEVERITY_BOUNDS, Severity, severity_of
from stickytoken.scanning._effect_pass import COLUMNS as EFFECTS
from stickytoken.scanning._effect_pass import Effect, EffectPass, found_in
from stickytoken.scanning._token_pass import Keeper, Tally

SCHEMA: dict[str, Any] = {
    "number": pl.Int64,
    "id": pl.String,
    "source": pl.String,
    "path": pl.String,
    "line": pl.Int64,
    "kinds": pl.List(pl.String),
    "words": pl.List(pl.Struct({"text": pl.String, "copies": pl.Int64})),
    "spans": pl.Int64,
    "copies": pl.Int64,
    "longest_run": pl.Int64,
    "share": pl.Float64,
    "excerpt": pl.List(pl.Struct({"text": pl.String, "found": pl.Boolean})),
    "shift": pl.Float64,
    "rise": pl.Float64,
    "moves_up": pl.Float64,
    "predicted": pl.Float64,
    "effect": pl.Float64,
    "severity": pl.String,
    "matters": pl.Boolean,
}


def documents_table(
    keeper: Keeper, tally: Tally, effects: EffectPass | None, spread: float | None
) -> pl.DataFrame:
    """Return one row per document with findings, in the order of the collection."""
    frames = []
    for index, batch in enumerate(tally.digests):
        found = found_in(keeper, index, batch)
        if not found:
            continue
        columns = None if effects is None else keeper.load(effects.kind.value, index, effects.key(batch))
        frames.append(_frame(found, columns))
    table = pl.concat(frames) if frames else pl.DataFrame(schema=SCHEMA)
    return table if effects is None or spread is None else _graded(table, effects.kind, spread)


def _frame(found: Sequence[Mapping[str, Any]], effects: Mapping[str, Any] | None) -> pl.DataFrame:
    rows = [
        {
            **each,
            "words": [{"text": text, "copies": copies} for text, copies in each["words"]],
            "excerpt": [{"text": text, "found": marked} for text, marked in each["excerpt"]],
        }
        for each in found
    ]
    for name in EFFECTS if effects is not None else ():
        for row, value in zip(rows, (effects or {})[name], strict=True):
            row[name] = value
    known = [{name: row.get(name) for name in SCHEMA} for row in rows]
    return pl.DataFrame(known, schema=SCHEMA)


def _graded(table: pl.DataFrame, kind: Effect, spread: float) -> pl.DataFrame:
    shift = pl.col("shift" if kind is Effect.MEASURED else "predicted")
    effects = (table.select(shift).to_series() / spread).to_numpy()
    severities = [None if np.isnan(effect) else severity_of(effect) for effect in effects]
    return table.with_columns(
        effect=pl.Series(effects, dtype=pl.Float64).fill_nan(None),
        severity=pl.Series(severities, dtype=pl.String),
    ).with_columns(matters=pl.col("effect") >= SEVERITY_BOUNDS[Severity.SERIOUS])


def worst_first(table: pl.DataFrame) -> pl.DataFrame:
    """Sort documents by effect, or else by how much of them was found."""
    return table.sort("effect", "share", "number", descending=[True, True, False], nulls_last=True)


SCAN_SCHEMA_VERSION = 1


class SkippedRecord(Record):
    """A record without readable text."""

    place: str
    reason: str


class SourceRecord(Record):
    """The documents of one source."""

    source: str | None
    documents: int
    found: int
    matter: int | None = Field(description="null without effects")


class EffectRecord(Record):
    """What effects were compared with, and how prediction and measurement agree."""

    kind: str = Field(description="measured or predicted")
    queries: int
    queries_from: str
    reference: int = Field(description="clean documents that ranks and spread rest on")
    spread: float = Field(description="standard deviation of the similarities of queries and clean documents")
    agreement: float | None = Field(description="Spearman correlation of predicted and measured shifts")
    compared: int = Field(description="documents that have both")
    nothing_left: int = Field(description="documents that consist of copies only, and have no effect")


class ScanResultRecord(Record):
    """What a finished scan found."""

    documents: int
    found: int
    matter: int | None = Field(
        description="documents that copies lift by half a spread or more; null without effects"
    )
    skipped: int
    skipped_first: list[SkippedRecord]
    kinds: dict[str, int] = Field(description="documents by kind of finding")
    sources: list[SourceRecord] = Field(description="those with the most findings; empty without sources")
    effect: EffectRecord | None
    seconds: float


class ScanRecord(MeasurementRecord):
    """scan.json."""

    model: str
    run: str = Field(description="the run folder, as named")
    documents: str = Field(description="name of the collection")
    rules: dict[str, Any]
    started: str
    versions: dict[str, str]
    result: ScanResultRecord | None = None


_SOURCES = 100
_LEAST_COMPARED = 10


def totals(
    tally: Tally, documents: pl.DataFrame, effects: EffectPass | None, spread: float | None, seconds: float
) -> ScanResultRecord:
    """Return the totals of a scan."""
    graded = effects is not None and spread is not None
    return ScanResultRecord(
        documents=tally.documents,
        found=tally.found,
        matter=int(documents["matters"].sum()) if graded else None,
        skipped=tally.skipped,
        skipped_first=[SkippedRecord(place=place, reason=reason) for place, reason in tally.skipped_first],
        kinds=dict(tally.kinds.most_common()),
        sources=_sources(tally.sources, documents, graded),
        effect=None if effects is None or spread is None else _effect(effects, documents, spread),
        seconds=seconds,
    )


def _effect(effects: EffectPass, documents: pl.DataFrame, spread: float) -> EffectRecord:
    both = documents.select("shift", "predicted").drop_nulls()
    enough = effects.kind is Effect.MEASURED and len(both) >= _LEAST_COMPARED
    agreement = both.select(pl.corr("shift", "predicted", method="spearman")).item() if enough else None
    return EffectRecord(
        kind=effects.kind.value,
        queries=len(effects.texts.queries),
        queries_from=effects.texts.source,
        reference=len(effects.texts.reference),
        spread=spread,
        agreement=None if agreement is None or agreement != agreement else agreement,  # noqa: PLR0124 - NaN
        compared=len(both) if effects.kind is Effect.MEASURED else 0,
        nothing_left=documents["effect"].null_count(),
    )


def _sources(
    counts: Mapping[str | None, int] | None, documents: pl.DataFrame, graded: bool
) -> list[SourceRecord]:
    """List the sources with the most findings; none where no document names one."""
    if counts is None or set(counts) <= {None}:
        return []
    found = documents.group_by("source").agg(pl.len().alias("found"), pl.col("matters").sum())
    by_source = {source: (count, matter) for source, count, matter in found.iter_rows()}
    rows = [
        SourceRecord(
            source=source,
            documents=count,
            found=by_source.get(source, (0, 0))[0],
            matter=by_source.get(source, (0, 0))[1] if graded else None,
        )
        for source, count in counts.items()
    ]
    return sorted(rows, key=lambda row: (-row.found, -row.documents, row.source or ""))[:_SOURCES]
