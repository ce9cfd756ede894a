"""The rule: who is flagged, how severe, why; and in which order tokens are measured closely."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, strategies as st

import stickytoken
from stickytoken.intervals import Intervals
from stickytoken.methods.measures import thresholds
from stickytoken.methods.profile.verdict import (
    DISPLAYED,
    RuleInputs,
    apply_rule,
    judge_against_no_copies,
    may_erase_enough,
    order_to_confirm,
)
from stickytoken.methods.wording import result_table
from stickytoken.settings.profile import ProfileSettings

EXAMPLE = Path(stickytoken.__file__).parent / "demo" / "example" / "all-MiniLM-L6-v2"
SETTINGS = ProfileSettings(smallest_erased=0.4, smallest_push=1.5, unusual=6.0)


def estimates(values, half_width):
    values = np.asarray(values, dtype=float)
    return Intervals(values, values - half_width, values + half_width)


def measures(erased=0.0, push=1.0, deviation=0.0, confirmed=True, half_width=0.02):
    """One token, or several if a value is a list."""
    columns = np.broadcast_arrays(*(np.atleast_1d(value) for value in (erased, push, deviation, confirmed)))
    erased, push, deviation, confirmed = columns
    return RuleInputs(
        ids=np.arange(len(erased)),
        erased=estimates(erased, half_width),
        push=estimates(push, half_width),
        vector_deviation=deviation.astype(float),
        confirmed=confirmed.astype(bool),
    )


def judged(**numbers):
    result = apply_rule(measures(**numbers), SETTINGS)
    return result.verdicts[0], result.severities[0]


CASES = {
    "nothing": ({}, ("benign", None)),
    "a push whose interval reaches the threshold": ({"push": 1.53}, ("sticky", "serious")),
    "a push whose interval contains it": ({"push": 1.51}, ("benign", None)),
    "a push that was not measured": ({"push": np.nan}, ("benign", None)),
    "an erased share that reaches the threshold": ({"erased": 0.43}, ("sticky", "serious")),
    "an erased share that does not": ({"erased": 0.41}, ("benign", None)),
    "half-way to the push with an unusual vector": ({"push": 1.28, "deviation": 6}, ("sticky", "mild")),
    "half-way to the push with a usual vector": ({"push": 1.28, "deviation": 5.9}, ("benign", None)),
    "half the share with an unusual vector": ({"erased": 0.23, "deviation": 6}, ("sticky", "mild")),
    "half the share with a usual vector": ({"erased": 0.23, "deviation": 5.9}, ("benign", None)),
    "half the share without vectors": ({"erased": 0.23, "deviation": np.nan}, ("benign", None)),
    "an unusual vector alone": ({"deviation": 16}, ("benign", None)),
    "full thresholds with an unusual vector": ({"erased": 0.43, "deviation": 9}, ("sticky", "serious")),
    "twice as many wrong results": ({"push": 2.03}, ("sticky", "severe")),
    "nearly all erased": ({"erased": 0.73}, ("sticky", "severe")),
    "an erased share that was only screened": ({"erased": 0.9, "confirmed": False}, ("benign", None)),
    "a push beside a screened share": ({"push": 1.6, "confirmed": False}, ("sticky", "serious")),
    "a severity that only a screened share reaches": (
        {"push": 1.3, "erased": 0.75, "deviation": 9, "confirmed": False},
        ("sticky", "mild"),
    ),
}


@pytest.mark.parametrize(("numbers", "expected"), CASES.values(), ids=CASES)
def test_the_rule(numbers, expected):
    assert judged(**numbers) == expected


@given(st.floats(-1, 1), st.floats(0, 4), st.floats(0, 20), st.floats(0, 1), st.floats(0, 1))
def test_more_of_a_measure_never_clears_a_token(erased, push, deviation, more_erased, more_push):
    less, _ = judged(erased=erased, push=push, deviation=deviation)
    more, _ = judged(erased=erased + more_erased, push=push + more_push, deviation=deviation)
    assert (less, more) != ("sticky", "benign")


def reason_of(**given_numbers):
    (reason,) = apply_rule(measures(**given_numbers), SETTINGS).reasons
    return reason


def test_a_reason_says_what_reaches_a_threshold():
    assert "44%" in reason_of(erased=0.44)
    assert "×" not in reason_of(erased=0.44)
    assert "1.6×" in reason_of(push=1.6)
    assert reason_of(erased=0.44, push=1.6) == f"{reason_of(erased=0.44)}; {reason_of(push=1.6)}"


def test_a_reason_names_an_unusual_vector_only_if_it_mattered():
    assert "vector" in reason_of(push=1.4, deviation=7)
    assert "vector" not in reason_of(push=1.6, deviation=7)


def test_a_benign_token_has_no_reason():
    assert reason_of() is None


def test_severity_and_verdict_of_several_tokens_stay_in_order():
    result = apply_rule(measures(erased=[0.0, 0.9, 0.5]), SETTINGS)
    assert result.verdicts == ["benign", "sticky", "sticky"]
    assert result.severities == [None, "severe", "serious"]


def ordered(tokens, first=()):
    return order_to_confirm(tokens, SETTINGS, first).tolist()


def test_named_tokens_and_those_that_erase_most_are_confirmed_first_to_be_shown():
    erased = np.linspace(0.1, 0, 60)
    assert ordered(measures(erased=erased), first=[55, 99])[: 1 + DISPLAYED] == [55, *range(DISPLAYED)]


def test_a_token_with_an_unusual_vector_is_compared_with_half_of_the_threshold():
    erased = np.zeros(60)
    erased[:30] = 0.3
    erased[30] = 0.2
    deviation = np.zeros(60)
    deviation[30] = 7
    order = ordered(measures(erased=erased, deviation=deviation))
    assert order[:DISPLAYED] == [*range(DISPLAYED)]
    assert order[DISPLAYED] == 30


def test_all_tokens_are_ordered_once():
    order = ordered(measures(erased=np.random.default_rng(0).normal(size=80)))
    assert sorted(order) == [*range(80)]


@pytest.mark.parametrize(
    ("erased", "deviation", "expected"),
    [(0.39, 0, True), (0.37, 0, False), (0.19, 7, True), (0.19, 5, False)],
)
def test_a_token_may_erase_enough_up_to_the_upper_end_of_its_interval(erased, deviation, expected):
    assert may_erase_enough(measures(erased=[erased], deviation=[deviation]), SETTINGS).tolist() == [expected]


def test_what_a_run_says_of_its_thresholds_is_the_rule():
    run = stickytoken.open_run(EXAMPLE)
    rows = run.tokens.filter(vector_deviation=run.tokens["vector_deviation"].max()).to_dicts()
    rows += run.tokens.head(20).to_dicts()
    deviations = np.array([row["vector_deviation"] for row in rows])
    expected = thresholds(deviations, ProfileSettings())
    said = [run.thresholds(row) for row in rows]
    for column in ("erased", "push"):
        assert [each[column] for each in said] == pytest.approx(expected[column].tolist())
    assert said[0] == {"erased": pytest.approx(0.2), "push": pytest.approx(1.25)}


def test_a_benign_token_is_shown_with_the_interval_that_includes_its_own_threshold():
    run = stickytoken.open_run(EXAMPLE)
    erased = {"erased": 0.18, "erased_low": 0.15, "erased_high": 0.22}
    changes = erased | {"push": None, "push_low": None, "push_high": None, "severity": None}
    row = run.tokens.to_dicts()[0] | changes | {"verdict": "benign", "confirmed": True}
    rows = [row | {"vector_deviation": deviation} for deviation in (7.0, 5.0, None)]
    shown = result_table(run.settings, pl.DataFrame(rows, schema=run.tokens.schema), run.most_documents)
    assert shown["verdict"].to_list() == ["benign, 15% to 22%", "benign", "benign"]
    assert shown["vector"].to_list() == ["unusual", "", ""]


def test_a_token_read_as_several_pieces_is_judged_by_the_queries_that_its_copies_hide():
    given_measures = measures(erased=[0.0, 0.0, 0.0, 0.9], deviation=[0.0, 0.0, 9.0, 0.0])
    verdicts = judge_against_no_copies(given_measures, {0: 0.4, 1: 0.39, 2: 0.39}, SETTINGS)
    assert verdicts == ["sticky", "benign", "benign", "sticky"]
