"""How unusual rows of a matrix are, against a plain version and planted rows."""

import numpy as np
import pytest

from stickytoken import ProfileSettings
from stickytoken.token_vectors import robust_deviations, vector_deviations


def matrix(seed=0, rows=600, dimensions=12):
    """Correlated rows with variances over three orders of magnitude."""
    generator = np.random.default_rng(seed)
    scales = np.geomspace(1, 0.03, dimensions)
    rotation = np.linalg.qr(generator.normal(size=(dimensions, dimensions)))[0]
    return (generator.normal(size=(rows, dimensions)) * scales) @ rotation + 0.5


def plain_deviations(rows):
    """The formula, with the inverse of the covariance and a loop over rows."""
    centred = rows - rows.mean(axis=0)
    inverse = np.linalg.inv(centred.T @ centred / len(rows))
    logs = np.array([np.log((row @ inverse @ row) / (row @ row)) for row in centred])
    distances = logs - np.median(logs)
    return distances / np.median(np.abs(distances))


def test_deviations_equal_the_formula():
    rows = matrix()
    assert vector_deviations(rows) == pytest.approx(plain_deviations(rows), rel=1e-6)


def test_a_row_along_directions_that_hardly_vary_is_unusual():
    rows = matrix()
    centred = rows - rows.mean(axis=0)
    _, directions = np.linalg.eigh(centred.T @ centred)
    rows[7] = rows.mean(axis=0) + directions[:, 0]
    deviations = vector_deviations(rows)
    assert deviations.argmax() == 7
    assert deviations[7] > ProfileSettings().unusual


def test_the_length_of_a_row_does_not_matter():
    rows = matrix()
    rows -= rows.mean(axis=0)
    plain = vector_deviations(np.vstack([rows, -rows]))
    rows[3] *= 1.5
    longer = vector_deviations(np.vstack([rows, -rows]))
    assert longer[3] == pytest.approx(plain[3], abs=0.1)


def test_a_matrix_of_lower_rank_is_measured_in_the_directions_that_vary():
    rows = matrix(dimensions=12)
    padded = np.hstack([rows, np.zeros((len(rows), 3))])
    assert vector_deviations(padded) == pytest.approx(vector_deviations(rows), rel=1e-6)


def test_too_few_rows_are_not_compared():
    assert vector_deviations(matrix(rows=119)) is None
    assert vector_deviations(matrix(rows=120)) is not None


def test_a_row_that_equals_the_mean_has_no_deviation():
    rows = matrix()
    rows[5] = 0
    rows[5] = rows.sum(axis=0) / (len(rows) - 1)
    deviations = vector_deviations(rows)
    others = np.delete(deviations, 5)
    assert np.isfinite(others).all()


def test_values_that_do_not_differ_have_no_deviations():
    assert robust_deviations(np.ones(9)) is None
    assert robust_deviations(np.array([0.0, 1, 2, 3, 10])).tolist() == [-2, -1, 0, 1, 8]
