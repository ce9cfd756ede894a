"""Shares with exact intervals, and copies until serious, against slow plain versions."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from stickytoken.comparisons import CopiesNeeded, copies_needed, exact_share
from stickytoken.detection.run_folder import RunEvidence
from stickytoken.methods.entry import Scale

SCALE = Scale(ordinary=0.0, spread=0.1, confidence=0.9, serious=0.5)


@given(st.integers(1, 300_000), st.floats(0, 1), st.sampled_from([0.8, 0.9, 0.95, 0.99]))
def test_the_interval_is_the_exact_one(total, part, confidence):
    count = round(part * total)
    expected = binomtest(count, total).proportion_ci(confidence, method="exact")
    assert exact_share(count, total, confidence) == pytest.approx(
        (count / total, expected.low, expected.high), abs=1e-9
    )


def evidence(*curves, ordinary=((0.0, 0.0, 0.0, 0.0),), copies=(0, 1, 2, 4)):
    rows = [(place, False, curve) for place, curve in enumerate(curves)]
    rows += [(100 + place, True, curve) for place, curve in enumerate(ordinary)]
    columns = {"token_id": pl.Int64, "ordinary": pl.Boolean, "below": pl.List(pl.Float64)}
    tokens = pl.DataFrame(rows, columns, orient="row")
    return RunEvidence(None, tokens.with_columns(copies=pl.lit(list(copies))))


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ((0.1, 0.2, 0.3, 0.4), CopiesNeeded(1, None)),
        ((0.1, 0.1, 0.12, 0.16), CopiesNeeded(4, 2)),
        ((0.1, 0.1, 0.2, 0.1), CopiesNeeded(2, 1)),
        ((0.1, 0.1, 0.1, 0.1), CopiesNeeded(None, 4)),
    ],
)
def test_the_fewest_copies_with_a_serious_lift_are_found(curve, expected):
    assert copies_needed(evidence(curve), 0, SCALE) == expected


def test_what_ordinary_tokens_do_is_taken_away():
    rising = ((0.0, 0.04, 0.04, 0.04), (0.2, 0.26, 0.26, 0.26))
    curve = (0.1, 0.19, 0.199, 0.21)
    assert copies_needed(evidence(curve), 0, SCALE) == CopiesNeeded(1, None)
    assert copies_needed(evidence(curve, ordinary=rising), 0, SCALE) == CopiesNeeded(4, 2)


def test_a_run_without_curves_cannot_tell():
    assert copies_needed(evidence((0.1, 0.2, 0.3, 0.4)), 5, SCALE) is None
    assert copies_needed(evidence(()), 0, SCALE) is None
    assert copies_needed(evidence((0.1, 0.2, 0.3, 0.4), ordinary=((),)), 0, SCALE) is None
