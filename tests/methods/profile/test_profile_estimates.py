"""From three rounds to an estimate of every token: loops, invariances, and vocabularies of known truth."""

from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from scipy import stats

from stickytoken.errors import InputError
from stickytoken.methods.profile.estimates import Measurements, TokenEstimates, estimate, refine, screen
from stickytoken.methods.profile.rounds import Round, advancing
from stickytoken.methods.statistics import Regression

SCREEN, REFINE, CONFIRM = Round
# Sizes as on all-MiniLM-L6-v2: of effects, of a probe around its token's effect, of the probes' common
# effects, of the token alone around its effect; growth of effects in the first round.
ORDINARY, PROBE, COMMON, ALONE, GROWTH, LEVEL = 0.011, 0.0153, 0.004, 0.009, 1.25, 0.03
PROBES = {SCREEN: 3, REFINE: 8, CONFIRM: 96}
SENT_ON = {REFINE: 150, CONFIRM: 40}
CONFIDENCE = 0.9


@dataclass(frozen=True)
class World:
    """A vocabulary of known effects and its three rounds; a few tokens are sticky."""

    effects: np.ndarray
    rounds: dict[Round, Measurements]
    late: np.ndarray
    chosen: dict[Round, np.ndarray]
    common: dict[Round, np.ndarray]

    @property
    def ids(self):
        return self.rounds[SCREEN].ids

    def estimate(self, *steps, rounds=None):
        rounds = rounds or {step: self.rounds[step] for step in steps or Round}
        return judge(rounds, self.ids, self.late)


def judge(rounds, reference, late):
    parts = {step: measured.lifts for step, measured in rounds.items()}
    return estimate(rounds, parts, reference, late, CONFIDENCE)


def measured(ids, lifts, alone):
    nothing, rest = np.zeros((len(ids), 1)), np.zeros(len(ids))
    return Measurements(ids, lifts, lifts, nothing, rest, np.ones_like(lifts), rest, alone)


def simulate(seed, size=1500, sticky=0):
    """Three rounds, each planned from those before, as a run plans them."""
    generator = np.random.default_rng(seed)
    effects = ORDINARY * generator.normal(size=size)
    effects[:sticky] = 0.06
    effects -= effects.mean()
    alone = 0.2 + effects + ALONE * generator.normal(size=size)
    ids = 3 * np.arange(size) + 7
    late = np.sort(generator.permutation(ids)[:128])
    world = World(effects, {}, late, {}, {})
    for step, probes in PROBES.items():
        chosen = ids
        if step is not SCREEN:
            found = judge(world.rounds, ids, late)
            world.chosen[step] = advancing(found.ids, found.tested.value, found.tested.value, SENT_ON[step])
            chosen = np.union1d(world.chosen[step], late)
        growth = GROWTH if step is SCREEN else 1.0
        own = np.searchsorted(ids, chosen)
        world.common[step] = COMMON * generator.normal(size=probes)
        noise = growth * PROBE * generator.normal(size=(len(own), probes))
        lifts = LEVEL + growth * effects[own][:, None] + world.common[step] + noise
        world.rounds[step] = measured(chosen, lifts, alone[own])
    return world


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


def shares_covered(worlds, rows_of):
    """Coverage by vocabulary, as tokens of one vocabulary share errors."""
    shares = []
    for world, found in worlds:
        rows = rows_of(world)
        inside = (found.lift.low <= world.effects) & (world.effects <= found.lift.high)
        shares.append(inside[rows].mean())
    return np.array(shares)


def confirmed_of(world):
    return np.isin(world.ids, world.chosen[CONFIRM])


def refined_only(world):
    return np.isin(world.ids, world.rounds[REFINE].ids) & ~np.isin(world.ids, world.rounds[CONFIRM].ids)


def screened_only(world):
    return ~np.isin(world.ids, [*world.rounds[REFINE].ids, *world.rounds[CONFIRM].ids])


@pytest.mark.parametrize(
    "rows_of",
    [lambda world: slice(None), confirmed_of, refined_only, screened_only],
    ids=["all", "confirmed", "refined", "screened"],
)
def test_nine_of_ten_intervals_hold_the_truth_of_selected_and_other_tokens_alike(worlds, rows_of):
    shares = shares_covered(worlds, rows_of)
    # The growth between rounds is estimated from 128 tokens, which the intervals leave out.
    assert abs(shares.mean() - CONFIDENCE) <= 0.015 + 4 * shares.std() / np.sqrt(len(shares))


