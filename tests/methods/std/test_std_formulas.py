"""Formulas and settings of the paper's method."""

import csv
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import iqr
from sklearn.metrics.pairwise import cosine_distances, euclidean_distances, manhattan_distances

from stickytoken.errors import EncodingError, InputError
from stickytoken.insertion import Insertion, Placement
from stickytoken.methods.std.formulas import (
    Metric,
    candidate_threshold,
    distances,
    falls_on_average,
    outlier_threshold,
    sticky_score,
)
from stickytoken.methods.std.settings import PlacementWeights, ScoreConstants, StdSettings

ANGULAR = ScoreConstants(0.1, 0.05, 0.01)
MANHATTAN = ScoreConstants(1.0, 0.5, 0.1)
# A coarse grid, so that equal neighbours, which neither fall nor rise, are common.
distance_values = st.one_of(st.integers(0, 20).map(lambda tenths: tenths / 10), st.floats(0, 2))
constants = st.builds(ScoreConstants, alpha=st.floats(0, 2), beta=st.floats(0, 2), gamma=st.floats(1e-3, 2))


def slow_score(series, alone, constants):
    """Equation 3 of the paper, one step at a time."""
    fall_sum = rise_sum = 0.0
    fall_count = rise_count = 0
    for before, after in itertools.pairwise(series):
        if after < before:
            fall_sum += before - after
            fall_count += 1
        elif after > before:
            rise_sum += after - before
            rise_count += 1
    reward = fall_sum + constants.alpha * fall_count + 0.1 * alone
    return reward / (rise_sum + constants.beta * rise_count + constants.gamma)


# sticky_score


@pytest.mark.slow
@settings(max_examples=300)
@given(st.lists(distance_values, min_size=2, max_size=10), distance_values, constants)
def test_the_score_equals_a_loop_over_the_steps(series, alone, constants):
    found = sticky_score(np.array(series), np.array(alone), constants)
    assert float(found) == pytest.approx(slow_score(series, alone, constants), rel=1e-12)


@pytest.mark.parametrize("copies", [1, 2, 8])
def test_a_steady_fall_is_divided_by_gamma_alone(copies):
    series = np.linspace(0.9, 0.4, copies + 1)
    found = float(sticky_score(series, np.array(0.7), ANGULAR))
    assert found == pytest.approx((0.5 + 0.1 * copies + 0.1 * 0.7) / 0.01)


@pytest.mark.parametrize("copies", [1, 2, 8])
def test_a_steady_rise_is_rewarded_for_the_token_alone_only(copies):
    series = np.linspace(0.4, 0.9, copies + 1)
    found = float(sticky_score(series, np.array(0.7), ANGULAR))
    assert found == pytest.approx(0.1 * 0.7 / (0.5 + 0.05 * copies + 0.01))


def test_a_step_that_stays_is_neither_fall_nor_rise():
    found = float(sticky_score(np.array([0.5, 0.5, 0.25, 0.5, 0.5]), np.array(1.0), ANGULAR))
    assert found == pytest.approx((0.25 + 0.1 + 0.1) / (0.25 + 0.05 + 0.01))


def test_the_score_of_a_mixed_series_worked_out_by_hand():
    # Falls 2 and 3, rises 1 and 4; t = 10.
    found = float(sticky_score(np.array([5.0, 3.0, 4.0, 1.0, 5.0]), np.array(10.0), MANHATTAN))
    assert found == pytest.approx((5 + 1.0 * 2 + 1) / (5 + 0.5 * 2 + 0.1))


def test_each_place_of_the_leading_axes_is_scored_by_itself():
    generator = np.random.default_rng(0)
    series, alone = generator.uniform(0, 2, (4, 3, 9)), generator.uniform(0, 2, (4, 1))
    found = sticky_score(series, alone, ANGULAR)
    assert found.shape == (4, 3)
    for pair in range(4):
        for place in range(3):
            expected = slow_score(series[pair, place].tolist(), alone[pair, 0], ANGULAR)
            assert found[pair, place] == pytest.approx(expected, rel=1e-12)
    order = generator.permutation(4)
    assert np.array_equal(sticky_score(series[order], alone[order], ANGULAR), found[order])
    turned = sticky_score(series.swapaxes(0, 1), alone.swapaxes(0, 1), ANGULAR)
    assert np.array_equal(turned, found.T)


def test_one_distance_alone_has_no_step():
    assert float(sticky_score(np.array([0.3]), np.array(0.5), ANGULAR)) == pytest.approx(0.05 / 0.01)


# falls_on_average


