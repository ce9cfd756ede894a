"""What may be done about a token, and which candidate is taken."""

from dataclasses import replace

import numpy as np
import pytest

from naming import naming
from stickytoken.errors import RepairError
from stickytoken.methods import Verdict
from stickytoken.repairs._job import Candidate, RepairJob
from stickytoken.repairs._plans import RepairPlan, TokenFacts, plan_token
from stickytoken.repairs.records import ROW_STRATEGIES, TOKENIZER_STRATEGIES, MeasuredRecord
from stickytoken.settings.repair import RepairSettings, Strategy

LETTER = {"unsplittable": "it is a letter"}
ADDED = {"added": True, "unsplittable": "it was added"}


def planned(asked, *, rows_writable=True, **facts):
    return plan_token(asked, TokenFacts("token 'river' (id 7)", **facts), rows_writable)


@pytest.mark.parametrize(
    ("asked", "facts", "strategies", "reason"),
    [
        (Strategy.UNREACHABLE, {"templated": True}, (Strategy.UNREACHABLE,), "split into pieces"),
        (Strategy.PLAIN_SPECIALS, {"special": True}, (Strategy.PLAIN_SPECIALS,), "plain text"),
        (Strategy.NEAREST, LETTER, (Strategy.NEAREST,), "nearest ordinary entry"),
        (Strategy.AUTO, {"special": True, "templated": True}, (Strategy.PLAIN_SPECIALS,), "plain text"),
        (
            Strategy.AUTO,
            {},
            (ROW_STRATEGIES[0], Strategy.UNREACHABLE, *ROW_STRATEGIES[1:]),
            "similar spelling",
        ),
        (Strategy.AUTO, {"rows_writable": False}, (Strategy.UNREACHABLE,), "these weights"),
        (Strategy.AUTO, {"templated": True}, (Strategy.UNREACHABLE,), "every vector"),
        (Strategy.AUTO, LETTER, ROW_STRATEGIES, "it is a letter"),
        (Strategy.AUTO, ADDED, ROW_STRATEGIES, "added"),
        (Strategy.AUTO, {"rows_writable": False, **ADDED}, (Strategy.PLAIN_SPECIALS,), "an added token"),
        (Strategy.PLAIN_SPECIALS, ADDED, (Strategy.PLAIN_SPECIALS,), "an added token"),
    ],
)
def test_a_token_decides_what_auto_tries(asked, facts, strategies, reason):
    plan = planned(asked, **facts)
    assert plan.strategies == strategies
    assert reason in plan.reason


@pytest.mark.parametrize(
    ("asked", "facts", "reason"),
    [
        (Strategy.AUTO, {"templated": True, **LETTER}, naming("'river'", 7, LETTER["unsplittable"])),
        (Strategy.PLAIN_SPECIALS, {}, naming("'river'", "plain-specials")),
        (Strategy.UNREACHABLE, {"special": True}, naming("unreachable", "plain-specials")),
        (Strategy.UNREACHABLE, ADDED, naming("unreachable", "plain-specials")),
        (Strategy.UNREACHABLE, LETTER, naming("unreachable", LETTER["unsplittable"], "auto")),
        *((strategy, {"templated": True}, naming("'river'", strategy)) for strategy in ROW_STRATEGIES),
    ],
)
def test_an_unsuitable_strategy_is_refused(asked, facts, reason):
    with pytest.raises(RepairError, match=reason):
        planned(asked, **facts)


def test_a_second_choice_has_its_own_reason():
    plan = planned(Strategy.AUTO)
    assert plan.reason_for(Strategy.RELATIVES) == plan.reason
    assert "no row from similar spelling" in plan.reason_for(Strategy.UNREACHABLE)


def test_a_token_that_cannot_be_split_keeps_its_reason():
    plan = planned(Strategy.AUTO, **LETTER)
    assert LETTER["unsplittable"] in plan.reason_for(Strategy.NEAREST)


def test_every_strategy_writes_a_row_or_changes_the_tokenizer():
    assert {Strategy.AUTO, *ROW_STRATEGIES, *TOKENIZER_STRATEGIES} == set(Strategy)


FIRST, LAST = ROW_STRATEGIES
SPLIT = Strategy.UNREACHABLE
PAIR = (FIRST, LAST)
ANY = (FIRST, SPLIT, LAST)
NAN = float("nan")


def plans_of(strategies):
    return {token_id: RepairPlan(order, "any reason") for token_id, order in strategies.items()}


