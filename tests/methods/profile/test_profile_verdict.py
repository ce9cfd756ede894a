"""Lifts that matter, universality, severities and verdicts, against plain loops."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from stickytoken.methods.entry import SEVERITY_BOUNDS, Severity, Verdict
from stickytoken.methods.profile.estimates import TokenEstimates
from stickytoken.methods.profile.verdict import (
    LEAST_NULL_TOKENS,
    NEGLIGIBLE_SHARE,
    UNIVERSAL_SHARE,
    find_lifts,
    severities,
    universality,
    verdicts,
)
from stickytoken.methods.statistics import Estimates, Null, Shape

MANY = LEAST_NULL_TOKENS


def tokens_of(values, errors=0.1, center=0.0, spread=1.0, half=0.3, tested=None):
    """Estimates around a normal null; ``tested`` are other values to test."""
    values = np.asarray(values, dtype=float)
    errors = np.broadcast_to(np.asarray(errors, float), values.shape)
    lift = Estimates(values, errors, values - half, values + half)
    other = lift if tested is None else lift._replace(value=np.asarray(tested, dtype=float))
    ids = 2 * np.arange(len(values)) + 5
    return TokenEstimates(ids, np.full(len(values), 9), lift, other, Null(center, spread, Shape()), 0.0)


# find_lifts


def plain_q_values(p_values):
    ordered = sorted(p_values)
    count = len(ordered)
    return [
        min(1.0, *(p * count / rank for rank, p in enumerate(ordered, start=1) if p >= own))
        for own in p_values
    ]


@pytest.mark.parametrize("spread", [3.0, 1.5, 0.2])
def test_the_three_conditions_decide_token_by_token(spread):
    generator = np.random.default_rng(1)
    values, errors = generator.normal(size=60) * 3, generator.uniform(0.1, 2, 60)
    found = find_lifts(tokens_of(values, errors, 0.4, spread), MANY, 1, 2.0, 0.05)
    p_values = [
        stats.norm.sf((value - 0.4) / math.hypot(spread, error))
        for value, error in zip(values, errors, strict=True)
    ]
    expected = plain_q_values(p_values)
    assert found.q_values == pytest.approx(expected)
    outcomes = []
    for value, q_value in zip(values, expected, strict=True):
        above_half = value - 0.3 > 0.4 + 1.0
        reaching = value + 0.3 >= 0.4 + 2.0
        outcomes.append(above_half and (reaching or q_value <= 0.05))
    assert found.found.tolist() == outcomes
    assert 0 < sum(outcomes) < 60


@pytest.mark.parametrize(
    ("value", "half", "tested", "matters"),
    [
        pytest.param(2.5, 0.3, 0.0, True, id="large, whatever the vocabulary does"),
        pytest.param(1.8, 0.3, 0.0, True, id="may be the smallest effect"),
        pytest.param(1.6, 0.3, 0.0, False, id="smaller, and not rare"),
        pytest.param(1.6, 0.3, 9.0, True, id="smaller, but rare"),
        pytest.param(1.2, 0.3, 9.0, False, id="rare, but may be negligible"),
        pytest.param(2.5, 1.6, 9.0, False, id="rare and large, but uncertain"),
        pytest.param(-3.0, 0.3, 9.0, False, id="lowers"),
    ],
)
def test_an_effect_matters_if_it_is_not_negligible_and_is_large_or_rare(value, half, tested, matters):
    """The smallest effect is 2, so that 1 is the bound of what is negligible."""
    values, tests = [0.0] * 500 + [value], [0.0] * 500 + [tested]
    found = find_lifts(tokens_of(values, half=half, tested=tests), 501, 1, 2.0, 0.05)
    assert found.found.tolist() == [False] * 500 + [matters]


def test_a_token_with_the_smallest_effect_is_missed_only_if_its_interval_excludes_it():
    """In a vocabulary as wide as that, nothing is rare."""
    generator = np.random.default_rng(3)
    errors = 0.1 * generator.normal(size=2000)
    tokens = tokens_of(1.0 + errors, errors=0.1, spread=4.0, half=1.645 * 0.1)
    found = find_lifts(tokens, MANY, 1, 1.0, 0.05)
    assert np.array_equal(~found.found, tokens.lift.high < 1.0)
    assert 0.03 < (~found.found).mean() < 0.07


def test_a_null_of_no_width_is_not_used():
    """Beside it, everything a little above the noise would be an outlier of its vocabulary."""
    values = np.append(np.zeros(299), [1.0, 5.0])
    flat = find_lifts(tokens_of(values, spread=0.0), 301, 1, 1.0, 0.05)
    assert flat.q_values is None
    assert flat.found.nonzero()[0].tolist() == [299, 300]  # by their intervals
    assert find_lifts(tokens_of(values), 301, 1, 1.0, 0.05).q_values is not None


@pytest.mark.parametrize(("null_tokens", "empirical"), [(MANY - 1, False), (MANY, True)])
def test_with_few_unselected_tokens_the_interval_decides(null_tokens, empirical):
    # Half the smallest effect above the center is 1.5; intervals reach 0.3 down and up.
    values = [1.7, 1.8, np.nextafter(1.8, 9), 2.0, 2.3]
    found = find_lifts(tokens_of(values, errors=9.0, center=0.5), null_tokens, 1, 2.0, 0.05)
    assert (found.q_values is not None) is empirical
    above_half = (np.array(values) - 0.3 > 1.5).tolist()
    assert found.found.tolist() == ([False] * 4 + [True] if empirical else above_half)


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.floats(0.1, 2), st.floats(0.01, 0.3))
def test_more_caution_never_finds_more(seed, smallest, fdr):
    generator = np.random.default_rng(seed)
    tokens = tokens_of(generator.normal(size=100) * 3, generator.uniform(0.1, 1, 100))
    found = find_lifts(tokens, 300, 1, smallest, fdr).found
    larger = find_lifts(tokens, 300, 1, smallest + 0.5, fdr).found
    stricter = find_lifts(tokens, 300, 1, smallest, fdr / 2).found
    assert not (larger & ~found).any()
    assert not (stricter & ~found).any()


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.floats(0.01, 100), st.floats(-50, 50))
def test_unit_and_origin_of_lifts_change_no_verdict(seed, unit, origin):
    generator = np.random.default_rng(seed)
    values, errors = generator.normal(size=100) * 3, generator.uniform(0.1, 1, 100)
    plain = find_lifts(tokens_of(values, errors, 0.4), 300, 1, 2.0, 0.05)
    moved = tokens_of(unit * values + origin, unit * errors, 0.4 * unit + origin, unit, 0.3 * unit)
    assert find_lifts(moved, 300, 1, 2.0 * unit, 0.05).found.tolist() == plain.found.tolist()


def test_vocabularies_of_ordinary_tokens_have_an_outlier_no_more_often_than_the_rate():
    """Where ordinary tokens do not come near the smallest effect, the false discovery rate decides."""
    with_outlier, draws = 0, 500
    for seed in range(draws):
        generator = np.random.default_rng(seed)
        errors = generator.uniform(0.1, 1, 400)
        values = generator.normal(size=400) + errors * generator.normal(size=400)
        tokens = tokens_of(values, errors)
        with_outlier += bool((find_lifts(tokens, 400, 1, 1e9, 0.1).q_values <= 0.1).any())
    assert with_outlier / draws <= 0.1 + 4 * math.sqrt(0.1 * 0.9 / draws)


def test_who_names_the_strongest_tokens_of_a_vocabulary_does_not_make_them_rare():
    """The verdicts of a selection are those of the whole vocabulary; large lifts matter in both."""
    values = np.append(np.random.default_rng(4).normal(size=20_000), 9.0)
    order = np.argsort(-values)
    whole = find_lifts(tokens_of(values), len(values), len(values), 6.0, 0.05)
    few, some = order[:6], np.random.default_rng(5).permutation(len(values))[:400]
    chosen = np.concatenate([few, some])
    part = find_lifts(tokens_of(values[chosen]), 400, len(values), 6.0, 0.05)
    assert part.found[:6].tolist() == whole.found[few].tolist() == [True] + [False] * 5
    assert (part.q_values >= whole.q_values[chosen] - 1e-12).all()
    assert find_lifts(tokens_of(values[chosen]), 400, 1, 6.0, 0.05).found[:6].all()  # as if they were all


# universality


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("missing", [(), (2,), (0, 4), (0, 1, 2, 3, 4)])
def test_universality_counts_kinds_one_by_one(seed, missing):
    generator = np.random.default_rng(seed)
    effects, spreads = generator.normal(size=(40, 5)), generator.uniform(0.5, 3, 5)
    effects[::2, list(missing)] = np.nan
    found = universality(effects, spreads, 0.5)
    for token in range(40):
        kinds = [k for k in range(5) if not math.isnan(effects[token, k])]
        lifted = [k for k in kinds if effects[token, k] >= 0.25 * spreads[k]]
        expected = len(lifted) / len(kinds) if kinds else math.nan
        assert found[token] == pytest.approx(expected, nan_ok=True)


def test_half_the_smallest_effect_counts_as_a_lift():
    assert NEGLIGIBLE_SHARE == 0.5
    effects = np.array([[0.25, np.nextafter(0.25, 0), 1.0, -1.0]])
    assert universality(effects, np.ones(4), 0.5).tolist() == [0.5]


def test_without_a_kind_universality_is_unknown():
    assert np.isnan(universality(np.empty((3, 0)), np.empty(0), 0.5)).all()


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.permutations(range(6)), st.floats(0.01, 100))
def test_neither_the_order_of_kinds_nor_the_unit_of_lifts_changes_universality(seed, order, unit):
    generator = np.random.default_rng(seed)
    effects, spreads = generator.normal(size=(9, 6)), generator.uniform(0.5, 3, 6)
    found = universality(unit * effects[:, list(order)], unit * spreads[list(order)], 0.5)
    assert found == pytest.approx(universality(effects, spreads, 0.5))


# severities


@pytest.mark.parametrize(
    ("effect", "severity"),
    [
        (-9.0, "negligible"),
        (0.0, "negligible"),
        (np.nextafter(0.2, 0), "negligible"),
        (0.2, "mild"),
        (np.nextafter(0.5, 0), "mild"),
        (0.5, "serious"),
        (np.nextafter(0.8, 0), "serious"),
        (0.8, "severe"),
        (99.0, "severe"),
    ],
)
@pytest.mark.parametrize("verdict", [Verdict.STICKY, Verdict.TOPICAL])
def test_a_severity_begins_at_its_bound(effect, severity, verdict):
    assert severities(np.array([effect]), [verdict]) == [severity]


def test_only_flagged_tokens_have_a_severity():
    effects = np.array([1.0, 1.0, 0.3, 0.3, 0.1])
    judged = [Verdict.BENIGN, Verdict.STICKY, Verdict.TOPICAL, Verdict.BENIGN, Verdict.STICKY]
    assert severities(effects, judged) == [None, Severity.SEVERE, Severity.MILD, None, Severity.NEGLIGIBLE]
    assert severities(np.array([]), []) == []


def test_the_bounds_of_severities_are_the_documented_ones():
    assert list(SEVERITY_BOUNDS.values()) == sorted(SEVERITY_BOUNDS.values()) == [0.2, 0.5, 0.8]
    assert list(Severity) == ["negligible", *SEVERITY_BOUNDS]


# verdicts


@pytest.mark.parametrize(
    ("mattering", "on_a_kind", "universal", "verdict"),
    [
        (True, False, 1.0, "sticky"),
        (True, True, np.nextafter(UNIVERSAL_SHARE, 1), "sticky"),
        (True, False, UNIVERSAL_SHARE, "topical"),
        (True, True, 0.0, "topical"),
        (True, False, math.nan, "sticky"),
        (False, True, math.nan, "sticky"),
        (False, True, 1.0, "sticky"),
        (False, True, 0.0, "topical"),
        (False, False, 1.0, "benign"),
        (False, False, 0.0, "benign"),
        (False, False, math.nan, "benign"),
    ],
)
def test_the_table_of_verdicts(mattering, on_a_kind, universal, verdict):
    found = verdicts(np.array([mattering]), np.array([on_a_kind]), np.array([universal]))
    assert found == [verdict]
    assert isinstance(found[0], Verdict)


def test_verdicts_keep_the_order_of_tokens():
    mattering, on_a_kind = np.array([True, False, True, False]), np.array([False, False, True, True])
    found = verdicts(mattering, on_a_kind, np.array([0.9, 0.9, 0.1, 0.9]))
    assert found == ["sticky", "benign", "topical", "sticky"]
    assert [str(verdict) for verdict in Verdict] == ["sticky", "topical", "benign"]
