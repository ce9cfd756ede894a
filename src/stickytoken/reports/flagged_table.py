"""The columns of the table of flagged tokens, by method."""

from __future__ import annotations

from typing import Any, NamedTuple

import polars as pl

from stickytoken.reports.content import RunContent, moved


class Column(NamedTuple):
    """A column of the table.

    Attributes:
        key: in the table's rows.
        title: its heading.
        digits: after the point; None for text and whole numbers.
    """

    key: str
    title: str
    digits: int | None = None


_WHO = (Column("kind", "kind"), Column("script", "script"), Column("token_id", "id"))
COLUMNS = {
    "profile": (
        Column("token", "token"),
        Column("verdict", "verdict"),
        Column("severity", "severity"),
        Column("sd", "sd", 2),
        Column("lift", "lift", 4),
        Column("lift_low", "low", 4),
        Column("lift_high", "high", 4),
        Column("universality", "universality", 2),
        Column("contraction", "contraction", 2),
        Column("validation_rate", "validation rate", 2),
        Column("q_value", "q value", 4),
        *_WHO,
    ),
    "std": (
        Column("token", "token"),
        Column("verdict", "verdict"),
        Column("validation_rate", "validation rate", 3),
        Column("lift", "lift", 4),
        Column("sticky_score", "sticky score", 2),
        *_WHO,
    ),
}


def flagged_rows(content: RunContent) -> list[dict[str, Any]]:
    """All flagged tokens, sticky ones first, with `sd` beside what tokens.parquet says."""
    return rows_of(content, content.flagged)


def rows_of(content: RunContent, tokens: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows of tokens with `sd`, the lift beyond an ordinary token's in standard deviations."""
    return tokens.with_columns(sd=moved(content)).to_dicts() if len(tokens) else []
