"""Print published results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stickytoken.cli.output.console import print_line, print_table

if TYPE_CHECKING:
    import polars as pl

    from stickytoken.comparisons.published import BesideRun

_COLUMNS = {
    "token_id": ("id", None),
    "token": ("token", None),
    "sticky_score": ("score", 1),
    "validation_rate": ("validation rate", 3),
    "sd": ("run: SD", 2),
    "sd_low": ("low", 2),
    "sd_high": ("high", 2),
    "percentile": ("lifts more than", 2),
    "verdict": ("verdict", None),
}


def print_models(models: pl.DataFrame) -> None:
    """Print one row per model, in the order of the paper."""
    columns = (
        "model",
        "vocabulary",
        "available",
        "candidates",
        "sticky",
        "mean_similarity",
        "score_threshold",
    )
    titles = (*columns[:5], "u", "score of the last candidate")
    rows = models.select(columns).iter_rows()
    print_table("Published results, in the order of the paper", titles, rows, (*[None] * 5, 3, 1))
    _print_source()


def print_published(facts: Mapping[str, Any], tokens: pl.DataFrame, beside: BesideRun | None) -> None:
    """Print what was published of a model, and a run beside it."""
    shown = {key: _COLUMNS[key] for key in _COLUMNS if key in tokens.columns}
    print_table(
        f"{facts['sticky']} published sticky tokens of {facts['model']}",
        [title for title, _ in shown.values()],
        tokens.select(list(shown)).iter_rows(),
        [digits for _, digits in shown.values()],
    )
    print_line(
        f"{facts['available']:,} of {facts['vocabulary']:,} entries available, {facts['candidates']:,} "
        f"candidates with a score of {facts['score_threshold']:.1f} or more; mean similarity u = "
        f"{facts['mean_similarity']:.4f}"
    )
    if beside is not None:
        for line in beside.in_words():
            print_line(line)
    _print_source()


def _print_source() -> None:
    from stickytoken.comparisons.published import COMPARABLE, SOURCE

    print_line(COMPARABLE)
    print_line(f"source: {SOURCE}")
