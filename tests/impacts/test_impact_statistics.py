"""Intervals, tests, corrections and rows of effects against scipy and plain loops; what is said of them."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import bootstrap

from stickytoken.impacts import ImpactSettings
from stickytoken.impacts.statistics import (
    Kind,
    benign_needed,
    bootstrap_samples,
    combine,
    compare,
    conclusion,
    contrast_intervals,
    corrected,
    cost_sentence,
    make_conditions,
    resampled,
    task_rows,
)
from stickytoken.insertion import Token


def mean_scores(values):
    return lambda sample: (values if sample is None else values[:, sample]).mean(axis=1)


def difference(values, samples):
    (found,) = contrast_intervals(resampled(mean_scores(values), samples), np.array([[-1.0, 1.0]]), 0.9)
    return found


def test_an_interval_is_that_of_scipy_up_to_chance():
    values = np.random.default_rng(0).normal(size=(2, 200)) + np.array([[0.0], [0.5]])
    found, differences = difference(values, bootstrap_samples(200, 4000, [1])), values[1] - values[0]
    expected = bootstrap(
        (differences,), np.mean, confidence_level=0.9, method="percentile", rng=np.random.default_rng(2)
    ).confidence_interval
    assert found.value == pytest.approx(differences.mean())
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.01)


def test_conditions_are_resampled_together_and_without_samples_there_is_no_interval():
    values = np.random.default_rng(5).normal(size=(1, 50)).repeat(2, axis=0)
    values[1] += 0.25
    assert difference(values, bootstrap_samples(50, 100, [0])) == pytest.approx((0.25, 0.25, 0.25))
    assert difference(np.array([[1.0], [3.0]]), bootstrap_samples(1, 0, [0])) == (2.0, None, None)


def test_a_score_that_is_not_defined_spoils_only_what_it_is_part_of():
    contrasts = np.array([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]])
    found = combine(contrasts, np.array([3.0, 1.0, np.nan]))
    assert found[0] == 2
    assert np.isnan(found[1])


def test_what_is_mostly_not_defined_has_no_interval():
    def scores(sample):
        return np.array([1.0 if sample is None or 0 in sample[:1] else np.nan])

    samples = bootstrap_samples(10, 100, [0])
    (found,) = contrast_intervals(resampled(scores, samples), np.array([[1.0]]), 0.9)
    assert found == (1.0, None, None)
    (nothing,) = contrast_intervals(resampled(lambda _: np.array([np.nan]), samples), np.array([[1.0]]), 0.9)
    assert nothing == (None, None, None)


def plain_p_value(costs):
    """Every choice of one member per set, in plain loops."""
    means = []
    for chosen in itertools.product(range(costs.shape[1]), repeat=len(costs)):
        differences = [
            row[place] - np.mean(np.delete(row, place)) for row, place in zip(costs, chosen, strict=True)
        ]
        means.append(np.mean(differences))
    return np.mean([mean >= means[0] - 1e-9 for mean in means])


matched_sets = st.integers(1, 4).flatmap(
    lambda members: st.lists(
        st.lists(st.integers(-9, 9), min_size=members + 1, max_size=members + 1), min_size=1, max_size=4
    )
)


@given(matched_sets, st.integers(0, 9))
def test_the_test_counts_every_choice_of_one_member_per_set(sets, key):
    costs = np.array(sets) / 10
    assert compare(costs, [key])[0] == pytest.approx(plain_p_value(costs))


def test_random_choices_agree_with_the_count_of_all():
    costs = np.random.default_rng(3).normal(size=(5, 7))  # 16,807 choices
    costs[:, 0] += 0.5
    found, _ = compare(costs, [7])
    assert found == compare(costs, [7])[0] != compare(costs, [8])[0]
    exact = plain_p_value(costs)
    assert found == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 9999))


def test_the_effect_size_is_the_mean_in_standard_deviations():
    costs = np.array([[0.5, 0.1, 0.3], [0.7, 0.1, 0.1], [0.6, 0.3, 0.2]])
    difference = costs[:, 0] - costs[:, 1:].mean(axis=1)
    assert compare(costs, [0])[1] == pytest.approx(difference.mean() / difference.std(ddof=1))
    assert compare(np.array([[1.0, 0.0]] * 3), [0])[1] is None
    assert compare(costs[:1], [0])[1] is None


def test_sets_with_an_undefined_cost_are_left_out():
    costs = np.random.default_rng(5).normal(size=(3, 4))
    spoiled = np.vstack([costs, [[np.nan, 0, 0, 0], [1, 0, np.nan, 0]]])
    assert compare(spoiled, [0]) == compare(costs, [0])
    assert compare(spoiled[3:], [0]) == (None, None)


def test_p_values_are_corrected_over_the_tasks_that_have_one():
    assert corrected([None, None]) == [None, None]
    assert corrected([0.01, None, 0.04]) == pytest.approx([0.02, None, 0.04])


# Rows of effects, on a task whose metric is a mean over its units.

UNITS = 40
STICKY = [Token(place, f"sticky{place}") for place in range(4)]
# Two matches each: the first match of every sticky token, then the second.
BENIGN = [Token(10 + place, f"benign{place}") for place in range(8)]
SETTINGS = ImpactSettings(benign=2, seeds=3, resamples=100)
CONDITIONS = make_conditions(STICKY, BENIGN, SETTINGS.seed, SETTINGS.seeds)
TASK = SimpleNamespace(
    name="mean",
    layout="plain",
    unit="texts",
    units=UNITS,
    metrics=("mean",),
    scores=lambda metric, outcomes, sample: mean_scores(outcomes[:, :, 0])(sample),
)


def test_rows_of_effects_equal_plain_loops():
    outcomes = np.random.default_rng(0).normal(size=(len(CONDITIONS), UNITS, 1))
    names = {token.id: token.text for token in (*STICKY, *BENIGN)}
    found = task_rows(TASK, outcomes, CONDITIONS, SETTINGS, names)

    def score(kind, *tokens):
        own = [place for place, each in enumerate(CONDITIONS) if (each.kind, each.tokens) == (kind, tokens)]
        assert len(own) == SETTINGS.seeds
        return float(np.mean([outcomes[place].mean() for place in own]))

    clean = score(Kind.CLEAN)
    sticky = [clean - score(Kind.STICKY, token) for token in STICKY]
    benign = [clean - score(Kind.BENIGN, token) for token in BENIGN]
    (row,) = found["effects"]
    assert row["clean"] == pytest.approx(clean)
    assert (row["main"], row["tokens"], row["benign_tokens"]) == (True, 4, 8)
    assert row["drop_sticky"] == pytest.approx(np.mean(sticky))
    assert row["drop_benign"] == pytest.approx(np.mean(benign))
    assert row["difference"] == pytest.approx(np.mean(sticky) - np.mean(benign))
    assert row["difference_low"] < row["difference"] < row["difference_high"]
    assert row["drop_sticky_relative"] == pytest.approx(np.mean(sticky) / clean)
    matched = np.array([own - (benign[k] + benign[len(STICKY) + k]) / 2 for k, own in enumerate(sticky)])
    assert row["effect_size"] == pytest.approx(matched.mean() / matched.std(ddof=1))
    rows = {(row["kind"], row["token_id"]): row for row in found["conditions"]}
    for kind, tokens, drops in (("sticky", STICKY, sticky), ("benign", BENIGN, benign)):
        for token, drop in zip(tokens, drops, strict=True):
            row = rows[kind, token.id]
            assert (row["score"], row["drop"]) == pytest.approx((clean - drop, drop))
    assert rows["sticky mixture", None]["score"] == pytest.approx(score(Kind.STICKY, *STICKY))
    assert (rows["clean", None]["score"], rows["clean", None]["drop"]) == (pytest.approx(clean), None)


# What is said about a task: only the test over tokens concludes.


def effect(**changes):
    costs = {"clean": 0.8, "drop_sticky": 0.3, "drop_benign": 0.1, "difference": 0.2}
    test = {"tokens": 1, "benign_tokens": 19, "p_value": 0.05, "q_value": 0.05}
    return {"task": "sts", "metric": "spearman", "main": True, **costs, **test} | changes


COSTS_MORE = "sticky tokens cost more"
NO_DIFFERENCE = "no difference shown"


@pytest.mark.parametrize(
    ("p_value", "q_value", "said"),
    [
        (0.05, 0.05, f"{COSTS_MORE} (p = 0.05)"),
        (0.0001, 0.0002, f"{COSTS_MORE} (p < 0.001, corrected over tasks q < 0.001)"),
        (0.31, 0.31, f"{NO_DIFFERENCE} (p = 0.31)"),
        (0.04, 0.12, f"{NO_DIFFERENCE} (p = 0.04, corrected over tasks q = 0.12)"),
        (None, None, "too few tokens to conclude (the metric is not defined for all of them)"),
    ],
)
def test_only_the_test_over_tokens_concludes(p_value, q_value, said):
    assert conclusion(effect(p_value=p_value, q_value=q_value), "sticky") == said


def test_a_sentence_names_the_costs():
    costs = "sts: named tokens lower spearman by 0.3000, benign ones by 0.1000, from 0.8000"
    assert cost_sentence(effect(), "named") == f"{costs}: named tokens cost more (p = 0.05)."
    assert cost_sentence(effect(main=False, q_value=None), "named") == f"{costs}."
    lower = effect(difference=-0.2, p_value=1.0, q_value=1.0)
    assert conclusion(lower, "sticky") == "sticky tokens are not shown to cost more (p = 1)"
    assert cost_sentence(effect(difference=None), "sticky") == "sts: spearman is not defined."


@pytest.mark.parametrize(
    ("tokens", "benign", "lacking"),
    [
        (1, 8, "1 sticky token with 8 benign ones; 11 more would do"),
        (2, 1, "2 sticky tokens with 1 benign one each; 3 more for each would do"),
        (1, 19, None),
        (2, 4, None),
        (5, 1, None),
    ],
)
def test_enough_tokens_conclude_and_too_few_do_not_however_small_p(tokens, benign, lacking):
    p_value = (1 + benign) ** -tokens
    said = conclusion(
        effect(tokens=tokens, benign_tokens=tokens * benign, p_value=p_value, q_value=p_value), "sticky"
    )
    if lacking is None:
        assert benign_needed(tokens) == benign
        assert "cost more" in said
    else:
        assert said == f"too few tokens to conclude ({lacking})"
