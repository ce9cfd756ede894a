"""Copies in texts; intervals, tests and rows of effects against scipy and plain loops, and in words."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import bootstrap

import impact_files as files
import tiny
from naming import naming, says
from stickytoken.encoders.fitting import fit_texts
from stickytoken.errors import InputError
from stickytoken.impacts import ImpactSettings, _editing, _statistics, wording
from stickytoken.impacts._editing import Condition, Kind, make_conditions
from stickytoken.impacts._statistics import permutation_test
from stickytoken.impacts.results import TokenRecord
from stickytoken.insertion import Insertion, Placement, Token
from stickytoken.intervals import bootstrap_samples, contrast_intervals, resampled


def test_places_are_a_function_of_the_seed_and_the_text():
    first_draw, again, *others = (
        _editing.draw_random_path(seed, text, 5, 8) for seed, text in ((1, "a"), (1, "a"), (2, "a"), (1, "b"))
    )
    assert first_draw == again
    assert first_draw not in others
    assert all(0 <= gap <= 5 + step for step, gap in enumerate(first_draw))


@given(kinds=st.integers(1, 5), copies=st.integers(1, 12), seed=st.integers(0, 9))
def test_a_mixture_has_its_tokens_as_often_as_possible(kinds, copies, seed):
    counts = np.bincount(_editing.draw_tokens(seed, "text", kinds, copies), minlength=kinds)
    assert counts.sum() == copies
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("insertion", list(Insertion))
@pytest.mark.parametrize("placement", list(Placement))
def test_all_tokens_go_to_the_same_places_of_a_text(encoder, insertion, placement):
    tokens = [Token(files.token_id(encoder, word), word) for word in ("river", "stone")]
    (carrier,) = fit_texts(encoder, ["the old song falls over green glass"], 4, insertion, "t")
    settings = ImpactSettings(placement=placement, insertion=insertion)
    probes = [
        _editing.insert_copies(settings, carrier, Condition(Kind.STICKY, (token,), 0, 3), 4)
        for token in tokens
    ]
    one, other = (token.id if insertion is Insertion.IDS else token.text for token in tokens)
    first, second = (probe if insertion is Insertion.IDS else probe.split() for probe in probes)
    assert first.count(one) == 4
    assert [other if copy == one else copy for copy in first] == list(second)


def test_ids_are_cut_where_the_model_would_cut_and_text_behind_a_word(encoder):
    texts = [" ".join((tiny.WORDS * 4)[:words]) for words in (200, 54, 55)]
    fitted_text = fit_texts(encoder, texts, 8, Insertion.IDS, "t")
    assert [(len(text.content.ids), text.cut) for text in fitted_text] == [
        (54, True),
        (54, False),
        (54, True),
    ]
    assert fitted_text[0].content.ids == encoder.tokenize(texts[:1])[0].ids[:54]
    assert encoder.fits((*fitted_text[0].content.ids, *(5,) * 8))
    assert not fit_texts(files.planted_encoder(), texts, 8, Insertion.IDS, "t")[0].cut  # without a limit
    (fitted_text,) = fit_texts(encoder, texts[:1], 8, Insertion.TEXT, "t")
    assert fitted_text.cut
    assert texts[0].startswith(f"{fitted_text.text} ")
    longer = texts[0][: texts[0].index(" ", len(fitted_text.text) + 1)]
    sizes = [len(text.ids) for text in encoder.tokenize([fitted_text.text, longer])]
    assert sizes[0] == len(fitted_text.content.ids) <= 54 < sizes[1]


@pytest.mark.parametrize("beginning", ["", "river "])
def test_text_without_spaces_is_cut_behind_a_character(encoder, beginning):
    """In Chinese, Japanese and Thai, a whole paragraph is one word."""
    paragraph = beginning + "\N{CJK UNIFIED IDEOGRAPH-6F22}\N{CJK UNIFIED IDEOGRAPH-5B57}" * 200
    (fitted_text,) = fit_texts(encoder, [paragraph], 8, Insertion.TEXT, "t")
    assert fitted_text.cut
    assert len(fitted_text.content.ids) == 54
    assert paragraph.startswith(fitted_text.text)


def test_copies_need_room_for_every_id(encoder):
    conditions = [Condition(Kind.STICKY, (Token(k, word),), 0, 0) for k, word in enumerate(("river", "xyz"))]
    assert _editing.compute_room(encoder, conditions, 4, Insertion.TEXT) == 12
    assert _editing.compute_room(encoder, conditions, 4, Insertion.IDS) == 4
    fit_texts(encoder, ["a river"], 61, Insertion.IDS, "sts")
    with pytest.raises(InputError, match=naming("copies", 62)):
        fit_texts(encoder, ["a river"], 62, Insertion.IDS, "sts")


def test_conditions_are_complete_and_share_their_seeds():
    sticky = [Token(1, "a"), Token(2, "b")]
    benign = [Token(k, "c") for k in (3, 4, 5, 6)]
    conditions = make_conditions(sticky, benign, ImpactSettings(seeds=2))
    assert len(conditions) == 2 * (1 + 2 + 4 + 2)
    assert {condition.seed for condition in conditions} == {42, 43}
    mixtures = [
        [token.id for token in condition.tokens] for condition in conditions if len(condition.tokens) > 1
    ]
    assert mixtures == [[1, 2], [1, 2], [3, 4], [3, 4]]
    assert not any(
        len(condition.tokens) > 1 for condition in make_conditions(sticky[:1], benign, ImpactSettings())
    )


def mean_scores(values):
    return lambda sample: (values if sample is None else values[:, sample]).mean(axis=1)


def difference(values, samples):
    resampled_means = resampled(mean_scores(values), samples)
    return contrast_intervals(resampled_means, np.array([[-1.0, 1.0]]), 0.9)[0]


def test_an_interval_is_that_of_scipy_up_to_chance():
    values = np.random.default_rng(0).normal(size=(2, 200)) + np.array([[0.0], [0.5]])
    interval = difference(values, bootstrap_samples(200, 4000, [1]))
    differences = values[1] - values[0]
    expected = bootstrap(
        (differences,), np.mean, confidence_level=0.9, method="percentile", rng=np.random.default_rng(2)
    ).confidence_interval
    assert interval.value == pytest.approx(differences.mean())
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=0.01)


def test_conditions_are_resampled_together_and_without_samples_there_is_no_interval():
    values = np.random.default_rng(5).normal(size=(1, 50)).repeat(2, axis=0)
    values[1] += 0.25
    assert difference(values, bootstrap_samples(50, 100, [0])) == pytest.approx((0.25, 0.25, 0.25))
    assert difference(np.array([[1.0], [3.0]]), bootstrap_samples(1, 0, [0])) == (2.0, None, None)


def test_what_is_mostly_not_defined_has_no_interval_and_spoils_only_what_it_is_part_of():
    resampled_values = np.full((101, 2), np.nan)
    resampled_values[:40, 0] = 1
    intervals = contrast_intervals(resampled_values, np.array([[1.0, 0.0], [1.0, -1.0]]), 0.9)
    assert intervals == [(1.0, None, None), (None, None, None)]


def plain_p_value(costs):
    differences = [[row[k] - np.mean(np.delete(row, k)) for k in range(len(row))] for row in costs]
    means = [np.mean(chosen) for chosen in itertools.product(*differences)]
    return np.mean([mean >= means[0] - 1e-9 for mean in means])


@given(arrays(int, st.tuples(st.integers(1, 4), st.integers(2, 5)), elements=st.integers(-9, 9)))
def test_the_test_counts_every_choice_of_one_member_per_set(sets):
    costs = sets / 10
    assert permutation_test(costs, [0])[0] == pytest.approx(plain_p_value(costs))


def test_random_choices_agree_with_the_count_of_all():
    costs = np.random.default_rng(3).normal(size=(5, 7))  # 16,807 choices
    costs[:, 0] += 0.5
    comparison, _ = permutation_test(costs, [7])
    assert comparison == permutation_test(costs, [7])[0] != permutation_test(costs, [8])[0]
    exact = plain_p_value(costs)
    assert comparison == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 9999))


def test_the_effect_size_is_the_mean_in_standard_deviations_of_sets_that_are_defined():
    costs = np.array([[0.5, 0.1, 0.3], [0.7, 0.1, 0.1], [0.6, 0.3, 0.2]])
    difference = costs[:, 0] - costs[:, 1:].mean(axis=1)
    spoiled = np.vstack([costs, [[np.nan, 0, 0], [1, 0, np.nan]]])
    assert permutation_test(spoiled, [0]) == permutation_test(costs, [0])
    assert permutation_test(costs, [0])[1] == pytest.approx(difference.mean() / difference.std(ddof=1))
    assert permutation_test(np.array([[1.0, 0.0]] * 3), [0])[1] is None
    assert permutation_test(costs[:1], [0])[1] is None
    assert permutation_test(spoiled[3:], [0]) == (None, None)
    # p-values are corrected over the tasks that have one.
    assert _statistics.correct_p_values([0.01, None, 0.04]) == pytest.approx([0.02, None, 0.04])


# Rows of effects, on a task whose metric is a mean over its units.

UNITS = 40
STICKY = [Token(token_id, f"sticky{token_id}") for token_id in range(4)]
# Two matches each: the first match of every sticky token, then the second.
BENIGN = [Token(10 + token_id, f"benign{token_id}") for token_id in range(8)]
SETTINGS = ImpactSettings(benign=2, seeds=3, resamples=100)
CONDITIONS = make_conditions(STICKY, BENIGN, SETTINGS)
TASK = SimpleNamespace(name="mean", layout="plain", unit="texts", units=UNITS, metrics=("mean",))
TASK.scores = lambda metric, outcomes, sample: mean_scores(outcomes[:, :, 0])(sample)


def test_rows_of_effects_equal_plain_loops():
    outcomes = np.random.default_rng(0).normal(size=(len(CONDITIONS), UNITS, 1))
    listed = {
        token.id: TokenRecord(token_id=token.id, token=token.text, text="", kind=kind, matched_to=None)
        for kind, tokens in (("sticky", STICKY), ("benign", BENIGN))
        for token in tokens
    }
    found = _statistics.make_task_rows(TASK, outcomes, CONDITIONS, SETTINGS, listed)

    def score(kind, *tokens):
        matching = [
            index
            for index, condition in enumerate(CONDITIONS)
            if (condition.kind, condition.tokens) == (kind, tokens)
        ]
        assert len(matching) == SETTINGS.seeds
        return float(np.mean([outcomes[index].mean() for index in matching]))

    clean = score(Kind.CLEAN)
    sticky = [clean - score(Kind.STICKY, token) for token in STICKY]
    benign = [clean - score(Kind.BENIGN, token) for token in BENIGN]
    (row,) = found["effects"]
    ours = np.mean(sticky)
    theirs = np.mean(benign)
    means = {"clean": clean, "drop_sticky": ours, "drop_benign": theirs, "difference": ours - theirs}
    means |= {"drop_sticky_relative": ours / clean}
    assert {name: row[name] for name in means} == pytest.approx(means)
    assert (row["main"], row["tokens"], row["benign_tokens"]) == (True, 4, 8)
    assert row["difference_low"] < row["difference"] < row["difference_high"]
    matched = np.array(
        [sticky_value - (benign[k] + benign[len(STICKY) + k]) / 2 for k, sticky_value in enumerate(sticky)]
    )
    assert row["effect_size"] == pytest.approx(matched.mean() / matched.std(ddof=1))
    rows = {(row["kind"], row["token_id"]): (row["score"], row["drop"]) for row in found["conditions"]}
    for kind, tokens, drops in (("sticky", STICKY, sticky), ("benign", BENIGN, benign)):
        for token, drop in zip(tokens, drops, strict=True):
            assert rows[kind, token.id] == pytest.approx((clean - drop, drop))
    assert rows["sticky mixture", None][0] == pytest.approx(score(Kind.STICKY, *STICKY))
    assert rows["clean", None] == (pytest.approx(clean), None)


# What is said of an effect.

TOO_FEW = "too few tokens to conclude"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "sticky tokens cost more (p = 0.05)"),
        (
            {"p_value": 0.0001, "q_value": 0.0002},
            "sticky tokens cost more (p < 0.001, corrected over tasks q < 0.001)",
        ),
        ({"p_value": 0.31, "q_value": 0.31}, "no difference shown (p = 0.31)"),
        (
            {"p_value": 0.04, "q_value": 0.12},
            "no difference shown (p = 0.04, corrected over tasks q = 0.12)",
        ),
        ({"p_value": None, "q_value": None}, f"{TOO_FEW} (the metric is not defined for all of them)"),
        (
            {"difference": -0.2, "p_value": 1, "q_value": 1},
            "no sign that sticky tokens cost more (p = 1)",
        ),
        # However small p is, it takes enough tokens.
        ({"benign_tokens": 8}, f"{TOO_FEW} (1 sticky token with 8 benign ones; 11 more would do)"),
        (
            {"tokens": 2, "benign_tokens": 2},
            f"{TOO_FEW} (2 sticky tokens with 1 benign one each; 3 more for each would do)",
        ),
        ({"tokens": 2, "benign_tokens": 8}, "sticky tokens cost more (p = 0.05)"),
        ({"tokens": 5, "benign_tokens": 5}, "sticky tokens cost more (p = 0.05)"),
    ],
)
def test_only_the_test_over_enough_tokens_concludes(changes, said):
    effect = {"tokens": 1, "benign_tokens": 19, "p_value": 0.05, "q_value": 0.05, "difference": 0.2}
    assert wording.conclusion(effect | changes, "sticky") == said


def test_a_sentence_names_the_costs():
    effect = {"task": "sts", "metric": "spearman", "main": False, "clean": 0.8}
    effect |= {"drop_sticky": 0.3, "drop_benign": 0.1, "difference": 0.2, "q_value": None}
    costs = "sts: named tokens lower spearman by 0.3000, benign ones by 0.1000, from 0.8000."
    assert wording.cost_sentence(effect, "named") == costs
    undefined = effect | {"difference": None}
    assert says(wording.cost_sentence(undefined, "sticky"), "sts", "spearman", "not defined")
