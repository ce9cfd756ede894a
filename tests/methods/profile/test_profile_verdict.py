"""Lifts that matter, universality, severities and verdicts, against plain loops."""

import math

import numpy as np
import pytest

from stickytoken.methods.entry import SEVERITY_BOUNDS, Verdict
from stickytoken.methods.profile.estimates import TokenEstimates
from stickytoken.methods.profile.other_texts import moves_up
from stickytoken.methods.profile.verdict import (
    LEAST_NULL_TOKENS,
    UNIVERSAL_SHARE,
    find_lifts,
    severities,
    universality,
    verdicts,
)
from stickytoken.methods.statistics import Estimates, Null, Pull, Shape

MANY = LEAST_NULL_TOKENS


def tokens_of(values, errors=0.1, center=0.0, spread=1.0, half=0.3, tested=None):
    """Estimates around a normal null; ``tested`` are other values to test."""
    values = np.asarray(values, dtype=float)
    errors = np.broadcast_to(np.asarray(errors, float), values.shape)
    lift = Estimates(values, errors, values - half, values + half)
    other = lift if tested is None else lift._replace(value=np.asarray(tested, dtype=float))
    ids = 2 * np.arange(len(values)) + 5
    return TokenEstimates(ids, np.full(len(values), 9), lift, other, Null(center, spread, Shape()), 0.0)


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
    rare = find_lifts(tokens_of(values, half=half, tested=tests), 501, 1, 2.0, 0.05, outliers_only=True)
    assert rare.found.tolist() == [False] * 500 + [matters and tested > 0]


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


@pytest.mark.parametrize("verdict", [Verdict.STICKY, Verdict.TOPICAL])
def test_a_severity_begins_at_its_bound_and_benign_tokens_have_none(verdict):
    bounds = [0.2, 0.5, 0.8]
    assert list(SEVERITY_BOUNDS.values()) == bounds
    effects = np.array([-9.0, *bounds, *(np.nextafter(bound, 0) for bound in bounds), 99.0])
    expected = ["negligible", "mild", "serious", "severe", "negligible", "mild", "serious", "severe"]
    none, nothing = np.zeros(8, dtype=bool), np.zeros(8)
    assert severities(effects, nothing, none, [verdict] * 8) == expected
    assert severities(effects[:2], nothing[:2], none[:2], [Verdict.BENIGN, verdict]) == [None, "mild"]
    # A token that erases has the higher of its two grades.
    assert severities(nothing, effects, ~none, [verdict] * 8) == expected
    assert severities(effects, nothing + 0.3, ~none, [verdict] * 8)[0] == "mild"


VERDICTS = [  # whether the lift matters, whether that on a kind does, universality, whether it erases
    ("sticky", True, False, 1.0, False),
    ("sticky", True, True, np.nextafter(UNIVERSAL_SHARE, 1), False),
    ("topical", True, False, UNIVERSAL_SHARE, False),
    ("topical", True, True, 0.0, False),
    ("sticky", True, True, 0.0, True),
    ("sticky", True, False, math.nan, False),
    ("sticky", False, True, math.nan, False),
    ("sticky", False, True, 1.0, False),
    ("topical", False, True, 0.0, False),
    ("benign", False, False, 1.0, False),
    ("benign", False, False, 0.0, False),
    ("benign", False, False, math.nan, False),
    ("sticky", False, False, 0.0, True),
]


def test_the_table_of_verdicts():
    expected, *columns = zip(*VERDICTS, strict=True)
    assert verdicts(*map(np.array, columns)) == list(expected)


# How far copies move documents up, against sorting by hand.


def units(seed, count, dimension=8):
    drawn = np.random.default_rng(seed).normal(size=(count, dimension))
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def slow_share(contraction, pull, texts, seed):
    """For every query and document, count by comparison who is ahead before and after."""
    order = np.random.default_rng([seed, 4]).permutation(len(texts)).tolist()
    count = min(100, len(texts) // 2)
    moved = total = 0
    for query in order[:count]:
        similarities = [float(text @ texts[query]) for text in texts]
        for document in order[count : 2 * count]:
            before = similarities[document]
            after = (1 - contraction) * before + float(texts[query] @ pull)
            passed = sum(each > before for each in similarities) - sum(each > after for each in similarities)
            moved += passed >= len(texts) / 10
            total += 1
    return moved / total


@pytest.mark.parametrize("seed", range(3))
def test_shares_equal_a_loop_over_queries_and_documents(seed):
    texts = units(seed, 60)
    generator = np.random.default_rng([seed, 9])
    effects = Pull(np.array([0.0, 0.3, 0.8]), generator.normal(size=(3, 8)) * 0.3)
    found = moves_up(effects, texts, seed)
    expected = [slow_share(k, p, texts, seed) for k, p in zip(*effects, strict=True)]
    # In single precision a document may tie with itself.
    assert found == pytest.approx(expected, abs=2 / 900)
