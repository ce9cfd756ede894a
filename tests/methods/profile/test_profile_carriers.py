"""The few carriers that stand for all: those whose lifts predict the mean, whatever their order or unit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stickytoken.methods.profile.anchors import representative_carriers, typical_carriers

TOKENS, GROUPS = 128, 3
WEIGHTS = np.array([0.5, 0.3, 0.2])
seeds = st.integers(0, 2**32 - 1)


def lifts_of(seed, noise, groups=GROUPS):
    """Effects of random tokens by group, seen through carriers of which each has noise of its own size."""
    generator = np.random.default_rng(seed)
    effects = generator.normal(size=(TOKENS, 1, groups))
    noise = np.asarray(noise, dtype=float)[:, None]
    return effects + noise * generator.normal(size=(TOKENS, len(noise), groups))


def slow_choice(lifts, weights, count):
    """Greedy, by numpy's correlation of the mean over the chosen with the mean over all, group by group."""
    chosen = []
    for _ in range(count):
        best, place = -np.inf, None
        for k in range(lifts.shape[1]):
            if k in chosen:
                continue
            score = 0.0
            for group in range(lifts.shape[2]):
                few = lifts[:, [*chosen, k], group].mean(axis=1)
                score += weights[group] * np.corrcoef(few, lifts[:, :, group].mean(axis=1))[0, 1]
            if score > best + 1e-12:
                best, place = score, k
        chosen.append(place)
    return sorted(chosen)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_the_choice_equals_a_plain_greedy_search(seed, count):
    generator = np.random.default_rng(seed)
    lifts = lifts_of(seed, generator.uniform(0.5, 4, 9))
    assert representative_carriers(lifts, WEIGHTS, count) == slow_choice(lifts, WEIGHTS, count)


@pytest.mark.parametrize("seed", range(5))
def test_carriers_without_noise_are_found_among_noisy_ones(seed):
    noise = np.full(20, 3.0)
    clean = np.random.default_rng(seed).permutation(20)[:3]
    noise[clean] = 0.05
    first, *_ = representative_carriers(lifts_of(seed, noise), WEIGHTS, 1)
    assert first in clean
    noise[clean] = [0.5, 0.6, 0.7]
    assert representative_carriers(lifts_of(seed, noise), WEIGHTS, 3) == sorted(clean.tolist())


def test_three_chosen_of_51_carriers_predict_better_than_most_others_do():
    """On tokens that had no part in the choice, against their true effects."""
    ranks = []
    for seed in range(12):
        generator = np.random.default_rng(seed)
        noise = generator.uniform(0.5, 3, 51)
        chosen = representative_carriers(lifts_of(seed, noise), WEIGHTS, 3)
        effects = generator.normal(size=2000)
        fresh = effects[:, None] + noise * generator.normal(size=(2000, 51))

        def agreement(places, fresh=fresh, effects=effects):
            return np.corrcoef(fresh[:, places].mean(axis=1), effects)[0, 1]

        others = [agreement(generator.permutation(51)[:3]) for _ in range(200)]
        ranks.append(np.mean([agreement(chosen) > other for other in others]))
    assert np.mean(ranks) > 0.9
    assert min(ranks) > 0.6


def test_a_carrier_that_turns_the_lifts_around_is_not_chosen():
    lifts = lifts_of(1, [1.0, 1.0, 0.0, 1.0])
    lifts[:, 2] *= -0.2  # no noise, but the opposite of what the others say
    assert 2 not in representative_carriers(lifts, WEIGHTS, 3)


def test_carriers_are_chosen_to_complete_each_other():
    """Two that say the same tell less than two that know one half each."""
    first, second = np.random.default_rng(2).normal(size=(2, TOKENS))
    lifts = np.stack([first, first, second, second], axis=1)[:, :, None]
    found = representative_carriers(lifts, np.ones(1), 2)
    assert len({place // 2 for place in found}) == 2


@settings(max_examples=40)
@given(seeds, st.permutations(range(7)), st.integers(1, 7))
def test_another_order_of_the_carriers_is_the_same_choice(seed, order, count):
    lifts = lifts_of(seed, np.linspace(0.5, 3, 7))
    found = representative_carriers(lifts[:, list(order)], WEIGHTS, count)
    assert sorted(order[place] for place in found) == representative_carriers(lifts, WEIGHTS, count)
    assert len(set(found)) == count


@settings(max_examples=40)
@given(seeds, st.floats(0.01, 100), st.integers(1, 4))
def test_neither_the_unit_nor_the_level_of_a_carrier_or_group_nor_the_order_of_tokens_matters(
    seed, unit, count
):
    lifts, generator = lifts_of(seed, np.linspace(0.5, 3, 7)), np.random.default_rng(seed)
    plain = representative_carriers(lifts, WEIGHTS, count)
    moved = unit * lifts + generator.normal(size=(1, 7, GROUPS))
    assert representative_carriers(moved[generator.permutation(TOKENS)], 3 * WEIGHTS, count) == plain
    by_group = lifts * generator.uniform(0.1, 10, GROUPS)
    assert representative_carriers(by_group, WEIGHTS, count) == plain


def test_a_group_that_no_carrier_has_a_pair_with_has_no_say():
    lifts = lifts_of(3, np.linspace(0.5, 3, 7))
    missing = lifts.copy()
    missing[:, :, 1] = np.nan
    kept = [0, 2]
    for count in (1, 3, 7):
        found = representative_carriers(missing, WEIGHTS, count)
        assert found == representative_carriers(lifts[:, :, kept], WEIGHTS[kept], count)


def test_a_carrier_without_a_pair_in_any_group_comes_last():
    lifts = lifts_of(4, np.ones(6))
    lifts[:, 2] = np.nan
    assert 2 not in representative_carriers(lifts, WEIGHTS, 5)
    assert representative_carriers(lifts, WEIGHTS, 6) == list(range(6))


def test_a_group_of_no_weight_has_no_say():
    lifts = lifts_of(5, np.linspace(0.5, 3, 7))
    other = lifts.copy()
    other[:, :, 2] = np.random.default_rng(6).normal(size=(TOKENS, 7))
    weights = np.array([0.6, 0.4, 0.0])
    assert representative_carriers(lifts, weights, 3) == representative_carriers(other, weights, 3)


def test_lifts_that_are_all_alike_give_the_first_carriers():
    assert representative_carriers(np.ones((5, 4, 2)), np.ones(2), 2) == [0, 1]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.data())
def test_typical_carriers_are_neighbours_in_length(lengths, data):
    count = data.draw(st.integers(1, len(lengths)))
    chosen = typical_carriers(np.array(lengths), count)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == count
    ranked = sorted(lengths)
    of_chosen = sorted(lengths[place] for place in chosen)
    assert of_chosen in [ranked[first : first + count] for first in range(len(lengths) - count + 1)]


def test_typical_carriers_are_shorter_than_the_middle_but_not_the_shortest():
    lengths = np.arange(51)
    assert typical_carriers(lengths, 3) == [14, 15, 16]
    assert typical_carriers(lengths[::-1], 3) == [34, 35, 36]
