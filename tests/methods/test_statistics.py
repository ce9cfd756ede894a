"""Estimates with intervals, against scipy and plain loops."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from stickytoken.methods.statistics import (
    beyond_ordinary,
    carrier_contractions,
    fit_effects,
)
from stickytoken.unit_vectors import unit_vectors

seeds = st.integers(0, 2**32 - 1)


def table(seed, tokens=41, carriers=6):
    """Simulate values: the effect of the token, the effect of the carrier, and noise."""
    generator = np.random.default_rng(seed)
    effects = generator.normal(size=tokens)
    common = generator.normal(size=carriers)
    noise = generator.normal(size=(tokens, carriers))
    return 3 + effects[:, None] + 2 * common + noise


def half_widths(estimates):
    return (estimates.high - estimates.low) / 2


def test_the_median_of_the_ordinary_tokens_is_zero():
    values = table(1)
    ordinary = np.arange(len(values)) % 2 == 0
    relative = beyond_ordinary(values, ordinary, 0.9)
    assert np.median(relative.estimates.value[ordinary]) == pytest.approx(0, abs=1e-12)


def test_an_effect_and_the_ordinary_token_add_up_to_the_mean_of_a_token():
    values = table(2)
    ordinary = np.arange(len(values)) < 20
    relative = beyond_ordinary(values, ordinary, 0.9)
    assert relative.estimates.value + relative.ordinary == pytest.approx(values.mean(axis=1))


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_with_a_known_ordinary_token_the_interval_is_scipys(confidence):
    """Ordinary tokens without noise of their own leave only the Student interval over carriers."""
    generator = np.random.default_rng(3)
    common = generator.normal(size=6)
    values = np.vstack([np.tile(common, (10, 1)), common + generator.normal(size=(5, 6))])
    relative = beyond_ordinary(values, np.arange(15) < 10, confidence)
    expected = stats.ttest_1samp(values[10:] - common, 0, axis=1).confidence_interval(confidence)
    assert relative.estimates.low[10:] == pytest.approx(expected.low)
    assert relative.estimates.high[10:] == pytest.approx(expected.high)


def test_the_error_of_the_ordinary_token_widens_every_interval():
    values = table(4)
    ordinary = np.ones(len(values), dtype=bool)
    estimates = beyond_ordinary(values, ordinary, 0.9).estimates
    centred = values - values.mean(axis=0)
    variance_of_mean = centred.var(axis=1, ddof=1) / values.shape[1]
    of_median = np.pi / 2 * centred.mean(axis=1).var(ddof=1) / len(values)
    errors = np.sqrt(variance_of_mean + of_median)
    assert half_widths(estimates) == pytest.approx(stats.t.ppf(0.95, 5) * errors)


@settings(max_examples=40)
@given(seeds, st.floats(-5, 5), st.floats(0.1, 10))
def test_shift_and_scale_of_all_values_change_effects_by_the_scale_alone(seed, shift, scale):
    values = table(seed)
    ordinary = np.arange(len(values)) % 3 > 0
    plain = beyond_ordinary(values, ordinary, 0.9).estimates
    changed = beyond_ordinary(shift + scale * values, ordinary, 0.9).estimates.divided_by(scale)
    assert np.stack(changed) == pytest.approx(np.stack(plain), rel=1e-6, abs=1e-9)


@pytest.mark.slow
def test_nine_of_ten_intervals_hold_the_true_effect():
    """Over vocabularies, because tokens of one share the error of the ordinary token."""
    shares = []
    for seed in range(200):
        generator = np.random.default_rng(seed)
        effects = generator.normal(size=140)
        noise = generator.normal(size=(140, 24))
        values = effects[:, None] + generator.normal(size=24) + 2 * noise
        pilots = np.arange(140) < 128
        estimates = beyond_ordinary(values, pilots, 0.9).estimates
        inside = (estimates.low <= effects) & (effects <= estimates.high)
        shares.append(inside[~pilots].mean())
    assert np.mean(shares) == pytest.approx(0.9, abs=0.03)


def test_contractions_by_carrier_average_to_the_contraction_of_the_fit():
    generator = np.random.default_rng(5)
    before = unit_vectors(generator.normal(size=(7, 9)).astype(np.float32))
    after = unit_vectors(generator.normal(size=(4, 7, 9)).astype(np.float32))
    contraction, _pull = fit_effects(before, after)
    assert carrier_contractions(before, after).mean(axis=1) == pytest.approx(contraction, abs=1e-6)


def test_a_token_at_its_threshold_is_flagged_once_in_twenty_by_the_last_look_alone():
    """The first look only drops tokens. If it flagged them too, they would have two chances."""
    pilots = np.zeros((50, 48))  # without an error of the ordinary token
    at_threshold = np.random.default_rng(0).normal(size=(40_000, 48))
    values = np.vstack([pilots, at_threshold])
    is_pilot = np.arange(len(values)) < len(pilots)
    first = beyond_ordinary(values[:, :24], is_pilot, 0.9).estimates.of_rows(np.flatnonzero(~is_pilot))
    last = beyond_ordinary(values, is_pilot, 0.9).estimates.of_rows(np.flatnonzero(~is_pilot))
    goes_on = first.high >= 0
    flagged_by_last = goes_on & (last.low >= 0)
    flagged_by_any = (first.low >= 0) | flagged_by_last
    assert flagged_by_last.mean() == pytest.approx(0.05, abs=0.003)
    assert flagged_by_any.mean() == pytest.approx(0.08, abs=0.003)
