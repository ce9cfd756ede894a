"""Lifts that are computed from pulls, corrected by a few measured tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from sklearn.model_selection import LeaveOneOut, cross_val_predict

from stickytoken.methods.profile._calibration import calibrate
from stickytoken.methods.profile.pull import Pull

TOKENS, MEASURED, DIMENSION = 400, 150, 12


def drawn(seed, bend=0.0, noise=0.0):
    """Predicted lifts, effects, measured rows, true lifts and noisy ones: a line, and some of the pulls."""
    generator = np.random.default_rng(seed)
    effects = Pull(generator.normal(size=TOKENS), generator.normal(size=(TOKENS, DIMENSION)))
    predicted = generator.normal(size=TOKENS)
    true = 0.3 + 1.7 * predicted + bend * effects.pull @ generator.normal(size=DIMENSION)
    rows = np.sort(generator.permutation(TOKENS)[:MEASURED])
    return predicted, effects, rows, true, true[rows] + noise * generator.normal(size=MEASURED)


@pytest.mark.parametrize("seed", range(3))
def test_a_line_is_found_exactly_and_has_no_error(seed):
    predicted, effects, rows, true, lifts = drawn(seed)
    found = calibrate(predicted, effects, rows, lifts, 0.0)
    assert found.values == pytest.approx(true, abs=1e-9)
    assert found.error == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_what_the_pulls_add_is_learned_and_the_error_is_that_of_tokens_that_had_no_part(seed):
    predicted, effects, rows, true, lifts = drawn(seed, bend=0.5, noise=0.3)
    found = calibrate(predicted, effects, rows, lifts, 0.3**2)
    others = np.setdiff1d(np.arange(TOKENS), rows)
    line = np.polyval(np.polyfit(predicted[rows], lifts, 1), predicted)
    off = np.sqrt(np.mean((found.values - true)[others] ** 2))
    assert off < 0.2 * np.sqrt(np.mean((line - true)[others] ** 2))
    # The cross-validated error contains noise of its own: a tenth of the noise that it takes away.
    assert found.error == pytest.approx(off, abs=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_pulls_that_say_nothing_leave_the_line_alone(seed):
    predicted, effects, rows, true, lifts = drawn(seed, noise=1.0)
    found = calibrate(predicted, effects, rows, lifts, 1.0)
    line = np.polyval(np.polyfit(predicted[rows], lifts, 1), predicted)
    assert np.std(found.values - line) < 0.25
    assert np.sqrt(np.mean((found.values - true) ** 2)) < 0.4


def test_the_fit_is_the_ridge_regression_that_leave_one_out_chooses():
    predicted, effects, rows, _, lifts = drawn(4, bend=0.1, noise=0.5)
    slope, intercept = np.polyfit(predicted[rows], lifts, 1)
    line = intercept + slope * predicted
    features = np.column_stack([effects.pull, effects.contraction])
    features = features - features[rows].mean(axis=0)
    scale = np.linalg.eigvalsh(features[rows] @ features[rows].T).mean()
    left = lifts - line[rows]

    def ridge(penalty):
        return Ridge(alpha=penalty, fit_intercept=False)

    def error(penalty):
        out = cross_val_predict(ridge(penalty), features[rows], left, cv=LeaveOneOut())
        return np.mean((left - out) ** 2)

    best = min(np.geomspace(1e-2, 1e3, 16) * scale, key=error)
    expected = line + ridge(best).fit(features[rows], left).predict(features)
    found = calibrate(predicted, effects, rows, lifts, 0.0)
    assert found.values == pytest.approx(expected, abs=1e-8)
    assert found.error == pytest.approx(np.sqrt(error(best)), abs=1e-8)


@settings(max_examples=20, deadline=None)
@given(shift=st.floats(-5, 5), factor=st.floats(0.1, 10))
def test_units_of_the_measured_lifts_carry_over(shift, factor):
    predicted, effects, rows, _, lifts = drawn(5, bend=0.3, noise=0.2)
    plain = calibrate(predicted, effects, rows, lifts, 0.01)
    scaled = calibrate(predicted, effects, rows, shift + factor * lifts, 0.01 * factor**2)
    assert scaled.values == pytest.approx(shift + factor * plain.values, abs=1e-7)
    assert scaled.error == pytest.approx(factor * plain.error, abs=1e-7)


def test_predictions_and_pulls_that_do_not_vary_give_the_mean():
    effects = Pull(np.zeros(6), np.zeros((6, 3)))
    found = calibrate(np.ones(6), effects, np.arange(4), np.array([1.0, 2, 3, 6]), 0.0)
    assert found.values == pytest.approx(np.full(6, 3.0))
