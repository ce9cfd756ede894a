"""The pure parts of an explanation, against scipy, simulation and plain loops."""

import tracemalloc

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics.pairwise import cosine_similarity

from stickytoken.explanation import _material as _embeddings
from stickytoken.explanation._attributing import UNBOUNDED, Bounds, compare, distribution_distances
from stickytoken.explanation._material import EmbeddingMatrix, share_below
from stickytoken.explanation._measuring import distances_to_benign
from stickytoken.explanation._verdict import _CALLED
from stickytoken.explanation.files import MEASURES_SCHEMA
from stickytoken.explanation.settings import ExplainSettings, Part, place_copies
from stickytoken.explanation.tables import AREA_OF, BOUNDS, frame, head_rows, measure_rows
from stickytoken.insertion import Placement, Token, TokenizedText, copies_as_ids

SHARE = Bounds(0, 1)


def generator(seed=0):
    return np.random.default_rng(seed)


# Comparisons.


def test_the_interval_of_a_value_is_students():
    values = generator().normal(2, 1, 30)
    found = compare(values[:, None], generator(1).normal(size=(8, 30, 1)), 0.9, 1)
    low, high = stats.t.interval(0.9, 29, values.mean(), stats.sem(values))
    np.testing.assert_allclose([found.low[0], found.high[0]], [low, high])


def test_an_ordinary_token_leaves_the_benign_interval_as_often_as_said():
    random, left = generator(), 0
    for _ in range(2000):
        means = random.normal(size=(13, 5))
        found = compare(means[:1], means[1:, None], 0.95, 5)
        left += bool(found.outside.any())
    assert 0.03 < left / 2000 < 0.06


def test_skewed_shares_leave_their_interval_as_often_as_said():
    random, left = generator(), {True: 0, False: 0}
    for _ in range(2000):
        means = 1 / (1 + np.exp(4 - random.normal(size=(17, 6))))
        for shares in left:
            found = compare(means[:1], means[1:, None], 0.95, 6, SHARE if shares else UNBOUNDED)
            left[shares] += bool(found.outside.any())
    assert 0.03 < left[True] / 2000 < 0.06
    assert left[False] / 2000 > 0.08


@given(st.integers(0, 10**6))
def test_a_share_and_what_it_leaves_are_compared_alike(seed):
    random = generator(seed)
    values, benign = random.random((6, 2)), random.random((5, 6, 2))
    one, other = (
        compare(values, benign, 0.95, 2, SHARE),
        compare(1 - values, 1 - benign, 0.95, 2, SHARE),
    )
    np.testing.assert_allclose(other.deviations, -one.deviations, atol=1e-9)
    np.testing.assert_allclose(other.benign_high, 1 - one.benign_low, atol=1e-9)
    assert (one.outside == other.outside).all()
    assert ((one.benign_low > 0) & (one.benign_high < 1)).all()


def test_shares_of_nothing_and_of_all_are_compared_too():
    benign = np.zeros((4, 3, 1))
    assert not compare(np.zeros((3, 1)), benign, 0.95, 1, SHARE).outside[0]
    assert compare(np.ones((3, 1)), benign, 0.95, 1, SHARE).outside[0]
    assert not compare(np.ones((3, 1)), benign + 1, 0.95, 1, SHARE).outside[0]


@given(st.integers(0, 10**6), st.sampled_from(sorted(BOUNDS)), st.sampled_from([3, 4, 8]))
def test_intervals_never_leave_the_range_of_a_measure(seed, name, tokens):
    random, bounds = generator(seed), BOUNDS[name]
    high = bounds.high if np.isfinite(bounds.high) else 1.0
    values, benign = (
        random.uniform(bounds.low, high, (6, 2)),
        random.uniform(bounds.low, high, (tokens, 6, 2)),
    )
    values[:, 1] = high  # all at a bound
    found = compare(values, benign, 0.95, 19, bounds)
    for ends in (
        (found.low, found.value, found.high),
        (found.benign_low, found.benign_mean, found.benign_high),
    ):
        assert (np.diff([np.full(2, bounds.low), *ends, np.full(2, bounds.high)], axis=0) >= -1e-12).all()


def test_intervals_of_cosines_are_those_of_fishers_z():
    random = generator()
    values, means = np.tanh(random.normal(1, 0.1, (30, 1))), np.tanh(random.normal(1, 0.4, 9))
    found = compare(values, means[:, None, None], 0.9, 1, Bounds(-1, 1))
    z = np.arctanh(means)
    reach = stats.t.ppf(0.95, 8) * z.std(ddof=1) * np.sqrt(1 + 1 / 9)
    np.testing.assert_allclose(found.benign_low, np.tanh(z.mean() - reach))
    np.testing.assert_allclose(found.benign_high, np.tanh(z.mean() + reach))
    # For so small a spread, the delta method is the interval of the z values.
    low, high = stats.t.interval(0.9, 29, np.arctanh(values).mean(), stats.sem(np.arctanh(values)))
    np.testing.assert_allclose([found.low[0], found.high[0]], np.tanh([low, high]).ravel(), atol=5e-3)


