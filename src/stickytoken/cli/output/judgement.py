"""Print a judgement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stickytoken.cli.output.console import inform, print_line, print_table

if TYPE_CHECKING:
    from stickytoken.methods.judgement import Judgement

_COLUMNS = {
    "token_id": ("id", None),
    "token": ("token", None),
    "sd": ("SD", 2),
    "lift": ("lift", 4),
    "lift_low": ("low", 4),
    "lift_high": ("high", 4),
    "universality": ("universality", 2),
    "moves_up": ("moves up", 2),
    "severity": ("severity", None),
    "verdict": ("verdict", None),
}


def print_judgement(model: str, found: Judgement, limit: int) -> None:
    """Print the finding, the flagged tokens, and their basis."""
    import polars as pl

    print_line(_headline(model, found))
    flagged = found.flagged
    if not flagged.is_empty():
        shown = flagged.head(limit).with_columns(
            sd=(pl.col("lift") - found.ordinary_lift) / found.similarity_spread
        )
        print_table(
            f"{len(shown)} of {len(flagged)} flagged tokens",
            [title for title, _ in _COLUMNS.values()],
            shown.select(list(_COLUMNS)).iter_rows(),
            [digits for _, digits in _COLUMNS.values()],
        )
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
