"""How numbers are written."""

from __future__ import annotations

import pytest

from stickytoken.methods.wording import percent_interval, sd_interval


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(0.396, 0.4241, "39% to 43%"), (0.4, 0.4, "40% to 40%"), (-0.004, 0.0, "−1% to 0%")],
)
def test_intervals_of_shares_are_rounded_outward(low, high, text):
    assert percent_interval(low, high) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(0.4999, 0.631, "0.49 to 0.64 SD"), (0.5, 0.57, "0.50 to 0.57 SD"), (-0.001, -0.0, "−0.01 to 0.00 SD")],
)
def test_intervals_of_lifts_are_rounded_outward(low, high, text):
    assert sd_interval(low, high) == text
