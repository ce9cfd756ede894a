"""Sampling pairs evenly over similarity, and choosing those below the mean similarity."""

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stickytoken.data.corpora import SentencePair, nearest_free, sample_pairs, select_pairs
from stickytoken.errors import InputError

# Sixteenths: distances are exact, so two of them are equal or they are not.
values = st.integers(-64, 64).map(lambda sixteenths: sixteenths / 16)


def slow_nearest_free(ascending, targets):
    """For each target look at every free value."""
    free = list(range(len(ascending)))
    chosen = []
    for target in targets:
        best = free[0]
        for k in free:
            if abs(ascending[k] - target) < abs(ascending[best] - target):
                best = k
        free.remove(best)
        chosen.append(best)
    return chosen


def spaced(low, high, count):
    """Evenly spaced values from low to high, both included."""
    return [low + step * (high - low) / (count - 1) for step in range(count)] if count > 1 else [low]


# nearest_free


@settings(max_examples=300)
@given(st.lists(values, min_size=1, max_size=30), st.data())
def test_nearest_free_equals_a_search_through_all_free_values(numbers, data):
    ascending = sorted(numbers)
    targets = data.draw(st.lists(values, max_size=len(ascending)))
    found = nearest_free(np.array(ascending), np.array(targets))
    assert len(set(found)) == len(targets)
    assert [ascending[k] for k in found] == [ascending[k] for k in slow_nearest_free(ascending, targets)]


@pytest.mark.parametrize(
    ("ascending", "targets", "expected"),
    [
        ([0, 1], [0.5, 0.5], [0, 1]),  # the lower of two at the same distance
        ([0, 1, 2, 3, 4, 10], [2] * 6, [2, 1, 3, 0, 4, 5]),  # over taken values on both sides
        ([0, 1, 2], [9] * 3, [2, 1, 0]),
        ([0, 1, 2], [-9] * 3, [0, 1, 2]),
    ],
)
def test_nearest_free_takes_the_nearest_that_is_left(ascending, targets, expected):
    assert nearest_free(np.array(ascending, dtype=float), np.array(targets, dtype=float)) == expected


def test_more_targets_than_values_are_refused():
    with pytest.raises(InputError, match="3 targets, but only 2 values"):
        nearest_free(np.array([0.0, 1.0]), np.array([0.0, 0.0, 0.0]))


# sample_pairs


def unit_rows(count, dimension, seed):
    rows = np.random.default_rng(seed).standard_normal((count, dimension))
    return rows * np.random.default_rng(seed + 1).uniform(0.5, 2, (count, 1))  # of any length


def names(count):
    return [f"sentence {k}" for k in range(count)]


def slow_cosine(left, right):
    dot = math.fsum(a * b for a, b in zip(left, right, strict=True))
    return dot / math.sqrt(math.fsum(a * a for a in left) * math.fsum(b * b for b in right))


def slow_sample(sentences, vectors, count):
    pairs = sorted(
        (slow_cosine(vectors[i], vectors[j]), sentences[i], sentences[j])
        for i, j in itertools.combinations(range(len(sentences)), 2)
    )
    similarities = [pair[0] for pair in pairs]
    targets = spaced(similarities[0], similarities[-1], min(count, len(pairs)))
    return [pairs[k] for k in sorted(slow_nearest_free(similarities, targets))]


@pytest.mark.parametrize(("sentences", "count"), [(2, 1), (3, 2), (8, 10), (12, 40), (15, 105), (6, 500)])
def test_sampled_pairs_equal_a_search_through_all_pairs(sentences, count):
    vectors = unit_rows(sentences, 4, seed=count)
    found = sample_pairs(names(sentences), vectors, count)
    expected = slow_sample(names(sentences), vectors.tolist(), count)
    assert [pair.sentences for pair in found] == [(first, second) for _, first, second in expected]
    assert [pair.similarity for pair in found] == pytest.approx([pair[0] for pair in expected], abs=1e-12)


