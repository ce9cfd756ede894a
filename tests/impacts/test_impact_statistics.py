"""Copies in texts; intervals, tests and rows of effects against scipy and plain loops, and in words."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import bootstrap

import impact_files as files
import tiny
from stickytoken.errors import InputError
from stickytoken.impacts import ImpactSettings
from stickytoken.impacts.statistics import (
    Condition,
    Kind,
    benign_needed,
    bootstrap_samples,
    combine,
    compare,
    conclusion,
    contrast_intervals,
    corrected,
    cost_sentence,
    gaps,
    make_conditions,
    needed_room,
    prepare,
    probe,
    resampled,
    task_rows,
    turns,
)
from stickytoken.insertion import Insertion, Placement, Token


def test_places_are_a_function_of_the_seed_and_the_text():
    found = gaps(1, "a text", 5, 8)
    assert found == gaps(1, "a text", 5, 8)
    assert found not in (gaps(2, "a text", 5, 8), gaps(1, "another", 5, 8))
    assert all(0 <= gap <= 5 + step for step, gap in enumerate(gaps(1, "a text", 5, 8)))


@given(kinds=st.integers(1, 5), copies=st.integers(1, 12), seed=st.integers(0, 9))
def test_a_mixture_has_its_tokens_as_often_as_possible(kinds, copies, seed):
    counts = np.bincount(turns(seed, "text", kinds, copies), minlength=kinds)
    assert counts.sum() == copies
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("insertion", list(Insertion))
@pytest.mark.parametrize("placement", list(Placement))
def test_all_tokens_go_to_the_same_places_of_a_text(encoder, insertion, placement):
    tokens = [Token(files.token_id(encoder, word), word) for word in ("river", "stone")]
    (carrier,) = prepare(encoder, ["the old song falls over green glass"], 4, insertion, "t")
    settings = ImpactSettings(placement=placement, insertion=insertion)
    probes = [probe(settings, carrier, Condition(Kind.STICKY, (token,), 0, 3), 4) for token in tokens]
    if insertion is not Insertion.IDS:
        assert probes[0].split().count("river") == 4
        assert probes[0].replace("river", "stone") == probes[1]
    else:
        assert probes[0].count(tokens[0].id) == 4
        swapped = tuple(tokens[1].id if each == tokens[0].id else each for each in probes[0])
        assert swapped == probes[1]


# Truncation.


def long_text(words):
    return " ".join(tiny.WORDS[place % len(tiny.WORDS)] for place in range(words))


def test_ids_are_cut_where_the_model_would_cut(encoder):
    texts = [long_text(200), long_text(54), long_text(55)]
    found = prepare(encoder, texts, 8, Insertion.IDS, "t")
    assert [len(each.content.ids) for each in found] == [54, 54, 54]
    assert [each.cut for each in found] == [True, False, True]
    whole = encoder.tokenize(texts[:1])[0].ids
    assert found[0].content.ids == whole[:54]
    assert all(encoder.fits((*each.content.ids, *(5,) * 8)) for each in found)
    assert not prepare(files.planted_encoder(), texts, 8, Insertion.IDS, "t")[0].cut  # without a limit


def test_text_is_cut_behind_a_word(encoder):
    (found,) = prepare(encoder, [long_text(200)], 8, Insertion.TEXT, "t")
    assert found.cut
    assert long_text(200).startswith(found.text + " ")
    assert len(encoder.tokenize([found.text])[0].ids) == len(found.content.ids) <= 54
    longer = long_text(200)[: len(found.text)] + " " + long_text(200)[len(found.text) :].split()[0]
    assert len(encoder.tokenize([longer])[0].ids) > 54


def test_copies_that_leave_no_room_are_refused(encoder):
    with pytest.raises(InputError, match="copies of 62 tokens leave no room for a text"):
        prepare(encoder, ["a river"], 62, Insertion.IDS, "sts")
    prepare(encoder, ["a river"], 61, Insertion.IDS, "sts")


def test_copies_as_words_need_room_for_every_id(encoder):
    tokens = [Token(1, "river"), Token(2, "xyz")]
    conditions = [Condition(Kind.STICKY, (token,), 0, 0) for token in tokens]
    assert needed_room(encoder, conditions, 4, Insertion.TEXT) == 12
    assert needed_room(encoder, conditions, 4, Insertion.IDS) == 4


# Conditions and tokens.


def test_conditions_are_complete_and_share_their_seeds():
    sticky, benign = [Token(1, "a"), Token(2, "b")], [Token(k, "c") for k in (3, 4, 5, 6)]
    found = make_conditions(sticky, benign, 42, 2)
    assert len(found) == 2 * (1 + 2 + 4 + 2)
    assert {condition.seed for condition in found} == {42, 43}
    mixtures = [[token.id for token in each.tokens] for each in found if len(each.tokens) > 1]
    assert mixtures == [[1, 2], [1, 2], [3, 4], [3, 4]]
    assert not any(len(each.tokens) > 1 for each in make_conditions(sticky[:1], benign, 0, 1))


# Intervals and tests.


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
