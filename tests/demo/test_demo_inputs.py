"""What the web app allows a visitor, and which token he means."""

import pytest

from stickytoken.demo.context import (
    COPIES,
    TEXT_CHARACTERS,
    checked_choices,
    checked_count,
    checked_placement,
    checked_text,
    checked_token_id,
    named_token,
)
from stickytoken.errors import InputError
from stickytoken.insertion import Placement


@pytest.mark.parametrize("text", ["", "  \n", None, 3, ["a"]])
def test_an_empty_text_is_refused(text):
    with pytest.raises(InputError, match="sentence A is empty"):
        checked_text("sentence A", text)


def test_a_text_is_allowed_up_to_the_limit():
    assert checked_text("it", "x" * TEXT_CHARACTERS)
    with pytest.raises(InputError, match=r"it has 1,001 characters, and the limit is 1,000: shorten it"):
        checked_text("it", "x" * (TEXT_CHARACTERS + 1))


@pytest.mark.parametrize("value", [0, COPIES + 1, 2.5, None, -1, True, "3", [3], float("nan"), 10**400])
def test_copies_beyond_the_limits_are_refused(value):
    with pytest.raises(InputError, match=f"enter a whole number from 1 to {COPIES}"):
        checked_count("copies", value, 1, COPIES)


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (checked_placement, "middle"),
        (checked_placement, None),
        (checked_placement, ["suffix"]),
        (checked_token_id, "x"),
        (checked_token_id, "1" * 10),
        (checked_token_id, True),
        (checked_token_id, 1.0),
        (checked_token_id, None),
        (lambda value: checked_choices("verdict", value), "sticky"),
        (lambda value: checked_choices("verdict", value), [1]),
    ],
)
def test_what_no_field_sends_is_refused(check, value):
    with pytest.raises(InputError):
        check(value)


def test_what_fields_send_is_read():
    assert checked_placement("suffix") is Placement.SUFFIX
    assert (checked_token_id(7), checked_token_id("7")) == (7, 7)
    assert checked_choices("verdict", None) == ()
    assert checked_choices("verdict", ["sticky"]) == ("sticky",)


def test_a_token_is_named_by_its_string_or_its_id(shared_model):
    river = named_token(shared_model.vocabulary, "river")
    assert river.text.strip() == "river"
    assert named_token(shared_model.vocabulary, f" #{river.id} ") == river
    assert shared_model.name_of(river.id) == "river"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "the token is empty"),
        (None, "the token is empty"),
        (5, "the token is empty"),
        ("volcano", "the vocabulary has no token 'volcano'"),
        ("#99999", "token id 99999 cannot occur in text"),
        ("#999999999999999999999", "the vocabulary has no token"),
        ("99999", "if you mean the id, write #99999"),
        ("[unused0]", "cannot occur in text"),
        ("x" * 201, "the token has 201 characters"),
    ],
)
def test_a_token_that_nobody_can_try_is_refused(shared_model, name, reason):
    with pytest.raises(InputError, match=reason):
        named_token(shared_model.vocabulary, name)


def test_an_id_that_the_vocabulary_does_not_have_has_no_name(shared_model):
    with pytest.raises(InputError, match="no token id 99999"):
        shared_model.name_of(99999)


def test_every_available_token_has_a_name_that_names_it(shared_model):
    for token in shared_model.vocabulary.available:
        assert named_token(shared_model.vocabulary, shared_model.name_of(token.id)) == token
