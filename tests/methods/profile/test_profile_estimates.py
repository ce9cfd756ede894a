"""From two rounds to an estimate of every token: loops, invariances, and vocabularies of known truth."""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

from stickytoken.errors import InputError
from stickytoken.methods.profile.estimates import Lifts, TokenEstimates, estimate, lifts_of, screen
from stickytoken.methods.profile.plan import highest
from stickytoken.methods.statistics import shrunk

# Sizes of the order of those on all-MiniLM-L6-v2: of effects, of a probe around its token's effect, of the
# probes' common effects; growth of effects in the first round.
ORDINARY, PROBE, COMMON, GROWTH, LEVEL = 0.011, 0.0153, 0.004, 1.25, 0.03
SCREENING, CONFIRMING, LATE = 3, 48, 128
CONFIDENCE = 0.9


@dataclass(frozen=True)
class World:
    """A vocabulary of known effects and its two rounds; a few tokens are sticky."""

    effects: np.ndarray
    first: Lifts
    last: Lifts
    late: np.ndarray
    chosen: np.ndarray
    common: np.ndarray

    @property
    def ids(self):
        return self.first.ids

    @property
    def confirmed(self):
        """Tokens that were selected by their lift, as a mask."""
        return np.isin(self.ids, self.chosen)

    @property
    def screened_only(self):
        return ~np.isin(self.ids, self.last.ids)

    def estimate(self, *rounds):
        first, last = rounds or (self.first, self.last)
        return estimate(first, last, self.ids, self.late, CONFIDENCE)


def draw_round(generator, ids, effects, probes, growth):
    common = COMMON * generator.normal(size=probes)
    noise = growth * PROBE * generator.normal(size=(len(ids), probes))
    return Lifts(ids, LEVEL + growth * effects[:, None] + common + noise), common


def simulate(seed, size=1500, sticky=0, sent_on=40):
    """Two rounds, the second planned from the first, as a run plans them."""
    generator = np.random.default_rng(seed)
    effects = ORDINARY * generator.normal(size=size)
    effects[:sticky] = 0.06
    effects -= effects.mean()
    ids = 3 * np.arange(size) + 7
    late = np.sort(generator.permutation(ids)[:LATE])
    first, _ = draw_round(generator, ids, effects, SCREENING, GROWTH)
    found = estimate(first, None, ids, late, CONFIDENCE)
    chosen = highest(ids, found.tested.value, sent_on)
    both = np.union1d(chosen, late)
    last, common = draw_round(generator, both, effects[np.searchsorted(ids, both)], CONFIRMING, 1.0)
    return World(effects, first, last, late, chosen, common)


@pytest.fixture(scope="module")
def world():
    return simulate(1, sticky=10)


@pytest.fixture(scope="module")
def worlds():
    """Vocabularies without sticky tokens, and what was made of them."""
    found = [simulate(seed) for seed in range(150)]
    return [(world, world.estimate()) for world in found]


def same(left: TokenEstimates, right: TokenEstimates, tolerance=1e-11):
    """Whether two results agree to rounding; levels apart."""
    numbers = [
        (*left.lift, *left.tested, np.array([left.null.center, left.null.spread])),
        (*right.lift, *right.tested, np.array([right.null.center, right.null.spread])),
    ]
    return all(np.allclose(a, b, rtol=1e-6, atol=tolerance) for a, b in zip(*numbers, strict=True))


# Known truth.

PARTS = {
    "all": lambda world: slice(None),
    "confirmed": lambda world: world.confirmed,
    "screened": lambda world: world.screened_only,
    "pilot": lambda world: np.isin(world.ids, world.late),
}


@pytest.mark.parametrize("rows_of", PARTS.values(), ids=PARTS)
def test_nine_of_ten_intervals_hold_the_truth_of_selected_and_other_tokens_alike(worlds, rows_of):
    shares = []
    for world, found in worlds:  # by vocabulary, as its tokens share errors
        inside = (found.lift.low <= world.effects) & (world.effects <= found.lift.high)
        shares.append(inside[rows_of(world)].mean())
    # The growth between rounds is estimated from 128 tokens, which the intervals leave out.
    assert abs(np.mean(shares) - CONFIDENCE) <= 0.015 + 4 * np.std(shares) / np.sqrt(len(shares))


