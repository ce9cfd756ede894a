"""Settings of the profile method, and whole numbers from users: what is taken, refused and made one."""

import dataclasses
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickytoken.errors import InputError
from stickytoken.insertion import Insertion
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.validation import real_number, whole_number

LEAST = {
    "anchors": 2,
    "vocabulary_anchors": 0,
    "topics": 1,
    "confirming_texts": 4,
    "reference": 2,
    "seed": 0,
}
NOT_NUMBERS = (math.nan, math.inf, -math.inf)

# whole_number


@pytest.mark.parametrize(
    "value",
    [3, 3.0, np.int8(3), np.uint64(3), np.float32(3), Decimal("3"), Fraction(3), np.array(3)],
    ids=lambda value: type(value).__name__,
)
def test_every_spelling_of_a_whole_number_becomes_an_int(value):
    found = whole_number("count", value, 3)
    assert (found, type(found)) == (3, int)


@given(st.integers(), st.integers())
def test_a_whole_number_is_taken_exactly_from_the_least_on(value, least):
    if value >= least:
        assert whole_number("count", value, least) == value
        return
    with pytest.raises(InputError, match=f"count is {value}: it must be at least {least}"):
        whole_number("count", value, least)


def test_a_number_too_large_for_a_float_stays_exact():
    assert whole_number("seed", 2**70 + 1, 0) == 2**70 + 1


@pytest.mark.parametrize(
    "value", [2.5, "3", " 3", b"3", "three", None, [3], 3j, *NOT_NUMBERS, np.nan, np.float32(2.5)], ids=repr
)
def test_what_is_not_a_whole_number_is_refused_by_its_name_and_value(value):
    with pytest.raises(InputError) as caught:
        whole_number("count", value, 0)
    shown = repr(value) if isinstance(value, str) else value
    assert str(caught.value) == f"count is {shown}: it must be a whole number"


# real_number


@pytest.mark.parametrize(
    "value",
    [3, 3.0, np.int8(3), np.float32(3), Decimal("3"), Fraction(3)],
    ids=lambda value: type(value).__name__,
)
def test_every_spelling_of_a_number_becomes_a_float(value):
    found = real_number("size", value)
    assert (found, type(found)) == (3.0, float)


@pytest.mark.parametrize("value", ["3", "nan", "", None, [3], 3j], ids=repr)
def test_what_is_not_a_number_is_refused_by_its_name_and_value(value):
    with pytest.raises(InputError) as caught:
        real_number("size", value)
    assert str(caught.value) == f"size is {value!r}: it must be a number"


# ProfileSettings


@pytest.mark.parametrize(("name", "least"), LEAST.items())
def test_counts_are_taken_from_their_least_on(name, least):
    assert getattr(ProfileSettings(**{name: least}), name) == least
    with pytest.raises(InputError, match=f"^{name} is {least - 1}: it must be at least {least}$"):
        ProfileSettings(**{name: least - 1})


@pytest.mark.parametrize("name", LEAST)
@pytest.mark.parametrize("value", [10.5, "10", None, *NOT_NUMBERS])
def test_counts_that_are_not_whole_are_refused(name, value):
    with pytest.raises(InputError, match=f"^{name} is '?{value}'?: it must be a whole number$"):
        ProfileSettings(**{name: value})


@pytest.mark.parametrize("budget", [3, 3.0, np.nextafter(3, 4), 1e6])
def test_a_budget_is_taken_from_three_on(budget):
    assert ProfileSettings(budget=budget).budget == budget


@pytest.mark.parametrize("budget", [np.nextafter(3, 0), 0, -6, *NOT_NUMBERS])
def test_a_budget_below_three_or_without_end_is_refused(budget):
    with pytest.raises(InputError, match=r"^budget is .*: .* texts per available token, at least 3$"):
        ProfileSettings(budget=budget)


@pytest.mark.parametrize("name", ["confidence", "fdr"])
def test_shares_lie_strictly_between_zero_and_one(name):
    for value in (np.nextafter(0, 1), 0.5, np.nextafter(1, 0)):
        assert getattr(ProfileSettings(**{name: value}), name) == value
    for value in (0, 1, -0.1, 1.1, *NOT_NUMBERS):
        with pytest.raises(InputError, match=f"^{name} is {float(value)}: it must lie between 0 and 1$"):
            ProfileSettings(**{name: value})


