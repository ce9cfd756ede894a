"""Estimates, intervals and error control, against scipy, plain loops and known truth."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import integrate, stats

from stickytoken.methods.probes import AnchorPanel
from stickytoken.methods.statistics import (
    Estimates,
    Null,
    Pull,
    Shape,
    centre_probes,
    combined,
    mean_with_interval,
    predicted_lifts,
    present_mean,
    q_values,
    scale_between,
    shrunk,
)
from stickytoken.unit_vectors import unit_vectors

seeds = st.integers(0, 2**32 - 1)


def table(seed, tokens=7, probes=5):
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


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(0, 50))
def test_q_values_equal_a_loop_over_ranks(p_values, left_out):
    # Of equal p-values the last rank counts, which the minimum finds by itself. Those left out are all 1.
    found = q_values(np.array(p_values), len(p_values) + left_out)
    ordered = sorted(p_values + [1.0] * left_out)
    for p_value, q_value in zip(p_values, found, strict=True):
        ranks = (p * len(ordered) / rank for rank, p in enumerate(ordered, start=1) if p >= p_value)
        assert q_value == pytest.approx(min(1.0, *ranks), rel=1e-12)


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
    assert scale_between(np.array(first), reliability, np.array([1.0, 5.0, 9.0])[: len(first)]) == 1.0


# Contraction and pull: exact where the model holds, else least squares, and lifts computed from them.

DIMENSION = 7


def draw(generator, count, dimension=DIMENSION):
    return unit_vectors(generator.normal(size=(count, dimension)) + 0.3)


GROUPS = np.array([0, 0, 1, 2, 2, 2, 1, 0])
WEIGHTS = np.array([0.3, 0.7, 0.0])  # a group of weight 0 is measured beside the lift


@pytest.mark.parametrize("level", [0.0, 0.08, 0.4, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_where_the_model_holds_the_predicted_lift_is_the_mean_change_over_the_pairs_below(seed, level):
    """Texts with copies need not have length 1 for that: the response is linear in them."""
    generator = np.random.default_rng([seed, 1])
    anchors = AnchorPanel(draw(generator, len(GROUPS)), GROUPS, WEIGHTS)
    before = draw(generator, 6)
    carriers = anchors.against(before, float(np.quantile(before @ anchors.vectors.T, level)))
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
    first, noise = np.random.default_rng(4).normal(size=(2, 200_000))
    second = correlation * first + np.sqrt(1 - correlation**2) * noise
    chances = [stats.norm.sf(values) for values in (first, second)]
    found = combined(chances, np.ones(len(first), bool))
    for level in (0.05, 0.001):
        assert (found <= level).mean() < 1.35 * level
    if correlation == 0:
        for row in range(3):
            own, other = (each[row] for each in chances)
            expected = stats.combine_pvalues([own, max(own, other)]).pvalue
            assert found[row] == pytest.approx(expected, rel=0.02)


# What an ordinary token does: fitted to simulated vocabularies, p-values against numerical integration.

TOKENS = 20_000
# The upper quantile that the width is taken from.
WIDTH = 0.95
NORMAL = Shape()
HEAVY = Shape(freedom=3.0)
SKEWED = Shape(skewness=0.3)
SHAPES = [NORMAL, Shape(freedom=2.0), HEAVY, Shape(freedom=20.0), SKEWED, Shape(skewness=1.0)]


def normal_vocabulary(seed, center=2.0, spread=3.0, noise=2.0, tokens=TOKENS):
    generator = np.random.default_rng(seed)
    return center + spread * generator.normal(size=tokens) + noise * generator.normal(size=tokens)


def family_of(shape):
    g = shape.skewness
    skewed = stats.lognorm(g, loc=-1 / g, scale=1 / g) if g else stats.norm()
    plain = skewed if np.isinf(shape.freedom) else stats.t(shape.freedom)
    return plain, stats.norm.ppf(WIDTH) / plain.ppf(WIDTH)


def draw_effects(generator, shape, size):
    plain, unit = family_of(shape)
    return plain.rvs(size=size, random_state=generator) * unit


@pytest.mark.parametrize(("spread", "noise"), [(3.0, 0.0), (3.0, 2.0), (1.0, 1.5)])
def test_center_and_spread_of_a_normal_vocabulary_are_recovered_through_the_noise(spread, noise):
    found = Null.fit(normal_vocabulary(0, 2.0, spread, noise), noise**2)
    # Standard errors of a center and a spread that are taken from two quantiles of normal values.
    total, levels = np.hypot(spread, noise), np.array([0.5, WIDTH])
    errors = total * np.sqrt(levels * (1 - levels) / TOKENS) / stats.norm.pdf(stats.norm.ppf(levels))
    assert abs(found.center - 2) <= 4 * errors[0]
    # spread**2 = total**2 - noise**2, and total = (width - center) / normal quantile.
    of_spread = np.hypot(*errors) / stats.norm.ppf(WIDTH) * total / spread
    assert abs(found.spread - spread) <= 4 * of_spread


def test_the_spread_is_that_of_the_upper_side():
    standard = np.random.default_rng(5).normal(size=TOKENS)
    values = np.where(standard > 0, 1.0, 2.0) * standard
    assert Null.fit(values, 0.0).spread == pytest.approx(1.0, rel=0.05)
    assert Null.fit(-values, 0.0).spread == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_heavy_tails_give_student_s_t_and_its_width(noise):
    generator = np.random.default_rng(0)
    values = 2 * draw_effects(generator, HEAVY, TOKENS) + noise * generator.normal(size=TOKENS)
    found = Null.fit(values, noise**2)
    assert 2.3 <= found.shape.freedom <= 4.2
    assert found.spread == pytest.approx(2.0, rel=0.06)


@pytest.mark.parametrize(("skewness", "noise"), [(0.15, 0.7), (0.4, 0.0), (0.8, 0.7)])
def test_center_spread_and_skewness_of_a_skewed_vocabulary_are_recovered_through_the_noise(skewness, noise):
    generator = np.random.default_rng(3)
    tokens = 10 * TOKENS
    values = 5 + 2 * draw_effects(generator, Shape(skewness=skewness), tokens)
    found = Null.fit(values + noise * generator.normal(size=tokens), noise**2)
    assert found.center == pytest.approx(5.0, abs=0.04)
    assert found.spread == pytest.approx(2.0, rel=0.03)
    assert found.shape.skewness == pytest.approx(skewness, abs=0.04)


def test_shapes_have_a_heaviest_tail_and_a_largest_skewness():
    generator = np.random.default_rng(7)
    assert Null.fit(generator.standard_cauchy(size=TOKENS), 0.0).shape.freedom == 2.0
    assert 0.9 < Null.fit(draw_effects(generator, Shape(skewness=2.0), TOKENS), 0.0).shape.skewness <= 1.0


def test_tokens_that_are_alike_but_for_their_noise_have_no_spread():
    assert Null.fit(np.full(300, 1.5), 0.0) == Null.fit(np.full(300, 1.5), 1.0) == Null(1.5, 0.0, NORMAL)
    found = Null.fit(normal_vocabulary(11, spread=0.0, noise=1.0), 1.5)
    assert (found.spread, found.shape) == (0.0, NORMAL)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_without_noise_a_shape_is_a_family_around_its_median_in_units_of_its_width(shape):
    distances = np.linspace(-3, 8, 23)
    plain, unit = family_of(shape)
    found = shape.exceedance(distances * 0.7, 0.7, np.zeros(23))
    assert found == pytest.approx(plain.sf(plain.median() + distances / unit), rel=1e-9, abs=1e-15)
    at_width = shape.exceedance(np.array([0.0, 0.7 * stats.norm.ppf(WIDTH)]), 0.7, np.zeros(2))
    assert at_width == pytest.approx([0.5, 1 - WIDTH])


def slow_exceedance(shape, distance, error):
    """P(effect + noise > distance), integrated over the effect piece by piece."""
    plain, unit = family_of(shape)
    middle = plain.median()

    def beyond(value):
        return stats.norm.sf((distance - unit * (value - middle)) / error) * plain.pdf(value)

    steps = [middle + (distance + step * error) / unit for step in (-6, -2, 0, 2, 6)]
    low, high = plain.support()
    inner = [edge for edge in [-300.0, -30.0, -4.0, 0.0, 4.0, 30.0, 300.0, *steps] if low < edge < high]
    pairs = itertools.pairwise([low, *sorted(inner), high])
    return sum(integrate.quad(beyond, left, right, epsabs=1e-13)[0] for left, right in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("error", [0.1, 1.0])
@pytest.mark.parametrize("shape", [NORMAL, Shape(freedom=2.0), Shape(freedom=6.0), SKEWED], ids=str)
def test_p_values_with_noise_equal_a_numerical_integral(shape, error):
    distances = np.array([-1.0, 0.0, 0.5, 1.3, 2.0, 4.0, 7.0])
    found = shape.exceedance(distances, 1.0, np.full(7, error))
    expected = [slow_exceedance(shape, distance, error) for distance in distances]
    assert found == pytest.approx(expected, rel=0.01, abs=1e-12)


@pytest.mark.parametrize("unit", [1.0, 0.02])
def test_p_values_of_a_null_add_both_variances_in_whatever_unit(unit):
    values, errors = np.array([-1.0, 2.0, 5.0, 9.0]), np.array([0.0, 1.0, 2.0, 0.5])
    found = (
        Null(2.0, 3.0, NORMAL).scaled(unit).exceedance(Estimates(values, errors, values, values).scaled(unit))
    )
    assert found == pytest.approx(stats.norm.sf((values - 2) / np.hypot(3, errors)), rel=1e-9)
    sharp = Estimates(*[np.array([0.9, 1.0, 1.1])] * 4)._replace(error=np.zeros(3))
    assert Null(1.0, 0.0, HEAVY).exceedance(sharp).tolist() == [1.0, 1.0, 0.0]
