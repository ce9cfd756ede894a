"""Groups of anchors where nobody named their topics."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from stickytoken.methods.profile.anchors import cluster


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def draw(seed, count, dimension=5):
    return unit(np.random.default_rng(seed).normal(size=(count, dimension)))


def topics(seed, sizes, width=0.05):
    """Vectors around orthogonal directions, shuffled, and the direction of each."""
    generator = np.random.default_rng(seed)
    own = generator.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return unit(np.eye(len(sizes))[own] + width * generator.normal(size=(len(own), len(sizes)))), own


def in_order_of_appearance(labels):
    seen = list(dict.fromkeys(labels.tolist()))
    return seen == list(range(len(seen)))


@settings(max_examples=60)
@given(st.integers(1, 60), st.integers(1, 9), st.integers(0, 1000))
def test_groups_are_numbered_from_zero_in_order_of_appearance(count, groups, seed):
    found = cluster(draw(seed, count), groups, seed)
    assert found.shape == (count,)
    assert found.dtype == np.intp
    assert in_order_of_appearance(found)
    # No more than asked for, and none of fewer than four vectors on average.
    assert found.max() + 1 <= max(1, min(groups, count // 4))


@pytest.mark.parametrize("seed", range(5))
def test_vectors_that_lie_apart_are_told_apart(seed):
    vectors, own = topics(seed, (12, 8))
    assert adjusted_rand_score(own, cluster(vectors, 2, seed)) == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_every_vector_is_nearest_to_the_center_of_its_group(seed):
    vectors = draw(seed, 80)
    found = cluster(vectors, 6, seed)
    centers = np.stack([vectors[found == group].mean(axis=0) for group in range(found.max() + 1)])
    distances = ((vectors[:, None] - centers) ** 2).sum(axis=2)
    assert len(centers) == 6
    assert distances.argmin(axis=1).tolist() == found.tolist()


def test_the_same_seed_gives_the_same_groups_and_another_may_not():
    vectors = draw(1, 120)
    assert np.array_equal(cluster(vectors, 8, 3), cluster(vectors.copy(), 8, 3))
    assert any(
        adjusted_rand_score(cluster(vectors, 8, 3), cluster(vectors, 8, seed)) < 1 for seed in range(5)
    )


@pytest.mark.parametrize("seed", range(5))
def test_another_order_of_the_vectors_gives_the_same_groups_under_their_new_first_places(seed):
    vectors, _ = topics(seed, (15, 10))
    order = np.random.default_rng(seed).permutation(25)
    found, turned = cluster(vectors, 2, 0), cluster(vectors[order], 2, 0)
    assert in_order_of_appearance(turned)
    assert adjusted_rand_score(found[order], turned) == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_another_order_of_the_vectors_is_another_order_of_the_same_groups(seed):
    """Also where nothing lies apart: the first centers do not depend on the order."""
    vectors, order = draw(seed, 80), np.random.default_rng(seed).permutation(80)
    assert adjusted_rand_score(cluster(vectors, 6, 1)[order], cluster(vectors[order], 6, 1)) == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_turning_the_space_around_changes_no_groups_that_lie_apart(seed):
    vectors, _ = topics(seed, (12, 8))
    turn, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(2, 2)))
    assert np.array_equal(cluster(vectors, 2, 1), cluster((vectors @ turn).astype(np.float32), 2, 1))


@pytest.mark.parametrize(("count", "groups"), [(0, 3), (1, 5), (3, 2), (7, 24), (50, 1)])
def test_too_few_vectors_for_two_groups_are_one(count, groups):
    assert cluster(draw(4, count), groups, 0).tolist() == [0] * count


@pytest.mark.parametrize("count", [8, 15, 16, 40])
def test_groups_of_fewer_than_four_vectors_are_not_made_on_average(count):
    assert cluster(draw(5, count), 99, 0).max() + 1 == count // 4


def test_equal_vectors_are_one_group_and_stay_together():
    assert cluster(np.tile(draw(6, 1), (20, 1)), 5, 0).tolist() == [0] * 20
    places = np.random.default_rng(7).integers(0, 3, 30)
    found = cluster(np.eye(3, dtype=np.float32)[places], 2, 0)
    assert in_order_of_appearance(found)
    for place in range(3):
        assert len(set(found[places == place].tolist())) == 1


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


def test_two_distinct_vectors_are_two_groups_however_many_are_asked_for():
    places = np.array([1, 0, 0, 1, 1, 0, 0, 0])
    found = cluster(np.eye(2, dtype=np.float32)[places], 7, 1)
    assert found.tolist() == [0, 1, 1, 0, 0, 1, 1, 1]
