"""Cards of the worst tokens: the interval, and what copies did to a real pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stickytoken.reports.content import RunContent
from stickytoken.reports.facts import worst_tokens
from stickytoken.reports.token_table import rows_of


@dataclass(frozen=True)
class Pair:
    """Two texts before and after copies.

    Attributes:
        which: ``typical`` or ``largest``.
        anchor: the text that stays.
        carrier: the text that the copies are appended to.
        copies: how many.
        before: cosine similarity.
        after: the same with the copies.
    """

    which: str
    anchor: str
    carrier: str
    copies: int
    before: float
    after: float


@dataclass(frozen=True)
class Card:
    """One token with its evidence.

    Attributes:
        row: of the table of tokens, with ``sd``.
        strip: its interval on the scale of all cards, in percent: low, value, high and the ordinary
            token; None if there is no interval.
        pairs: what it did to pairs of texts; empty if the run holds none.
    """

    row: dict[str, Any]
    strip: dict[str, float] | None
    pairs: tuple[Pair, ...]


def cards(content: RunContent) -> list[Card]:
    """Return cards of the worst tokens; if none is sticky, of those that rank highest."""
    rows = rows_of(content, worst_tokens(content))
    strips = _strips(content, rows)
    pairs = _pairs(content)
    return [Card(row, strip, pairs.get(row["token_id"], ())) for row, strip in zip(rows, strips, strict=True)]


def card_of(content: RunContent, token_id: int) -> Card | None:
    """Return the card of any token; None if the run did not examine it."""
    rows = rows_of(content, content.tokens.filter(token_id=token_id))
    if not rows:
        return None
    return Card(rows[0], _strips(content, rows)[0], _pairs(content).get(token_id, ()))


def _strips(content: RunContent, rows: list[dict[str, Any]]) -> list[dict[str, float] | None]:
    scale = content.scale
    if scale is None or not rows or any(row.get("lift_low") is None for row in rows):
        return [None] * len(rows)
    ordinary = scale.ordinary
    low = min(0.0, ordinary, *(row["lift_low"] for row in rows))
    high = max(ordinary, *(row["lift_high"] for row in rows))
    span = float(high - low) or 1.0

    def place(value: float) -> float:
        return round(2 + 96 * float(value - low) / span, 2)

    return [
        {
            "low": place(row["lift_low"]),
            "value": place(row["lift"]),
            "high": place(row["lift_high"]),
            "ordinary": place(ordinary),
        }
        for row in rows
    ]


def _pairs(content: RunContent) -> dict[int, tuple[Pair, ...]]:
    if content.evidence is None:
        return {}
    copies = content.evidence.record.pair_copies
    return {
        row["token_id"]: tuple(
            Pair(
                which,
                row[f"{which}_anchor"],
                row[f"{which}_carrier"],
                copies,
                row[f"{which}_before"],
                row[f"{which}_after"],
            )
            for which in ("typical", "largest")
            if row[f"{which}_before"] is not None
        )
        for row in content.evidence.tokens.to_dicts()
    }