def test_confirmed_tokens_have_no_winner_s_curse_although_their_selection_had_one(worlds):
    errors, before = [], []
    for world, found in worlds:
        rows = confirmed_of(world)
        errors.append((found.lift.value - world.effects)[rows].mean())
        before.append((world.estimate(SCREEN).tested.value / GROWTH - world.effects)[rows].mean())
    assert abs(np.mean(errors)) <= 4 * np.std(errors) / np.sqrt(len(errors))
    assert np.mean(before) > 0.5 * ORDINARY


def test_tokens_that_went_no_further_are_not_biased_by_that(worlds):
    for rows_of in (refined_only, screened_only):
        errors = [(found.lift.value - world.effects)[rows_of(world)].mean() for world, found in worlds]
        assert abs(np.mean(errors)) <= 4 * np.std(errors) / np.sqrt(len(errors)) + 0.02 * ORDINARY


def test_growth_between_rounds_is_taken_out(worlds):
    spreads = [found.null.spread for _, found in worlds]
    assert np.mean(spreads) == pytest.approx(ORDINARY, rel=0.1)
    first = [world.estimate(SCREEN).null.spread for world, _ in worlds]
    assert np.mean(first) == pytest.approx(GROWTH * ORDINARY, rel=0.05)


def test_an_effect_and_the_level_give_the_lift_on_the_carriers_of_the_last_round(worlds):
    for steps in ((SCREEN,), (SCREEN, REFINE), tuple(Round)):
        errors = []
        for world, _ in worlds[:60]:
            mean = LEVEL + world.common[steps[-1]].mean()
            errors.append(world.estimate(*steps).level - mean)
        assert abs(np.mean(errors)) <= 4 * np.std(errors) / np.sqrt(len(errors)) + 1e-12
        assert np.std(errors) < 0.15 * ORDINARY


def test_sticky_tokens_are_estimated_as_high_as_they_are(world):
    found = world.estimate()
    assert set(world.ids[:10]) <= set(world.chosen[CONFIRM])
    # Ten means over 96 probes, and errors of the common effects and of the growth.
    assert np.abs((found.lift.value - world.effects)[:10]).max() <= 5 * PROBE / np.sqrt(96)


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
    lifts, alone = world.rounds[SCREEN].lifts, world.rounds[SCREEN].alone[:, None]
    reference = np.arange(200) % 3 > 0
    values, noise = plain_screen(lifts, reference)
    found = screen(lifts, alone, reference, CONFIDENCE)
    assert found.plain.value == pytest.approx(values, abs=1e-12)
    assert found.plain.error == pytest.approx([noise**0.5] * 200)
    own = [values[row] for row in range(200) if reference[row]]
    spread = sum((value - sum(own) / len(own)) ** 2 for value in own) / (len(own) - 1)
    assert found.reliability == pytest.approx(1 - noise / spread)
    prior = Regression.fit(np.array(values)[reference], noise, alone[reference])
    expected = prior.shrink(np.array(values), np.full(200, noise), alone, CONFIDENCE)
    assert np.allclose(np.stack(found.shrunk), np.stack(expected))


def test_refining_averages_over_the_probes_of_both_rounds_on_the_scale_of_the_second(world):
    first, second = world.rounds[SCREEN], world.rounds[REFINE]
    everything, own = np.full(len(first.ids), True), np.isin(second.ids, world.late)
    screened = screen(first.lifts, first.alone[:, None], everything, CONFIDENCE)
    rows = first.rows(second.ids)
    found = refine(screened, first.alone[:, None], rows, second.lifts, own, CONFIDENCE)
    known = found.scale * screened.shrunk.value[rows]
    late = [place for place in range(len(rows)) if own[place]]
    common = [sum(second.lifts[p, k] - known[p] for p in late) / len(late) for k in range(8)]
    fresh = second.lifts - np.array(common)
    residual = sum((fresh[p, k] - fresh[p].mean()) ** 2 for p in late for k in range(8))
    noise = residual / ((len(late) - 1) * 7)
    for place, row in enumerate(rows):
        earlier = [found.scale * value for value in screened.centred[row]]
        assert found.plain.value[place] == pytest.approx(sum([*earlier, *fresh[place]]) / 11, abs=1e-12)
        of_earlier = 3**2 * (found.scale * screened.plain.error[row]) ** 2
        assert found.plain.error[place] == pytest.approx((of_earlier + 8 * noise) ** 0.5 / 11)
    prior = screened.prior.scaled(found.scale)
    expected = prior.shrink(found.plain.value, found.plain.error**2, first.alone[rows][:, None], CONFIDENCE)
    assert np.allclose(np.stack(found.shrunk), np.stack(expected))


