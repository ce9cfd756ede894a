"""The rule of integration: exact where it must be, and close where values turn sharply."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickytoken.inspection.integrated_jacobians import rule_along, whole_rule

PLACES = np.linspace(0, 1, 81)


@given(st.lists(st.floats(0, 5), min_size=1, max_size=60), st.integers(1, 50))
def test_points_are_in_order_and_weights_sum_to_one(legs, points):
    places, weights = rule_along(np.concatenate([[0.0], np.cumsum(legs)]), points)
    assert places.shape == weights.shape == (points,)
    assert (np.diff(places) > 0).all()
    assert places[0] > 0
    assert places[-1] < 1
    assert weights.sum() == pytest.approx(1)


@given(st.lists(st.floats(0, 5), min_size=8, max_size=60), st.integers(0, 7), st.integers(4, 40))
def test_polynomials_are_integrated_exactly(legs, degree, points):
    places, weights = rule_along(np.concatenate([[0.0], np.cumsum(legs)]), points)
    assert weights @ places**degree == pytest.approx(1 / (degree + 1), abs=1e-9)


@given(st.integers(1, 40), st.integers(0, 12))
def test_the_rule_over_the_whole_way_is_exact_for_polynomials(points, degree):
    places, weights = whole_rule(points)
    assert weights.sum() == pytest.approx(1)
    if degree < 2 * points:
        assert weights @ places**degree == pytest.approx(1 / (degree + 1), abs=1e-9)


@pytest.mark.parametrize("turn", [0.31, 0.47, 0.62])
def test_a_sharp_turn_is_met(turn):
    def value(places):
        return np.tanh((places - turn) / 0.01)

    def slope(places):
        return 1 / np.cosh((places - turn) / 0.01) ** 2 / 0.01

    travelled = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(value(PLACES))))])
    places, weights = rule_along(travelled, 40)
    nodes, shares = whole_rule(40)
    exact = value(1.0) - value(0.0)
    error = abs(weights @ slope(places) - exact)
    plain = abs(shares @ slope(nodes) - exact)
    assert error < 0.05 * exact
    assert error < plain / 2


def test_a_way_on_which_nothing_happens_is_divided_evenly():
    places, _ = rule_along(np.zeros(5), 8)
    np.testing.assert_allclose(places, 1 - places[::-1])
