"""The method of Chen et al. (ACL 2025): score all tokens, validate the best, and call the outliers sticky."""

from __future__ import annotations

import math
from dataclasses import replace

import polars as pl

from stickytoken.measurement.store import ResultFolder
from stickytoken.methods import TokenTable, Verdict, base
from stickytoken.methods.base import Job
from stickytoken.methods.runner import Runner
from stickytoken.methods.std import scoring, validation
from stickytoken.methods.std._scores import (
    Metric,
    ScoreConstants,
    candidate_threshold,
    distances,
    outlier_threshold,
    sticky_score,
)
from stickytoken.methods.std._wording import (
    CANDIDATES_FILE,
    GLOSSARY,
    LISTED,
    RATE,
    REPORTED,
    describe_probe,
    describe_run,
    describe_similarity,
)
from stickytoken.methods.std.counting import CountedRunner
from stickytoken.methods.std.placement import validation_order
from stickytoken.methods.std.plan import make_plan, truncates
from stickytoken.methods.std.records import StdPlanRecord, StdResultRecord
from stickytoken.methods.std.validation import StdEvidence, probe
from stickytoken.settings.std import Scores, StdSettings

__all__ = [
    "PLAN_RECORD",
    "RESULT_RECORD",
    "TABLE",
    "Metric",
    "ScoreConstants",
    "Scores",
    "StdEvidence",
    "StdPlanRecord",
    "StdSettings",
    "candidate_threshold",
    "compute",
    "describe_probe",
    "describe_run",
    "describe_similarity",
    "distances",
    "make_plan",
    "outlier_threshold",
    "probe",
    "sticky_score",
]


def candidates_table(tokens: pl.DataFrame) -> pl.DataFrame:
    """Return the candidates in tokens.parquet, best score first, with the columns of the published files."""
    validated = tokens.filter(pl.col("validation_rate").is_not_null())
    return validated.sort("sticky_score", "token_id", descending=[True, False]).select(
        "token_id",
        "token",
        "sticky_score",
        pl.col("validation_rate").alias("validation_rate_cosine"),
        "validation_rate_euclidean",
        "validation_rate_manhattan",
        "decoded",
        (pl.col("verdict") == Verdict.STICKY).alias("sticky"),
    )


def _map_columns(stage_name: str, table_name: str) -> dict[str, str]:
    columns = {f"{stage_name}_{metric}": f"{table_name}_{metric}" for metric in Metric}
    columns[f"{stage_name}_{Metric.COSINE}"] = table_name  # verdicts depend on the cosine alone
    return columns


# Names of columns in tokens.parquet, keyed by their names in the tables of the stages.
_SCORES = _map_columns("score", "sticky_score")
_RATES = _map_columns("rate", "validation_rate")
PLAN_RECORD: type[base.PlanRecord] = StdPlanRecord
RESULT_RECORD: type[base.ResultRecord] = StdResultRecord
COLUMNS = (
    "token_id",
    "token",
    "decoded",
    "category",
    *_SCORES.values(),
    "score_at_most",
    "sampled_score",
    *_RATES.values(),
    "lift",
    "verdict",
)
TABLE = TokenTable(
    columns=COLUMNS,
    verdicts=(Verdict.STICKY, Verdict.BENIGN),
    judges_every_token=False,
    listed=LISTED,
    reported=REPORTED,
    ranked_by=RATE,
    glossary=GLOSSARY,
)


def compute(
    job: Job[StdSettings],
    plan: StdPlanRecord,
    runner: Runner,
    folder: ResultFolder,
) -> tuple[pl.DataFrame, StdResultRecord]:
    """Score the tokens, validate those with the best scores, and mark the outliers among them as sticky.

    Returns:
        The table tokens.parquet, with one row for each token of the job, and the result for run.json.
    """
    settings = job.settings
    stage = validation.validation_stage(job.encoder, settings, plan)
    pairs = scoring.scoring_pairs(job.encoder, settings, plan)
    expected_candidates = math.ceil(settings.candidate_share * len(job.tokens))
    expected_validation_texts = expected_candidates * stage.probes_per_token
    counted = CountedRunner(
        runner,
        folder,
        truncate=truncates(job.encoder, settings.inserted_as),
        expected_texts=scoring.expected_texts(pairs, len(job.tokens)) + expected_validation_texts,
    )
    scores = scoring.score_tokens(job, pairs, counted, expected_validation_texts)

    # Choose the tokens with the best cosine scores as candidates. A token without an exact score has an upper
    # bound of its score instead. The bound is below the threshold, so the token cannot be a candidate.
    known_scores = scores["score_cosine"].fill_null(scores["score_at_most"])
    threshold = candidate_threshold(known_scores.to_numpy(), settings.candidate_share)
    best = scores.filter(pl.col("score_cosine") >= threshold)
    best_ids = set(best["token_id"])
    candidates = [token for token in job.tokens if token.id in best_ids]
    if validation.places_as_published(job):
        # Put the copies into the same random gaps as the published runs, which drew gaps in the order in
        # which they validated the candidates. The gaps of one token's copies in one pair are a path.
        by_id = {token.id: token for token in candidates}
        score_of_candidate = dict(best.select("token_id", "score_cosine").iter_rows())
        order = validation_order(score_of_candidate)
        candidates_in_order = [by_id[token_id] for token_id in order]
        paths = validation.published_paths(
            job.encoder, settings, plan, job.vocabulary.available, candidates_in_order
        )
        stage = replace(stage, gaps_of=paths)

    # The number of candidates is now known, so the total number of texts is no longer an estimate.
    validation_texts = len(candidates) * stage.probes_per_token
    counted.expected_texts = counted.done_texts + validation_texts
    validations = counted(stage, candidates, validation_texts)
    outlier_bound = outlier_threshold(validations["rate_cosine"].to_list(), settings.outlier_range)
    tokens = _make_token_table(scores, validations, job.vocabulary.frame(), outlier_bound)
    tokens = runner.without_unanswered(tokens)
    folder.write_text(CANDIDATES_FILE, candidates_table(tokens).write_csv())
    cost = folder.total_cost()
    return tokens, StdResultRecord(
        scored=len(job.tokens),
        candidates=len(candidates),
        sticky=int((tokens["verdict"] == "sticky").sum()),
        score_threshold=threshold,
        rate_threshold=outlier_bound,
        exact_scores=int(tokens["sticky_score"].count()),
        sequences=cost.sequences,
        seconds=round(folder.seconds, 1),
    )


def _make_token_table(
    scores: pl.DataFrame, validations: pl.DataFrame, vocabulary: pl.DataFrame, outlier_bound: float
) -> pl.DataFrame:
    # Tokens that weren't validated have no rates and no verdict.
    rates = validations.select("token_id", "lift", *_RATES).rename(_RATES)
    is_validated = pl.col("validation_rate").is_not_null()
    is_outlier = pl.col("validation_rate") > outlier_bound
    verdict = pl.when(is_outlier).then(pl.lit("sticky")).otherwise(pl.lit("benign"))
    return (
        # For statistics over all tokens: the sample. Outside it, low-scoring tokens have only an upper bound.
        scores.with_columns(sampled_score=pl.when("sampled").then("score_cosine"))
        .rename(_SCORES)
        .join(vocabulary, on="token_id", how="left", validate="1:1")
        .join(rates, on="token_id", how="left", validate="1:1")
        .with_columns(verdict=pl.when(is_validated).then(verdict))
        .select(*COLUMNS)
        .sort("token_id")
    )
