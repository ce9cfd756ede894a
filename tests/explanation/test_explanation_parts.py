"""The pure parts of an explanation against scipy, simulation and plain loops; and what is said of a token."""

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats
from sklearn.metrics.pairwise import cosine_similarity

from naming import says
from stickytoken.explanation.embedding_matrix import EmbeddingMatrix
from stickytoken.explanation.measuring import Part, place_copies
from stickytoken.explanation.result import describe_verdict, find_differences
from stickytoken.explanation.statistics import BOUNDS, UNBOUNDED, compare, make_head_rows, make_measure_rows
from stickytoken.insertion import Placement, Token, TokenizedText, copies_as_ids
from stickytoken.settings.explain import ExplainSettings

SHARE = (0, 1)


generator = np.random.default_rng


@pytest.mark.parametrize("bounds", [UNBOUNDED, SHARE])
def test_a_token_leaves_the_benign_interval_as_often_as_said(bounds):
    random = generator(0)
    outside_count = 0
    for _ in range(1000):
        means = random.normal(size=(17, 6))
        means = means if bounds is UNBOUNDED else 1 / (1 + np.exp(4 - means))
        outside_count += bool(compare(means[:1], means[1:, None], 0.95, 6, bounds).outside.any())
    assert 0.03 < outside_count / 1000 < 0.06


@given(st.integers(0, 10**6), st.sampled_from(sorted(BOUNDS)), st.sampled_from([3, 4, 8]))
def test_intervals_never_leave_the_range_of_a_measure(seed, name, tokens):
    random, (low, high) = generator(seed), BOUNDS[name]
    upper_bound = min(high, 1.0)
    values, benign = (random.uniform(low, upper_bound, shape) for shape in ((6, 2), (tokens, 6, 2)))
    values[:, 1] = upper_bound  # all at a bound
    comparison = compare(values, benign, 0.95, 19, (low, high))
    for names in (("low", "value", "high"), ("benign_low", "benign_mean", "benign_high")):
        ends = [getattr(comparison, name) for name in names]
        assert (np.diff([np.full(2, low), *ends, np.full(2, high)], axis=0) >= -1e-12).all()


def test_intervals_are_students_and_those_of_cosines_of_fishers_z():
    plain = generator(0).normal(2, 1, 30)
    comparison = compare(plain[:, None], generator(1).normal(size=(8, 30, 1)), 0.9, 1, UNBOUNDED)
    expected = stats.t.interval(0.9, 29, plain.mean(), stats.sem(plain))
    np.testing.assert_allclose([comparison.low[0], comparison.high[0]], expected)
    random = generator(0)
    values = np.tanh(random.normal(1, 0.1, (30, 1)))
    means = np.tanh(random.normal(1, 0.4, 9))
    comparison = compare(values, means[:, None, None], 0.9, 1, (-1, 1))
    z = np.arctanh(means)
    reach = stats.t.ppf(0.95, 8) * z.std(ddof=1) * np.sqrt(1 + 1 / 9)
    np.testing.assert_allclose(comparison.benign_low, np.tanh(z.mean() - reach))
    np.testing.assert_allclose(comparison.benign_high, np.tanh(z.mean() + reach))
    # For so small a spread, the delta method is the interval of the z values.
    low, high = stats.t.interval(0.9, 29, np.arctanh(values).mean(), stats.sem(np.arctanh(values)))
    np.testing.assert_allclose(
        [comparison.low[0], comparison.high[0]], np.tanh([low, high]).ravel(), atol=5e-3
    )


@pytest.mark.parametrize(
    ("value", "benign", "bounds", "outside"),
    [
        (1e-9, np.zeros(4), UNBOUNDED, False),
        (0.1, np.zeros(4), UNBOUNDED, True),
        (4e-7, np.array([1e-9, 2e-8, 4e-8, 3e-9]), BOUNDS["carrier_cosine_drift"], False),
        (0, np.zeros(4), SHARE, False),
        (1, np.zeros(4), SHARE, True),
        (1, np.ones(4), SHARE, False),
    ],
)
def test_rounding_errors_are_no_difference(value, benign, bounds, outside):
    comparison = compare(np.full((3, 1), value), np.repeat(benign, 3).reshape(4, 3, 1), 0.95, 1, bounds)
    assert comparison.outside[0] == outside
    assert np.isnan(comparison.deviations[0]) == (benign.std() < 1e-7)


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1, max_size=6),
    st.lists(st.integers(0, 9), max_size=2),
    st.sampled_from(Placement),
    st.integers(1, 5),
)
def test_copies_are_where_they_are_said_to_be(words, head, placement, copies):
    text = TokenizedText(tuple(head), tuple(tuple(word) for word in words))
    settings = ExplainSettings(copies=copies, placement=placement)
    (placed,) = place_copies(SimpleNamespace(tokenize=lambda _: [text]), settings, ["text"])
    content = placed.with_copies(7)
    labelled = list(zip(content, placed.parts, strict=True))
    assert [k for k, label in labelled if label == Part.COPIES] == [7] * copies
    assert tuple(k for k, label in labelled if label != Part.COPIES) == text.ids == placed.ids_before
    assert placed.parts[: len(head)] == (Part.PROMPT,) * len(head)
    if placement is not Placement.RANDOM:
        assert content == copies_as_ids(Token(7, ""), text, placement, copies)


