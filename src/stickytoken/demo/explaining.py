"""An explanation within the limits of the app, as figures and tables. Pure but for the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl

from stickytoken.demo.bench import Bench
from stickytoken.demo.limits import COPIES, EXPLAIN_BENIGN, EXPLAIN_CARRIERS, checked_count
from stickytoken.explanation import ExplainSettings, Explanation, explain
from stickytoken.explanation.settings import LEAST_BENIGN
from stickytoken.insertion import Placement, Token
from stickytoken.reports.figures.figure import DataTable
from stickytoken.runs.progress import Progress
from stickytoken.runs.run import Run

_PAIRS_ATTRIBUTED = 2
_DIRECTIONS = 256
_FINDINGS = ("measure", "layer", "begins", "value", "benign mean", "sd")
_MEASURES = ("measure", "layer", "value", "low", "high", "benign_low", "benign_high", "deviations", "outside")


def chosen_settings(
    copies: float | None, carriers: float | None, benign: float | None, placement: str, attribution: bool
) -> ExplainSettings:
    """Settings of a visitor's explanation.

    Raises:
        InputError: a number is beyond its limits.
    """
    return ExplainSettings(
        copies=checked_count("copies", copies, 1, COPIES),
        placement=Placement(placement),
        carriers=checked_count("texts", carriers, 2, EXPLAIN_CARRIERS),
        benign=checked_count("benign tokens", benign, LEAST_BENIGN, EXPLAIN_BENIGN),
        attribution=attribution,
        attribution_carriers=_PAIRS_ATTRIBUTED,
        attribution_benign=LEAST_BENIGN,
        directions=_DIRECTIONS,
    )


def explain_on(
    bench: Bench,
    token: Token,
    run: Run | None,
    settings: ExplainSettings,
    progress: Callable[[Progress], None],
) -> Explanation:
    """Explain one token; nobody else computes meanwhile."""
    with bench.encoder() as encoder:
        return explain(encoder, [token.id], run=run, settings=settings, progress=progress)


def findings_table(found: Explanation) -> DataTable:
    """A row a measure outside the benign interval."""
    return DataTable(
        _FINDINGS,
        [
            (
                each.called,
                _whole(each.layer),
                _whole(each.begins),
                each.value,
                each.benign_mean,
                each.deviations,
            )
            for each in found.tokens[0].findings
        ],
    )


def measures_table(found: Explanation) -> DataTable:
    """A row a measure, at the layer where it is furthest from the benign tokens."""
    rows = [
        tuple(_whole(row[name]) if name == "layer" else row[name] for name in _MEASURES)
        for row in furthest(found.measures)
    ]
    return DataTable([name.replace("_", " ") for name in _MEASURES], rows)


def furthest(measures: pl.DataFrame) -> list[dict[str, Any]]:
    """Of every measure of one token, the row of the layer with the largest deviation; ties by layer."""
    ranked = measures.sort(
        pl.col("deviations").abs(), "layer", descending=[True, False], nulls_last=True, maintain_order=True
    )
    order = {name: place for place, name in enumerate(measures["measure"].unique(maintain_order=True))}
    rows = ranked.unique("measure", keep="first", maintain_order=True).to_dicts()
    return sorted(rows, key=lambda row: order[row["measure"]])


def neighbours_table(found: Explanation) -> DataTable:
    """The nearest rows of the embedding matrix."""
    rows = found.neighbours.select("neighbour", "neighbour_id", "cosine").rows()
    return DataTable(("nearest embedding", "id", "cosine"), rows)


def pairs_table(found: Explanation) -> DataTable:
    """Attributed pairs: the similarity as a sum."""
    columns = [name for name in found.pairs.columns if name not in ("token_id", "token", "pair")]
    return DataTable([name.replace("_", " ") for name in columns], found.pairs.select(columns).rows())


def _whole(value: int | None) -> str | None:
    """A layer as a word: it is a name, no quantity."""
    return None if value is None else str(value)