def test_the_scale_between_two_rounds_is_recovered():
    size, generator = 20_000, np.random.default_rng(3)
    effects = generator.normal(size=size)
    first = GROWTH * (effects[:, None] + generator.normal(size=(size, 3)))
    second = effects[:, None] + generator.normal(size=(size, 4))
    everything = np.full(size, True)
    screened = screen(first, effects[:, None], everything, CONFIDENCE)
    found = refine(screened, effects[:, None], np.arange(size), second, everything, CONFIDENCE)
    # Error of a slope whose regressor has the standard deviation of one effect and three probes.
    assert abs(found.scale - 1 / GROWTH) <= 4 * 1.5 / GROWTH / np.sqrt(size)


def test_a_scale_that_few_tokens_show_stays_close_to_one(world):
    """As if the tokens of the second round had nothing to do with themselves in the first."""
    generator = np.random.default_rng(8)
    first = world.rounds[SCREEN]
    everything = np.full(len(first.ids), True)
    screened = screen(first.lifts, first.alone[:, None], everything, CONFIDENCE)
    scales = []
    for _ in range(50):
        rows = np.sort(generator.permutation(len(first.ids))[:4])
        second = PROBE * generator.normal(size=(4, 8))
        own = np.full(4, True)
        scales.append(refine(screened, first.alone[:, None], rows, second, own, CONFIDENCE).scale)
    assert np.mean(scales) > 0.5


def test_a_confirmed_token_is_estimated_from_the_confirming_round_alone(world):
    found, third, second = world.estimate(), world.rounds[CONFIRM], world.rounds[REFINE]
    rows, late = world.rounds[SCREEN].rows(third.ids), np.isin(third.ids, world.late)
    values = found.lift.value[rows]
    assert values + found.level == pytest.approx([sum(row) / 96 for row in third.lifts], abs=1e-12)
    assert np.array_equal(values, found.tested.value[rows])
    again = world.estimate(rounds={**world.rounds, REFINE: moved(second, ~np.isin(second.ids, world.late))})
    for column, other in zip(found.lift, again.lift, strict=True):
        assert np.array_equal(column[rows], other[rows])
    # Spread over probes, and the error of the probes' common effects, which 128 tokens show.
    before = world.estimate(SCREEN).lift.value[rows]
    scale = found.null.spread / world.estimate(SCREEN).null.spread
    common = np.var((values - scale * before)[late], ddof=1) / 128
    centred = third.lifts - third.lifts[late].mean(axis=0)
    for place, row in enumerate(rows):
        error = (np.var(centred[place], ddof=1) / 96 + common) ** 0.5
        half = stats.t.ppf(0.95, 95) * error
        assert found.lift.error[row] == pytest.approx(error)
        ends = (found.lift.low[row], found.lift.high[row])
        assert ends == pytest.approx((values[place] - half, values[place] + half))


def moved(measurements, rows, by=0.5):
    """The lifts of some tokens raised."""
    lifts = measurements.lifts + by * rows[:, None]
    return replace(measurements, lifts=lifts)


def test_each_token_has_the_estimate_of_the_last_round_that_it_reached(world):
    only_first, two, everything = world.estimate(SCREEN), world.estimate(SCREEN, REFINE), world.estimate()
    refined, screened = refined_only(world), screened_only(world)
    for early, rows in ((only_first, screened), (two, refined)):
        for kind in ("lift", "tested"):
            ratios = getattr(everything, kind).value[rows] / getattr(early, kind).value[rows]
            # The scale of the last round is all that changes.
            assert np.allclose(ratios, ratios[0], rtol=1e-9)
            assert 0.6 < ratios[0] < 1.4