@pytest.fixture
def matrix():
    names = {0: "[PAD]", 1: "[unused0]", 2: "river", 3: "stone", 4: "bird", 5: "unused"}
    rows = generator(0).normal(size=(8, 5)).astype(np.float32)
    rows[0] = 0
    return EmbeddingMatrix(rows, names)


def test_measures_of_rows(matrix):
    rows = matrix.rows.astype(float)
    measures = matrix.measures
    assert matrix.unused == [1, 6, 7]
    unused = rows[matrix.unused].mean(axis=0)
    np.testing.assert_allclose(measures["embedding_norm"], np.linalg.norm(rows, axis=1))
    distances = np.linalg.norm(rows - rows.mean(axis=0), axis=1)
    np.testing.assert_allclose(measures["embedding_distance_to_mean"], distances)
    cosines = cosine_similarity(rows[1:], unused[None])[:, 0]
    np.testing.assert_allclose(measures["embedding_cosine_to_unused"][1:], cosines)
    assert np.isnan(measures["embedding_cosine_to_mean"][0])
    without = EmbeddingMatrix(matrix.rows[:5], matrix.names | {1: "wing"})
    assert not any("unused" in name for name in without.measures)


def test_neighbours_and_geometry_are_those_of_cosines(matrix):
    cosines = cosine_similarity(matrix.rows[[2]], matrix.rows)[0]
    expected = sorted((k for k in (1, 3, 4, 5)), key=lambda k: -cosines[k])[:3]
    assert dict(matrix.find_neighbours(2, 3)) == pytest.approx({k: cosines[k] for k in expected})
    assert [k for k, _ in matrix.find_neighbours(2, 3)] == expected
    assert matrix.find_neighbours(0, 3) == []
    rows = matrix.rows[:6].astype(float)
    geometry = matrix.geometry
    assert geometry["mean_cosine"] == pytest.approx(cosine_similarity(rows[1:]).mean())
    assert geometry["entries"] == 6
    spread = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False) ** 2
    assert geometry["first_component_share"] == pytest.approx(spread[0] / spread.sum())


def test_a_large_matrix_is_measured_alike_but_never_copied_as_a_whole():
    rows = generator(0).normal(size=(60_000, 64)).astype(np.float32)
    matrix = EmbeddingMatrix(rows, {k: str(k) for k in range(len(rows))})
    tracemalloc.start()
    try:
        norms, neighbours, geometry = (
            matrix.measures["embedding_norm"],
            matrix.find_neighbours(20, 5),
            matrix.geometry,
        )
        assert tracemalloc.get_traced_memory()[1] < rows.nbytes
    finally:
        tracemalloc.stop()
    np.testing.assert_allclose(norms, np.linalg.norm(rows, axis=1), rtol=1e-6)
    cosines = cosine_similarity(rows[[20]], rows)[0]
    assert [k for k, _ in neighbours] == np.argsort(-cosines)[1:6].tolist()
    assert geometry["mean_norm"] == pytest.approx(norms.mean())


def test_rows_of_heads_have_one_for_each_head_and_their_mean():
    random = generator(0)
    heads = random.random((10, 2, 3))
    benign = random.random((4, 10, 2, 3))
    heads[:, 1, 2] += 2
    rows = {(row["layer"], row["head"]): row for row in make_head_rows(heads, benign, 0.95)}
    assert list(rows) == [(layer, head) for layer in (1, 2) for head in (None, 0, 1, 2)]
    odd = rows[2, 2]
    assert odd["outside"]
    assert odd["wasserstein"] > 5 * odd["wasserstein_benign"]
    assert odd["kl"] > odd["kl_benign"]
    # A benign token in place of the explained one is at most as far from the others as the farthest one.
    for row in make_head_rows(benign[0], benign[1:], 0.95):
        assert row["wasserstein"] <= rows[row["layer"], row["head"]]["wasserstein_benign"]
    assert rows[1, None]["value"] == pytest.approx(heads[:, 0].mean())


# What is said of an explained token, alone and beside a run


