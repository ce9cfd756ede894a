"""How numbers and nouns are written."""

import pytest
from hypothesis import given, strategies as st

from stickytoken.words import counted, interval, number


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(0.396, 0.4241, "39% to 43%"), (0.4, 0.4, "40% to 40%"), (-0.004, 0.0, "−1% to 0%")],
)
def test_intervals_of_shares_are_rounded_outward(low, high, text):
    assert interval(low, high, 0, "%") == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(0.4999, 0.631, "0.49 to 0.64 SD"), (0.5, 0.57, "0.50 to 0.57 SD"), (-0.001, -0.0, "−0.01 to 0.00 SD")],
)
def test_intervals_of_lifts_are_rounded_outward(low, high, text):
    assert interval(low, high, 2, "SD") == text


@given(st.floats(-1e6, 1e6), st.integers(0, 4))
def test_a_number_is_read_back_as_python_rounds_it_and_zero_has_no_sign(value, digits):
    text = number(value, digits)
    assert float(text.replace(",", "").replace("−", "-")) == float(f"{value:.{digits}f}")
    assert not (text.startswith("−") and float(f"{value:.{digits}f}") == 0)


def test_one_is_singular_and_everything_else_is_plural():
    assert [counted(count, "token") for count in (0, 1, 1200)] == ["0 tokens", "1 token", "1,200 tokens"]
    assert counted(1, "query has", "queries have") == "1 query has"
    assert counted(2, "query has", "queries have") == "2 queries have"