def test_the_interval_of_a_skewed_mean_covers_it_as_often_as_said():
    random, covered = generator(), 0
    for _ in range(2000):
        found = compare(random.beta(2, 8, (50, 1)), np.zeros((3, 1, 1)), 0.9, 1, SHARE)
        covered += bool(found.low[0] <= 0.2 <= found.high[0])
    assert 0.87 < covered / 2000 < 0.93


def test_distances_that_are_rounding_errors_are_no_difference():
    noise = generator().uniform(1e-9, 4e-8, (5, 6, 1))
    found = compare(np.full((6, 1), 4e-7), noise, 0.9, 1, BOUNDS["carrier_cosine_drift"])
    assert not found.outside[0]


def test_one_text_has_no_interval():
    found = compare(np.ones((1, 1)), generator().normal(size=(4, 1, 1)), 0.95, 1)
    assert np.isnan(found.low).all()
    assert np.isfinite(found.benign_low).all()


def test_values_that_are_all_the_same_differ_by_more_than_rounding_only():
    same = np.zeros((4, 3, 1))
    assert not compare(np.full((3, 1), 1e-9), same, 0.95, 1).outside[0]
    found = compare(np.full((3, 1), 0.1), same, 0.95, 1)
    assert found.outside[0]
    assert np.isnan(found.deviations[0])


@given(st.integers(0, 10**6), st.floats(-5, 5))
def test_shifting_everything_shifts_the_comparison(seed, shift):
    random = generator(seed)
    values, benign = random.normal(size=(6, 2)), random.normal(size=(5, 6, 2))
    plain, moved = compare(values, benign, 0.95, 2), compare(values + shift, benign + shift, 0.95, 2)
    np.testing.assert_allclose(moved.deviations, plain.deviations, atol=1e-6)
    np.testing.assert_allclose(moved.benign_high, plain.benign_high + shift, atol=1e-9)


def test_distances_of_distributions():
    sample, reference = generator().normal(size=40), generator(1).normal(1, 1, 200)
    distance, divergence = distribution_distances(sample, reference)
    assert distance == pytest.approx(stats.wasserstein_distance(sample, reference))
    assert divergence > 0
    assert distribution_distances(reference, reference) == (0, pytest.approx(0))
    assert distribution_distances(np.ones(3), np.ones(5)) == (0, 0)


# Placing.


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1, max_size=6),
    st.lists(st.integers(0, 9), max_size=2),
    st.sampled_from(Placement),
    st.integers(1, 5),
)
def test_copies_are_where_they_are_said_to_be(words, head, placement, copies):
    text = TokenizedText(tuple(head), tuple(tuple(word) for word in words))
    settings = ExplainSettings(copies=copies, placement=placement)
    placed = place_copies("text", text, 3, settings)
    content = placed.with_copies(7)
    assert placed.labels.count(Part.COPIES) == copies
    of_copies = [k for k, label in zip(content, placed.labels, strict=True) if label == Part.COPIES]
    assert of_copies == [7] * copies
    rest = tuple(k for k, label in zip(content, placed.labels, strict=True) if label != Part.COPIES)
    assert rest == text.ids == placed.before
    assert placed.labels[: len(head)] == (Part.PROMPT,) * len(head)
    if placement is not Placement.RANDOM:
        assert content == copies_as_ids(Token(7, ""), text, placement, copies)


# The embedding matrix.


@pytest.fixture(scope="module")
def matrix():
    names = {0: "[PAD]", 1: "[unused0]", 2: "river", 3: "stone", 4: "bird", 5: "unused"}
    rows = generator().normal(size=(8, 5)).astype(np.float32)
    rows[0] = 0
    return EmbeddingMatrix(rows, names)


def test_unused_rows_are_those_that_no_text_can_use(matrix):
    assert matrix.unused == [1, 6, 7]


def test_measures_of_rows(matrix):
    rows, found = matrix.rows.astype(float), matrix.measures
    unused = rows[[1, 6, 7]].mean(axis=0)
    for row in range(1, 8):
        assert found["embedding_norm"][row] == pytest.approx(np.linalg.norm(rows[row]))
        distance = np.linalg.norm(rows[row] - rows.mean(axis=0))
        assert found["embedding_distance_to_mean"][row] == pytest.approx(distance)
        cosine = cosine_similarity(rows[[row]], unused[None])[0, 0]
        assert found["embedding_cosine_to_unused"][row] == pytest.approx(cosine)
    assert np.isnan(found["embedding_cosine_to_mean"][0])
    without = EmbeddingMatrix(matrix.rows[:5], {k: matrix.names[k] if k != 1 else "wing" for k in range(5)})
    assert set(without.measures) == {
        "embedding_norm",
        "embedding_distance_to_mean",
        "embedding_cosine_to_mean",
    }