def rows_with(shift, layers=4):
    """Attention rows of a token that leaves the benign interval from layer 3 on."""
    values = np.random.default_rng(0).normal(0.2, 0.01, (20, layers))
    values[:, 2:] += shift
    benign = np.random.default_rng(1).normal(0.2, 0.01, (8, 20, layers))
    return make_measure_rows("attention_received", values, benign, 0.95)


def test_the_layer_where_it_begins_is_the_first_outside():
    found_findings = find_differences(rows_with(0.5))
    assert [(finding.measure, finding.begins) for finding in found_findings] == [("attention_received", 3)]
    verdict_text = describe_verdict("river", 7, rows_with(0.5), found_findings, 8)
    assert says(verdict_text, "'river' (7)", 8, "1 of 1 measures")
    assert "layer 3 of 4" in verdict_text
    rows = lift_rows(0.1)
    assert describe_verdict("river", 7, rows, find_differences(rows), 8).endswith(
        "in 1 of 1 measures: rise of similarities with unrelated texts 0.150 (benign 0.050, +5.0 SD)."
    )


def lift_rows(shift):
    """Lifts of a token on 20 texts, and of eight benign tokens with a spread of 0.02."""
    values = np.full(20, 0.05 + shift) + np.linspace(-0.01, 0.01, 20)
    benign = 0.05 + 0.02 * stats.zscore(np.random.default_rng(1).normal(size=8), ddof=1)
    return make_measure_rows("lift_sentences", values, np.repeat(benign[:, None], 20, axis=1), 0.9)


STICKY = {"verdict": "sticky", "severity": "severe", "erased": 0.72, "push": 2.41, "texts": 96}
MILD = {"verdict": "sticky", "severity": "mild", "push": 1.3}
BENIGN = {"verdict": "benign", "erased": 0.02, "push": 0.7}


def test_a_run_is_quoted_first():
    rows = [*rows_with(0.5), *lift_rows(0.01)]
    verdict_text = describe_verdict("river", 7, rows, find_differences(rows), 8, STICKY)
    assert verdict_text.startswith(
        "'river' (7): the run calls it sticky (severe): 72% erased, push 2.4×, over 96 texts. "
        "Over 20 texts, the rise of similarities with "
        "unrelated texts is 0.060 (benign tokens 0.050, +0.5 SD); the run's verdict rests on other measures. "
        "Beyond the interval of 8 matched benign tokens: 1 of 2 measures: share of all attention"
    )


@pytest.mark.parametrize(
    ("run", "shift", "quoted", "distance"),
    [
        (STICKY, 0.1, "sticky (severe): 72% erased", "+5.0 SD"),
        (STICKY, -0.1, "sticky (severe): 72% erased", "-5.0 SD"),
        (MILD, 0.1, "sticky (mild): push 1.3×. Over", "+5.0 SD"),
        (BENIGN, 0.1, "benign: 2% erased, push 0.7×", "+5.0 SD"),
        ({"verdict": "sticky"}, 0.0, "sticky. Beyond the interval of 8 matched benign", None),
    ],
)
def test_no_lift_supports_or_questions_the_verdict_of_a_run(run, shift, quoted, distance):
    """It predicts nothing in documents, on which the verdict rests."""
    rows = lift_rows(shift) if "push" in run else rows_with(shift)
    verdict_text = describe_verdict("river", 7, rows, find_differences(rows), 8, run)
    assert verdict_text.startswith(f"'river' (7): the run calls it {quoted}")
    if distance is None:
        assert "0 of 1 measures." in verdict_text
    else:
        assert f"{distance}); the run's verdict rests on other measures. Beyond" in verdict_text


@pytest.mark.parametrize("benign", [7, 8])
@pytest.mark.parametrize("lift", [[], lift_rows(0.0)], ids=["no lift", "lift"])
def test_a_token_inside_all_benign_intervals_is_not_called_equal_to_benign_tokens(lift, benign):
    rows = [*rows_with(0.0), *lift]
    assert find_differences(rows) == []
    verdict_text = describe_verdict("river", 7, rows, [], benign)
    lifts = "the rise of similarities with unrelated texts is 0.050 (mean of "
    if benign < 8:
        assert verdict_text.startswith(
            "'river' (7): 7 matched benign tokens are too few to say whether it differs"
        )
        assert verdict_text.endswith(f"; {lifts}the benign tokens 0.050)." if lift else "(8 are needed).")
    else:
        inside = f"none of {1 + len(lift)} measures is outside the interval of 8 matched benign tokens"
        texts = f"; over 20 texts, {lifts}8 benign tokens 0.050), and the interval" if lift else "."
        assert verdict_text.startswith(f"'river' (7): {inside}{texts}")