@settings(max_examples=200)
@given(st.lists(st.integers(-8, 8), min_size=2, max_size=9))
def test_it_falls_when_the_mean_with_copies_lies_below_the_distance_without(values):
    series = np.array(values, dtype=float)
    expected = sum(values[1:]) < (len(values) - 1) * values[0]
    found = falls_on_average(series)
    assert bool(found) is expected
    assert found.dtype == bool


def test_an_equal_mean_does_not_fall():
    assert falls_on_average(np.array([[1.0, 0.5, 1.5], [1.0, 0.5, 1.25], [1.0, 1.0, 1.0]])).tolist() == [
        False,
        True,
        False,
    ]


def test_falls_are_told_for_every_place_of_the_leading_axes():
    series = np.random.default_rng(1).uniform(0, 1, (5, 3, 9))
    found = falls_on_average(series)
    assert found.shape == (5, 3)
    for pair in range(5):
        for place in range(3):
            row = series[pair, place].tolist()
            assert bool(found[pair, place]) is (math.fsum(row[1:]) / 8 < row[0])


# Thresholds.


def slow_quantile(values, share):
    """Linear interpolation between order statistics."""
    ascending = sorted(values)
    position = share * (len(ascending) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (position - below) * (ascending[above] - ascending[below])


@settings(max_examples=200)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=50), st.floats(0, 3))
def test_the_outlier_threshold_equals_percentiles_of_numpy_and_the_iqr_of_scipy(rates, outlier_range):
    found = outlier_threshold(rates, outlier_range)
    third = slow_quantile(rates, 0.75)
    assert found == pytest.approx(
        third + outlier_range * (third - slow_quantile(rates, 0.25)), rel=1e-12, abs=1e-15
    )
    assert found == pytest.approx(np.percentile(rates, 75) + outlier_range * iqr(rates), rel=1e-12, abs=1e-15)


def test_the_outlier_threshold_worked_out_by_hand():
    # Q1 = 0.2, Q3 = 0.4
    assert outlier_threshold([0.5, 0.1, 0.2, 0.3, 0.4], 0.7) == pytest.approx(0.4 + 0.7 * 0.2)
    assert outlier_threshold([0.25], 0.7) == 0.25


def test_the_outlier_threshold_does_not_depend_on_the_order():
    rates = np.random.default_rng(2).uniform(0, 1, 101)
    assert outlier_threshold(rates.tolist(), 0.7) == outlier_threshold(sorted(rates), 0.7)


@settings(max_examples=200)
@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=120),
    st.floats(0.001, 1),
)
def test_the_candidate_threshold_is_the_linear_quantile(scores, share):
    found = candidate_threshold(scores, share)
    assert found == pytest.approx(slow_quantile(scores, 1 - share), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("share", "kept"), [(1.0, 1000), (0.5, 500), (0.02, 20), (0.0005, 1)])
def test_a_share_of_distinct_scores_reaches_the_threshold(share, kept):
    scores = np.random.default_rng(3).permutation(1000) / 7
    assert (scores >= candidate_threshold(scores.tolist(), share)).sum() == kept


def test_no_scores_and_no_rates_are_refused():
    with pytest.raises(InputError, match="no token was scored"):
        candidate_threshold([], 0.02)
    with pytest.raises(InputError, match="no candidate was validated"):
        outlier_threshold([], 0.7)


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


# Distances.


def test_distances_are_those_of_scikit_learn():
    generator = np.random.default_rng(5)
    left, right = generator.standard_normal((7, 16)), generator.standard_normal((9, 16))
    found = distances(left[:, None, :], right[None, :, :])
    expected = {
        Metric.COSINE: cosine_distances(left, right),
        Metric.EUCLIDEAN: euclidean_distances(left, right),
        Metric.MANHATTAN: manhattan_distances(left, right),
    }
    assert set(found) == set(expected) == set(Metric)
    for metric, table in expected.items():
        np.testing.assert_allclose(found[metric], table, rtol=1e-10, atol=1e-12, err_msg=metric)


def test_distances_of_float32_vectors_are_computed_in_float64():
    generator = np.random.default_rng(6)
    left, right = generator.standard_normal((2, 50, 384)).astype(np.float32)
    found = distances(left, right)
    exact = distances(left.astype(np.float64), right.astype(np.float64))
    for metric in Metric:
        assert found[metric].dtype == np.float64
        assert np.array_equal(found[metric], exact[metric])