def test_confirmed_tokens_have_no_winner_s_curse_although_their_selection_had_one(worlds):
    errors, before = [], []
    for world, found in worlds:
        errors.append((found.lift.value - world.effects)[world.confirmed].mean())
        early = world.estimate(world.first, None).tested.value / GROWTH
        before.append((early - world.effects)[world.confirmed].mean())
    assert abs(np.mean(errors)) <= 4 * np.std(errors) / np.sqrt(len(errors))
    assert np.mean(before) > 0.5 * ORDINARY


def test_tokens_that_went_no_further_are_not_biased_by_that(worlds):
    errors = [(found.lift.value - world.effects)[world.screened_only].mean() for world, found in worlds]
    assert abs(np.mean(errors)) <= 4 * np.std(errors) / np.sqrt(len(errors)) + 0.02 * ORDINARY


def test_growth_between_rounds_is_taken_out(worlds):
    spreads = [found.null.spread for _, found in worlds]
    assert np.mean(spreads) == pytest.approx(ORDINARY, rel=0.1)
    first = [world.estimate(world.first, None).null.spread for world, _ in worlds]
    assert np.mean(first) == pytest.approx(GROWTH * ORDINARY, rel=0.05)


def test_an_effect_and_the_level_give_the_lift_on_the_carriers_of_the_last_round(worlds):
    errors = [found.level - (LEVEL + world.common.mean()) for world, found in worlds[:60]]
    assert abs(np.mean(errors)) <= 4 * np.std(errors) / np.sqrt(len(errors)) + 1e-12
    assert np.std(errors) < 0.15 * ORDINARY


def test_sticky_tokens_are_estimated_as_high_as_they_are(world):
    found = world.estimate()
    assert set(world.ids[:10]) <= set(world.chosen)
    # Ten means over 48 probes, and errors of the common effects and of the growth.
    assert np.abs((found.lift.value - world.effects)[:10]).max() <= 5 * PROBE / np.sqrt(CONFIRMING)


# Loops.


def plain_screen(lifts, reference):
    """Values and the variance of their noise, by a two-way table of the reference tokens."""
    own = [row for row in range(len(lifts)) if reference[row]]
    probes = lifts.shape[1]
    common = [sum(lifts[row, k] for row in own) / len(own) for k in range(probes)]
    centred = [[lifts[row, k] - common[k] for k in range(probes)] for row in range(len(lifts))]
    values = [sum(row) / probes for row in centred]
    residual = sum((centred[row][k] - values[row]) ** 2 for row in own for k in range(probes))
    return values, residual / ((len(own) - 1) * (probes - 1)) / probes


def test_screening_equals_loops_over_the_reference_tokens():
    world = simulate(2, 200, sticky=5)
    reference = np.arange(200) % 3 > 0
    values, noise = plain_screen(world.first.values, reference)
    found = screen(world.first.values, reference, CONFIDENCE)
    assert found.plain.value == pytest.approx(values, abs=1e-12)
    assert found.plain.error == pytest.approx([noise**0.5] * 200)
    own = [values[row] for row in range(200) if reference[row]]
    spread = sum((value - sum(own) / len(own)) ** 2 for value in own) / (len(own) - 1)
    assert found.reliability == pytest.approx(1 - noise / spread)
    expected = shrunk(np.array(values), noise, spread - noise, CONFIDENCE)
    assert np.allclose(np.stack(found.shrunk), np.stack(expected))


def test_a_confirmed_token_is_estimated_from_the_confirming_round_alone(world):
    found, last = world.estimate(), world.last
    rows, late = np.searchsorted(world.ids, last.ids), np.isin(last.ids, world.late)
    values = found.lift.value[rows]
    assert values + found.level == pytest.approx([sum(row) / 48 for row in last.values], abs=1e-12)
    assert np.array_equal(values, found.tested.value[rows])
    # Spread over probes, and the error of the probes' common effects, which 128 tokens show.
    before = world.estimate(world.first, None)
    scale = found.null.spread / before.null.spread
    common = np.var((values - scale * before.lift.value[rows])[late], ddof=1) / LATE
    centred = last.values - last.values[late].mean(axis=0)
    for place, row in enumerate(rows):
        error = (np.var(centred[place], ddof=1) / 48 + common) ** 0.5
        half = stats.t.ppf(0.95, 47) * error
        assert found.lift.error[row] == pytest.approx(error)
        ends = (found.lift.low[row], found.lift.high[row])
        assert ends == pytest.approx((values[place] - half, values[place] + half))


