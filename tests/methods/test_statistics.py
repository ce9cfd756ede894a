"""Estimates, intervals and error control, against scipy, plain loops and known truth."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from stickytoken.errors import InputError
from stickytoken.methods.statistics import (
    Estimates,
    centre_probes,
    interaction_variance,
    mean_with_interval,
    present_mean,
    q_values,
    scale_between,
    shrunk,
)

seeds = st.integers(0, 2**32 - 1)


def table(seed, tokens=7, probes=5):
    """Lifts with effects of tokens and of probes."""
    generator = np.random.default_rng(seed)
    effects, common = generator.normal(size=tokens), generator.normal(size=probes)
    noise = generator.normal(size=(tokens, probes))
    return 3 + effects[:, None] + 2 * common + noise


def share_within(share, expected, count, errors=4):
    """Whether a share of ``count`` draws is what was expected, up to chance."""
    return abs(share - expected) <= errors * np.sqrt(expected * (1 - expected) / count)


# Estimates


def test_estimates_on_another_scale_are_multiplied_everywhere():
    found = Estimates(*np.arange(8.0).reshape(4, 2)).scaled(2.5)
    assert np.array_equal(np.stack(found), np.arange(8.0).reshape(4, 2) * 2.5)


# centre_probes


@pytest.mark.parametrize("known", [False, True])
def test_centring_equals_a_loop_over_probes(known):
    lifts, generator = table(1), np.random.default_rng(2)
    reference = np.array([True, False, True, True, False, False, True])
    expected = generator.normal(size=len(lifts)) if known else None
    found = centre_probes(lifts, reference, expected)
    for probe in range(lifts.shape[1]):
        own = [row for row in range(len(lifts)) if reference[row]]
        left = [lifts[row, probe] - (expected[row] if known else 0) for row in own]
        common = sum(left) / len(own)
        for row in range(len(lifts)):
            assert found[row, probe] == pytest.approx(lifts[row, probe] - common, rel=1e-12)


@settings(max_examples=60)
@given(seeds, st.lists(st.floats(-100, 100), min_size=5, max_size=5), st.booleans())
def test_what_a_probe_does_to_every_token_changes_nothing(seed, constants, known):
    lifts = table(seed)
    generator = np.random.default_rng(seed)
    reference = generator.permutation(7) < 3
    expected = generator.normal(size=7) if known else None
    moved = centre_probes(lifts + np.array(constants), reference, expected)
    assert np.allclose(moved, centre_probes(lifts, reference, expected), atol=1e-11)


def test_tokens_that_were_selected_do_not_move_the_centre():
    lifts, reference = table(3), np.arange(7) < 4
    sticky = lifts.copy()
    sticky[4:] += 1000
    found, moved = centre_probes(lifts, reference), centre_probes(sticky, reference)
    assert np.array_equal(found[:4], moved[:4])
    assert np.allclose(moved[4:] - found[4:], 1000)


def test_reference_tokens_keep_the_mean_of_what_is_known_of_them():
    lifts, reference, expected = table(4), np.arange(7) % 2 == 0, np.linspace(-1, 2, 7)
    found = centre_probes(lifts, reference, expected)
    assert np.allclose(found[reference].mean(axis=0), expected[reference].mean())


# interaction_variance


def test_the_interaction_of_a_table_worked_out_by_hand():
    # Probe means 2 and 5, then token means -2 and 2: all residuals are 1 or -1, one degree is free.
    lifts = np.array([[1.0, 2.0], [3.0, 8.0]])
    assert interaction_variance(centre_probes(lifts, np.full(2, True))) == pytest.approx(4.0)


@settings(max_examples=60)
@given(seeds, st.integers(2, 9), st.integers(2, 6))
def test_the_interaction_equals_a_two_way_analysis_of_variance(seed, tokens, probes):
    lifts = table(seed, tokens, probes)
    mean = lifts.mean()
    total = sum((lifts[t, k] - mean) ** 2 for t in range(tokens) for k in range(probes))
    by_token = probes * sum((lifts[t].mean() - mean) ** 2 for t in range(tokens))
    by_probe = tokens * sum((lifts[:, k].mean() - mean) ** 2 for k in range(probes))
    expected = (total - by_token - by_probe) / ((tokens - 1) * (probes - 1))
    found = interaction_variance(centre_probes(lifts, np.full(tokens, True)))
    assert found == pytest.approx(expected, rel=1e-8, abs=1e-12)


def test_the_interaction_is_the_variance_of_the_noise_on_average():
    tokens, probes, draws = 6, 4, 2000
    found = [
        interaction_variance(centre_probes(table(seed, tokens, probes), np.full(tokens, True)))
        for seed in range(draws)
    ]
    # A mean of chi-squares with 15 degrees of freedom each.
    assert abs(np.mean(found) - 1) <= 4 * np.sqrt(2 / ((tokens - 1) * (probes - 1)) / draws)


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (1, 1), (0, 3)])
def test_an_interaction_needs_two_tokens_and_two_probes(shape):
    with pytest.raises(InputError, match=f"{shape[0]} tokens with {shape[1]} probes each: two of both"):
        interaction_variance(np.zeros(shape))


# mean_with_interval


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_means_and_intervals_equal_those_of_scipy(confidence):
    lifts = table(5, 20, 6)
    found = mean_with_interval(lifts, confidence)
    expected = stats.ttest_1samp(lifts, 0, axis=1).confidence_interval(confidence)
    assert np.allclose(found.value, lifts.mean(axis=1), rtol=1e-12)
    assert np.allclose(found.error, stats.sem(lifts, axis=1), rtol=1e-12)
    assert np.allclose(found.low, expected.low, rtol=1e-12)
    assert np.allclose(found.high, expected.high, rtol=1e-12)


@pytest.mark.parametrize("probes", [4, 20])
def test_nine_of_ten_student_intervals_hold_the_truth(probes):
    tokens, generator = 20_000, np.random.default_rng(6)
    effects, widths = generator.normal(size=tokens), generator.uniform(0.1, 3, tokens)
    lifts = effects[:, None] + widths[:, None] * generator.normal(size=(tokens, probes))
    found = mean_with_interval(lifts, 0.9)
    assert share_within(np.mean((found.low <= effects) & (effects <= found.high)), 0.9, tokens)


def test_an_error_that_all_means_share_widens_every_interval_by_its_variance():
    lifts = table(5, 20, 6)
    plain, found = mean_with_interval(lifts, 0.9), mean_with_interval(lifts, 0.9, 0.04)
    assert np.array_equal(found.value, plain.value)
    assert np.allclose(found.error**2, plain.error**2 + 0.04)
    half = stats.t.ppf(0.95, 5) * found.error
    assert np.allclose([found.low, found.high], [found.value - half, found.value + half])
    alike = mean_with_interval(np.ones((2, 3)), 0.9)
    assert np.array_equal(np.stack(alike), [[1, 1], [0, 0], [1, 1], [1, 1]])


# shrunk


@settings(max_examples=60)
@given(seeds, st.floats(0.01, 3), st.floats(0.01, 3), st.floats(0.5, 0.99))
def test_shrinking_equals_the_textbook_formula(seed, variance, spread, confidence):
    values = np.random.default_rng(seed).normal(size=6)
    found = shrunk(values, variance, spread, confidence)
    quantile = stats.norm.ppf(0.5 + confidence / 2)
    error = (1 / (1 / variance + 1 / spread)) ** 0.5
    for row in range(6):
        mean = values[row] / variance / (1 / variance + 1 / spread)
        got = (found.value[row], found.error[row], found.low[row], found.high[row])
        assert got == pytest.approx((mean, error, mean - quantile * error, mean + quantile * error))


def test_without_noise_values_stay_and_without_spread_nothing_is_left_of_them():
    values = np.array([5.0, 6.0])
    assert np.array_equal(np.stack(shrunk(values, 0.0, 1.0, 0.9)), [[5, 6], [0, 0], [5, 6], [5, 6]])
    assert not np.stack(shrunk(values, 1.0, 0.0, 0.9)).any()
    assert np.array_equal(np.stack(shrunk(values, 0.0, 0.0, 0.9)), [[5, 6], [0, 0], [5, 6], [5, 6]])


def test_nine_of_ten_shrunk_intervals_hold_the_truth_and_selection_does_not_bias_them():
    tokens, noise, generator = 40_000, 1.5, np.random.default_rng(10)
    effects = generator.normal(size=tokens)
    values = effects + noise * generator.normal(size=tokens)
    found = shrunk(values, noise**2, 1.0, 0.9)
    covered = (found.low <= effects) & (effects <= found.high)
    assert share_within(covered.mean(), 0.9, tokens)
    best = np.argsort(values)[-2000:]
    assert share_within(covered[best].mean(), 0.9, 2000)
    errors = (found.value - effects)[best]
    assert abs(errors.mean()) <= 4 * errors.std() / np.sqrt(2000)
    assert (values - effects)[best].mean() > 0.5  # what selection does to values that are not shrunk


# present_mean


@settings(max_examples=60)
@given(seeds, st.floats(0, 1))
def test_a_mean_over_what_is_present_equals_a_loop_and_warns_of_nothing(seed, missing):
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(4, 3, 2))
    values[generator.random(values.shape) < missing] = np.nan
    found = present_mean(values)
    for k in range(3):
        for group in range(2):
            own = [x for x in values[:, k, group] if not np.isnan(x)]
            expected = sum(own) / len(own) if own else np.nan
            assert found[k, group] == pytest.approx(expected, nan_ok=True)


# q_values


def slow_q_values(p_values):
    """min over ranks j >= i of p_(j) n / j."""
    ordered, count = sorted(p_values), len(p_values)
    return [
        min(1.0, *(p * count / rank for rank, p in enumerate(ordered, start=1) if p >= own))
        for own in p_values
    ]


@settings(max_examples=150)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(0, 50))
def test_q_values_equal_a_loop_over_ranks(p_values, left_out):
    # Of equal p-values the last rank counts, which the minimum finds by itself. Those left out are all 1.
    found = q_values(np.array(p_values), len(p_values) + left_out)
    assert found == pytest.approx(slow_q_values(p_values + [1.0] * left_out)[: len(p_values)], rel=1e-12)


def test_false_discoveries_are_controlled_among_mostly_ordinary_effects():
    shares, generator = [], np.random.default_rng(14)
    for _ in range(300):
        standard = generator.normal(size=1000)
        standard[900:] += 3
        rejected = q_values(stats.norm.sf(standard), 1000) <= 0.1
        shares.append(rejected[:900].sum() / max(1, rejected.sum()))
    # Benjamini and Hochberg: the expected share is the rate times the share of true nulls.
    assert abs(np.mean(shares) - 0.09) <= 4 * np.std(shares) / np.sqrt(300)


# scale_between


@pytest.mark.parametrize("factor", [0.3, 1.0, 1.7])
def test_a_known_factor_is_recovered_although_noise_flattens_the_plain_slope(factor):
    tokens, noise, generator = 40_000, 0.8, np.random.default_rng(16)
    effects = generator.normal(size=tokens)
    first = 5 + effects + noise * generator.normal(size=tokens)
    second = -2 + factor * effects + 0.5 * generator.normal(size=tokens)
    found = scale_between(first, 1 / (1 + noise**2), second)
    residual = np.std((second - second.mean()) - found * (first - first.mean()))
    # So many tokens are pulled to 1 by less than a thousandth.
    assert abs(found - factor) <= 4 * residual * first.std() / np.sqrt(tokens) + 1e-3
    assert stats.linregress(first, second).slope < 0.7 * factor


def test_the_factor_is_a_slope_over_the_reliability_pulled_to_one_by_its_error():
    first, second = [1.0, 2.0, 4.0, 9.0], [0.0, 3.0, 3.0, 7.0]
    left, right = [x - 4 for x in first], [y - 3.25 for y in second]
    squares = sum(a * a for a in left)
    slope = sum(a * b for a, b in zip(left, right, strict=True)) / squares
    residual = sum((b - slope * a) ** 2 for a, b in zip(left, right, strict=True)) / (4 - 2)
    corrected, variance = slope / 0.7, residual / squares / 0.7**2
    precisions = 1 / 0.25**2, 1 / variance
    expected = (precisions[0] * 1 + precisions[1] * corrected) / sum(precisions)
    assert scale_between(np.array(first), 0.7, np.array(second)) == pytest.approx(expected)
    assert 1 < expected < corrected


def test_a_factor_without_error_is_not_pulled():
    first = np.array([1.0, 2.0, 4.0, 9.0])
    assert scale_between(first, 1.0, 3 * first - 7) == pytest.approx(3)
    assert scale_between(first, 0.5, 3 * first - 7) == pytest.approx(6)


def test_the_less_is_known_of_a_factor_the_closer_it_is_to_one():
    generator = np.random.default_rng(17)
    first, noise = generator.normal(size=40), generator.normal(size=40)
    # Noise that has nothing to do with the first measurement widens the error and moves no slope.
    noise -= np.polyval(np.polyfit(first, noise, 1), first)
    found = [scale_between(first, 0.8, 2 * first + spread * noise) for spread in (0, 0.5, 1, 3, 30)]
    assert found[0] == pytest.approx(2.5)
    assert (np.diff(found) < 0).all()
    assert 1 < found[-1] < 1.02


@pytest.mark.parametrize("slope", [-3.0, 0.0, 0.05])
def test_effects_that_vanish_or_turn_around_keep_a_tenth(slope):
    first = np.array([1.0, 2.0, 4.0, 9.0])
    assert scale_between(first, 1.0, slope * first) == 0.1


@pytest.mark.parametrize(
    ("first", "reliability", "second"),
    [
        pytest.param([], 1.0, [], id="no tokens"),
        pytest.param([1.0, 2.0], 1.0, [1.0, 5.0], id="two tokens"),
        pytest.param([1.0, 2.0, 3.0], 0.0, [1.0, 5.0, 9.0], id="nothing but noise"),
        pytest.param([1.0, 2.0, 3.0], -0.5, [1.0, 5.0, 9.0], id="more noise than there is"),
        pytest.param([1.0, 1.0, 1.0], 1.0, [1.0, 2.0, 3.0], id="all alike"),
    ],
)
def test_where_there_is_nothing_to_compare_the_factor_is_one(first, reliability, second):
    assert scale_between(np.array(first), reliability, np.array(second)) == 1.0
