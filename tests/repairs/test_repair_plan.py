"""What is decided about a token, and which row is chosen, without a model."""

import itertools

import numpy as np
import pytest

from stickytoken.cli.commands.shipping import RepairStrategy
from stickytoken.errors import InputError, RepairError
from stickytoken.repairs._plan import RepairSettings, TokenFacts, choose_rows, plan_tokens
from stickytoken.repairs.result import ROWS, TOKENIZER, Strategy

ORDER = ROWS[:2]


def facts(token_id=7, *, special=False, templated=False, unsplittable=None):
    return TokenFacts(token_id, "river", " river", special, templated, unsplittable)


def planned(asked, *, rows_writable=True, **about):
    (found,) = plan_tokens(asked, [facts(**about)], rows_writable)
    return found


def test_auto_makes_special_tokens_plain_text():
    found = planned(Strategy.AUTO, special=True, templated=True)
    assert found.candidates == (Strategy.PLAIN_SPECIALS,)
    assert "plain text" in found.reason


def test_auto_makes_a_row_from_relatives_and_otherwise_lets_text_fall_into_pieces():
    found = planned(Strategy.AUTO)
    assert found.candidates == (Strategy.RELATIVES, Strategy.UNREACHABLE)
    assert "similar spelling" in found.reason


@pytest.mark.parametrize(
    ("about", "reason"),
    [({"rows_writable": False}, "these weights"), ({"templated": True}, "every vector")],
)
def test_auto_lets_text_fall_into_pieces_where_no_row_can_be_changed(about, reason):
    found = planned(Strategy.AUTO, **about)
    assert found.candidates == (Strategy.UNREACHABLE,)
    assert reason in found.reason


def test_auto_tries_rows_where_text_cannot_fall_into_pieces():
    found = planned(Strategy.AUTO, unsplittable="it is a single letter")
    assert found.candidates == ROWS
    assert "single letter" in found.reason


def test_auto_refuses_what_is_in_every_text_and_cannot_be_split():
    with pytest.raises(RepairError, match=r"'river' \(id 7\).*every vector; leave the token out"):
        planned(Strategy.AUTO, templated=True, unsplittable="it is a single letter")


@pytest.mark.parametrize(
    ("asked", "about", "reason"),
    [
        (Strategy.PLAIN_SPECIALS, {}, "not a special token"),
        (Strategy.UNREACHABLE, {"special": True}, "use plain-specials"),
        (Strategy.UNREACHABLE, {"unsplittable": "it is a letter"}, "it is a letter; use auto"),
        *((strategy, {"templated": True}, "into every text") for strategy in ROWS),
    ],
)
def test_a_strategy_that_does_not_suit_a_token_is_refused_with_the_reason(asked, about, reason):
    with pytest.raises(RepairError, match=reason) as error:
        planned(asked, **about)
    assert f"by {asked}" in str(error.value)


@pytest.mark.parametrize("asked", list(Strategy))
@pytest.mark.parametrize(
    ("special", "templated", "unsplittable", "rows_writable"),
    list(itertools.product((False, True), (False, True), (None, "why"), (False, True))),
)
def test_every_token_has_a_strategy_with_a_reason_or_an_error(
    asked, special, templated, unsplittable, rows_writable
):
    about = {"special": special, "templated": templated, "unsplittable": unsplittable}
    try:
        found = planned(asked, rows_writable=rows_writable, **about)
    except RepairError:
        return
    assert found.candidates
    assert found.reason
    assert Strategy.AUTO not in found.candidates
    assert asked is Strategy.AUTO or found.candidates == (asked,)


def test_the_command_line_and_the_library_know_the_same_strategies():
    assert list(RepairStrategy) == list(Strategy)
    assert {Strategy.AUTO, *ROWS, *TOKENIZER} == set(Strategy)


@pytest.mark.parametrize(
    ("name", "value"),
    [("strategy", "magic"), ("strategy", None), ("seed", -1), ("neighbours", 1.5), ("verify", "yes")],
)
def test_settings_that_cannot_be_used_are_refused(name, value):
    with pytest.raises(InputError, match=name):
        RepairSettings(**{name: value})


# Rows.


def row_plan(token_id, *candidates):
    return token_id, candidates


def chosen(lifts, *plans, refused=()):
    """Choose rows whose lifts are known; the row of a strategy holds its place in the order."""
    asked = []

    def compute(strategy, ids):
        asked.append((strategy, list(ids)))
        if any((strategy, token_id) in refused for token_id in ids):
            raise RepairError(f"no row by {strategy}")
        return {token_id: np.full(2, ORDER.index(strategy), np.float32) for token_id in ids}

    def trial(rows):
        return {token_id: lifts[token_id, ORDER[int(row[0])]] for token_id, row in rows.items()}

    return choose_rows(dict(plans), compute, trial), asked


def test_the_first_strategy_whose_row_is_ordinary_is_taken():
    lifts = {(1, ORDER[0]): 0.1, (2, ORDER[0]): 0.9, (2, ORDER[1]): 0.2}
    found, asked = chosen(lifts, row_plan(1, *ORDER), row_plan(2, *ORDER))
    assert [found[1].strategy, found[2].strategy] == list(ORDER)
    assert asked == [(ORDER[0], [1, 2]), (ORDER[1], [2])]
    assert found[2].tried == ((ORDER[0], 0.9), (ORDER[1], 0.2))


def test_without_an_ordinary_row_the_one_that_lifts_least_is_taken():
    found, _ = chosen({(1, ORDER[0]): 0.6, (1, ORDER[1]): 0.8}, row_plan(1, *ORDER))
    assert found[1].strategy is ORDER[0]


def test_an_entry_without_an_ordinary_row_becomes_unreachable_if_it_can():
    plans = [row_plan(token_id, ORDER[0], Strategy.UNREACHABLE) for token_id in (1, 2, 3)]
    lifts = {(1, ORDER[0]): 0.1, (2, ORDER[0]): 0.6}
    found, _ = chosen(lifts, *plans, refused={(ORDER[0], 3)})
    assert [found[k].strategy for k in (1, 2, 3)] == [ORDER[0], Strategy.UNREACHABLE, Strategy.UNREACHABLE]
    assert found[2].row is None
    assert (found[2].tried, found[3].tried) == (((ORDER[0], 0.6),), ())


def test_a_strategy_that_was_asked_for_is_taken_without_a_trial():
    found, _ = chosen({}, row_plan(1, ORDER[1]))
    assert (found[1].strategy, found[1].tried) == (ORDER[1], ())


def test_a_strategy_that_makes_no_row_for_a_token_is_passed_over():
    lifts = {(1, ORDER[1]): 0.1, (2, ORDER[0]): 0.1}
    found, _ = chosen(lifts, row_plan(1, *ORDER), row_plan(2, *ORDER), refused={(ORDER[0], 1)})
    assert [found[1].strategy, found[2].strategy] == [ORDER[1], ORDER[0]]


def test_a_token_without_any_row_is_an_error_that_says_why():
    refused = {(strategy, 1) for strategy in ORDER}
    with pytest.raises(RepairError, match=f"no row by {ORDER[1]}"):
        chosen({}, row_plan(1, *ORDER), refused=refused)
    with pytest.raises(RepairError, match=f"no row by {ORDER[0]}"):
        chosen({}, row_plan(1, ORDER[0]), refused=refused)