def test_sampling_is_even_over_similarity_where_the_pairs_themselves_are_not():
    vectors = unit_rows(80, 6, seed=5)
    every = np.array([slow_cosine(a, b) for a, b in itertools.combinations(vectors.tolist(), 2)])
    found = np.array([pair.similarity for pair in sample_pairs(names(80), vectors, 100)])
    # Ten equal steps over the middle of the range, where there are pairs enough everywhere.
    edges = np.linspace(-0.75, 0.75, 11)
    expected = 100 * 0.15 / (every.max() - every.min())
    assert np.abs(np.histogram(found, edges)[0] - expected).max() <= 1.5
    share = np.histogram(every, edges)[0] / len(every)
    assert share.max() > 2 * share.min()


def test_the_order_of_the_sentences_and_the_length_of_the_vectors_change_nothing():
    vectors, sentences = unit_rows(14, 5, seed=8), names(14)
    order = list(range(14))
    random.Random(8).shuffle(order)
    scaled = vectors[order] * np.random.default_rng(9).uniform(0.1, 10, (14, 1))
    first = sample_pairs(sentences, vectors, 30)
    second = sample_pairs([sentences[k] for k in order], scaled.astype(np.float32), 30)
    assert [frozenset(pair.sentences) for pair in first] == [frozenset(pair.sentences) for pair in second]


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_sentences_make_no_pair(count):
    with pytest.raises(InputError, match=f"at least 2 sentences, got {count}"):
        sample_pairs(names(count), unit_rows(count, 3, seed=0), 5)


# select_pairs


def pairs_at(similarities):
    return [SentencePair(f"anchor {k}", f"carrier {k}", value) for k, value in enumerate(similarities)]


def slow_select(pairs, u, count):
    below = sorted((pair for pair in pairs if pair.similarity < u), key=lambda pair: pair.similarity)
    low = below[0].similarity
    chosen = []
    for target in spaced(low, low + 0.8 * (u - low), min(count, len(below))):
        best = below[0]
        for pair in below:
            if abs(pair.similarity - target) < abs(best.similarity - target):
                best = pair
        chosen.append(best)
    return chosen


@settings(max_examples=200)
@given(
    st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=40, unique=True),
    st.integers(1, 30),
    st.floats(-0.5, 1.5),
)
def test_selected_pairs_equal_a_search_through_all_pairs(similarities, count, u):
    pairs = pairs_at(similarities)
    if not any(pair.similarity < u for pair in pairs):
        with pytest.raises(InputError):
            select_pairs(pairs, u, count)
        return
    found = select_pairs(pairs, u, count)
    expected = slow_select(pairs, u, count)
    low = min(similarities)
    targets = spaced(low, low + 0.8 * (u - low), len(expected))
    assert len(found) == min(count, sum(value < u for value in similarities))
    # Which of two pairs at the same distance from a target, to rounding, does not matter.
    for pair, best, target in zip(found, expected, targets, strict=True):
        assert abs(pair.similarity - target) == pytest.approx(abs(best.similarity - target), abs=1e-15)


def test_selected_pairs_spread_over_the_lower_four_fifths_below_u():
    pairs = pairs_at([step / 100 for step in range(-40, 100)])
    found = [pair.similarity for pair in select_pairs(pairs, 0.1, 5)]
    # From -0.4 to -0.4 + 0.8 * (0.1 + 0.4) = 0.0
    assert found == pytest.approx([-0.4, -0.3, -0.2, -0.1, 0.0])


def test_one_pair_is_taken_more_than_once_where_pairs_are_sparse():
    pairs = pairs_at([0.0, 0.01, 0.02, 0.9, 0.95])
    found = [pair.similarity for pair in select_pairs(pairs, 1.0, 5)]
    assert found == [0.0, 0.02, 0.02, 0.9, 0.9]


def test_a_pair_at_u_itself_is_not_below_it():
    pairs = pairs_at([0.3, 0.2])
    assert select_pairs(pairs, 0.3, 2) == [pairs[1]]
    for few in (pairs, []):
        with pytest.raises(InputError, match=rf"none of the {len(few)} sentence pairs .* mean 0\.2000"):
            select_pairs(few, 0.2, 2)


@pytest.mark.parametrize("digits", [1, 15])
def test_the_order_of_pairs_changes_nothing_even_of_equal_similarity(digits):
    generator = random.Random(digits)
    pairs = pairs_at([round(generator.uniform(-0.5, 1), digits) for _ in range(60)])
    shuffled = generator.sample(pairs, len(pairs))
    assert shuffled != pairs
    assert select_pairs(shuffled, 0.4, 20) == select_pairs(pairs, 0.4, 20)
