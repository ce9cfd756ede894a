"""The table of documents with findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from stickytoken.methods.verdicts import SEVERITY_BOUNDS, Severity, severity_of
from stickytoken.scanning._effect_pass import COLUMNS as EFFECTS
from stickytoken.scanning._effect_pass import Effect, EffectPass, found_in
from stickytoken.scanning._keeping import Keeper
from stickytoken.scanning._token_pass import Tally

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
    """Return one row per document with findings, in the order of the collection.

    Args:
        keeper: Where findings and effects are.
        tally: The batches.
        effects: Computed the effects; None without them.
        spread: Standard deviation of the similarities that effects are divided by.
    """
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
