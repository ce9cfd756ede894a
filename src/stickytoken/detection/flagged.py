"""Tokens that a run flags, which must not be used as ordinary ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stickytoken.methods.verdicts import Verdict

if TYPE_CHECKING:
    from stickytoken.detection.run import Run

FLAGGED = (Verdict.STICKY.value, Verdict.TOPICAL.value)


def is_flagged() -> pl.Expr:
    """Select the sticky and topical rows of `tokens.parquet`; a token without a verdict is neither."""
    return pl.col("verdict").is_in(FLAGGED).fill_null(value=False)


def flagged_ids(tokens: pl.DataFrame) -> list[int]:
    """List the ids of the flagged tokens in the order of the rows.

    Args:
        tokens: with the columns `token_id` and `verdict` of `tokens.parquet`.
    """
    ids: list[int] = tokens.filter(is_flagged())["token_id"].to_list()
    return ids


def flagged_tokens(run: Run | None) -> frozenset[int]:
    """Ids of the tokens that a run flags; none without a run."""
    return frozenset() if run is None else frozenset(flagged_ids(run.tokens))
