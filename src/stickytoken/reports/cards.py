"""The card of a token: why it has its verdict, its numbers with their intervals, and example pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from stickytoken.comparisons import shown_interval
from stickytoken.methods import Column, wording
from stickytoken.reports.content import RunContent, row_dicts

MOST_CARDS = 12
"""Sticky tokens with a card; the others are in the table only."""
FIRST_CARDS = 3
"""Cards on the first screen, before what to do."""


@dataclass(frozen=True)
class Strip:
    """A small picture of an interval, on a scale that all cards share; positions in percent of its width."""

    low: float
    value: float
    high: float
    ordinary: float  # position of an ordinary token
    threshold: float


@dataclass(frozen=True)
class CardMeasure:
    """A number of a token, as its card shows it."""

    title: str
    value: str
    interval: str  # empty without one
    threshold: str  # such as ``sticky from 40%``, or what the number means; empty without one
    strip: Strip | None  # None without an interval or a threshold


@dataclass(frozen=True)
class Card:
    """What a report shows of a single token."""

    row: dict[str, Any]  # of the table of tokens
    reason: str  # why it is flagged, or why it has no verdict; empty without one
    consequences: list[str]  # what its copies do in a search; empty for a token that is not flagged
    measures: list[CardMeasure]  # the erased share first
    # Pairs of texts: which pair (typical or largest), anchor, carrier, copies, similarity before and after.
    # Empty if the run holds none, or if the token is not flagged for its lift.
    pairs: list[dict[str, Any]]


def cards(content: RunContent, tokens: pl.DataFrame | None = None) -> list[Card]:
    """Make the cards of some tokens, or of the worst sticky ones."""
    if content.run is None:
        return []
    rows = row_dicts(content, content.sticky.head(MOST_CARDS) if tokens is None else tokens)
    pairs_by_token = _pairs_by_token(content)
    scales = {column.key: _Scale.of(content, column, rows) for column in content.method.listed}
    return [_card(content, row, scales, pairs_by_token.get(row["token_id"], [])) for row in rows]


def _card(
    content: RunContent, row: dict[str, Any], scales: dict[str, _Scale], pairs: list[dict[str, Any]]
) -> Card:
    """Make the card of a token from its row, the scales of all measures, and its pairs of texts."""
    thresholds = {} if content.run is None else content.method.thresholds(content.run, row)
    is_graded = row.get("severity") is not None
    measures = []
    for column in content.method.listed:
        if column.digits is None or row.get(column.key) is None:
            continue
        if column.key == "vector_deviation":
            measures.append(_vector_measure(row["vector_deviation"], content.settings.number("unusual")))
            continue
        # The card of a flagged token compares only those numbers with a threshold that reach it.
        is_compared = not is_graded or wording.reaches(row, column.key, thresholds)
        threshold = thresholds.get(column.key) if is_compared else None
        measures.append(_card_measure(row, column, threshold, scales[column.key]))
    harm = None if content.evidence is None else content.evidence.harm(row["token_id"])
    # Pairs show a lift. A token that is flagged for what it erases may lift nothing.
    shows_lift = not is_graded or wording.reaches(row, "lift_sd", thresholds)
    return Card(
        row,
        _reason(row, thresholds),
        wording.consequences(row, thresholds, harm),
        measures,
        pairs if shows_lift else [],
    )


def _reason(row: dict[str, Any], thresholds: dict[str, float]) -> str:
    """Say why a token is flagged by the measures on its card; runs of earlier versions stored other words."""
    erases = wording.reaches(row, "erased", thresholds)
    lifts = wording.reaches(row, "lift_sd", thresholds)
    if row.get("severity") is None or not (erases or lifts):
        return row.get("reason") or ""
    return wording.reason(
        erased=row["erased"] if erases else None,
        lift_sd=row["lift_sd"] if lifts else None,
        unusual_vector=row["severity"] == "mild",
    )


def _pairs_by_token(content: RunContent) -> dict[int, list[dict[str, Any]]]:
    """Collect the pairs of texts that the run keeps, by token."""
    if content.evidence is None:
        return {}
    pairs: dict[int, list[dict[str, Any]]] = {}
    for row in content.evidence.tokens.to_dicts():
        pairs[row["token_id"]] = [
            {
                "which": which,
                "anchor": row[f"{which}_anchor"],
                "carrier": row[f"{which}_carrier"],
                "copies": content.evidence.record.pair_copies,
                "before": row[f"{which}_before"],
                "after": row[f"{which}_after"],
            }
            for which in ("typical", "largest")
            if row[f"{which}_before"] is not None
        ]
    return pairs


@dataclass(frozen=True)
class _Scale:
    """The range of a measure over all cards."""

    start: float
    end: float

    @classmethod
    def of(cls, content: RunContent, column: Column, rows: Sequence[dict[str, Any]]) -> _Scale:
        """Find the range of a measure's intervals; it includes the ordinary token and the threshold."""
        values = [0.0]
        for row in rows:
            ends = (row.get(f"{column.key}_low"), row.get(f"{column.key}_high"))
            values += [end for end in ends if end is not None]
            if content.run is not None:
                thresholds = content.method.thresholds(content.run, row)
                if column.key in thresholds:
                    values.append(thresholds[column.key])
        return cls(min(values), max(values))

    def position(self, value: float) -> float:
        """Return the position of a value in percent, with a margin at both ends."""
        span = self.end - self.start or 1.0
        return round(2 + 96 * (value - self.start) / span, 2)


def _vector_measure(deviation: float, unusual: float) -> CardMeasure:
    """Say whether the token's own vector is unusual, and by how much it deviates."""
    verdict = "unusual" if deviation >= unusual else "usual"
    return CardMeasure("vector", verdict, "", wording.vector_in_words(deviation, unusual), None)


def _card_measure(row: dict[str, Any], column: Column, threshold: float | None, scale: _Scale) -> CardMeasure:
    """Write a number of a token with its interval; one with a threshold is also drawn."""
    value = row[column.key]
    low = row.get(f"{column.key}_low")
    high = row.get(f"{column.key}_high")
    if low is None or high is None:
        return CardMeasure(column.title, column.text(value), "", "", None)
    interval = shown_interval(column, low, high)
    if threshold is None:
        return CardMeasure(column.title, column.text(value), interval, "", None)
    strip = Strip(
        low=scale.position(low),
        value=scale.position(value),
        high=scale.position(high),
        ordinary=scale.position(0.0),
        threshold=scale.position(threshold),
    )
    return CardMeasure(
        column.title, column.text(value), interval, f"sticky from {column.text(threshold)}", strip
    )
