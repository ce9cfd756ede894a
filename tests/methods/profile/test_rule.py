"""The rule: who is flagged, as what, how severe, why; and in which order tokens are measured closely."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from stickytoken.methods.profile.verdict import (
    DISPLAYED,
    Measures,
    apply_rule,
    may_reach_threshold,
    order_to_confirm,
    select_to_judge,
)
from stickytoken.methods.statistics import Estimates
from stickytoken.settings.profile import ProfileSettings

SETTINGS = ProfileSettings(smallest_lift=0.5, smallest_erased=0.4, unusual=6.0)


def estimates(values, half_width):
    values = np.asarray(values, dtype=float)
    return Estimates(values, values - half_width, values + half_width)


def measures(lift=0.0, erased=0.0, deviation=0.0, confirmed=True, kinds_lifted=11, kinds=11, half_width=0.02):
    """One token, or several if a value is a list."""
    given_values = (lift, erased, deviation, confirmed, kinds_lifted)
    columns = np.broadcast_arrays(*(np.atleast_1d(value) for value in given_values))
    lift, erased, deviation, confirmed, kinds_lifted = columns
    return Measures(
        ids=np.arange(len(lift)),
        lift=estimates(lift, half_width),
        erased=estimates(erased, half_width),
        vector_deviation=deviation.astype(float),
        confirmed=confirmed.astype(bool),
        kinds_lifted=kinds_lifted.astype(np.int64),
        kinds=kinds,
    )


def judged(**numbers):
    result = apply_rule(measures(**numbers), SETTINGS)
    return result.verdicts[0], result.severities[0]


CASES = {
    "nothing": ({}, ("benign", None)),
    "a lift whose interval reaches the threshold": ({"lift": 0.53}, ("sticky", "serious")),
    "a lift whose interval contains it": ({"lift": 0.51}, ("benign", None)),
    "an erased share that reaches the threshold": ({"erased": 0.43}, ("sticky", "serious")),
    "an erased share that does not": ({"erased": 0.41}, ("benign", None)),
    "half the lift with an unusual vector": ({"lift": 0.28, "deviation": 6}, ("sticky", "mild")),
    "half the share with an unusual vector": ({"erased": 0.23, "deviation": 6}, ("sticky", "mild")),
    "half the share with a usual vector": ({"erased": 0.23, "deviation": 5.9}, ("benign", None)),
    "half the share without vectors": ({"erased": 0.23, "deviation": np.nan}, ("benign", None)),
    "an unusual vector alone": ({"deviation": 16}, ("benign", None)),
    "full thresholds with an unusual vector": ({"erased": 0.43, "deviation": 9}, ("sticky", "serious")),
    "a large lift": ({"lift": 0.83}, ("sticky", "severe")),
    "nearly all erased": ({"erased": 0.73}, ("sticky", "severe")),
    "a lift of fewer than half of the kinds": ({"lift": 0.6, "kinds_lifted": 5}, ("topical", "serious")),
    "a lift of half of the kinds": ({"lift": 0.6, "kinds_lifted": 5, "kinds": 10}, ("sticky", "serious")),
    "a lift of few kinds that erases too": (
        {"lift": 0.6, "erased": 0.5, "kinds_lifted": 1},
        ("sticky", "serious"),
    ),
    "a lift where no kinds were measured": (
        {"lift": 0.6, "kinds_lifted": 0, "kinds": 0},
        ("sticky", "serious"),
    ),
    "a token that was only screened": ({"lift": 2.0, "erased": 0.9, "confirmed": False}, ("benign", None)),
}


@pytest.mark.parametrize(("numbers", "expected"), CASES.values(), ids=CASES)
def test_the_rule(numbers, expected):
    assert judged(**numbers) == expected


numbers = st.floats(-1, 2)


@given(numbers, numbers, st.floats(0, 20), st.floats(0, 1), st.floats(0, 1))
def test_more_of_a_measure_never_clears_a_token(lift, erased, deviation, more_lift, more_erased):
    order = ["benign", "topical", "sticky"]
    less, _ = judged(lift=lift, erased=erased, deviation=deviation)
    stricter, _ = judged(lift=lift + more_lift, erased=erased + more_erased, deviation=deviation)
    assert order.index(stricter) >= order.index(less)


def reason_of(**given_numbers):
    (reason,) = apply_rule(measures(**given_numbers), SETTINGS).reasons
    return reason


def test_a_reason_says_what_reaches_a_threshold():
    erases = "leaves 44% less of a text's meaning than an ordinary token does"
    assert reason_of(erased=0.44) == erases
    assert reason_of(lift=0.61) == "moves texts 0.61 SD closer to unrelated texts"
    assert reason_of(erased=0.44, lift=0.61) == f"{erases}; moves texts 0.61 SD closer to unrelated texts"


def test_a_reason_names_an_unusual_vector_only_if_it_mattered():
    assert reason_of(lift=0.3, deviation=7) == "moves texts 0.30 SD closer to unrelated texts; unusual vector"
    assert "vector" not in reason_of(lift=0.61, deviation=7)


def test_a_benign_token_has_no_reason():
    assert reason_of() is None


def test_severity_and_verdict_of_several_tokens_stay_in_order():
    tokens = measures(lift=[0.0, 0.9, 0.6], kinds_lifted=[0, 11, 2])
    result = apply_rule(tokens, SETTINGS)
    assert result.verdicts == ["benign", "sticky", "topical"]
    assert result.severities == [None, "severe", "serious"]


def ordered(tokens):
    return order_to_confirm(tokens, SETTINGS).tolist()


def test_the_strongest_ten_of_each_measure_are_confirmed_first_to_be_shown():
    lift = np.linspace(0, 0.1, 60)
    erased = np.linspace(0.1, 0, 60)
    most_lifting = [*range(59, 49, -1)]
    most_erasing = [*range(DISPLAYED)]
    assert ordered(measures(lift=lift, erased=erased))[: 2 * DISPLAYED] == most_lifting + most_erasing


def test_then_the_tokens_that_come_closest_to_a_threshold_are_confirmed():
    lift = np.linspace(0.2, 0.0, 60)  # at most 40% of the threshold of 0.5 SD
    erased = np.zeros(60)
    erased[40:50] = 0.3  # shown, because no other token erases more
    erased[50:52] = 0.299  # three quarters of the threshold of 40%
    order = ordered(measures(lift=lift, erased=erased))
    assert order[2 * DISPLAYED : 2 * DISPLAYED + 3] == [50, 51, DISPLAYED]


def test_a_token_with_an_unusual_vector_is_compared_with_half_of_the_threshold():
    lift = np.zeros(60)
    lift[:30] = 0.4
    lift[30] = 0.3
    deviation = np.zeros(60)
    deviation[30] = 7
    order = ordered(measures(lift=lift, deviation=deviation))
    assert order[:DISPLAYED] == [*range(DISPLAYED)]
    assert order[DISPLAYED] == 30


def test_all_tokens_are_ordered_once():
    generator = np.random.default_rng(0)
    order = ordered(measures(lift=generator.normal(size=80), erased=generator.normal(size=80)))
    assert sorted(order) == [*range(80)]


@pytest.mark.parametrize(
    ("lift", "erased", "deviation", "expected"),
    [
        (0.49, 0.0, 0, True),  # the interval ends at 0.51 SD
        (0.47, 0.0, 0, False),
        (0.0, 0.39, 0, True),
        (0.0, 0.37, 0, False),
        (0.24, 0.0, 7, True),  # unusual: from 0.25 SD
        (0.24, 0.0, 5, False),
    ],
)
def test_a_token_may_reach_a_threshold_up_to_the_upper_end_of_its_interval(lift, erased, deviation, expected):
    token = measures(lift=[lift], erased=[erased], deviation=[deviation])
    assert may_reach_threshold(token, SETTINGS).tolist() == [expected]


IDS = np.arange(6)
# Tokens 1 and 4 may reach the threshold on the corpus.
LIFT_RATIOS = np.array([0.2, 1.5, 0.9, -1.0, 1.1, 0.3])


def test_flagged_tokens_are_judged_first_then_those_that_lift_most():
    chosen = select_to_judge(IDS, LIFT_RATIOS, flagged_ids=[3], count=3, measure_all=False)
    assert chosen.ids.tolist() == [1, 3, 4]
    assert chosen.left_out == 0


def test_tokens_that_may_reach_the_threshold_but_are_not_judged_are_counted():
    chosen = select_to_judge(IDS, LIFT_RATIOS, flagged_ids=[3], count=2, measure_all=False)
    assert chosen.ids.tolist() == [1, 3]
    assert chosen.left_out == 1


def test_flagged_tokens_that_are_not_judged_are_counted():
    chosen = select_to_judge(IDS, LIFT_RATIOS, flagged_ids=[3, 0, 5], count=2, measure_all=False)
    assert chosen.ids.tolist() == [0, 3]
    assert chosen.left_out == 3  # tokens 5, 1 and 4


def test_all_tokens_that_may_reach_the_threshold_can_be_judged():
    chosen = select_to_judge(IDS, LIFT_RATIOS, flagged_ids=[3], count=2, measure_all=True)
    assert chosen.ids.tolist() == [1, 3, 4]
    assert chosen.left_out == 0
