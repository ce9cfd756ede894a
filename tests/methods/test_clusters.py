"""Groups of anchors where nobody named their topics."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from stickytoken.methods.profile.anchors import cluster, representative_carriers, typical_carriers


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def draw(seed, count, dimension=5):
    return unit(np.random.default_rng(seed).normal(size=(count, dimension)))


@pytest.mark.parametrize("seed", range(2))
def test_every_vector_is_nearest_to_the_center_of_its_group(seed):
    vectors = draw(seed, 80)
    found = cluster(vectors, 6, seed)
    centers = np.stack([vectors[found == group].mean(axis=0) for group in range(found.max() + 1)])
    distances = ((vectors[:, None] - centers) ** 2).sum(axis=2)
    assert list(dict.fromkeys(found.tolist())) == list(range(6))
    assert distances.argmin(axis=1).tolist() == found.tolist()


@pytest.mark.parametrize("seed", range(2))
def test_another_order_of_the_vectors_is_another_order_of_the_same_groups(seed):
    """Also where nothing lies apart: the first centers do not depend on the order."""
    vectors, order = draw(seed, 80), np.random.default_rng(seed).permutation(80)
    assert adjusted_rand_score(cluster(vectors, 6, 1)[order], cluster(vectors[order], 6, 1)) == 1.0


@pytest.mark.parametrize("seed", range(2))
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


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_choice_equals_a_plain_greedy_search(seed, count):
    generator = np.random.default_rng(seed)
    lifts = lifts_of(seed, generator.uniform(0.5, 4, 9))
    assert representative_carriers(lifts, GROUP_WEIGHTS, count) == slow_choice(lifts, GROUP_WEIGHTS, count)


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
