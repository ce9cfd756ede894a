"""The card of a token: the reason for its verdict, and its measures with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from stickytoken import words
from stickytoken.methods import Column, wording
from stickytoken.methods.measures import PUSH, Measure
from stickytoken.reports.content import RunContent

MOST_CARDS = 12
"""Maximum number of sticky tokens with a card. The table of flagged tokens lists the others."""
FIRST_CARDS = 3
"""Number of cards on the first screen of the page. The other cards follow below."""


@dataclass(frozen=True)
class Strip:
    """A small drawing of a measure with its interval and threshold. All cards use the same scale.

    All attributes are horizontal positions, in percent of the drawing's width.

    Attributes:
        low: Position of the lower end of the interval.
        value: Position of the measured value.
        high: Position of the upper end of the interval.
        ordinary: Position of the value that an ordinary token has.
        threshold: Position of the threshold.
    """

    low: float
    value: float
    high: float
    ordinary: float
    threshold: float


@dataclass(frozen=True)
class CardMeasure:
    """A measure of a token, formatted for its card."""

    title: str
    value: str
    interval: str  # empty if the measure has no interval
    # Text after the value: the threshold, such as ``sticky from 40%``, or what a vector deviation means.
    # Empty if the measure has no threshold and is not a vector deviation.
    threshold: str
    strip: Strip | None  # None if the measure has no interval or no threshold


@dataclass(frozen=True)
class Card:
    """The content of a token's card."""

    row: dict[str, Any]  # the token's row in the table of tokens, keyed by column
    reason: str  # why the token is flagged, or why it has no verdict; empty if no reason is known
    # Sentences on what copies of the token do in a search; empty if the token is not flagged.
    consequences: list[str]
    measures: list[CardMeasure]  # in the order of the method's columns


def cards(content: RunContent, tokens: pl.DataFrame | None = None) -> list[Card]:
    """Return one card per token.

    Args:
        content: The run.
        tokens: Rows of `content.tokens`. Default: the worst sticky tokens, at most `MOST_CARDS`.
    """
    rows = (content.sticky.head(MOST_CARDS) if tokens is None else tokens).to_dicts()
    scales = {column.key: _Scale.of(content, column, rows) for column in content.run.method.TABLE.listed}
    return [_make_card(content, row, scales) for row in rows]


def _make_card(content: RunContent, row: dict[str, Any], scales: dict[str, _Scale]) -> Card:
    """Return the card of a token."""
    thresholds = content.run.thresholds(row)
    is_graded = row.get("severity") is not None
    measures = []
    for column in content.run.method.TABLE.listed:
        is_text = column.digits is None
        if is_text or row.get(column.key) is None:
            continue
        if column.key == "vector_deviation":
            measures.append(_make_vector_measure(row["vector_deviation"], content.run.settings.unusual))
            continue
        # The card of a token with a severity shows only the thresholds that the token reaches, because these
        # are why it has a severity.
        threshold = thresholds.get(column.key)
        if isinstance(column, Measure) and is_graded and not column.is_reached(row, thresholds):
            threshold = None
        measures.append(_make_card_measure(row, column, threshold, scales[column.key]))
    return Card(
        row=row,
        reason=row.get("reason") or "",
        consequences=wording.consequences(row, thresholds, content.run.harm(row["token_id"])),
        measures=measures,
    )


@dataclass(frozen=True)
class _Scale:
    """The range of a measure on all cards, in its unit.

    It is the smallest range that contains the value of an ordinary token, all intervals and all thresholds.
    """

    start: float
    end: float
    ordinary: float  # the value of an ordinary token

    @classmethod
    def of(cls, content: RunContent, column: Column, rows: Sequence[dict[str, Any]]) -> _Scale:
        ordinary = 0.0
        if column.key == PUSH.key:
            result: Any = content.run.result  # the record of `profile`, the only method with a push
            # If the push of an ordinary token was not measured, the push of a token that does nothing is
            # used.
            ordinary = PUSH.without_effect if result.ordinary_push is None else result.ordinary_push
        values = [ordinary]
        for row in rows:
            interval = (row.get(f"{column.key}_low"), row.get(f"{column.key}_high"))
            values += [end for end in interval if end is not None]
            thresholds = content.run.thresholds(row)
            if column.key in thresholds:
                values.append(thresholds[column.key])
        return cls(min(values), max(values), ordinary)

    def position(self, value: float) -> float:
        """Return where a value is drawn, in percent of the width of a `Strip`."""
        span = self.end - self.start or 1.0  # 1.0 avoids a division by zero if all values are equal
        # A margin of 2% of the width stays free at both ends.
        return round(2 + 96 * (value - self.start) / span, 2)


def _make_vector_measure(deviation: float, unusual_from: float) -> CardMeasure:
    # Of how far the token's vector deviates from the others, a card says only whether it is unusual.
    return CardMeasure(
        title="vector",
        value="unusual" if deviation >= unusual_from else "usual",
        interval="",
        threshold=wording.vector_in_words(deviation, unusual_from),
        strip=None,
    )


def _make_card_measure(
    row: dict[str, Any], column: Column, threshold: float | None, scale: _Scale
) -> CardMeasure:
    """Format a measure of a token for the token's card.

    Returns:
        The value and, if it has an interval, the interval. If there is also a threshold, a strip shows the
        value, the interval and the threshold.
    """
    value = row[column.key]
    low = row.get(f"{column.key}_low")
    high = row.get(f"{column.key}_high")
    measure = CardMeasure(title=column.title, value=column.text(value), interval="", threshold="", strip=None)
    if low is None or high is None:  # the measure has no interval
        return measure
    measure = replace(measure, interval=words.interval(low, high, column.digits or 0, column.unit))
    if threshold is None:
        return measure
    strip = Strip(
        low=scale.position(low),
        value=scale.position(value),
        high=scale.position(high),
        ordinary=scale.position(scale.ordinary),
        threshold=scale.position(threshold),
    )
    threshold_text = column.text(threshold)
    if isinstance(column, Measure):  # a lowered threshold, such as 1.25, may have more digits than values
        threshold_text = column.threshold_format.format(threshold)
    return replace(measure, threshold=f"sticky from {threshold_text}", strip=strip)
