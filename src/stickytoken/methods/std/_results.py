"""Turn the rows of the two stages into tokens.parquet."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from stickytoken.methods.std.formulas import candidate_threshold, outlier_threshold
from stickytoken.methods.std.settings import StdSettings

_RATES = {
    "rate_cosine": "validation_rate",
    "rate_euclidean": "validation_rate_euclidean",
    "rate_manhattan": "validation_rate_manhattan",
}
_SCORES = {
    "score_cosine": "sticky_score",
    "score_euclidean": "sticky_score_euclidean",
    "score_manhattan": "sticky_score_manhattan",
}


TOKEN_COLUMNS = (
    "token_id",
    "token",
    "decoded",
    "category",
    *_SCORES.values(),
    *_RATES.values(),
    "lift",
    "verdict",
)


class Candidates(NamedTuple):
    """Tokens that go on to validation.

    Attributes:
        ids: their ids, ascending.
        threshold: the score that they reach.
    """

    ids: list[int]
    threshold: float


class Verdicts(NamedTuple):
    """The finished table.

    Attributes:
        tokens: one row per scored token.
        threshold: the validation rate that sticky tokens exceed.
    """

    tokens: pl.DataFrame
    threshold: float


def choose_candidates(scores: pl.DataFrame, settings: StdSettings) -> Candidates:
    """Choose the best share of the tokens by cosine score."""
    threshold = candidate_threshold(scores["score_cosine"].to_list(), settings.candidate_share)
    chosen = scores.filter(pl.col("score_cosine") >= threshold)["token_id"].sort().to_list()
    return Candidates(chosen, threshold)


def decide(
    vocabulary: pl.DataFrame, scores: pl.DataFrame, validations: pl.DataFrame, settings: StdSettings
) -> Verdicts:
    """Join the stages and mark the outliers among the candidates as sticky.

    Tokens that were not validated have null rates and a null verdict.
    """
    threshold = outlier_threshold(validations["rate_cosine"].to_list(), settings.outlier_range)
    rates = validations.select("token_id", pl.col("lift"), *_RATES).rename(_RATES)
    tokens = (
        scores.select("token_id", *_SCORES)
        .rename(_SCORES)
        .join(vocabulary, on="token_id", how="left", validate="1:1")
        .join(rates, on="token_id", how="left", validate="1:1")
        .with_columns(
            verdict=pl.when(pl.col("validation_rate").is_null())
            .then(None)
            .when(pl.col("validation_rate") > threshold)
            .then(pl.lit("sticky"))
            .otherwise(pl.lit("benign"))
        )
        .select(*TOKEN_COLUMNS)
        .sort("token_id")
    )
    return Verdicts(tokens, threshold)
