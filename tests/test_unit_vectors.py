"""Scaling vectors to length 1, against sklearn."""

import numpy as np
import pytest
from sklearn.preprocessing import normalize

from stickytoken.unit_vectors import exact_unit_vectors, unit_vectors


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_have_length_1_in_their_own_precision_and_zero_rows_stay_zero(dtype):
    vectors = np.random.default_rng(0).normal(size=(6, 5)).astype(dtype)
    vectors[2] = 0

    units = unit_vectors(vectors)

    assert units.dtype == dtype
    np.testing.assert_allclose(units, normalize(vectors), rtol=1e-6)
    assert not units[2].any()


def test_the_last_axis_counts():
    vectors = np.random.default_rng(1).normal(size=(2, 3, 4))

    np.testing.assert_array_equal(unit_vectors(vectors), np.stack([unit_vectors(row) for row in vectors]))
    np.testing.assert_allclose(unit_vectors(vectors[0, 0]), unit_vectors(vectors)[0, 0], rtol=1e-12)


def test_exact_ones_are_computed_in_float64():
    vectors = np.random.default_rng(2).normal(size=(3, 4)).astype(np.float32)

    units = exact_unit_vectors(vectors)

    assert units.dtype == np.float64
    np.testing.assert_allclose(np.linalg.norm(units, axis=1), 1, rtol=1e-15)
