"""Settings are checked and converted by the types of their fields."""

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import numpy as np
import pytest
from annotated_types import Ge, Le
from pydantic import BaseModel, ValidationError

from naming import naming
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion
from stickytoken.settings import PositiveCount, Proportion, check_settings, choose_insertion, field_types
from stickytoken.settings.audit import AuditSettings
from stickytoken.settings.profile import ProfileSettings
from stickytoken.settings.std import StdSettings

Colour = StrEnum("Colour", "RED BLUE")


@dataclass(frozen=True, slots=True)
class Paint:
    """Settings of every type."""

    layers: Annotated[int, Ge(1), Le(9)] = 2
    share: Proportion = 0.5
    colour: Colour = Colour.RED
    name: str | None = None
    dry: bool = False
    counts: tuple[PositiveCount, ...] = (1, 2)
    limit: PositiveCount | None = None

    def __post_init__(self) -> None:
        check_settings(self)


def test_other_spellings_of_a_value_become_the_same_value():
    spelled = Paint(layers=np.int64(2), share=np.float32(0.5), colour="red", counts=[1.0, np.int8(2)])
    assert spelled == Paint()
    assert [type(value) for value in dataclasses.astuple(spelled)[:3]] == [int, float, Colour]


def test_one_value_is_a_tuple_of_one():
    assert Paint(counts=4).counts == (4,)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layers": 0}, "layers is 0: it must be at least 1 and at most 9"),
        ({"layers": 10}, "layers is 10: it must be at least 1 and at most 9"),
        ({"layers": True}, "layers is True: it must be a whole number"),
        ({"layers": None}, "layers is None: it must be a whole number"),
        ({"limit": 0}, "limit is 0: it must be at least 1"),
        ({"share": 1}, "share is 1.0: it must be a finite number above 0 and below 1"),
        ({"share": float("nan")}, "share is nan: it must be a finite number above 0 and below 1"),
        ({"share": "0.5"}, "share is '0.5': it must be a number"),
        ({"colour": "green"}, "colour is 'green': it must be red or blue"),
        ({"name": 3}, "name is 3: it must be a string"),
        ({"dry": 1}, "dry is 1: it must be True or False"),
        ({"counts": ()}, "counts is empty: pass at least one value"),
        ({"counts": (3, 0)}, "counts is 0: it must be at least 1"),
    ],
)
def test_an_error_names_the_setting_its_value_and_what_is_allowed(values, message):
    with pytest.raises(InputError) as caught:
        Paint(**values)
    assert str(caught.value) == message


def test_records_of_pydantic_have_the_limits_of_the_settings():
    class Record(BaseModel):
        paint: Paint

    assert Record.model_validate({"paint": {"layers": 3}}).paint == Paint(layers=3)
    with pytest.raises(ValidationError, match=naming(9)):
        Record.model_validate({"paint": {"layers": 10}})


def test_the_limits_of_a_field_can_be_read():
    layers = field_types(Paint)["layers"]
    assert (layers.kind, layers.optional, layers.minimum, layers.maximum) == (int, False, 1, 9)
    assert field_types(Paint)["limit"].optional


@pytest.mark.parametrize("settings_class", [AuditSettings, ProfileSettings])
def test_an_insertion_that_nobody_chose_suits_the_model_and_a_chosen_one_stays(settings_class):
    unchosen = settings_class(seed=7)
    assert choose_insertion(unchosen, texts_only=False).insertion is Insertion.IDS
    of_texts = choose_insertion(dataclasses.replace(unchosen), texts_only=True)
    assert of_texts == settings_class(seed=7, insertion="words")
    for chosen in Insertion:
        settings = settings_class(insertion=chosen)
        assert choose_insertion(settings, texts_only=True) is settings
    assert choose_insertion(StdSettings(), texts_only=True).insertion is Insertion.TEXT
