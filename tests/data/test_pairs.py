"""Sampling pairs evenly over similarity, and choosing those below the mean similarity."""

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stickytoken.data.corpora import SentencePair, sample_pairs, select_pairs
from stickytoken.errors import InputError


# Sixteenths: distances are exact, so two of them are equal or they are not.
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


@pytest.mark.parametrize(("sentences", "count"), [(2, 1), (8, 10), (15, 105), (6, 500)])
def test_sampled_pairs_equal_a_search_through_all_pairs(sentences, count):
    vectors = unit_rows(sentences, 4, seed=count)
    found = sample_pairs(names(sentences), vectors, count)
    expected = slow_sample(names(sentences), vectors.tolist(), count)
    assert [pair.sentences for pair in found] == [(first, second) for _, first, second in expected]
    assert [pair.similarity for pair in found] == pytest.approx([pair[0] for pair in expected], abs=1e-12)


def test_fewer_than_two_sentences_make_no_pair():
    with pytest.raises(InputError, match="at least 2 sentences, got 1"):
        sample_pairs(names(1), unit_rows(1, 3, seed=0), 5)


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


@settings(max_examples=100)
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


def test_a_pair_at_u_itself_is_not_below_it():
    pairs = pairs_at([0.3, 0.2])
    assert select_pairs(pairs, 0.3, 2) == [pairs[1]]
    with pytest.raises(InputError, match=r"none of the 2 sentence pairs .* mean 0\.2000"):
        select_pairs(pairs, 0.2, 2)


def test_the_order_of_pairs_changes_nothing_even_of_equal_similarity():
    generator = random.Random(0)
    pairs = pairs_at([round(generator.uniform(-0.5, 1), 1) for _ in range(60)])
    shuffled = generator.sample(pairs, len(pairs))
    assert shuffled != pairs
    assert select_pairs(shuffled, 0.4, 20) == select_pairs(pairs, 0.4, 20)
