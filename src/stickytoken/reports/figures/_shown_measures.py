"""Measures of an explained token that a figure shows, in the order of their titles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from stickytoken.reports.figures.figure import DataTable


def shown_measures(
    measures: pl.DataFrame, names: Mapping[str, str], needed: Sequence[str]
) -> list[dict[str, Any]]:
    """Return one row per measure, in the order of the names.

    Args:
        measures: of one token, as `measures.parquet` has them, without layers.
        names: title of each measure, by its name.
        needed: columns that a measure must have; it is left out if one is null.
    """
    by_name = {row["measure"]: row for row in measures.drop_nulls(needed).to_dicts()}
    return [by_name[name] for name in names if name in by_name]


def measures_table(
    rows: Sequence[Mapping[str, Any]], names: Mapping[str, str], columns: Sequence[str]
) -> DataTable:
    """Return the numbers of the rows, with the titles of the measures in front."""
    return DataTable(
        ("measure", *(column.replace("_", " ") for column in columns)),
        [(names[row["measure"]], *(row[column] for column in columns)) for row in rows],
    )
