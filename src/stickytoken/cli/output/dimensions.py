"""Print what was found by dimension and layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stickytoken.cli.output.console import print_line, print_table

if TYPE_CHECKING:
    import polars as pl

_COLUMNS = {
    "layer": ("layer", None),
    "dimension": ("dimension", None),
    "sticky": ("sticky", None),
    "topical": ("topical", None),
    "severe": ("severe", None),
    "serious": ("serious", None),
    "mild": ("mild", None),
    "largest_sd": ("largest lift, SD", 2),
    "ordinary_sd": ("ordinary spread, SD", 2),
    "similarity_spread": ("SD", 4),
}


def print_dimensions(model: str, table: pl.DataFrame) -> None:
    """Print one row per dimension and layer.

    Args:
        model: name of the model.
        table: of `Run.by_dimension` or `Judgement.by_dimension`.
    """
    whole = table["layer"].null_count() == len(table)
    shown = {
        name: title
        for name, title in _COLUMNS.items()
        if name in table.columns and not (name == "layer" and whole)
    }
    print_table(
        f"{model} by dimension" if whole else f"{model} by layer and dimension",
        [title for title, _ in shown.values()],
        [
            ["all" if name == "layer" and row[name] is None else row[name] for name in shown]
            for row in table.to_dicts()
        ],
        [digits for _, digits in shown.values()],
    )
    print_line(
        "SD: standard deviation of the similarities of texts; lifts are above the ordinary token's, in these"
    )