def test_what_selected_a_token_has_no_say_in_its_last_estimate(world):
    lifts = world.first.values.copy()
    selected = world.confirmed & ~np.isin(world.ids, world.late)
    reference = world.ids[~selected]
    plain = estimate(world.first, world.last, reference, world.late, CONFIDENCE)
    lifts[selected] += 0.5
    moved = estimate(Lifts(world.ids, lifts), world.last, reference, world.late, CONFIDENCE)
    for column, other in zip(plain.lift, moved.lift, strict=True):
        assert np.array_equal(column[selected], other[selected])


def test_a_token_that_went_no_further_keeps_its_first_estimate_on_the_scale_of_the_last(world):
    early, found = world.estimate(world.first, None), world.estimate()
    for kind in ("lift", "tested"):
        ratios = (
            getattr(found, kind).value[world.screened_only] / getattr(early, kind).value[world.screened_only]
        )
        assert np.allclose(ratios, ratios[0], rtol=1e-9)
        assert ratios[0] == pytest.approx(1 / GROWTH, rel=0.25)
        assert found.null.spread == pytest.approx(ratios[0] * early.null.spread)


def test_texts_count_what_an_estimate_rests_on(world):
    found = world.estimate()
    assert set(found.texts[world.screened_only]) == {SCREENING}
    assert set(found.texts[~world.screened_only]) == {CONFIRMING}
    assert set(world.estimate(world.first, None).texts) == {SCREENING}


# What changes nothing.


def test_the_order_of_tokens_changes_nothing(world):
    turned = np.random.default_rng(4).permutation(world.ids)

    def renamed(own):
        ids = turned[np.searchsorted(world.ids, own.ids)]
        return Lifts(np.sort(ids), own.values[np.argsort(ids)])

    late = np.sort(turned[np.searchsorted(world.ids, world.late)])
    found = estimate(renamed(world.first), renamed(world.last), world.ids, late, CONFIDENCE)
    plain, back = world.estimate(), np.searchsorted(found.ids, turned)
    for kind in ("lift", "tested"):
        for column, other in zip(getattr(found, kind), getattr(plain, kind), strict=True):
            assert np.allclose(column[back], other, atol=1e-12)
    assert np.array_equal(found.texts[back], plain.texts)
    assert found.level == pytest.approx(plain.level)


@pytest.mark.parametrize("place", [0, 1])
def test_what_a_probe_does_to_every_token_moves_the_level_alone(world, place):
    rounds = [world.first, world.last]
    own = rounds[place]
    constants = np.random.default_rng(5).normal(size=own.values.shape[1])
    rounds[place] = own._replace(values=own.values + constants)
    found, plain = world.estimate(*rounds), world.estimate()
    assert same(found, plain)
    expected = plain.level + (constants.mean() if place == 1 else 0)
    assert found.level == pytest.approx(expected, abs=1e-11)


@pytest.mark.parametrize("factor", [0.1, 7.0])
def test_lifts_in_another_unit_give_estimates_in_that_unit(world, factor):
    rounds = [own._replace(values=factor * own.values) for own in (world.first, world.last)]
    found, plain = world.estimate(*rounds), world.estimate()
    scaled = plain._replace(
        lift=plain.lift.scaled(factor), tested=plain.tested.scaled(factor), null=plain.null.scaled(factor)
    )
    assert same(found, scaled, tolerance=1e-9 * factor)
    assert found.level == pytest.approx(factor * plain.level)


def test_tokens_that_somebody_chose_do_not_move_what_is_ordinary(world):
    named = world.ids[:10]
    reference, late = np.setdiff1d(world.ids, named), np.setdiff1d(world.late, named)

    def moved(own):
        return own._replace(values=own.values + 3.0 * np.isin(own.ids, named)[:, None])

    plain = estimate(world.first, world.last, reference, late, CONFIDENCE)
    found = estimate(moved(world.first), moved(world.last), reference, late, CONFIDENCE)
    assert (found.null, found.level) == (plain.null, plain.level)
    assert np.array_equal(found.lift.value[10:], plain.lift.value[10:])
    assert (found.lift.value[:10] > plain.lift.value[:10] + 1).all()


def test_measurements_are_left_as_they_were(world):
    before = [own.values.copy() for own in (world.first, world.last)]
    first, second = world.estimate(), world.estimate()
    assert same(first, second, tolerance=0)
    for old, own in zip(before, (world.first, world.last), strict=True):
        assert np.array_equal(old, own.values)


def test_without_a_first_round_nothing_can_be_estimated():
    with pytest.raises(InputError, match="no first round"):
        lifts_of({})
