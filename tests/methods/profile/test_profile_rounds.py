"""How the budget is spent: cells, texts and tokens of each round."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stickytoken.insertion import Placement
from stickytoken.methods.profile.rounds import (
    LATE_REFERENCE,
    Cell,
    Round,
    advancing,
    cells,
    probes_in,
    tokens_in,
)
from stickytoken.methods.profile.settings import ProfileSettings

# However small the selection is, this many tokens go on.
LEAST = {Round.REFINE: 60, Round.CONFIRM: 30}
LATER = tuple(LEAST)
distinct_copies = st.lists(st.integers(1, 40), min_size=1, max_size=6, unique=True)
budgets = st.one_of(st.integers(3, 40), st.floats(3, 40))


def texts_of(plan, vocabulary):
    """All texts of a run on a whole vocabulary, at most: no reference token is also chosen."""
    probes, tokens = probes_in(plan), tokens_in(plan, vocabulary)
    total = 0
    for step, count in probes.items():
        if step is Round.SCREEN:
            total += tokens[step] * (count + 1)  # and the token alone
        else:
            late = min(LATE_REFERENCE, plan.reference, vocabulary)
            total += min(vocabulary, tokens[step] + late) * count
    return total


# cells


def test_the_first_cells_of_the_default_settings():
    found = [(str(cell.placement), cell.copies) for cell in cells(ProfileSettings(), 7)]
    assert found == [
        ("prefix", 8),
        ("suffix", 4),
        ("random", 8),
        ("prefix", 4),
        ("suffix", 8),
        ("random", 4),
        ("prefix", 8),
    ]


@settings(deadline=None, derandomize=True, max_examples=100)
@given(distinct_copies, st.integers(0, 60))
def test_any_three_neighbours_hold_all_placements_and_a_full_turn_every_combination_once(copies, start):
    turn = 3 * len(copies)
    found = cells(ProfileSettings(copies=copies), start + turn)
    assert len(found) == start + turn
    assert {cell.placement for cell in found[:3]} == set(Placement)
    assert {cell.placement for cell in found[start : start + 3]} == set(Placement)
    everything = {Cell(placement, count) for placement in Placement for count in copies}
    assert set(found[start:]) == everything


@settings(deadline=None, derandomize=True, max_examples=100)
@given(distinct_copies)
def test_neighbours_differ_in_placement_and_in_the_number_of_copies_where_there_are_two(copies):
    for left, right in itertools.pairwise(cells(ProfileSettings(copies=copies), 6 * len(copies))):
        assert left.placement is not right.placement
        assert len(copies) == 1 or left.copies != right.copies


def test_fewer_probes_are_the_first_ones():
    plan = ProfileSettings(copies=(1, 2, 3))
    assert cells(plan, 0) == []
    assert cells(plan, 5) == cells(plan, 20)[:5]


# probes_in


@settings(deadline=None, derandomize=True, max_examples=150)
@given(budgets, st.integers(2, 50), st.integers(4, 200))
def test_screening_takes_at_most_the_budget_and_at_least_two_carriers(budget, refining, confirming):
    found = probes_in(ProfileSettings(budget=budget, refining_texts=refining, confirming_texts=confirming))
    assert list(found) == list(Round)
    assert 2 <= found[Round.SCREEN] <= budget - 1
    assert (found[Round.REFINE], found[Round.CONFIRM]) == (refining, confirming)


@pytest.mark.parametrize("budget", [3, 4, 6, 10, 40])
def test_without_rounds_every_token_gets_the_whole_budget(budget):
    plan = ProfileSettings(budget=budget, adaptive=False)
    assert probes_in(plan) == {Round.SCREEN: budget - 1}
    assert tokens_in(plan, 12_345) == {Round.SCREEN: 12_345}
    assert texts_of(plan, 12_345) == budget * 12_345


# tokens_in


@pytest.mark.parametrize("vocabulary", [5_000, 13_000, 25_000, 30_522, 50_257, 128_000, 200_000])
@pytest.mark.parametrize("budget", [4, 5, 6, 7.5, 8, 10, 12, 16, 20, 30])
def test_the_budget_holds_on_average_unless_the_least_selection_alone_exceeds_it(vocabulary, budget):
    plan = ProfileSettings(budget=budget)
    found = tokens_in(plan, vocabulary)
    spent = texts_of(plan, vocabulary)
    over = sum(
        (LEAST[step] + LATE_REFERENCE) * probes_in(plan)[step] for step in LATER if found[step] == LEAST[step]
    )
    assert spent <= budget * vocabulary + over
    if not over:
        # Nothing is left unspent but what one more token in each round would cost.
        assert spent > budget * vocabulary - sum(probes_in(plan)[step] for step in LATER) - 1


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.integers(1, 300_000), budgets, st.integers(2, 50), st.integers(4, 200))
def test_every_round_looks_at_some_tokens_and_at_no_more_than_there_are(
    vocabulary, budget, refining, confirming
):
    plan = ProfileSettings(budget=budget, refining_texts=refining, confirming_texts=confirming)
    found = tokens_in(plan, vocabulary)
    assert list(found) == list(Round)
    assert found[Round.SCREEN] == vocabulary
    for step in LATER:
        assert min(vocabulary, LEAST[step]) <= found[step] <= vocabulary
        assert type(found[step]) is int
    over = sum((LEAST[step] + LATE_REFERENCE) * probes_in(plan)[step] for step in LATER)
    assert texts_of(plan, vocabulary) <= budget * vocabulary + over


def test_more_tokens_never_send_fewer_on():
    sizes = [int(size) for size in np.geomspace(1, 1e6, 400)]
    for step in LATER:
        counts = [tokens_in(ProfileSettings(), size)[step] for size in sizes]
        assert counts == sorted(counts)
        assert counts[0] == 1
        assert counts[-1] > LEAST[step]


@pytest.mark.parametrize("tokens", [1, 29, 30, 31, 60, 61])
def test_a_small_selection_goes_on_whole(tokens):
    found = tokens_in(ProfileSettings(), tokens)
    assert found == {
        Round.SCREEN: tokens,
        Round.REFINE: min(60, tokens),
        Round.CONFIRM: min(30, tokens),
    }


# advancing

estimates = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(-3, 3), st.integers(-3, 3)), unique_by=lambda own: own[0]
)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(estimates, st.integers(0, 12), st.randoms(use_true_random=False))
def test_half_go_on_for_their_lift_and_half_for_their_pull_in_whatever_order_they_come(
    tokens, count, shuffler
):
    by_lift = sorted(tokens, key=lambda own: (-own[1], own[0]))
    half = math.ceil(count / 2)
    by_pull = sorted(by_lift[half:], key=lambda own: (-own[2], own[0]))
    expected = sorted(own[0] for own in by_lift[:half] + by_pull[: count - half])
    shuffler.shuffle(tokens)
    ids, lifts, pulls = (np.array([own[place] for own in tokens], dtype=np.int64) for place in range(3))
    found = advancing(ids, lifts.astype(float), pulls.astype(float), count)
    assert found.tolist() == expected
    assert found.dtype == np.int64


def test_the_rounds_have_the_names_of_their_shards_in_order():
    assert [str(step) for step in Round] == ["screen", "refine", "confirm"]
