"""What an ordinary token does: fitted to simulated vocabularies, p-values against numerical integration."""

import itertools

import numpy as np
import pytest
from scipy import integrate, stats

from stickytoken.methods.statistics import Estimates, Null, Shape

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


def fit_errors(spread, noise):
    """Standard errors of a center and a spread that are taken from two quantiles of normal values."""
    total, levels = np.hypot(spread, noise), np.array([0.5, WIDTH])
    errors = total * np.sqrt(levels * (1 - levels) / TOKENS) / stats.norm.pdf(stats.norm.ppf(levels))
    # spread**2 = total**2 - noise**2, and total = (width - center) / normal quantile.
    return errors[0], np.hypot(*errors) / stats.norm.ppf(WIDTH) * total / spread


def family_of(shape):
    """The distribution of effects as scipy's, and its unit."""
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
    of_center, of_spread = fit_errors(spread, noise)
    assert abs(found.center - 2) <= 4 * of_center
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
    skewed = draw_effects(generator, Shape(skewness=2.0), TOKENS)
    assert 0.9 < Null.fit(skewed, 0.0).shape.skewness <= 1.0


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