def test_texts_count_what_an_estimate_rests_on(world):
    found = world.estimate()
    assert set(found.texts[screened_only(world)]) == {3 + 1}
    assert set(found.texts[refined_only(world)]) == {3 + 1 + 8}
    assert set(found.texts[np.isin(world.ids, world.rounds[CONFIRM].ids)]) == {96}
    assert set(world.estimate(SCREEN).texts) == {4}


# What changes nothing.


def test_the_order_of_tokens_changes_nothing(world):
    turned = np.random.default_rng(4).permutation(world.ids)
    rounds = {}
    for step, own in world.rounds.items():
        ids = turned[np.searchsorted(world.ids, own.ids)]
        order = np.argsort(ids)
        columns = {
            field.name: getattr(own, field.name)[order] for field in fields(own) if field.name != "ids"
        }
        rounds[step] = Measurements(ids=ids[order], **columns)
    late = np.sort(turned[np.searchsorted(world.ids, world.late)])
    found, plain = judge(rounds, world.ids, late), world.estimate()
    back = np.searchsorted(found.ids, turned)
    for kind in ("lift", "tested"):
        for column, other in zip(getattr(found, kind), getattr(plain, kind), strict=True):
            assert np.allclose(column[back], other, atol=1e-12)
    assert np.array_equal(found.texts[back], plain.texts)
    assert found.level == pytest.approx(plain.level)


@pytest.mark.parametrize("step", list(Round))
def test_what_a_probe_does_to_every_token_moves_the_level_alone(world, step):
    constants = np.random.default_rng(5).normal(size=PROBES[step])
    own = world.rounds[step]
    rounds = {**world.rounds, step: replace(own, lifts=own.lifts + constants)}
    found, plain = world.estimate(rounds=rounds), world.estimate()
    assert same(found, plain)
    expected = plain.level + (constants.mean() if step is CONFIRM else 0)
    assert found.level == pytest.approx(expected, abs=1e-11)


@pytest.mark.parametrize("factor", [0.1, 7.0])
def test_lifts_in_another_unit_give_estimates_in_that_unit(world, factor):
    rounds = {step: replace(own, lifts=factor * own.lifts) for step, own in world.rounds.items()}
    found, plain = world.estimate(rounds=rounds), world.estimate()
    scaled = replace_estimates(plain, factor)
    assert same(found, scaled, tolerance=1e-9 * factor)
    assert found.level == pytest.approx(factor * plain.level)


def replace_estimates(found, factor):
    return found._replace(
        lift=found.lift.scaled(factor), tested=found.tested.scaled(factor), null=found.null.scaled(factor)
    )


def test_tokens_that_somebody_chose_do_not_move_what_is_ordinary(world):
    reference = np.setdiff1d(world.ids, world.ids[:10])
    late = np.setdiff1d(world.late, world.ids[:10])
    rounds = {step: moved(own, np.isin(own.ids, world.ids[:10]), 3.0) for step, own in world.rounds.items()}
    plain, found = judge(world.rounds, reference, late), judge(rounds, reference, late)
    assert (found.null, found.level) == (plain.null, plain.level)
    assert np.array_equal(found.lift.value[10:], plain.lift.value[10:])
    assert (found.lift.value[:10] > plain.lift.value[:10] + 1).all()


def test_another_part_of_the_lifts_is_estimated_where_it_is_asked_for(world):
    rounds = {
        step: replace(own, sentence_lifts=own.lifts, lifts=own.lifts * np.nan)
        for step, own in world.rounds.items()
    }
    parts = {step: own.sentence_lifts for step, own in rounds.items()}
    assert same(estimate(rounds, parts, world.ids, world.late, CONFIDENCE), world.estimate())


def test_measurements_are_left_as_they_were(world):
    before = [own.lifts.copy() for own in world.rounds.values()]
    first, second = world.estimate(), world.estimate()
    assert same(first, second, tolerance=0)
    assert all(np.array_equal(old, own.lifts) for old, own in zip(before, world.rounds.values(), strict=True))


def test_rows_of_token_ids_are_their_places(world):
    wanted = world.ids[[4, 0, 1499, 4]]
    assert world.rounds[SCREEN].rows(wanted).tolist() == [4, 0, 1499, 4]


# What cannot be estimated.


def test_a_first_round_without_the_tokens_alone_is_refused(world):
    rounds = {SCREEN: replace(world.rounds[SCREEN], alone=None)}
    with pytest.raises(InputError, match="did not encode the tokens alone"):
        world.estimate(rounds=rounds)
