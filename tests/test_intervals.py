"""Intervals of contrasts by the bootstrap, against scipy."""

import numpy as np
import pytest
from scipy.stats import bootstrap

from stickytoken.intervals import bootstrap_samples, contrast_intervals, resampled


def mean_scores(values):
    return lambda sample: (values if sample is None else values[:, sample]).mean(axis=1)


def difference(values, samples):
    resampled_means = resampled(mean_scores(values), samples)
    return contrast_intervals(resampled_means, np.array([[-1.0, 1.0]]), 0.9)[0]


def test_an_interval_is_that_of_scipy_up_to_chance():
    values = np.random.default_rng(0).normal(size=(2, 200)) + np.array([[0.0], [0.5]])
    interval = difference(values, bootstrap_samples(200, 4000, [1]))
    differences = values[1] - values[0]
    expected = bootstrap(
        (differences,), np.mean, confidence_level=0.9, method="percentile", rng=np.random.default_rng(2)
    ).confidence_interval
    assert interval.value == pytest.approx(differences.mean())
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=0.01)


def test_conditions_are_resampled_together_and_without_samples_there_is_no_interval():
    values = np.random.default_rng(5).normal(size=(1, 50)).repeat(2, axis=0)
    values[1] += 0.25
    assert difference(values, bootstrap_samples(50, 100, [0])) == pytest.approx((0.25, 0.25, 0.25))
    assert difference(np.array([[1.0], [3.0]]), bootstrap_samples(1, 0, [0])) == (2.0, None, None)


def test_what_is_mostly_not_defined_has_no_interval_and_spoils_only_what_it_is_part_of():
    resampled_values = np.full((101, 2), np.nan)
    resampled_values[:40, 0] = 1
    intervals = contrast_intervals(resampled_values, np.array([[1.0, 0.0], [1.0, -1.0]]), 0.9)
    assert intervals == [(1.0, None, None), (None, None, None)]
