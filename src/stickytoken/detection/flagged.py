"""Tokens that a run flags: what may not serve as an ordinary token."""

from __future__ import annotations

import polars as pl

# Verdicts of flagged tokens; the method std knows the first alone.
FLAGGED = ("sticky", "topical")


def is_flagged() -> pl.Expr:
    """Whether a row of `tokens.parquet` is sticky or topical; a token without a verdict is not."""
    return pl.col("verdict").is_in(FLAGGED).fill_null(value=False)


def flagged_ids(tokens: pl.DataFrame) -> list[int]:
    """Ids of the flagged tokens, in the order of the rows.

    Args:
        tokens: columns `token_id` and `verdict`, as `tokens.parquet` has them.
    """
    ids: list[int] = tokens.filter(is_flagged())["token_id"].to_list()
    return ids
