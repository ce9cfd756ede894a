"""Outliers, profiles over groups, severities and verdicts, against plain loops."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from stickytoken.methods._null import Null, Shape
from stickytoken.methods.profile.estimates import Measurements, TokenEstimates
from stickytoken.methods.profile.rounds import Round
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.profile.verdict import (
    LEAST_NULL_TOKENS,
    SEVERITY_BOUNDS,
    UNIVERSAL_SHARE,
    Severity,
    Verdict,
    find_outliers,
    profile,
    severities,
    verdicts,
)
from stickytoken.methods.statistics import Estimates

WEIGHTS = np.array([0.1, 0.2, 0.3, 0.15, 0.25])
GROUPS, PROBES = len(WEIGHTS), 6


def tokens_of(values, errors=0.1, center=0.0, spread=1.0, half=0.3):
    """Estimates around a normal null."""
    values = np.asarray(values, dtype=float)
    errors = np.broadcast_to(np.asarray(errors, float), values.shape)
    lift = Estimates(values, errors, values - half, values + half)
    ids = 2 * np.arange(len(values)) + 5
    null = Null(center, spread, Shape())
    return TokenEstimates(ids, np.full(len(values), 9), lift, lift, null, 0.0)


# find_outliers


def test_a_null_of_no_width_is_not_used():
    """Beside it, everything a little above the noise would be an outlier of its vocabulary."""
    values = np.append(np.zeros(299), 5.0)
    usual, flat = tokens_of(values), tokens_of(values, spread=0.0)
    found = find_outliers(usual, flat, 300, 1.0, ProfileSettings())
    assert found.q_values is None
    assert found.found.nonzero()[0].tolist() == [299]  # by its interval
    assert find_outliers(usual, usual, 300, 1.0, ProfileSettings()).q_values is not None


def outliers_of(tokens, *rest):
    """Rare by the same estimates that are large."""
    return find_outliers(tokens, tokens, *rest)


def plain_q_values(p_values):
    ordered = sorted(p_values)
    count = len(ordered)
    return [
        min(1.0, *(p * count / rank for rank, p in enumerate(ordered, start=1) if p >= own))
        for own in p_values
    ]


@pytest.mark.parametrize("spread", [1.5, 0.2])
def test_outliers_are_rare_among_ordinary_tokens_and_large_by_their_intervals(spread):
    generator = np.random.default_rng(1)
    values, errors = generator.normal(size=60) * 3, generator.uniform(0.1, 2, 60)
    tokens = tokens_of(values, errors, 0.4, spread)
    found = find_outliers(tokens, tokens, 200, 2.0, ProfileSettings())
    p_values = [
        stats.norm.sf((value - 0.4) / math.hypot(spread, error))
        for value, error in zip(values, errors, strict=True)
    ]
    expected = plain_q_values(p_values)
    assert found.q_values == pytest.approx(expected)
    assert found.found.tolist() == [
        q <= 0.05 and value - 0.3 > 0.4 + 2 for q, value in zip(expected, values, strict=True)
    ]
    rare, large = found.q_values <= 0.05, tokens.lift.low > 2.4
    # The null decides about some, the interval about others.
    assert found.found.any()
    assert (rare & ~large).any() if spread < 1 else (large & ~rare).any()


def test_rarity_is_judged_by_what_nothing_pulled_and_size_by_the_interval():
    tokens = tokens_of([0.0] * 300 + [8.0])
    elsewhere = tokens_of([0.0] * 301)
    plain = ProfileSettings()
    assert find_outliers(tokens, tokens, 300, 1.0, plain).found.nonzero()[0].tolist() == [300]
    small = find_outliers(tokens._replace(lift=elsewhere.lift), tokens, 300, 1.0, plain)
    assert small.q_values == pytest.approx(find_outliers(tokens, tokens, 300, 1.0, plain).q_values)
    assert not small.found.any()
    ordinary = find_outliers(tokens, tokens._replace(tested=elsewhere.tested), 300, 1.0, plain)
    assert min(ordinary.q_values) > 0.05
    assert not ordinary.found.any()


def test_the_null_and_the_interval_can_each_keep_an_effect_from_being_an_outlier():
    values = [0.0] * 500 + [8.0]
    assert outliers_of(tokens_of(values), 501, 1.0, ProfileSettings()).found.nonzero()[0].tolist() == [500]
    # Nothing special in this vocabulary; too small to matter; too uncertain to say, of either.
    assert not outliers_of(tokens_of(values, spread=4.0), 501, 1.0, ProfileSettings()).found.any()
    assert not outliers_of(tokens_of(values), 501, 7.7, ProfileSettings()).found.any()
    assert outliers_of(tokens_of(values), 501, 7.69, ProfileSettings()).found.any()
    assert not outliers_of(tokens_of(values, errors=3.0), 501, 1.0, ProfileSettings()).found.any()
    assert not outliers_of(tokens_of(values, half=7.5), 501, 1.0, ProfileSettings()).found.any()


@pytest.mark.parametrize(
    ("null_tokens", "empirical"), [(LEAST_NULL_TOKENS - 1, False), (LEAST_NULL_TOKENS, True)]
)
def test_with_few_unselected_tokens_the_interval_decides(null_tokens, empirical):
    # The bound is 1.5; intervals reach 0.3 down.
    found = outliers_of(
        tokens_of([1.7, 1.8, np.nextafter(1.8, 9), 1.9], errors=9.0, center=0.5),
        null_tokens,
        1.0,
        ProfileSettings(),
    )
    assert (found.q_values is not None) is empirical
    low = np.array([1.7, 1.8, np.nextafter(1.8, 9), 1.9]) - 0.3
    assert found.found.tolist() == ([False] * 4 if empirical else (low > 1.5).tolist())
    assert empirical or found.found.tolist()[::3] == [False, True]


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.integers(0, 10**6), st.floats(0, 2), st.floats(0.01, 0.3))
def test_more_caution_never_finds_more(seed, smallest, fdr):
    generator = np.random.default_rng(seed)
    tokens = tokens_of(generator.normal(size=100) * 3, generator.uniform(0.1, 1, 100))
    found = find_outliers(tokens, tokens, 300, smallest, ProfileSettings(fdr=fdr)).found
    larger = find_outliers(tokens, tokens, 300, smallest + 0.5, ProfileSettings(fdr=fdr)).found
    stricter = find_outliers(tokens, tokens, 300, smallest, ProfileSettings(fdr=fdr / 2)).found
    assert not (larger & ~found).any()
    assert not (stricter & ~found).any()


def test_vocabularies_of_ordinary_tokens_have_an_outlier_no_more_often_than_the_rate():
    with_outlier, draws = 0, 500
    for seed in range(draws):
        generator = np.random.default_rng(seed)
        errors = generator.uniform(0.1, 1, 400)
        values = generator.normal(size=400) + errors * generator.normal(size=400)
        outliers = outliers_of(tokens_of(values, errors), 400, 0.0, ProfileSettings(fdr=0.1))
        with_outlier += bool(outliers.found.any())
    assert with_outlier / draws <= 0.1 + 4 * math.sqrt(0.1 * 0.9 / draws)


# profile


def measured(seed, ids, missing=()):
    """A round in which some groups have no pair."""
    generator = np.random.default_rng(seed)
    size = len(ids)
    groups = generator.normal(size=(size, GROUPS)) + generator.normal(size=(size, 1)) + 3
    groups[:, list(missing)] = np.nan
    return Measurements(
        ids=np.array(ids),
        lifts=generator.normal(size=(size, PROBES)),
        sentence_lifts=generator.normal(size=(size, PROBES)),
        groups=groups,
        rising=generator.uniform(size=size),
        slopes=generator.uniform(0.2, 1.2, (size, PROBES)),
        intercept=generator.normal(size=size),
    )


def slow_effects(own, token, center, reference):
    """Effects of one token on the groups that have pairs, and the shares of these groups."""
    present = [g for g in range(GROUPS) if not math.isnan(own.groups[0, g])]
    whole = sum(WEIGHTS[g] for g in present)
    shares = {g: WEIGHTS[g] / whole for g in present}
    common = [row for row in range(len(own.ids)) if own.ids[row] in reference]
    effects = {
        g: own.groups[token, g] - sum(own.groups[row, g] for row in common) / len(common) - center
        for g in present
    }
    return effects, shares


def slow_floor(effects, shares):
    reached = 0.0
    for group in sorted(effects, key=effects.get):
        reached += shares[group]
        if reached >= 1 - UNIVERSAL_SHARE - 1e-12:
            return effects[group]
    raise AssertionError


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("missing", [(), (2,), (0, 4)])
def test_profiles_equal_loops_over_groups_each_from_the_last_round_of_its_token(seed, missing):
    tokens = tokens_of(np.zeros(12), center=0.2)
    rounds = {
        Round.SCREEN: measured([seed, 1], tokens.ids, missing),
        Round.REFINE: measured([seed, 2], tokens.ids[[0, 3, 4, 8, 9, 11]], missing),
        Round.CONFIRM: measured([seed, 3], tokens.ids[[0, 4, 11, 2]][[0, 3, 1, 2]]),
    }
    reference = tokens.ids[[0, 1, 5, 8, 9]]
    found = profile(rounds, tokens, reference, WEIGHTS)
    for place, token_id in enumerate(tokens.ids):
        own = [measured for measured in rounds.values() if token_id in measured.ids][-1]
        row = own.ids.tolist().index(token_id)
        effects, shares = slow_effects(own, row, 0.2, reference)
        assert found.floor[place] == pytest.approx(slow_floor(effects, shares))
        universality = sum(shares[g] for g, effect in effects.items() if effect > 0)
        assert found.universality[place] == pytest.approx(universality)
        assert found.rising[place] == own.rising[row]
        assert found.contraction[place] == pytest.approx(1 - own.slope[row])
        fixed = own.intercept[row] / (1 - own.slope[row])
        assert found.fixed_point[place] == pytest.approx(fixed)


def test_a_token_is_universal_exactly_where_its_floor_lies_above_nothing():
    for seed in range(20):
        tokens = tokens_of(np.zeros(100))
        found = profile({Round.SCREEN: measured(seed, tokens.ids)}, tokens, tokens.ids, WEIGHTS)
        # Of these weights no groups have exactly the universal share: 0.7 is 1 - 0.3, which is on the edge.
        off_edge = np.abs(found.universality - UNIVERSAL_SHARE) > 1e-9
        assert ((found.floor > 0) == (found.universality > UNIVERSAL_SHARE))[off_edge].all()
        assert off_edge.any()


def test_what_a_round_does_to_a_group_of_all_tokens_changes_nothing():
    tokens = tokens_of(np.zeros(30))
    plain = measured(1, tokens.ids)
    moved = replace(plain, groups=plain.groups + np.array([5.0, -2, 0, 1, 9]))
    found, again = (profile({Round.SCREEN: own}, tokens, tokens.ids[:10], WEIGHTS) for own in (plain, moved))
    assert np.allclose(found.floor, again.floor)
    assert np.array_equal(found.universality, again.universality)


def test_a_group_without_pairs_counts_as_if_it_were_not_there():
    tokens, plain = tokens_of(np.zeros(30)), measured(2, 2 * np.arange(30) + 5)
    kept = np.array([0, 1, 3, 4])
    weights = WEIGHTS[kept] / WEIGHTS[kept].sum()
    groups = plain.groups.copy()
    groups[:, 2] = np.nan
    without = replace(plain, groups=plain.groups[:, kept])
    found = profile({Round.SCREEN: replace(plain, groups=groups)}, tokens, tokens.ids[:10], WEIGHTS)
    expected = profile({Round.SCREEN: without}, tokens, tokens.ids[:10], weights)
    assert np.isfinite(found.floor).all()
    assert np.array_equal(found.floor, expected.floor)
    assert np.allclose(found.universality, expected.universality, rtol=1e-12)


def test_a_token_that_lifts_all_sentences_and_vocabulary_by_chance_is_not_universal():
    """At the default weights it reaches 0.625: a quarter, and half of the rest."""
    groups = np.zeros((2, 8))
    groups[1] = [1, 1, 1, 1, 1, 1, -1, -1]
    weights = np.array([1 / 16] * 4 + [3 / 16] * 4)
    ids = np.array([5, 7])
    own = replace(measured(4, ids), groups=groups)
    found = profile({Round.SCREEN: own}, tokens_of(np.zeros(2)), ids[:1], weights)
    assert found.universality[1] == pytest.approx(0.625)
    assert found.universality[1] < UNIVERSAL_SHARE
    assert found.floor[1] == -1


def test_a_line_of_slope_one_has_no_fixed_point():
    tokens, plain = tokens_of(np.zeros(4)), measured(3, range(5, 13, 2))
    slopes, intercepts = np.array([1.0, 1.0005, 0.9, 1.5]), np.array([0.1, 0.1, 0.05, 0.1])
    own = replace(plain, slopes=slopes[:, None] + [-0.2, 0.2], intercept=intercepts)
    found = profile({Round.SCREEN: own}, tokens, tokens.ids, WEIGHTS)
    assert found.fixed_point == pytest.approx([math.nan, math.nan, 0.5, -0.2], nan_ok=True)
    assert found.contraction == pytest.approx([0, -0.0005, 0.1, -0.5])


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
def test_a_severity_begins_at_its_bound(effect, severity):
    assert severities(np.array([effect]), 1.0) == [severity]
    # A power of two as the spread moves no bound by rounding.
    assert severities(np.array([effect / 8]), 0.125) == [severity]


def test_severities_keep_the_order_of_tokens_and_are_the_documented_ones():
    assert severities(np.array([1.0, 0.0, 0.03]), 0.1) == [
        Severity.SEVERE,
        Severity.NEGLIGIBLE,
        Severity.MILD,
    ]
    assert severities(np.array([]), 1.0) == []
    assert list(SEVERITY_BOUNDS.values()) == sorted(SEVERITY_BOUNDS.values()) == [0.2, 0.5, 0.8]
    assert list(Severity) == ["negligible", *SEVERITY_BOUNDS]


# verdicts


@pytest.mark.parametrize(
    ("outlying", "on_sentences", "universality", "verdict"),
    [
        (True, False, 1.0, "sticky"),
        (True, True, np.nextafter(UNIVERSAL_SHARE, 1), "sticky"),
        (True, False, UNIVERSAL_SHARE, "topical"),
        (True, True, 0.0, "topical"),
        (False, True, 1.0, "topical"),
        (False, True, 0.0, "topical"),
        (False, False, 1.0, "benign"),
        (False, False, 0.0, "benign"),
    ],
)
def test_the_table_of_verdicts(outlying, on_sentences, universality, verdict):
    found = verdicts(np.array([outlying]), np.array([on_sentences]), np.array([universality]))
    assert found == [verdict]
    assert isinstance(found[0], Verdict)


def test_verdicts_keep_the_order_of_tokens():
    outlying, on_sentences = np.array([True, False, True, False]), np.array([False, False, True, True])
    found = verdicts(outlying, on_sentences, np.array([0.9, 0.9, 0.1, 0.9]))
    assert found == ["sticky", "benign", "topical", "topical"]
    assert [str(verdict) for verdict in Verdict] == ["sticky", "topical", "benign"]
