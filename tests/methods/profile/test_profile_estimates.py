"""From two rounds to an estimate of every token: loops, invariances, and vocabularies of known truth."""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

import profiled
from stickytoken import load_encoder
from stickytoken.errors import InputError
from stickytoken.methods.profile.estimates import Lifts, TokenEstimates, estimate
from stickytoken.methods.profile.plan import highest, tokens_to_confirm
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

    @property
    def ids(self):
        return self.first.ids

    @property
    def screened_only(self):
        return ~np.isin(self.ids, self.last.ids)

    def estimate(self, *rounds):
        first, last = rounds or (self.first, self.last)
        return estimate(first, last, self.ids, self.late, CONFIDENCE)


def draw_round(generator, ids, effects, probes, growth):
    common = COMMON * generator.normal(size=probes)
    noise = growth * PROBE * generator.normal(size=(len(ids), probes))
    return Lifts(ids, LEVEL + growth * effects[:, None] + common + noise)


def simulate(seed, size=1500, sticky=0, sent_on=40):
    """Two rounds, the second planned from the first, as a run plans them."""
    generator = np.random.default_rng(seed)
    effects = ORDINARY * generator.normal(size=size)
    effects[:sticky] = 0.06
    effects -= effects.mean()
    ids = 3 * np.arange(size) + 7
    late = np.sort(generator.permutation(ids)[:LATE])
    first = draw_round(generator, ids, effects, SCREENING, GROWTH)
    found = estimate(first, None, ids, late, CONFIDENCE)
    chosen = highest(ids, found.tested.value[:, None], sent_on)
    both = np.union1d(chosen, late)
    last = draw_round(generator, both, effects[np.searchsorted(ids, both)], CONFIRMING, 1.0)
    return World(effects, first, last, late, chosen)


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
    "confirmed": lambda world: np.isin(world.ids, world.chosen),
    "screened": lambda world: world.screened_only,
    "pilot": lambda world: np.isin(world.ids, world.late),
}


@pytest.mark.slow
@pytest.mark.parametrize("rows_of", PARTS.values(), ids=PARTS)
def test_nine_of_ten_intervals_hold_the_truth_of_selected_and_other_tokens_alike(worlds, rows_of):
    shares = []
    for world, found in worlds:  # by vocabulary, as its tokens share errors
        inside = (found.lift.low <= world.effects) & (world.effects <= found.lift.high)
        shares.append(inside[rows_of(world)].mean())
    # The growth between rounds is estimated from 128 tokens, which the intervals leave out.
    assert abs(np.mean(shares) - CONFIDENCE) <= 0.015 + 4 * np.std(shares) / np.sqrt(len(shares))


def test_screening_equals_loops_over_the_reference_tokens():
    """Values and the variance of their noise, by a two-way table of the reference tokens."""
    ids, lifts = simulate(2, 200, sticky=5).first
    own = [row for row in range(200) if row % 3 > 0]
    common = [sum(lifts[row, k] for row in own) / len(own) for k in range(SCREENING)]
    centred = [[lifts[row, k] - common[k] for k in range(SCREENING)] for row in range(200)]
    values = [sum(row) / SCREENING for row in centred]
    residual = sum((centred[row][k] - values[row]) ** 2 for row in own for k in range(SCREENING))
    noise = residual / ((len(own) - 1) * (SCREENING - 1)) / SCREENING
    found = estimate(Lifts(ids, lifts), None, ids[own], np.array([]), CONFIDENCE)
    assert found.tested.value == pytest.approx(values, abs=1e-12)
    assert found.tested.error == pytest.approx([noise**0.5] * 200)
    assert found.level == pytest.approx(np.mean(common))
    spread = np.var([values[row] for row in own], ddof=1)
    expected = shrunk(np.array(values), noise, spread - noise, CONFIDENCE)
    assert np.allclose(np.stack(found.lift), np.stack(expected))


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


# What changes nothing.


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


# The first round: what cannot be estimated, and who goes on to the last.


@pytest.mark.parametrize("rounding", [0.0, 1e-16, 1e-12])
@pytest.mark.parametrize("common", [[0.25, 0.5, -1.0], [0.0, 0.0, 0.0]])
def test_a_model_that_does_not_tell_texts_apart_is_refused(common, rounding):
    generator = np.random.default_rng(6)
    lifts = np.tile(common, (20, 1)) * (1 + rounding * generator.normal(size=(20, 3)))
    with pytest.raises(InputError, match="every token moves the similarities equally"):
        estimate(Lifts(np.arange(20), lifts), None, np.arange(20), np.array([]), CONFIDENCE)


@pytest.mark.parametrize("shape", [(1, 5), (5, 1)])
def test_an_estimate_needs_two_tokens_and_two_probes(shape):
    with pytest.raises(InputError, match=f"{shape[0]} tokens with {shape[1]} probes each: two of both"):
        estimate(Lifts(np.arange(shape[0]), np.zeros(shape)), None, np.arange(5), np.array([]), CONFIDENCE)


# Who goes on, read from the shards of a run.


def highest_of_each(screened, weights, count):
    """So many tokens by their mean lift, and by the group of the lift on which each stands out most."""
    lifts = {token: sum(row["lifts"]) / len(row["lifts"]) for token, row in screened.items()}
    standing = dict.fromkeys(screened, -np.inf)
    for group, weight in enumerate(weights):
        if weight > 0:
            own = {token: np.nanmean(row["groups"][group :: len(weights)]) for token, row in screened.items()}
            center = np.median(list(own.values()))
            spread = np.median([abs(value - center) for value in own.values()])
            for token, value in own.items():
                standing[token] = max(standing[token], (value - center) / spread)
    orders = [sorted(values, key=lambda token: (-values[token], token)) for values in (lifts, standing)]
    return {token for order in orders for token in order[:count]}


@pytest.mark.parametrize("topics", [0, 5])
def test_the_tokens_that_lift_most_on_all_texts_or_on_one_kind_are_confirmed(tmp_path, topics):
    """With topics in the place of kinds; without them the model makes six clusters."""
    run = profiled.detect_profile(
        load_encoder(profiled.foreign_model()), tmp_path / "run", sentences=profiled.corpus(200, topics)
    )
    screened, late = profiled.shard_rows(run, "screen"), set(run.plan.late_reference)
    count = tokens_to_confirm(profiled.SMALL, len(screened))
    assert count == 30
    # The third part are those that erase most.
    expected = highest_of_each(screened, [group.weight for group in run.plan.groups], count // 3)
    assert expected - late < set(profiled.shard_rows(run, "confirm"))
    assert run.result.candidates <= count + len(late)
