"""How the budget is spent: cells, carriers and tokens of each round."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stickytoken.insertion import Placement
from stickytoken.methods.profile.plan import (
    LATE_REFERENCE,
    Cell,
    Round,
    carriers_needed,
    cells,
    highest,
    screening_carriers,
    tokens_to_confirm,
)
from stickytoken.methods.profile.settings import ProfileSettings

# However small the selection is, this many tokens go on.
LEAST = 30
distinct_copies = st.lists(st.integers(1, 40), min_size=1, max_size=6, unique=True)
budgets = st.one_of(st.integers(3, 40), st.floats(3, 40))


def texts_of(plan, vocabulary):
    """All texts of a run on a whole vocabulary, at most: no token of the pilot is also confirmed."""
    screened = vocabulary * screening_carriers(plan)
    if not plan.adaptive:
        return screened
    late = min(LATE_REFERENCE, plan.reference, vocabulary)
    further = min(vocabulary - late, tokens_to_confirm(plan, vocabulary))
    return screened + late * carriers_needed(plan) + further * plan.confirming_texts


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


@given(distinct_copies, st.integers(0, 60))
def test_any_three_neighbours_hold_all_placements_and_a_full_turn_every_combination_once(copies, start):
    turn = 3 * len(copies)
    found = cells(ProfileSettings(copies=copies), start + turn)
    assert len(found) == start + turn
    assert {cell.placement for cell in found[:3]} == set(Placement)
    assert {cell.placement for cell in found[start : start + 3]} == set(Placement)
    everything = {Cell(placement, count) for placement in Placement for count in copies}
    assert set(found[start:]) == everything


@given(distinct_copies)
def test_neighbours_differ_in_placement_and_in_the_number_of_copies_where_there_are_two(copies):
    for left, right in itertools.pairwise(cells(ProfileSettings(copies=copies), 6 * len(copies))):
        assert left.placement is not right.placement
        assert len(copies) == 1 or left.copies != right.copies


def test_fewer_probes_are_the_first_ones():
    plan = ProfileSettings(copies=(1, 2, 3))
    assert cells(plan, 0) == []
    assert cells(plan, 5) == cells(plan, 20)[:5]


# screening_carriers, carriers_needed


@settings(max_examples=150)
@given(budgets, st.integers(4, 200))
def test_screening_leaves_a_text_per_token_for_the_other_rounds(budget, confirming):
    plan = ProfileSettings(budget=budget, confirming_texts=confirming)
    few = screening_carriers(plan)
    assert few == int(budget) - 1 >= 2
    assert carriers_needed(plan) == few + confirming


@pytest.mark.parametrize("budget", [3, 4, 6, 10, 40])
def test_without_rounds_every_token_gets_the_whole_budget(budget):
    plan = ProfileSettings(budget=budget, adaptive=False)
    assert screening_carriers(plan) == carriers_needed(plan) == budget
    assert texts_of(plan, 12_345) == budget * 12_345


# tokens_to_confirm


@pytest.mark.parametrize("vocabulary", [5_000, 13_000, 25_000, 30_522, 50_257, 128_000, 200_000])
@pytest.mark.parametrize("budget", [3, 4, 5, 7.5, 10, 20])
def test_the_budget_holds_on_average_unless_the_least_selection_alone_exceeds_it(vocabulary, budget):
    plan = ProfileSettings(budget=budget)
    spent, over = texts_of(plan, vocabulary), 0
    if tokens_to_confirm(plan, vocabulary) == LEAST:
        over = LATE_REFERENCE * carriers_needed(plan) + LEAST * plan.confirming_texts
    assert spent <= budget * vocabulary + over
    if not over:
        # Nothing is left unspent but what one more token would cost.
        assert spent > budget * vocabulary - plan.confirming_texts


@settings(max_examples=300)
@given(st.integers(1, 300_000), budgets, st.integers(4, 200), st.integers(2, 500))
def test_some_tokens_go_on_and_never_more_than_there_are(vocabulary, budget, confirming, reference):
    plan = ProfileSettings(budget=budget, confirming_texts=confirming, reference=reference)
    found = tokens_to_confirm(plan, vocabulary)
    assert type(found) is int
    assert min(vocabulary, LEAST) <= found <= vocabulary
    over = LATE_REFERENCE * carriers_needed(plan) + LEAST * confirming
    assert texts_of(plan, vocabulary) <= budget * vocabulary + over


def test_more_tokens_never_send_fewer_on():
    sizes = [int(size) for size in np.geomspace(1, 1e6, 400)]
    counts = [tokens_to_confirm(ProfileSettings(), size) for size in sizes]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] > LEAST


@pytest.mark.parametrize("tokens", [1, 29, 30, 31])
def test_a_small_selection_goes_on_whole(tokens):
    assert tokens_to_confirm(ProfileSettings(), tokens) == min(LEAST, tokens)


# highest

columns = st.integers(1, 3).flatmap(
    lambda width: st.lists(
        st.tuples(st.integers(0, 10**6), st.lists(st.integers(-3, 3), min_size=width, max_size=width)),
        unique_by=lambda own: own[0],
        min_size=1,
    )
)


def in_turn(tokens, count):
    """Each column picks its best among those that are left, one after another."""
    left, chosen = dict(tokens), []
    width = len(tokens[0][1])
    passed = [sorted(left, key=lambda own, k=k: (-left[own][k], own)) for k in range(width)]
    for rank in range(len(tokens)):
        for column in range(width):
            own = passed[column][rank]
            if own not in chosen and len(chosen) < count:
                chosen.append(own)
    return sorted(chosen)


@settings(max_examples=200)
@given(columns, st.integers(0, 12), st.randoms(use_true_random=False))
def test_the_columns_choose_in_turn_in_whatever_order_the_tokens_come(tokens, count, shuffler):
    expected = in_turn(tokens, count)
    shuffler.shuffle(tokens)
    ids = np.array([own[0] for own in tokens], dtype=np.int64)
    found = highest(ids, np.array([own[1] for own in tokens], dtype=float), count)
    assert found.tolist() == expected
    assert len(found) == min(count, len(tokens))
    assert found.dtype == np.int64


@given(st.lists(st.integers(-3, 3), max_size=20), st.integers(0, 25))
def test_one_column_chooses_the_highest_and_of_equals_the_smaller_id(values, count):
    ids = 3 * np.arange(len(values), dtype=np.int64)[::-1]
    ranked = sorted(range(len(values)), key=lambda row: (-values[row], ids[row]))
    expected = sorted(int(ids[row]) for row in ranked[:count])
    assert highest(ids, np.array(values, dtype=float), count).tolist() == expected


def test_every_column_has_its_best_tokens_chosen_before_any_has_its_worse_ones():
    values = np.zeros((100, 2))
    values[:10, 0], values[10:20, 1] = np.arange(10, 0, -1), np.arange(10, 0, -1)
    found = highest(np.arange(100), values, 6).tolist()
    assert found == [0, 1, 2, 10, 11, 12]


def test_nothing_is_chosen_from_nothing():
    assert highest(np.empty(0, dtype=np.int64), np.empty((0, 2)), 5).tolist() == []


def test_the_rounds_have_the_names_of_their_shards_in_order():
    assert [str(step) for step in Round] == ["pilot", "screen", "confirm"]
