"""Estimates, intervals and error control, against scipy, plain loops and known truth."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from stickytoken.methods.probes import AnchorPanel
from stickytoken.methods.statistics import (
    Pull,
    centre_probes,
    combined,
    fit_pull,
    mean_with_interval,
    predicted_lifts,
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


@pytest.mark.parametrize("known", [False, True])
def test_centring_equals_a_loop_over_probes(known):
    lifts, reference = table(1), np.array([True, False, True, True, False, False, True])
    expected = np.random.default_rng(2).normal(size=len(lifts)) if known else None
    found = centre_probes(lifts, reference, expected)
    for probe in range(lifts.shape[1]):
        left = [lifts[row, probe] - (expected[row] if known else 0) for row in reference.nonzero()[0]]
        assert found[:, probe] == pytest.approx(lifts[:, probe] - sum(left) / len(left), rel=1e-12)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_means_and_intervals_equal_those_of_scipy(confidence):
    lifts = table(5, 20, 6)
    found = mean_with_interval(lifts, confidence)
    expected = stats.ttest_1samp(lifts, 0, axis=1).confidence_interval(confidence)
    assert np.allclose(found.value, lifts.mean(axis=1), rtol=1e-12)
    assert np.allclose(found.error, stats.sem(lifts, axis=1), rtol=1e-12)
    assert np.allclose(found.low, expected.low, rtol=1e-12)
    assert np.allclose(found.high, expected.high, rtol=1e-12)


def test_an_error_that_all_means_share_widens_every_interval_by_its_variance():
    lifts = table(5, 20, 6)
    plain, found = mean_with_interval(lifts, 0.9), mean_with_interval(lifts, 0.9, 0.04)
    assert np.array_equal(found.value, plain.value)
    assert np.allclose(found.error**2, plain.error**2 + 0.04)
    half = stats.t.ppf(0.95, 5) * found.error
    assert np.allclose([found.low, found.high], [found.value - half, found.value + half])
    alike = mean_with_interval(np.ones((2, 3)), 0.9)
    assert np.array_equal(np.stack(alike), [[1, 1], [0, 0], [1, 1], [1, 1]])


@settings(max_examples=60)
@given(seeds, st.floats(0.01, 3), st.floats(0.01, 3), st.floats(0.5, 0.99))
def test_shrinking_equals_the_textbook_formula(seed, variance, spread, confidence):
    values = np.random.default_rng(seed).normal(size=6)
    precision = 1 / variance + 1 / spread
    means, error = values / variance / precision, np.full(6, precision**-0.5)
    half = stats.norm.ppf(0.5 + confidence / 2) * error
    expected = means, error, means - half, means + half
    assert np.stack(shrunk(values, variance, spread, confidence)) == pytest.approx(np.stack(expected))


def test_without_noise_values_stay_and_without_spread_nothing_is_left_of_them():
    values = np.array([5.0, 6.0])
    assert np.array_equal(np.stack(shrunk(values, 0.0, 1.0, 0.9)), [[5, 6], [0, 0], [5, 6], [5, 6]])
    assert not np.stack(shrunk(values, 1.0, 0.0, 0.9)).any()
    assert np.array_equal(np.stack(shrunk(values, 0.0, 0.0, 0.9)), [[5, 6], [0, 0], [5, 6], [5, 6]])


@settings(max_examples=60)
@given(seeds, st.floats(0, 1))
def test_a_mean_over_what_is_present_equals_a_loop_and_warns_of_nothing(seed, missing):
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(4, 6))
    values[generator.random(values.shape) < missing] = np.nan
    for column, found in zip(values.T, present_mean(values), strict=True):
        own = column[~np.isnan(column)]
        assert found == pytest.approx(sum(own) / len(own) if len(own) else np.nan, nan_ok=True)


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


def test_effects_that_vanish_or_turn_around_keep_a_tenth():
    first = np.array([1.0, 2.0, 4.0, 9.0])
    assert scale_between(first, 1.0, -3 * first) == scale_between(first, 1.0, 0.05 * first) == 0.1
    assert scale_between(first, 0.5, 3 * first - 7) == pytest.approx(6)


@pytest.mark.parametrize(
    ("first", "reliability"),
    [([], 1.0), ([1.0, 2.0], 1.0), ([1.0, 2.0, 3.0], 0.0), ([1.0, 2.0, 3.0], -0.5), ([1.0, 1.0, 1.0], 1.0)],
    ids=["no tokens", "two tokens", "nothing but noise", "more noise than there is", "all alike"],
)
def test_where_there_is_nothing_to_compare_the_factor_is_one(first, reliability):
    second = np.array([1.0, 5.0, 9.0])[: len(first)]
    assert scale_between(np.array(first), reliability, second) == 1.0


# Contraction and pull: exact where the model holds, else least squares, and lifts computed from them.

DIMENSION = 7


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def draw(generator, count, dimension=DIMENSION):
    return unit(generator.normal(size=(count, dimension)) + 0.3)


def fitted(before, after):
    """Contraction and pull of one token."""
    found = fit_pull(before, after[None])
    return found.contraction[0], found.pull[0]


@given(seeds, st.integers(2, 12))
def test_the_fit_is_that_of_least_squares_over_carriers_and_dimensions(seed, carriers):
    """One slope for all dimensions, and a constant for each: as a design matrix, solved by numpy."""
    generator = np.random.default_rng(seed)
    before, after = draw(generator, carriers), draw(generator, carriers)
    design = np.hstack([before.reshape(-1, 1).astype(float), np.tile(np.eye(DIMENSION), (carriers, 1))])
    kept, *constants = np.linalg.lstsq(design, after.ravel().astype(float), rcond=None)[0]
    contraction, pull = fitted(before, after)
    assert contraction == pytest.approx(1 - kept, abs=1e-5)
    assert pull == pytest.approx(constants, abs=1e-5)


GROUPS = np.array([0, 0, 1, 2, 2, 2, 1, 0])
WEIGHTS = np.array([0.3, 0.7, 0.0])  # a group of weight 0 is measured beside the lift


def panel_of(generator, carriers=6, level=0.5):
    anchors = AnchorPanel(draw(generator, len(GROUPS)), GROUPS, WEIGHTS)
    before = draw(generator, carriers)
    u = float(np.quantile(before @ anchors.vectors.T, level))
    return anchors.against(before, u)


@pytest.mark.parametrize("level", [0.0, 0.08, 0.4, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_where_the_model_holds_the_predicted_lift_is_the_mean_change_over_the_pairs_below(seed, level):
    """Texts with copies need not have length 1 for that: the response is linear in them."""
    generator = np.random.default_rng([seed, 1])
    carriers = panel_of(generator, level=level)
    tokens = Pull(generator.uniform(-0.2, 1, 9), generator.normal(size=(9, DIMENSION)))
    predicted = predicted_lifts(tokens, carriers)
    if not (counting := carriers.pair_weights.sum(axis=1) > 0).any():
        assert predicted.tolist() == [0] * 9
        return
    for row in range(9):
        after = (1 - tokens.contraction[row]) * carriers.vectors + tokens.pull[row]
        lifts = carriers.response(after[None].astype(np.float32))[0][0]
        assert predicted[row] == pytest.approx(lifts[counting].mean(), abs=1e-5)


@pytest.mark.parametrize("correlation", [0.0, 0.6, -0.6])
def test_combined_p_values_are_fishers_and_hold_their_level_when_the_two_depend(correlation):
    generator = np.random.default_rng(4)
    first, noise = generator.normal(size=(2, 200_000))
    second = correlation * first + np.sqrt(1 - correlation**2) * noise
    chances = [stats.norm.sf(values) for values in (first, second)]
    found = combined(*chances, np.ones(len(first), bool))
    for level in (0.05, 0.001):
        assert (found <= level).mean() < 1.35 * level
    if correlation == 0:
        for row in range(3):
            own, other = (each[row] for each in chances)
            expected = stats.combine_pvalues([own, max(own, other)]).pvalue
            assert found[row] == pytest.approx(expected, rel=0.02)