@pytest.mark.parametrize("name", ["budget", "confidence", "fdr", "smallest_effect"])
@pytest.mark.parametrize("value", ["0.5", "", "half", None, [0.5], 0.5j])
def test_real_numbers_that_are_none_are_refused(name, value):
    with pytest.raises(InputError) as caught:
        ProfileSettings(**{name: value})
    assert str(caught.value) == f"{name} is {value!r}: it must be a number"


@pytest.mark.parametrize("value", [0, 1, "yes", "True", None, math.nan])
def test_adaptive_is_true_or_false_and_nothing_that_passes_for_it(value):
    with pytest.raises(InputError) as caught:
        ProfileSettings(adaptive=value)
    assert str(caught.value) == f"adaptive is {value!r}: it must be True or False"
    assert ProfileSettings(adaptive=False).adaptive is False


def test_the_smallest_effect_is_a_medium_one_by_default():
    assert ProfileSettings().smallest_effect == 0.5


def test_the_smallest_effect_may_be_nothing_but_not_negative():
    for value in (0, 0.2, 1e9):
        assert ProfileSettings(smallest_effect=value).smallest_effect == value
    for value in (np.nextafter(0, -1), -1, *NOT_NUMBERS):
        with pytest.raises(InputError, match=r"^smallest_effect is .*: .* finite number of at least 0$"):
            ProfileSettings(smallest_effect=value)


@pytest.mark.parametrize("copies", [[8, 4], (8, 4), (8.0, np.int64(4))])
def test_numbers_of_copies_become_a_tuple_of_ints(copies):
    found = ProfileSettings(copies=copies).copies
    assert found == (8, 4)
    assert {type(count) for count in found} == {int}


@pytest.mark.parametrize("copies", [8, 8.0, np.int64(8), (8,), [8]])
def test_one_number_of_copies_needs_no_brackets(copies):
    found = ProfileSettings(copies=copies)
    assert found.copies == (8,)
    assert type(found.copies[0]) is int
    assert repr(found) == repr(ProfileSettings(copies=(8,)))


@pytest.mark.parametrize(
    ("copies", "message"),
    [
        pytest.param((), "copies is empty: name at least one number of copies", id="none"),
        pytest.param((8, 0), "copies is 0: it must be at least 1", id="zero"),
        pytest.param((8, -1), "copies is -1: it must be at least 1", id="negative"),
        pytest.param((8, 1.5), "copies is 1.5: it must be a whole number", id="half"),
        pytest.param(0, "copies is 0: it must be at least 1", id="zero alone"),
        pytest.param("84", "copies is '84': it must be a whole number", id="text"),
        pytest.param((8, "4"), "copies is '4': it must be a whole number", id="text among numbers"),
        pytest.param(None, "copies is None: it must be a whole number", id="nothing"),
        pytest.param((math.nan,), "copies is nan: it must be a whole number", id="nan"),
    ],
)
def test_numbers_of_copies_that_cannot_be_used_are_refused(copies, message):
    with pytest.raises(InputError) as caught:
        ProfileSettings(copies=copies)
    assert str(caught.value) == message


def test_insertion_is_taken_by_its_name_and_nothing_else():
    assert ProfileSettings(insertion="text").insertion is Insertion.TEXT
    assert ProfileSettings(insertion=Insertion.IDS).insertion is Insertion.IDS
    for value in ("TEXT", "", None, 1):
        with pytest.raises(InputError, match=r"^insertion is .*: it must be text or ids or words$"):
            ProfileSettings(insertion=value)


def test_spellings_of_the_same_values_are_the_same_settings():
    """They are part of a run's identity, which is a hash of their text."""
    spelled = ProfileSettings(
        budget=np.float64(4),
        confidence=np.float64(0.9),
        smallest_effect=np.float64(0.5),
        adaptive=True,
        insertion="ids",
        copies=[np.int64(8), 4.0],
        anchors=440.0,
        topics=np.uint8(24),
        seed=np.int32(42),
    )
    assert repr(spelled) == repr(ProfileSettings())
    assert spelled == ProfileSettings()
    assert hash(spelled) == hash(ProfileSettings())
    assert repr(ProfileSettings(budget=7)) == repr(ProfileSettings(budget=7.0))


def test_settings_cannot_be_changed_and_are_checked_again_when_replaced():
    plain = ProfileSettings()
    with pytest.raises(dataclasses.FrozenInstanceError):
        plain.budget = 1.0
    with pytest.raises(InputError, match="budget is 1"):
        dataclasses.replace(plain, budget=1)
