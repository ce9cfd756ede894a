"""Settings of the profile method, and numbers from users: what is taken, refused and made one."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from stickytoken.errors import InputError
from stickytoken.machine import Precision
from stickytoken.methods.profile.anchors import ProfileSettings
from stickytoken.validation import real_number, whole_number

SPELLINGS = [3, 3.0, np.int8(3), np.float32(3), Decimal("3"), Fraction(3)]
COUNTS = {"anchors": 2, "vocabulary_anchors": 0, "topics": 1, "confirming_texts": 4, "reference": 2}
LEAST = COUNTS | {"seed": 0, "budget": 3, "smallest_effect": 0}


def refused(message, **values):
    with pytest.raises(InputError) as caught:
        ProfileSettings(**values)
    assert message in str(caught.value)


@pytest.mark.parametrize("value", SPELLINGS, ids=lambda value: type(value).__name__)
def test_every_spelling_of_a_number_becomes_one(value):
    found = whole_number("count", value, 3), real_number("size", value)
    assert found == (3, 3.0)
    assert [type(number) for number in found] == [int, float]
    assert whole_number("seed", 2**70 + 1, 0) == 2**70 + 1  # too large for a float


@pytest.mark.parametrize("value", [2.5, "3", None, [3], 3j, math.nan], ids=repr)
def test_what_is_not_a_whole_number_is_refused_by_its_name_and_value(value):
    with pytest.raises(InputError, match=r"^count is .*: it must be a whole number$") as caught:
        whole_number("count", value, 0)
    assert str(value) in str(caught.value)
    if isinstance(value, float):
        return
    with pytest.raises(InputError, match=r"^size is .*: it must be a number$"):
        real_number("size", value)


@pytest.mark.parametrize(("name", "least"), LEAST.items())
def test_numbers_are_taken_from_their_least_on(name, least):
    assert getattr(ProfileSettings(**{name: least}), name) == least
    below = float(np.nextafter(least, -1)) if name in ("budget", "smallest_effect") else least - 1
    refused(f"{name} is {below}: ", **{name: below})
    refused(f"{name} is nan: ", **{name: math.nan})


@pytest.mark.parametrize("name", ["confidence", "fdr"])
def test_shares_lie_strictly_between_zero_and_one(name):
    for value in (np.nextafter(0, 1), np.nextafter(1, 0)):
        assert getattr(ProfileSettings(**{name: value}), name) == value
    for value in (0, 1, math.nan):
        refused(f"{name} is {float(value)}: it must lie between 0 and 1", **{name: value})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"budget": "0.5"}, "budget is '0.5': it must be a number"),
        ({"budget": math.inf}, "budget is inf: "),
        ({"topics": 10.5}, "topics is 10.5: it must be a whole number"),
        ({"adaptive": 1}, "adaptive is 1: it must be True or False"),
        ({"copies": ()}, "copies is empty: "),
        ({"copies": (8, 0)}, "copies is 0: it must be at least 1"),
        ({"copies": "84"}, "copies is '84': it must be a whole number"),
        ({"insertion": "TEXT"}, "it must be text or ids or words"),
        ({"screen_precision": "int8"}, "must be one of tf32, bfloat16, float16"),
        ({"screen_precision": "bfloat16", "adaptive": False}, "there is nothing to screen for"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_name_and_value(values, message):
    refused(message, **values)


def test_spellings_of_the_same_values_are_the_same_settings():
    """They are part of a run's identity, which is a hash of their text."""
    spelled = {"budget": np.float64(4), "insertion": "ids", "copies": [np.int64(8), 4.0], "anchors": 440.0}
    assert repr(ProfileSettings(**spelled, seed=np.int32(42))) == repr(ProfileSettings())
    assert ProfileSettings(copies=np.int64(8)) == ProfileSettings(copies=[8])
    assert ProfileSettings(screen_precision="bfloat16").screen_precision is Precision.BFLOAT16
