"""Shapley values by deletion, against the formula over all sets of parts."""

from itertools import combinations
from math import factorial

import numpy as np
import pytest

from stickytoken import why
from stickytoken.attribution import why as _deletions

FIRST, SECOND = "the river sings", "an old doctor mends copper windows"
LONG = "the quiet river opens near the bridge and an old doctor walks behind"


def shapley_values(vector_of, count):
    """The values by Shapley's formula: a weighted sum over all sets of the other parts."""
    values = [0.0] * count
    for part in range(count):
        others = [each for each in range(count) if each != part]
        for size in range(count):
            weight = factorial(size) * factorial(count - size - 1) / factorial(count)
            for chosen in combinations(others, size):
                values[part] += weight * (vector_of({*chosen, part}) - vector_of(set(chosen)))
    return np.array(values)


def units(encoder, text):
    ids = encoder.tokenize([text])[0].ids

    def vector_of(places):
        if not places:
            return np.zeros(encoder.dimension)
        vector = encoder.encode_ids([[ids[place] for place in sorted(places)]])[0].astype(float)
        return vector / np.linalg.norm(vector)

    return vector_of, len(ids)


def test_short_texts_have_exact_shapley_values(encoder):
    text = "the river sings."
    vector_of, count = units(encoder, text)
    assert count == 4
    found = why(encoder, text, text)
    values = shapley_values(vector_of, count)
    np.testing.assert_allclose(found.matrix, values @ values.T, atol=1e-6)


def test_random_orders_estimate_the_values_of_longer_texts(encoder, monkeypatch):
    exact = why(encoder, SECOND, FIRST)
    monkeypatch.setattr(_deletions, "_EXACT", 0)
    monkeypatch.setattr(_deletions, "_ENCODED", 4096)
    found = why(encoder, SECOND, FIRST)
    assert not np.array_equal(found.matrix, exact.matrix)
    np.testing.assert_allclose(found.matrix.sum(axis=1), exact.matrix.sum(axis=1), atol=0.03)


@pytest.mark.parametrize("text", ["river", FIRST, SECOND, LONG])
def test_the_values_sum_to_the_similarity_exactly(encoder, text):
    found = why(encoder, text, SECOND)
    assert found.matrix.sum(dtype=float) == pytest.approx(found.similarity, abs=1e-6)
    assert not found.first_reference.any()
    assert not found.second_reference.any()
    assert found.reference == 0


def test_the_same_texts_have_the_same_values_again(encoder):
    np.testing.assert_array_equal(why(encoder, LONG, FIRST).matrix, why(encoder, LONG, FIRST).matrix)
