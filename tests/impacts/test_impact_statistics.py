"""Intervals, tests and corrections against scipy and slow references."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import bootstrap

from stickytoken.impacts._statistics import (
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


@given(st.lists(st.integers(-100, 100), min_size=2, max_size=6), st.integers(0, 9))
def test_the_test_counts_all_flips_of_few_tokens(differences, key):
    sticky, benign = np.array(differences) / 100, np.zeros(len(differences))
    flips = np.array(list(itertools.product((1, -1), repeat=len(differences))))
    means = (flips * sticky).mean(axis=1)
    expected = (means >= sticky.mean() - 1e-9).mean()
    assert compare(sticky, benign, [key]).p_value == pytest.approx(expected)


def test_the_effect_size_is_the_mean_in_standard_deviations():
    sticky, benign = np.array([0.5, 0.7, 0.6]), np.array([0.1, 0.1, 0.3])
    difference = sticky - benign
    assert compare(sticky, benign, [0]).effect_size == pytest.approx(
        difference.mean() / difference.std(ddof=1)
    )
    assert compare(np.ones(3), np.zeros(3), [0]).effect_size is None


def test_too_few_tokens_have_no_test():
    assert compare(np.array([1.0]), np.array([0.0]), [0]) == (None, None)
    assert compare(np.array([1.0, np.nan]), np.array([0.0, 0.0]), [0]) == (None, None)


def test_many_tokens_are_tested_by_random_flips_that_the_key_fixes():
    generator = np.random.default_rng(0)
    sticky, benign = generator.normal(0.5, 1, 20), generator.normal(0, 1, 20)
    first = compare(sticky, benign, [7])
    assert first == compare(sticky, benign, [7])
    assert 0 < first.p_value < 0.5


def test_p_values_are_corrected_over_the_tasks_that_have_one():
    assert corrected([None, None]) == [None, None]
    assert corrected([0.01, None, 0.04]) == pytest.approx([0.02, None, 0.04])
    assert corrected([]) == []