def test_neighbours_are_the_nearest_by_cosine(matrix):
    cosines = cosine_similarity(matrix.rows[[2]], matrix.rows)[0]
    expected = sorted((k for k in (1, 3, 4, 5)), key=lambda k: -cosines[k])
    found = matrix.neighbours(2, 3)
    assert [k for k, _ in found] == expected[:3]
    np.testing.assert_allclose([value for _, value in found], cosines[expected[:3]], atol=1e-6)
    assert matrix.neighbours(0, 3) == []


def test_the_geometry_of_the_vocabulary(matrix):
    found = matrix.geometry
    rows = matrix.rows[1:6].astype(float)
    assert found["mean_cosine"] == pytest.approx(cosine_similarity(rows).mean())
    assert found["entries"] == 6
    assert 0 < found["first_component_share"] <= 1


def test_the_share_of_entries_below_a_token():
    assert share_below(np.array([3.0, 1.0, 2.0]), 2, [0, 1, 9]) == 0.5
    assert share_below(np.array([3.0, 1.0, np.nan]), 2, [0, 1]) is None


def test_a_large_matrix_is_measured_a_few_rows_at_a_time(monkeypatch):
    rows = generator().normal(size=(50, 6)).astype(np.float32)
    names = {k: f"<unused{k}>" if k < 9 else f"word{k}" for k in range(44)}
    whole = EmbeddingMatrix(rows, names)
    expected = whole.measures, whole.neighbours(20, 5), whole.geometry
    monkeypatch.setattr(_embeddings, "_ROWS", 7)
    parts = EmbeddingMatrix(rows, names)
    for name, column in expected[0].items():
        np.testing.assert_allclose(parts.measures[name], column, rtol=1e-12)
    assert dict(parts.neighbours(20, 5)) == pytest.approx(dict(expected[1]))
    assert parts.geometry == pytest.approx(expected[2])


def test_a_large_matrix_is_never_copied_as_a_whole():
    rows = generator().normal(size=(60_000, 64)).astype(np.float32)
    matrix = EmbeddingMatrix(rows, {k: str(k) for k in range(len(rows))})
    tracemalloc.start()
    try:
        _ = matrix.measures, matrix.neighbours(20, 5), matrix.geometry
        assert tracemalloc.get_traced_memory()[1] < rows.nbytes
    finally:
        tracemalloc.stop()


# Distances, tables, words.


def test_distances_to_benign_states():
    states, benign = generator().normal(size=(3, 2, 6)), generator(1).normal(size=(4, 3, 2, 6))
    cosine, euclidean = distances_to_benign(states, benign)
    centre = benign.mean(axis=0)
    assert cosine[1, 1] == pytest.approx(1 - cosine_similarity(states[1, 1][None], centre[1, 1][None])[0, 0])
    assert euclidean[2, 0] == pytest.approx(np.linalg.norm(states[2, 0] - centre[2, 0]))


def test_every_measure_has_a_name_in_words_and_an_area():
    assert set(_CALLED) == set(AREA_OF)


def test_missing_numbers_are_null_in_tables():
    rows = measure_rows("lift_sentences", np.array([np.nan, 1.0]), np.ones((4, 2)), 0.95)
    table = frame([{"token_id": 1, "token": "a"} | row for row in rows], MEASURES_SCHEMA)
    assert table["value"].to_list() == [None]
    assert table["outside"].to_list() == [None]
    assert table["layer"].to_list() == [None]
    assert not table.select(pl.selectors.float()).to_series(0).is_nan().any()


def test_rows_of_heads_have_one_for_each_head_and_their_mean():
    random = generator()
    heads, benign = random.random((10, 2, 3)), random.random((4, 10, 2, 3))
    heads[:, 1, 2] += 2
    rows = head_rows(heads, benign, 0.95)
    assert [(row["layer"], row["head"]) for row in rows] == [
        (layer, head) for layer in (1, 2) for head in (None, 0, 1, 2)
    ]
    odd = next(row for row in rows if (row["layer"], row["head"]) == (2, 2))
    assert odd["outside"]
    assert odd["wasserstein"] > 5 * odd["wasserstein_benign"]
    assert odd["kl"] > odd["kl_benign"]
    whole = next(row for row in rows if row["layer"] == 1 and row["head"] is None)
    assert whole["value"] == pytest.approx(heads[:, 0].mean())
