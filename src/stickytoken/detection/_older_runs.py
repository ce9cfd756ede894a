"""Convert runs of schema version 3, whose verdicts follow an older rule, to the current form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

OLDER_SCHEMA = 3
"""The only earlier schema version that can still be read."""


def upgraded_run(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return run.json of schema version 3 in the current form; a run without lifts is returned unchanged."""
    result = raw.get("result")
    if not isinstance(result, Mapping) or "ordinary_lift" not in result:
        return dict(raw)
    unchanged = (
        "sticky",
        "sequences",
        "seconds",
        "looked_at",
        "topical",
        "ordinary_lift",
        "screening_carriers",
        "texts_per_token",
    )
    new_result = {name: result[name] for name in unchanged if name in result}
    new_result["ordinary_contraction"] = result.get("ordinary_contraction")
    new_result["confirmed"] = result.get("candidates")
    new_result["unconfirmed"] = 0
    new_result["vectors_compared"] = False
    return {**raw, "result": new_result}


def upgraded_plan(raw: Any) -> Any:
    """Return plan.json of schema version 3 in the current form; any other plan is returned unchanged."""
    if not isinstance(raw, Mapping) or "late_reference" not in raw:
        return raw
    dropped = ("reference", "late_reference", "vocabulary_anchors", "views")
    plan = {name: value for name, value in raw.items() if name not in dropped}
    plan["pilots"] = raw["late_reference"]
    # The last group of anchors consisted of vocabulary entries.
    if raw.get("vocabulary_anchors") and isinstance(plan.get("groups"), list):
        plan["groups"] = plan["groups"][:-1]
    return plan


def upgraded_tokens(
    tokens: pl.DataFrame, *, ordinary_lift: float, spread: float, ordinary_contraction: float | None
) -> pl.DataFrame:
    """Return tokens.parquet of schema version 3 with the current columns and units, and the old verdicts.

    Columns that have no counterpart in version 3 are null.

    Args:
        tokens: The table.
        ordinary_lift: Lift of an ordinary token.
        spread: Standard deviation of the similarities, which is the unit of lifts in the current version.
        ordinary_contraction: The share of a text that copies of an ordinary token erase. If None, the median
            of the table's ``contraction`` column is used.
    """
    if ordinary_contraction is None:
        ordinary_contraction = float(tokens["contraction"].median() or 0.0)  # type: ignore[arg-type]
    columns = []
    for end in ("", "_low", "_high"):
        lift = (pl.col(f"lift{end}") - ordinary_lift) / spread
        columns.append(lift.alias(f"lift_sd{end}"))
        contraction = pl.lit(None, dtype=pl.Float64)
        if f"contraction{end}" in tokens.columns:
            contraction = pl.col(f"contraction{end}")
        erased = (contraction - ordinary_contraction) / (1 - ordinary_contraction)
        columns.append(erased.alias(f"erased{end}"))
    absent = {
        "vector_deviation": pl.Float64,
        "kinds_lifted": pl.Int64,
        "reason": pl.String,
        "kind": pl.String,
    }
    nulls = [pl.lit(None, dtype=absent[name]).alias(name) for name in absent if name not in tokens.columns]
    # Version 3 measured each candidate on more texts than any token that was not a candidate.
    is_candidate = pl.col("texts") == pl.col("texts").max()
    return tokens.with_columns(*columns, *nulls).with_columns(
        confirmed=is_candidate,
        severity=pl.col("severity").replace("negligible", "mild"),  # version 3 had a grade below mild
        strongest_kind=pl.col("kind"),  # version 3 has this column under another name
    )
