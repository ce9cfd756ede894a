"""Columns of the tables of an impact measurement that people are shown, and their headings. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

EFFECTS = {
    "task": "task",
    "metric": "metric",
    "units": "units",
    "clean": "clean",
    "sticky": "sticky",
    "benign": "benign",
    "difference": "sticky - benign",
    "difference_low": "low",
    "difference_high": "high",
    "effect_size": "effect size",
    "p_value": "p",
    "q_value": "q",
}
CONDITIONS = {
    "task": "task",
    "metric": "metric",
    "kind": "kind",
    "token": "token",
    "score": "score",
    "drop": "drop",
    "drop_low": "low",
    "drop_high": "high",
}
INTRUSION = {
    "copies": "copies",
    "hits_sticky": "sticky",
    "hits_benign": "benign",
    "ratio": "ratio",
    "ratio_low": "low",
    "ratio_high": "high",
    "rank_sticky": "median rank, sticky",
    "rank_benign": "median rank, benign",
}


def headed(
    columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], measured: str = "sticky"
) -> tuple[list[str], list[list[Any]]]:
    """Return the headings and the cells of a table.

    Args:
        columns: headings by column.
        rows: rows of the table.
        measured: what the measured tokens are called, if not sticky.
    """
    headings = [heading.replace("sticky", measured) for heading in columns.values()]
    return headings, [[row[key] for key in columns] for row in rows]
