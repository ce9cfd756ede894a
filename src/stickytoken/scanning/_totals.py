"""Add up what a scan found."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from stickytoken.scanning._effect_pass import Effect, EffectPass
from stickytoken.scanning._record import EffectRecord, ScanResultRecord, SkippedRecord, SourceRecord
from stickytoken.scanning._token_pass import Tally

_SOURCES = 100
_LEAST_COMPARED = 10


def totals(
    tally: Tally, documents: pl.DataFrame, effects: EffectPass | None, spread: float | None, seconds: float
) -> ScanResultRecord:
    """Return the totals of a scan.

    Args:
        tally: Counts of the token pass.
        documents: The table of documents with findings.
        effects: Computed the effects; None without them.
        spread: Standard deviation of the similarities; None without effects.
        seconds: How long this session took.
    """
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
