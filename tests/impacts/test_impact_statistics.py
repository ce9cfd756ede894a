"""Intervals, tests and corrections against scipy and slow references."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import bootstrap, permutation_test, rankdata

from stickytoken.impacts.statistics import (
    bootstrap_samples,
    combine,
    compare,
    contrast_intervals,
    corrected,
    resampled,
)


def mean_scores(values):
    """Scores that are means over units."""
    return lambda sample: (values if sample is None else values[:, sample]).mean(axis=1)


def test_an_interval_is_that_of_scipy_up_to_chance():
    values = np.random.default_rng(0).normal(size=(2, 200)) + np.array([[0.0], [0.5]])
    samples = bootstrap_samples(200, 4000, [1])
    (found,) = contrast_intervals(resampled(mean_scores(values), samples), np.array([[-1.0, 1.0]]), 0.9)
    difference = values[1] - values[0]
    expected = bootstrap(
        (difference,), np.mean, confidence_level=0.9, method="percentile", rng=np.random.default_rng(2)
    ).confidence_interval
    assert found.value == pytest.approx(difference.mean())
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.01)


def test_intervals_cover_the_truth_as_often_as_they_say():
    generator = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        values = generator.normal(size=(1, 60))
        samples = bootstrap_samples(60, 200, [4])
        (found,) = contrast_intervals(resampled(mean_scores(values), samples), np.array([[1.0]]), 0.9)
        covered += found.low <= 0 <= found.high
    assert 0.82 <= covered / 200 <= 0.97


def test_without_samples_there_is_a_value_and_no_interval():
    values = np.array([[1.0], [3.0]])
    samples = bootstrap_samples(1, 0, [0])
    (found,) = contrast_intervals(resampled(mean_scores(values), samples), np.array([[-1.0, 1.0]]), 0.9)
    assert found == (2.0, None, None)


def test_conditions_are_resampled_together():
    values = np.random.default_rng(5).normal(size=(1, 50)).repeat(2, axis=0)
    values[1] += 0.25
    samples = bootstrap_samples(50, 100, [0])
    (found,) = contrast_intervals(resampled(mean_scores(values), samples), np.array([[-1.0, 1.0]]), 0.9)
    assert found == pytest.approx((0.25, 0.25, 0.25))


def test_a_score_that_is_not_defined_spoils_only_what_it_is_part_of():
    contrasts = np.array([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]])
    found = combine(contrasts, np.array([3.0, 1.0, np.nan]))
    assert found[0] == 2
    assert np.isnan(found[1])


def test_what_is_mostly_not_defined_has_no_interval():
    def scores(sample):
        return np.array([1.0 if sample is None or 0 in sample[:1] else np.nan])

    samples = bootstrap_samples(10, 100, [0])
    (found,) = contrast_intervals(resampled(scores, samples), np.array([[1.0]]), 0.9)
    assert found == (1.0, None, None)
    (nothing,) = contrast_intervals(resampled(lambda _: np.array([np.nan]), samples), np.array([[1.0]]), 0.9)
    assert nothing == (None, None, None)


def plain_p_value(costs):
    """Every choice of one member per set, in plain loops."""
    means = []
    for chosen in itertools.product(range(costs.shape[1]), repeat=len(costs)):
        differences = [
            row[place] - np.mean(np.delete(row, place)) for row, place in zip(costs, chosen, strict=True)
        ]
        means.append(np.mean(differences))
    return np.mean([mean >= means[0] - 1e-9 for mean in means])


matched_sets = st.integers(1, 4).flatmap(
    lambda members: st.lists(
        st.lists(st.integers(-9, 9), min_size=members + 1, max_size=members + 1), min_size=1, max_size=4
    )
)


@given(matched_sets, st.integers(0, 9))
def test_the_test_counts_every_choice_of_one_member_per_set(sets, key):
    costs = np.array(sets) / 10
    assert compare(costs, [key]).p_value == pytest.approx(plain_p_value(costs))


@pytest.mark.parametrize(("sets", "members"), [(7, 2), (4, 3), (2, 4)])
def test_it_is_the_test_of_scipy_that_permutes_within_every_set(sets, members):
    costs = np.random.default_rng(1).normal(size=(sets, members))
    costs[:, 0] += 0.4
    expected = permutation_test(
        tuple(costs.T),
        lambda first, *others, axis: (first - np.mean(others, axis=0)).mean(axis=axis),
        permutation_type="samples",
        alternative="greater",
        vectorized=True,
        n_resamples=np.inf,
    )
    assert compare(costs, [0]).p_value == pytest.approx(expected.pvalue)


def test_with_one_set_it_is_the_rank_of_the_first():
    costs = np.random.default_rng(2).normal(size=(1, 20))
    assert compare(costs, [0]).p_value == pytest.approx(rankdata(-costs[0])[0] / 20)


def test_random_choices_agree_with_the_count_of_all():
    costs = np.random.default_rng(3).normal(size=(5, 7))  # 16,807 choices
    costs[:, 0] += 0.5
    found = compare(costs, [7]).p_value
    assert found == compare(costs, [7]).p_value
    assert found != compare(costs, [8]).p_value
    exact = plain_p_value(costs)
    assert found == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 9999))


@pytest.mark.parametrize(("sets", "members"), [(1, 20), (2, 9), (5, 9)])
def test_p_values_are_uniform_under_the_null_hypothesis(sets, members):
    """Members of a set that share its level, so that only the choice within the set is exchangeable."""
    generator = np.random.default_rng(4)
    levels = generator.normal(size=(300, sets, 1))
    found = np.array(
        [compare(costs, [0]).p_value for costs in levels + generator.normal(size=(300, sets, members))]
    )
    for level in (0.05, 0.2, 0.5, 0.8):
        rate = (found <= level + 1e-9).mean()
        assert rate == pytest.approx(
            level, abs=4 * np.sqrt(level * (1 - level) / len(found)) + 1 / members**sets
        )


@pytest.mark.parametrize(("sets", "members"), [(1, 2), (1, 20), (2, 5), (4, 9), (6, 9)])
def test_the_smallest_p_value_is_that_of_the_highest_member_of_every_set(sets, members):
    costs = np.zeros((sets, members))
    costs[:, 0] = 1
    assert compare(costs, [0]).p_value == pytest.approx(max(members**-sets, 1e-4), abs=1e-4 * (sets == 6))


def test_the_effect_size_is_the_mean_in_standard_deviations():
    costs = np.array([[0.5, 0.1, 0.3], [0.7, 0.1, 0.1], [0.6, 0.3, 0.2]])
    difference = costs[:, 0] - costs[:, 1:].mean(axis=1)
    assert compare(costs, [0]).effect_size == pytest.approx(difference.mean() / difference.std(ddof=1))
    assert compare(np.array([[1.0, 0.0]] * 3), [0]).effect_size is None
    assert compare(costs[:1], [0]).effect_size is None


def test_sets_with_an_undefined_cost_are_left_out():
    costs = np.random.default_rng(5).normal(size=(3, 4))
    spoiled = np.vstack([costs, [[np.nan, 0, 0, 0], [1, 0, np.nan, 0]]])
    assert compare(spoiled, [0]) == compare(costs, [0])
    assert compare(spoiled[3:], [0]) == (None, None)


def test_p_values_are_corrected_over_the_tasks_that_have_one():
    assert corrected([None, None]) == [None, None]
    assert corrected([0.01, None, 0.04]) == pytest.approx([0.02, None, 0.04])
    assert corrected([]) == []
