"""Print published results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stickytoken.cli.output.console import print_columns, print_line
from stickytoken.methods.descriptions import Column

if TYPE_CHECKING:
    import polars as pl

    from stickytoken.comparisons.published import BesideRun

_MODELS = (
    Column("model", "model"),
    Column("vocabulary", "vocabulary"),
    Column("available", "available"),
    Column("candidates", "candidates"),
    Column("sticky", "sticky"),
    Column("mean_similarity", "u", 3),
    Column("score_threshold", "score of the last candidate", 1),
)
_TOKENS = (
    Column("token_id", "id"),
    Column("token", "token"),
    Column("sticky_score", "score", 1),
    Column("validation_rate", "validation rate", 3),
    Column("sd", "run: SD", 2),
    Column("sd_low", "low", 2),
    Column("sd_high", "high", 2),
    Column("percentile", "lifts more than", 2),
    Column("verdict", "verdict"),
)


def print_models(models: pl.DataFrame) -> None:
    """Print one row per model, in the order of the paper."""
    print_columns("Published results, in the order of the paper", _MODELS, models)
    _print_source()


def print_published(facts: Mapping[str, Any], tokens: pl.DataFrame, beside: BesideRun | None) -> None:
    """Print what was published of a model, and a run beside it."""
    print_columns(
        f"{facts['sticky']} published sticky tokens of {facts['model']}",
        [column for column in _TOKENS if column.key in tokens.columns],
        tokens,
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
