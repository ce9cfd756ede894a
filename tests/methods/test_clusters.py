"""Groups of anchors where nobody named their topics."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from stickytoken.methods.profile.anchors import cluster, representative_carriers, typical_carriers


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def draw(seed, count, dimension=5):
    return unit(np.random.default_rng(seed).normal(size=(count, dimension)))


@settings(max_examples=60)
@given(st.integers(1, 60), st.integers(1, 9), st.integers(0, 1000))
def test_groups_are_numbered_from_zero_in_order_of_appearance(count, groups, seed):
    found = cluster(draw(seed, count), groups, seed)
    assert found.shape == (count,)
    assert found.dtype == np.intp
    seen = list(dict.fromkeys(found.tolist()))
    assert seen == list(range(len(seen)))
    # No more than asked for, and none of fewer than four vectors on average.
    assert found.max() + 1 <= max(1, min(groups, count // 4))


@pytest.mark.parametrize("seed", range(5))
def test_every_vector_is_nearest_to_the_center_of_its_group(seed):
    vectors = draw(seed, 80)
    found = cluster(vectors, 6, seed)
    centers = np.stack([vectors[found == group].mean(axis=0) for group in range(found.max() + 1)])
    distances = ((vectors[:, None] - centers) ** 2).sum(axis=2)
    assert len(centers) == 6
    assert distances.argmin(axis=1).tolist() == found.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_another_order_of_the_vectors_is_another_order_of_the_same_groups(seed):
    """Also where nothing lies apart: the first centers do not depend on the order."""
    vectors, order = draw(seed, 80), np.random.default_rng(seed).permutation(80)
    assert adjusted_rand_score(cluster(vectors, 6, 1)[order], cluster(vectors[order], 6, 1)) == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_vectors_that_occur_many_times_are_no_first_centers_twice(seed):
    """Equal first centers would leave clusters empty, which scikit-learn warns of."""
    distinct = draw(seed, 7)
    places = np.random.default_rng(seed).choice(7, size=90, p=[0.7, *[0.05] * 6])
    places[:7] = range(7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for groups in (3, 7, 20):
            found = cluster(distinct[places], groups, seed)
            assert found.max() + 1 == min(groups, 7)
            assert all(len(set(found[places == place].tolist())) == 1 for place in range(7))


# The few carriers that stand for all: those whose lifts predict the mean, whatever their order or unit.

PILOT, KINDS = 128, 3
GROUP_WEIGHTS = np.array([0.5, 0.3, 0.2])
seeds = st.integers(0, 2**32 - 1)


def lifts_of(seed, noise, groups=KINDS):
    """Effects of random tokens by group, seen through carriers of which each has noise of its own size."""
    generator = np.random.default_rng(seed)
    effects = generator.normal(size=(PILOT, 1, groups))
    noise = np.asarray(noise, dtype=float)[:, None]
    return effects + noise * generator.normal(size=(PILOT, len(noise), groups))


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


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_choice_equals_a_plain_greedy_search(seed, count):
    generator = np.random.default_rng(seed)
    lifts = lifts_of(seed, generator.uniform(0.5, 4, 9))
    assert representative_carriers(lifts, GROUP_WEIGHTS, count) == slow_choice(lifts, GROUP_WEIGHTS, count)


@settings(max_examples=40)
@given(seeds, st.permutations(range(7)), st.integers(1, 7))
def test_another_order_of_the_carriers_is_the_same_choice(seed, order, count):
    lifts = lifts_of(seed, np.linspace(0.5, 3, 7))
    found = representative_carriers(lifts[:, list(order)], GROUP_WEIGHTS, count)
    assert sorted(order[place] for place in found) == representative_carriers(lifts, GROUP_WEIGHTS, count)
    assert len(set(found)) == count


@settings(max_examples=40)
@given(seeds, st.floats(0.01, 100), st.integers(1, 4))
def test_neither_the_unit_nor_the_level_of_a_carrier_or_group_nor_the_order_of_tokens_matters(
    seed, unit, count
):
    lifts, generator = lifts_of(seed, np.linspace(0.5, 3, 7)), np.random.default_rng(seed)
    plain = representative_carriers(lifts, GROUP_WEIGHTS, count)
    moved = unit * lifts + generator.normal(size=(1, 7, KINDS))
    assert representative_carriers(moved[generator.permutation(PILOT)], 3 * GROUP_WEIGHTS, count) == plain
    by_group = lifts * generator.uniform(0.1, 10, KINDS)
    assert representative_carriers(by_group, GROUP_WEIGHTS, count) == plain


def test_a_group_that_no_carrier_has_a_pair_with_has_no_say():
    lifts = lifts_of(3, np.linspace(0.5, 3, 7))
    missing = lifts.copy()
    missing[:, :, 1] = np.nan
    kept = [0, 2]
    for count in (1, 3, 7):
        found = representative_carriers(missing, GROUP_WEIGHTS, count)
        assert found == representative_carriers(lifts[:, :, kept], GROUP_WEIGHTS[kept], count)
    assert representative_carriers(np.ones((5, 4, 2)), np.ones(2), 2) == [0, 1]  # all alike


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.data())
def test_typical_carriers_are_neighbours_in_length(lengths, data):
    count = data.draw(st.integers(1, len(lengths)))
    chosen = typical_carriers(np.array(lengths), count)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == count
    ranked = sorted(lengths)
    of_chosen = sorted(lengths[place] for place in chosen)
    assert of_chosen in [ranked[first : first + count] for first in range(len(lengths) - count + 1)]
