"""Turn the rows of the rounds into tokens.parquet of the profile method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from stickytoken.methods.panel import group_weights
from stickytoken.methods.profile.estimates import Measurements, TokenEstimates, estimate
from stickytoken.methods.profile.pull import pulls
from stickytoken.methods.profile.record import ProfilePlanRecord
from stickytoken.methods.profile.rounds import Round
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.profile.verdict import (
    find_outliers,
    profile,
    severities,
    verdicts,
)

MEASURED_COLUMNS = (
    "token_id",
    "token",
    "decoded",
    "category",
    "texts",
    "lift",
    "lift_low",
    "lift_high",
    "lift_floor",
    "lift_sentences",
    "universality",
    "validation_rate",
    "contraction",
    "fixed_point",
    "q_value",
    "severity",
    "verdict",
)
TOKEN_COLUMNS = (*MEASURED_COLUMNS, "precision")


class Findings(NamedTuple):
    """The finished table and what the verdicts rest on.

    Attributes:
        tokens: one row per measured token.
        ordinary_lift: lift of the typical token.
        ordinary_spread: standard deviation of the lifts of ordinary tokens.
        empirical_null: whether false discoveries are controlled.
        candidates: number of tokens that the last round measured, unselected ones included.
        rounds: measurements.
    """

    tokens: pl.DataFrame
    ordinary_lift: float
    ordinary_spread: float
    empirical_null: bool
    candidates: int
    rounds: Mapping[Round, Measurements]


def measurements(rows: pl.DataFrame) -> Measurements:
    """Turn the rows of one round into arrays."""
    ordered = rows.sort("token_id")

    def matrix(column: str) -> np.ndarray:
        # Python numbers would take a gigabyte for a large vocabulary.
        values = ordered[column]
        if values.dtype != pl.List:
            return values.cast(pl.Float64).to_numpy(writable=True)
        flat = values.explode().cast(pl.Float64).to_numpy(writable=True)
        return flat.reshape(len(values), len(flat) // max(1, len(values)))

    return Measurements(
        ids=ordered["token_id"].to_numpy().astype(np.int64),
        lifts=matrix("lifts"),
        sentence_lifts=matrix("sentence_lifts"),
        groups=matrix("groups"),
        rising=matrix("rising"),
        slopes=matrix("slopes"),
        intercept=matrix("intercept"),
        alone=matrix("alone") if "alone" in ordered.columns else None,
    )


def estimate_lifts(
    rounds: Mapping[Round, Measurements],
    plan: ProfilePlanRecord,
    unselected: np.ndarray,
    settings: ProfileSettings,
) -> TokenEstimates:
    """Estimate the lift on all anchors from the rounds so far."""
    parts = {step: measured.lifts for step, measured in rounds.items()}
    return estimate(rounds, parts, unselected, np.array(plan.late_reference), settings.confidence)


def estimate_pulls(
    rounds: Mapping[Round, Measurements],
    plan: ProfilePlanRecord,
    unselected: np.ndarray,
    settings: ProfileSettings,
    lifts: TokenEstimates,
) -> TokenEstimates:
    """Estimate the pull toward the mean from the rounds so far.

    The lift is a part of the pull.
    """
    late = np.array(plan.late_reference)
    return estimate(
        rounds, pulls(rounds, unselected), unselected, late, settings.confidence, lifts.null.shape
    )


def decide(
    vocabulary: pl.DataFrame,
    rounds: Mapping[Round, Measurements],
    plan: ProfilePlanRecord,
    unselected: np.ndarray,
    settings: ProfileSettings,
) -> Findings:
    """Estimate, test and judge every token.

    Args:
        vocabulary: token_id, token, decoded, category.
        rounds: measurements.
        plan: plan of the run.
        unselected: ids of the unselected tokens of the first round.
        settings: settings of the method.
    """
    tokens = estimate_lifts(rounds, plan, unselected, settings)
    on_sentences = _estimate_on_sentences(rounds, plan, unselected, settings)
    smallest = settings.smallest_effect * plan.similarity_spread
    pull = estimate_pulls(rounds, plan, unselected, settings, tokens)
    outliers = find_outliers(tokens, pull, len(unselected), smallest, settings)
    unknown = np.full(len(tokens.ids), np.nan)
    lift_sentences, topical = unknown, np.zeros(len(tokens.ids), dtype=np.bool_)
    if on_sentences is not None:
        lift_sentences = on_sentences.lift.value + on_sentences.level
        topical = find_outliers(on_sentences, on_sentences, len(unselected), smallest, settings).found
    # Tokens that were selected by their lift must not define what is ordinary in later rounds.
    ordinary = np.array(plan.late_reference) if settings.adaptive else unselected
    found = profile(rounds, tokens, ordinary, _group_weights(plan, settings))
    level = tokens.level
    effects = tokens.lift.value - tokens.null.center
    table = pl.DataFrame(
        {
            "token_id": tokens.ids,
            "texts": tokens.texts,
            "lift": tokens.lift.value + level,
            "lift_low": tokens.lift.low + level,
            "lift_high": tokens.lift.high + level,
            "lift_floor": found.floor + tokens.null.center + level,
            "lift_sentences": lift_sentences,
            "universality": found.universality,
            "validation_rate": found.rising,
            "contraction": found.contraction,
            "fixed_point": found.fixed_point,
            "q_value": outliers.q_values if outliers.q_values is not None else unknown,
            "severity": severities(effects, plan.similarity_spread),
            "verdict": verdicts(outliers.found, topical, found.universality),
        },
        schema_overrides={"severity": pl.String, "verdict": pl.String},
    ).with_columns(pl.col(pl.Float64).fill_nan(None))
    return Findings(
        table.join(vocabulary, on="token_id", how="left", validate="1:1")
        .select(*MEASURED_COLUMNS)
        .sort("token_id"),
        tokens.null.center + level,
        tokens.null.spread,
        outliers.q_values is not None,
        len(list(rounds.values())[-1].ids),
        rounds,
    )


def _estimate_on_sentences(
    rounds: Mapping[Round, Measurements],
    plan: ProfilePlanRecord,
    unselected: np.ndarray,
    settings: ProfileSettings,
) -> TokenEstimates | None:
    """Estimate the lift on sentences alone; None if no two sentences lie below the mean similarity."""
    parts = {step: measured.sentence_lifts for step, measured in rounds.items()}
    if not all(part.any() for part in parts.values()):
        return None
    return estimate(rounds, parts, unselected, np.array(plan.late_reference), settings.confidence)


def _group_weights(plan: ProfilePlanRecord, settings: ProfileSettings) -> np.ndarray:
    sentences = 1 + max(anchor.group for anchor in plan.sentence_anchors)
    entries = 1 + max((anchor.group for anchor in plan.vocabulary_anchors), default=-1)
    return group_weights(sentences, entries, settings.vocabulary_share)
