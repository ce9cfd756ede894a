"""What is decided about a token, and which row is chosen, without a model."""

import numpy as np
import pytest

from stickytoken.cli.commands.shipping import RepairStrategy
from stickytoken.errors import InputError, RepairError
from stickytoken.repairs.repair import RepairSettings, choose_rows, plan_token
from stickytoken.repairs.result import ROWS, TOKENIZER, Strategy

ORDER = ROWS
LETTER = {"unsplittable": "it is a letter"}


def planned(asked, *, rows_writable=True, special=False, templated=False, unsplittable=None):
    return plan_token(asked, "token 'river' (id 7)", special, templated, unsplittable, rows_writable)


@pytest.mark.parametrize(
    ("asked", "about", "candidates", "reason"),
    [
        (Strategy.UNREACHABLE, {"templated": True}, (Strategy.UNREACHABLE,), "falls into its pieces"),
        (Strategy.PLAIN_SPECIALS, {"special": True}, (Strategy.PLAIN_SPECIALS,), "plain text"),
        (Strategy.KEEP_MEANING, LETTER, (Strategy.KEEP_MEANING,), "asked for"),
        (Strategy.AUTO, {"special": True, "templated": True}, (Strategy.PLAIN_SPECIALS,), "plain text"),
        (Strategy.AUTO, {}, (Strategy.RELATIVES, Strategy.UNREACHABLE), "similar spelling"),
        (Strategy.AUTO, {"rows_writable": False}, (Strategy.UNREACHABLE,), "these weights"),
        (Strategy.AUTO, {"templated": True}, (Strategy.UNREACHABLE,), "every vector"),
        (Strategy.AUTO, LETTER, ROWS, "it is a letter"),
    ],
)
def test_auto_chooses_by_what_a_token_is_and_another_strategy_is_taken(asked, about, candidates, reason):
    found = planned(asked, **about)
    assert found[0] == candidates
    assert reason in found[1]


@pytest.mark.parametrize(
    ("asked", "about", "reason"),
    [
        (Strategy.AUTO, {"templated": True, **LETTER}, r"'river' \(id 7\).*every vector; leave the token"),
        (Strategy.PLAIN_SPECIALS, {}, "by plain-specials: it is not a special token"),
        (Strategy.UNREACHABLE, {"special": True}, "by unreachable: .*use plain-specials"),
        (Strategy.UNREACHABLE, LETTER, "by unreachable: it is a letter; use auto"),
        *((strategy, {"templated": True}, f"by {strategy}: .*into every text") for strategy in ROWS),
    ],
)
def test_a_strategy_that_does_not_suit_a_token_is_refused_with_the_reason(asked, about, reason):
    with pytest.raises(RepairError, match=reason):
        planned(asked, **about)


def test_the_command_line_and_the_library_know_the_same_strategies():
    assert list(RepairStrategy) == list(Strategy)
    assert {Strategy.AUTO, *ROWS, *TOKENIZER} == set(Strategy)


@pytest.mark.parametrize(
    ("name", "value"),
    [("strategy", None), ("seed", -1), ("neighbours", 1.5), ("verify", "yes")],
)
def test_settings_that_cannot_be_used_are_refused(name, value):
    with pytest.raises(InputError, match=name):
        RepairSettings(**{name: value})


# Rows.


def chosen(lifts, plans, refused=()):
    """Choose rows whose lifts are known; the row of a strategy holds its place in the order."""
    asked = []

    def compute(strategy, ids):
        asked.append((strategy, list(ids)))
        if any((strategy, token_id) in refused for token_id in ids):
            raise RepairError(f"no row by {strategy}")
        return {token_id: np.full(2, ORDER.index(strategy), np.float32) for token_id in ids}

    def trial(rows):
        return {token_id: lifts[token_id, ORDER[int(row[0])]] for token_id, row in rows.items()}

    return choose_rows(plans, compute, trial), asked


def tried(choice):
    return [(each.strategy, each.deviations) for each in choice.tried]


def test_the_first_strategy_whose_row_is_ordinary_is_taken():
    lifts = {(1, ORDER[0]): 0.1, (2, ORDER[0]): 0.9, (2, ORDER[1]): 0.2}
    found, asked = chosen(lifts, {1: ORDER, 2: ORDER})
    assert [found[1].strategy, found[2].strategy] == list(ORDER)
    assert asked == [(ORDER[0], [1, 2]), (ORDER[1], [2])]
    assert tried(found[2]) == [(ORDER[0], 0.9), (ORDER[1], 0.2)]


def test_without_an_ordinary_row_the_one_that_lifts_least_is_taken():
    found, _ = chosen({(1, ORDER[0]): 0.6, (1, ORDER[1]): 0.8}, {1: ORDER})
    assert found[1].strategy is ORDER[0]


def test_a_row_whose_lift_is_no_number_is_not_the_one_that_lifts_least():
    found, _ = chosen({(1, ORDER[0]): float("nan"), (1, ORDER[1]): 0.2}, {1: ORDER})
    assert found[1].strategy is ORDER[1]


def test_an_entry_without_an_ordinary_row_becomes_unreachable_if_it_can():
    lifts = {(1, ORDER[0]): 0.1, (2, ORDER[0]): 0.6}
    plans = dict.fromkeys((1, 2, 3), (ORDER[0], Strategy.UNREACHABLE))
    found, _ = chosen(lifts, plans, {(ORDER[0], 3)})
    assert [found[k].strategy for k in (1, 2, 3)] == [ORDER[0], Strategy.UNREACHABLE, Strategy.UNREACHABLE]
    assert found[2].row is None
    assert (tried(found[2]), found[3].tried) == ([(ORDER[0], 0.6)], [])


def test_a_strategy_that_makes_no_row_for_a_token_is_passed_over():
    found, _ = chosen({(1, ORDER[1]): 0.1, (2, ORDER[0]): 0.1}, {1: ORDER, 2: ORDER}, {(ORDER[0], 1)})
    assert [found[1].strategy, found[2].strategy] == [ORDER[1], ORDER[0]]


def test_a_token_without_any_row_is_an_error_that_says_why():
    with pytest.raises(RepairError, match=f"no row by {ORDER[1]}"):
        chosen({}, {1: ORDER}, {(strategy, 1) for strategy in ORDER})