def test_distances_broadcast_over_all_axes_but_the_last():
    generator = np.random.default_rng(7)
    left, right = generator.standard_normal((4, 3, 2, 8)), generator.standard_normal((4, 8))
    found = distances(left, right[:, None, None, :])
    for metric in Metric:
        assert found[metric].shape == (4, 3, 2)
        alone = distances(left[2, 1, 0], right[2])[metric]
        assert found[metric][2, 1, 0] == pytest.approx(float(alone))


def test_distances_of_vectors_worked_out_by_hand():
    found = distances(np.array([3.0, 0.0]), np.array([0.0, 4.0]))
    assert {str(metric): float(value) for metric, value in found.items()} == {
        "cosine": 1.0,
        "euclidean": 5.0,
        "manhattan": 7.0,
    }
    opposite = distances(np.array([1.0, 1.0]), np.array([-2.0, -2.0]))
    assert float(opposite[Metric.COSINE]) == pytest.approx(2.0)


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


@pytest.mark.parametrize(
    ("field", "least"),
    [
        ("sentences", 2),
        ("pairs", 1),
        ("scoring_pairs", 1),
        ("validation_pairs", 1),
        ("copies", 1),
        ("seed", 0),
    ],
)
def test_a_count_has_a_least_value(field, least):
    assert getattr(StdSettings(**{field: least}), field) == least
    with pytest.raises(InputError, match=f"{field} is {least - 1}: it must be at least {least}"):
        StdSettings(**{field: least - 1})


def test_a_count_is_a_whole_number():
    for field, value in (
        ("copies", 2.5),
        ("seed", 0.1),
        ("pairs", np.float64(7.9)),
        ("copies", float("nan")),
        ("copies", "8"),
    ):
        with pytest.raises(InputError, match=f"{field} is '?{value}'?: it must be a whole number"):
            StdSettings(**{field: value})


@pytest.mark.parametrize("share", [0.0, -0.1, 1.0001, math.nan, math.inf])
def test_a_candidate_share_outside_its_range_is_refused(share):
    with pytest.raises(InputError, match=f"candidate_share is {share}"):
        StdSettings(candidate_share=share)


def test_all_tokens_may_be_candidates():
    assert StdSettings(candidate_share=1.0).candidate_share == 1.0


@pytest.mark.parametrize("outlier_range", [-0.001, math.nan, math.inf])
def test_an_outlier_range_that_is_no_finite_number_from_zero_is_refused(outlier_range):
    with pytest.raises(InputError, match=f"outlier_range is {outlier_range}"):
        StdSettings(outlier_range=outlier_range)


def test_an_outlier_range_of_zero_is_taken():
    assert StdSettings(outlier_range=0).outlier_range == 0


def test_an_insertion_typed_as_text_means_its_kind():
    assert StdSettings(insertion="ids").insertion is Insertion.IDS


def test_an_unknown_insertion_is_refused():
    with pytest.raises(InputError, match="sideways"):
        StdSettings(insertion="sideways")


def test_placement_weights_are_told_by_placement():
    weights = PlacementWeights(prefix=0.5, suffix=0.3, random=0.2)
    assert [weights.of(placement) for placement in Placement] == [0.5, 0.3, 0.2]


@pytest.mark.parametrize(
    "values",
    [
        (0.5, 0.5, 0.1),
        (0.2, 0.2, 0.2),
        (-0.1, 0.6, 0.5),
        (1.5, -0.5, 0.0),
        (math.nan, 0.5, 0.5),
        (0.5, math.nan, 0.5),
    ],
)
def test_placement_weights_that_are_no_shares_are_refused(values):
    with pytest.raises(InputError, match="must not be negative and must sum to 1"):
        PlacementWeights(*values)


@pytest.mark.parametrize("values", [(1.0, 0.0, 0.0), (1 / 3, 1 / 3, 1 / 3), (0.1, 0.2, 0.7)])
def test_placement_weights_may_sum_to_one_only_to_rounding(values):
    assert PlacementWeights(*values).prefix == values[0]


@pytest.mark.parametrize(
    "values",
    [
        (-0.1, 0.0, 0.1),
        (0.1, -0.1, 0.1),
        (0.1, 0.1, 0.0),
        (0.1, 0.1, -1.0),
        (math.nan, 0.1, 0.1),
        (0.1, math.nan, 0.1),
        (0.1, 0.1, math.nan),
        (0.1, 0.1, math.inf),
    ],
)
def test_score_constants_that_could_divide_by_nothing_are_refused(values):
    with pytest.raises(InputError, match="alpha, beta >= 0 and gamma > 0"):
        ScoreConstants(*values)


def test_score_constants_of_zero_are_taken_but_for_gamma():
    assert ScoreConstants(0.0, 0.0, 0.01).alpha == 0.0