class Chosen(RepairJob):
    """Choices among candidates of known reach; the row of a strategy holds its place in the order."""

    def __init__(self, reaches, strategies, refused=(), *, verify=True):
        self.settings = RepairSettings(verify=verify)
        self.reaches = reaches
        self.refused = refused
        self.computed = []
        self.settled_ids = []
        self.choices = self.choose(plans_of(strategies))

    def _make_rows(self, strategy, ids):
        self.computed.append(list(ids))
        accepted = [token_id for token_id in ids if (strategy, token_id) not in self.refused]
        if not accepted:
            raise RepairError(f"no row by {strategy}")
        row = np.full(2, ROW_STRATEGIES.index(strategy), np.float32)
        return {token_id: Candidate(strategy, row) for token_id in accepted}

    def _measure(self, candidates, settled):
        assert all(candidate.is_ordinary for candidate in settled.values())
        assert settled.keys().isdisjoint(candidates)
        self.settled_ids.append(set(settled))
        return {
            token_id: measured(candidate, self.reaches[token_id, candidate.strategy])
            for token_id, candidate in candidates.items()
        }

    @property
    def strategies(self):
        return [choice.candidate.strategy for choice in self.choices.values()]


def measured(candidate, reach):
    effect = MeasuredRecord(push=reach, erased=None, found=None, verdict=Verdict.BENIGN)
    return replace(candidate, effect=effect, reach=reach)


@pytest.mark.parametrize(
    ("reaches", "order", "refused", "expected", "computed"),
    [
        # The first candidate within half of the thresholds; else the one with the smallest reach.
        ({(1, FIRST): 0.2, (2, FIRST): 0.9, (2, LAST): 0.4}, PAIR, (), [FIRST, LAST], [[1, 2], [2]]),
        ({(1, FIRST): 0.6, (1, LAST): 0.8}, PAIR, (), [FIRST], [[1], [1]]),
        # A missing number is never the smallest.
        ({(1, FIRST): NAN, (1, LAST): 0.4}, PAIR, (), [LAST], [[1], [1]]),
        # Without an ordinary row, an entry becomes unreachable if it can, and its pieces are ordinary.
        ({(1, FIRST): 0.1, (2, FIRST): 0.6, (2, SPLIT): 0.4}, ANY, (), [FIRST, SPLIT], [[1, 2]]),
        ({(1, FIRST): 0.9, (1, SPLIT): 0.8, (1, LAST): 0.1}, ANY, (), [LAST], [[1], [1]]),
        ({(1, FIRST): 0.9, (1, SPLIT): 0.6, (1, LAST): 0.8}, ANY, (), [SPLIT], [[1], [1]]),
        # A strategy that makes no row for a token is passed over.
        ({(1, LAST): 0.1, (2, FIRST): 0.1}, PAIR, {(FIRST, 1)}, [LAST, FIRST], [[1, 2], [1]]),
        ({(1, FIRST): 0.1, (2, SPLIT): 0.1}, ANY, {(FIRST, 2)}, [FIRST, SPLIT], [[1, 2]]),
    ],
)
def test_the_candidate_is_chosen_by_its_reach(reaches, order, refused, expected, computed):
    chosen = Chosen(reaches, dict.fromkeys(range(1, len(expected) + 1), order), refused)
    assert chosen.strategies == expected
    assert chosen.computed == computed


def test_what_was_tried_is_kept_but_for_missing_numbers():
    chosen = Chosen({(1, FIRST): NAN, (1, SPLIT): 0.8, (1, LAST): 0.2}, {1: ANY})
    tried = {strategy: effect.push for strategy, effect in chosen.choices[1].tried.items()}
    assert tried == {SPLIT: 0.8, LAST: 0.2}


def test_an_unreachable_entry_has_no_row():
    chosen = Chosen({(1, FIRST): 0.9, (1, SPLIT): 0.1}, {1: ANY})
    assert chosen.choices[1].candidate.row is None


def test_an_edit_of_the_tokenizer_is_not_measured_but_tried_with_the_others():
    plans = {1: (FIRST,), 2: (Strategy.PLAIN_SPECIALS,), 3: (SPLIT,)}
    chosen = Chosen({(1, FIRST): 0.9}, plans)
    assert chosen.strategies == [Strategy.PLAIN_SPECIALS, SPLIT, FIRST]
    assert chosen.settled_ids == [{2, 3}]
    assert [choice.tried.keys() for choice in chosen.choices.values()] == [set(), set(), {FIRST}]


def test_without_a_verification_the_first_candidate_is_taken():
    chosen = Chosen({}, {1: PAIR}, verify=False)
    assert chosen.strategies == [FIRST]
    assert chosen.choices[1].tried == {}


def test_a_token_without_any_row_is_an_error_that_says_why():
    with pytest.raises(RepairError, match=naming(LAST)):
        Chosen({}, {1: ROW_STRATEGIES}, {(strategy, 1) for strategy in ROW_STRATEGIES})
