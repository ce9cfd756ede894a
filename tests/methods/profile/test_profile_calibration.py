"""Lifts that are computed from pulls, corrected by a few measured tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import RidgeCV

from stickytoken.methods.profile.estimates import calibrate

TOKENS, MEASURED, DIMENSION = 400, 150, 12


def drawn(seed, bend=0.0, noise=0.0):
    """Predicted lifts, features, measured rows, true and noisy lifts: a line, and some of the features."""
    generator = np.random.default_rng(seed)
    features = [generator.normal(size=(TOKENS, DIMENSION)), 100 * generator.normal(size=(TOKENS, 2))]
    predicted = generator.normal(size=TOKENS)
    true = 0.3 + 1.7 * predicted + bend * features[0] @ generator.normal(size=DIMENSION)
    rows = np.sort(generator.permutation(TOKENS)[:MEASURED])
    return predicted, features, rows, true, true[rows] + noise * generator.normal(size=MEASURED)


@pytest.mark.parametrize("seed", range(3))
def test_a_line_is_found_exactly_and_has_no_error(seed):
    predicted, features, rows, true, lifts = drawn(seed)
    found = calibrate(predicted, features, rows, lifts, 0.0)
    assert found.values == pytest.approx(true, abs=1e-9)
    assert found.error == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_what_the_features_add_is_learned_and_the_error_is_that_of_tokens_that_had_no_part(seed):
    predicted, features, rows, true, lifts = drawn(seed, bend=0.5, noise=0.3)
    found = calibrate(predicted, features, rows, lifts, 0.3**2)
    others = np.setdiff1d(np.arange(TOKENS), rows)
    line = np.polyval(np.polyfit(predicted[rows], lifts, 1), predicted)
    off = np.sqrt(np.mean((found.values - true)[others] ** 2))
    assert off < 0.2 * np.sqrt(np.mean((line - true)[others] ** 2))
    # The cross-validated error contains noise of its own: a tenth of the noise that it takes away.
    assert found.error == pytest.approx(off, abs=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_features_that_say_nothing_leave_the_line_alone(seed):
    predicted, features, rows, true, lifts = drawn(seed, noise=1.0)
    found = calibrate(predicted, features, rows, lifts, 1.0)
    line = np.polyval(np.polyfit(predicted[rows], lifts, 1), predicted)
    assert np.std(found.values - line) < 0.25
    assert np.sqrt(np.mean((found.values - true) ** 2)) < 0.4


def test_the_fit_is_the_ridge_regression_that_leave_one_out_chooses():
    predicted, features, rows, _, lifts = drawn(4, bend=0.1, noise=0.5)
    slope, intercept = np.polyfit(predicted[rows], lifts, 1)
    line = intercept + slope * predicted
    groups = [group - group[rows].mean(axis=0) for group in features]
    known = np.column_stack([group / np.sqrt((group[rows] ** 2).sum(axis=1).mean()) for group in groups])
    scale = (known[rows] ** 2).sum(axis=1).mean()
    left = lifts - line[rows]

    ridge = RidgeCV(np.geomspace(1e-2, 1e3, 16) * scale, fit_intercept=False, store_cv_results=True)
    expected = line + ridge.fit(known[rows], left).predict(known)
    errors = ridge.cv_results_.mean(axis=0)
    found = calibrate(predicted, features, rows, lifts, 0.0)
    assert found.values == pytest.approx(expected, abs=1e-8)
    assert found.error == pytest.approx(np.sqrt(errors.min()), abs=1e-8)


@settings(max_examples=20)
@given(shift=st.floats(-5, 5), factor=st.floats(0.1, 10))
def test_units_of_the_measured_lifts_carry_over(shift, factor):
    predicted, features, rows, _, lifts = drawn(5, bend=0.3, noise=0.2)
    plain = calibrate(predicted, features, rows, lifts, 0.01)
    scaled = calibrate(predicted, features, rows, shift + factor * lifts, 0.01 * factor**2)
    assert scaled.values == pytest.approx(shift + factor * plain.values, abs=1e-7)
    assert scaled.error == pytest.approx(factor * plain.error, abs=1e-7)


def test_predictions_and_features_that_do_not_vary_give_the_mean():
    found = calibrate(np.ones(6), [np.zeros((6, 3))], np.arange(4), np.array([1.0, 2, 3, 6]), 0.0)
    assert found.values == pytest.approx(np.full(6, 3.0))
