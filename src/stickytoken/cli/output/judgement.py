"""Print a judgement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stickytoken.cli.output.console import inform, print_columns, print_line
from stickytoken.methods.descriptions import Column

if TYPE_CHECKING:
    from stickytoken.methods.judgement import Judgement

_COLUMNS = (
    Column("token_id", "id"),
    Column("token", "token"),
    Column("sd", "SD", 2),
    Column("lift", "lift", 4),
    Column("lift_low", "low", 4),
    Column("lift_high", "high", 4),
    Column("universality", "universality", 2),
    Column("moves_up", "moves up", 2),
    Column("severity", "severity"),
    Column("verdict", "verdict"),
)


def print_judgement(model: str, found: Judgement, limit: int) -> None:
    """Print the finding, the flagged tokens, and their basis."""
    import polars as pl

    print_line(_headline(model, found))
    flagged = found.flagged
    if not flagged.is_empty():
        shown = flagged.head(limit).with_columns(
            sd=(pl.col("lift") - found.ordinary_lift) / found.similarity_spread
        )
        print_columns(f"{len(shown)} of {len(flagged)} flagged tokens", _COLUMNS, shown)
        print_line(
            "moves up: share of random queries and documents of the corpus for which copies move the "
            "document past a tenth of the corpus"
        )
    print_line(
        f"{found.texts:,} texts from {found.source}, compared with {found.anchors:,} of them; an ordinary "
        f"token lifts by {found.ordinary_lift:.4f}, similarities spread by {found.similarity_spread:.4f}"
    )
    print_line(
        f"{found.measured} tokens were measured on these texts; the lifts of the others are computed from "
        f"the run, with a standard error of {found.error:.4f}"
    )
    if found.left_out:
        inform(f"note: {found.left_out} texts were left out: the model cannot read them in full")
    if found.undecided:
        inform(f"note: {found.undecided} further tokens may matter but were not measured on these texts")


def _headline(model: str, found: Judgement) -> str:
    sticky, topical = len(found.sticky), len(found.flagged) - len(found.sticky)
    if not sticky and not topical:
        return f"no token of {model} is sticky on these texts"
    tokens = "token is" if sticky == 1 else "tokens are"
    more = f"; {topical} more lift these texts but few other kinds" if topical else ""
    return f"{sticky} {tokens} sticky on these texts{more}"
