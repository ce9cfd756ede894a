"""Print what was found by dimension and layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stickytoken.cli.output.console import print_columns, print_line
from stickytoken.methods.descriptions import Column

if TYPE_CHECKING:
    import polars as pl

_COLUMNS = (
    Column("layer", "layer"),
    Column("dimension", "dimension"),
    Column("sticky", "sticky"),
    Column("topical", "topical"),
    Column("severe", "severe"),
    Column("serious", "serious"),
    Column("mild", "mild"),
    Column("largest_sd", "largest lift, SD", 2),
    Column("ordinary_sd", "ordinary spread, SD", 2),
    Column("similarity_spread", "SD", 4),
)


def print_dimensions(model: str, table: pl.DataFrame) -> None:
    """Print one row per dimension and layer.

    Args:
        model: name of the model.
        table: of `Run.by_dimension` or `Judgement.by_dimension`.
    """
    import polars as pl

    whole = table["layer"].null_count() == len(table)
    columns = [
        column for column in _COLUMNS if column.key in table.columns and not (column.key == "layer" and whole)
    ]
    print_columns(
        f"{model} by dimension" if whole else f"{model} by layer and dimension",
        columns,
        table.with_columns(pl.col("layer").cast(pl.String).fill_null("all")),
    )
    print_line(
        "SD: standard deviation of the similarities of texts; lifts are above the ordinary token's, in these"
    )
