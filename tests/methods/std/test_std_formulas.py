"""Formulas and settings of the paper's method."""

import csv
import math
import re

import numpy as np
import pytest

from stickytoken.errors import EncodingError, InputError
from stickytoken.insertion import Insertion, Placement
from stickytoken.methods.std.plan import (
    PlacementWeights,
    ScoreConstants,
    StdSettings,
    candidate_threshold,
    distances,
    outlier_threshold,
)

ANGULAR = ScoreConstants(0.1, 0.05, 0.01)
MANHATTAN = ScoreConstants(1.0, 0.5, 0.1)
# A coarse grid, so that equal neighbours, which neither fall nor rise, are common.


# Thresholds.


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_the_published_rates_give_exactly_the_published_sticky_tokens(shared):
    rows = rows_of(shared / "paper" / "minilm_candidates.csv")
    rates = {int(row["token_id"]): float(row["validation_rate_cosine"]) for row in rows}
    published = {int(row["token_id"]) for row in rows if row["sticky"] == "True"}
    threshold = outlier_threshold(list(rates.values()), StdSettings().outlier_range)
    assert {token_id for token_id, rate in rates.items() if rate > threshold} == published
    assert len(published) == 21


# Published with fewer candidates than two in a hundred of their available tokens.
FEWER_CANDIDATES = {"SFR-Embedding-2_R", "gte-Qwen2-1.5B-instruct"}


def test_the_default_share_gives_the_published_numbers_of_candidates(shared):
    counts = {
        (int(row["available_tokens"]), int(row["candidates"]))
        for row in rows_of(shared / "paper" / "models.csv")
        if row["model_name"] not in FEWER_CANDIDATES
    }
    assert (23_699, 474) in counts
    for available, candidates in counts:
        scores = np.random.default_rng(4).permutation(available) / 3
        threshold = candidate_threshold(scores.tolist(), StdSettings().candidate_share)
        assert (scores >= threshold).sum() == candidates


@pytest.mark.parametrize("zero_first", [True, False])
def test_a_zero_vector_is_refused(zero_first):
    zero, other = np.zeros((2, 3)), np.ones((2, 3))
    zero[1] = 1.0  # one good row beside the bad one
    with pytest.raises(EncodingError, match="zero vector"):
        distances(*((zero, other) if zero_first else (other, zero)))


# Settings.


def test_the_defaults_are_the_published_values():
    defaults = StdSettings()
    assert (defaults.sentences, defaults.pairs) == (1000, 1000)
    assert (defaults.scoring_pairs, defaults.validation_pairs) == (5, 250)
    assert (defaults.copies, defaults.seed) == (8, 42)
    assert (defaults.candidate_share, defaults.outlier_range) == (0.02, 0.7)
    assert defaults.insertion is Insertion.TEXT
    assert defaults.scoring_weights == PlacementWeights(0.35, 0.35, 0.30)
    assert defaults.validation_weights == PlacementWeights(4 / 11, 4 / 11, 3 / 11)
    assert (defaults.angular, defaults.manhattan) == (ANGULAR, MANHATTAN)
    assert [defaults.scoring_weights.of(placement) for placement in Placement] == [0.35, 0.35, 0.30]


@pytest.mark.parametrize(
    ("field", "least", "below"),
    [
        *(("sentences", 2, 1), ("pairs", 1, 0), ("scoring_pairs", 1, 0), ("validation_pairs", 1, 0)),
        *(("copies", 1, 0), ("seed", 0, -1), ("seed", 0, 0.1), ("candidate_share", 1.0, 1.0001)),
        *(("candidate_share", 1.0, 0.0), ("candidate_share", 1.0, math.nan), ("outlier_range", 0, -0.001)),
        *(("outlier_range", 0, math.inf), ("insertion", Insertion.IDS, "sideways")),
    ],
)
def test_settings_are_taken_to_their_bounds_and_refused_beyond(field, least, below):
    assert getattr(StdSettings(**{field: least}), field) == least
    with pytest.raises(InputError, match=f"{field} is '?{below}"):
        StdSettings(**{field: below})


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        *((PlacementWeights, values) for values in [(0.5, 0.5, 0.1), (1.5, -0.5, 0.0), (0.5, math.nan, 0.5)]),
        *((ScoreConstants, values) for values in [(-0.1, 0.0, 0.1), (0.1, 0.1, 0.0), (0.1, math.nan, 1)]),
    ],
)
def test_weights_that_are_no_shares_and_constants_that_could_divide_by_nothing_are_refused(kind, values):
    with pytest.raises(InputError, match=re.escape(str(values[0]))):
        kind(*values)
