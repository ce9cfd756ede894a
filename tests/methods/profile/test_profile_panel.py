"""Anchors in groups and the response of carriers, against loops over pairs."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stickytoken.methods.probes import AnchorPanel, Response, balanced

DIMENSION = 6
# Ten anchors in four groups of unequal sizes and weights; the last one is measured beside the lift.
GROUPS = np.array([0, 1, 2, 3, 0, 1, 2, 0, 2, 2])
WEIGHTS = np.array([0.3, 0.2, 0.5, 0.0])


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def draw(seed, count):
    return unit(np.random.default_rng(seed).normal(size=(count, DIMENSION)) + 0.4)


def panel_of(seed):
    return AnchorPanel(draw([seed, 1], len(GROUPS)), GROUPS, WEIGHTS)


def weight_of(anchor):
    return WEIGHTS[GROUPS[anchor]] / Counter(GROUPS.tolist())[GROUPS[anchor]]


def similarities(carriers, anchors):
    """As the encoder's vectors give them, in single precision."""
    return (carriers @ anchors.T).astype(float).tolist()


def respond(carriers, copies):
    """The response of one token's copies."""
    return Response(*(part[0] for part in carriers.response(copies[None])))


def slow_mean(change, below, groups):
    """Mean over pairs by group, then over the groups that have any, by weight; 0 where none has."""
    total = weight = 0.0
    for group in range(len(WEIGHTS)):
        own = [change[a] for a in range(len(change)) if below[a] and groups[a] == group]
        if own:
            total += WEIGHTS[group] * sum(own) / len(own)
            weight += WEIGHTS[group]
    return total / weight if weight else 0.0


def slow_response(panel, before, after, u):
    """One carrier: lift, lift by group, share that rises."""
    change = [b - a for a, b in zip(before, after, strict=True)]
    below = [a < u for a in before]
    by_group = []
    for group in range(len(WEIGHTS)):
        own = [
            c for c, is_below, g in zip(change, below, panel.groups, strict=True) if is_below and g == group
        ]
        by_group.append(sum(own) / len(own) if own else math.nan)
    rising = slow_mean([float(c > 0) for c in change], below, panel.groups)
    return slow_mean(change, below, panel.groups), by_group, rising


# AnchorPanel


def test_anchors_of_a_group_share_its_weight_equally_and_all_weights_sum_to_one():
    panel = panel_of(0)
    assert panel.weights.sum() == pytest.approx(1)
    for anchor in range(len(GROUPS)):
        assert panel.weights[anchor] == pytest.approx(weight_of(anchor))
    for group in range(4):
        assert panel.weights[group == GROUPS].sum() == pytest.approx(WEIGHTS[group])


def test_every_anchor_belongs_to_its_group_alone():
    membership = panel_of(2).membership
    assert membership.shape == (10, 4)
    assert membership.argmax(axis=1).tolist() == GROUPS.tolist()
    assert membership.sum(axis=1).tolist() == [1] * 10


def test_pairs_count_strictly_below_the_mean_similarity():
    panel, carriers = panel_of(3), draw([3, 2], 5)
    before = np.array(similarities(carriers, panel.vectors))
    u = float(np.median(before[0]))
    edge = float(before[0, 0])
    assert np.array_equal(panel.against(carriers, u).below, before < u)
    assert np.array_equal(panel.against(carriers, u).before, before)
    assert not panel.against(carriers, edge).below[0, 0]
    assert panel.against(carriers, np.nextafter(edge, 2)).below[0, 0]


# response


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("level", [0.1, 0.5, 0.9, 1.1])
def test_lifts_and_rising_pairs_equal_loops_over_pairs(seed, level):
    panel, carriers, copies = panel_of(seed), draw([seed, 2], 7), draw([seed, 3], 7)
    before, after = similarities(carriers, panel.vectors), similarities(copies, panel.vectors)
    u = float(np.quantile(before, min(level, 1))) + (level > 1)
    found = respond(panel.against(carriers, u), copies)
    for k in range(7):
        lift, by_group, rising = slow_response(panel, before[k], after[k], u)
        assert found.lifts[k] == pytest.approx(lift, abs=1e-6)
        assert found.groups[k] == pytest.approx(by_group, abs=1e-6, nan_ok=True)
        assert found.rising[k] == pytest.approx(rising, abs=1e-6)


def test_the_levels_of_the_loops_leave_out_groups_of_the_lift_and_whole_carriers():
    """Otherwise the test above would prove nothing about them."""
    empty_groups = empty_lifts = empty_carriers = 0
    for seed in range(8):
        panel, carriers = panel_of(seed), draw([seed, 2], 7)
        below = panel.against(carriers, float(np.quantile(carriers @ panel.vectors.T, 0.1))).below
        counts = below @ panel.membership
        empty_groups += int(((counts == 0).any(axis=1) & (counts > 0).any(axis=1)).sum())
        empty_lifts += int(((counts[:, :3] == 0).all(axis=1) & (counts > 0).any(axis=1)).sum())
        empty_carriers += int((counts == 0).all(axis=1).sum())
    assert min(empty_groups, empty_carriers) > 3
    assert empty_lifts > 0


def test_pairs_below_share_the_weights_of_their_groups():
    for seed in range(8):
        panel, carriers = panel_of(seed), draw([seed, 2], 7)
        found = panel.against(carriers, float(np.quantile(carriers @ panel.vectors.T, 0.3)))
        for k in range(7):
            groups = [GROUPS[a] for a in range(10) if found.below[k, a]]
            whole = sum(WEIGHTS[group] for group in set(groups))
            for a in range(10):
                expected = 0.0
                if found.below[k, a] and WEIGHTS[GROUPS[a]] > 0:
                    expected = WEIGHTS[GROUPS[a]] / groups.count(GROUPS[a]) / whole
                assert found.pair_weights[k, a] == pytest.approx(expected)


def test_a_group_of_no_weight_has_a_lift_of_its_own_and_no_say_in_the_lift():
    panel, carriers, copies = panel_of(3), draw([3, 2], 5), draw([3, 3], 5)
    kept = GROUPS != 3
    without = AnchorPanel(panel.vectors[kept], GROUPS[kept], WEIGHTS[:3])
    found, expected = (respond(each.against(carriers, 2.0), copies) for each in (panel, without))
    assert np.allclose(found.lifts, expected.lifts, atol=1e-12)
    assert np.allclose(found.rising, expected.rising, atol=1e-6)
    assert np.allclose(found.groups[:, :3], expected.groups, atol=1e-6)
    assert np.isfinite(found.groups[:, 3]).all()


def test_a_carrier_without_a_pair_below_has_no_lift_and_no_group():
    panel, carriers = panel_of(4), draw([4, 2], 3)
    found = respond(panel.against(carriers, -2.0), draw([4, 3], 3))
    assert found.lifts.tolist() == found.rising.tolist() == [0, 0, 0]
    assert np.isnan(found.groups).all()


def test_copies_that_change_nothing_give_no_lift():
    panel, carriers = panel_of(5), draw([5, 2], 4)
    found = respond(panel.against(carriers, 2.0), carriers)
    assert np.allclose(found.lifts, 0, atol=1e-12)
    assert not found.rising.any()
    assert np.allclose(found.groups, 0, atol=1e-12)


def test_with_all_pairs_below_the_lift_is_the_change_toward_the_mean_anchor():
    panel, carriers, copies = panel_of(6), draw([6, 2], 5), draw([6, 3], 5)
    found = respond(panel.against(carriers, 2.0), copies)
    center = sum(weight_of(anchor) * panel.vectors[anchor].astype(float) for anchor in range(len(GROUPS)))
    assert np.allclose(found.lifts, (copies - carriers) @ center, atol=1e-6)
    assert np.allclose(found.lifts, found.groups @ WEIGHTS, atol=1e-12)


def test_chosen_carriers_respond_as_they_do_among_all():
    panel, carriers, copies = panel_of(7), draw([7, 2], 6), draw([7, 3], 6)
    whole, places = panel.against(carriers, 0.3), [4, 1]
    part, expected = respond(whole.chosen(places), copies[places]), respond(whole, copies)
    for some, everything in zip(part, expected, strict=True):
        assert np.allclose(some, everything[places], atol=1e-6, equal_nan=True)
    assert np.array_equal(whole.chosen(places).vectors, carriers[places])


@settings(max_examples=30)
@given(st.permutations(range(10)), st.permutations(range(5)))
def test_the_order_of_anchors_and_of_carriers_changes_nothing(anchors, carriers):
    anchors, carriers = np.array(anchors), np.array(carriers)
    panel, without, copies = panel_of(8), draw([8, 2], 5), draw([8, 3], 5)
    turned = AnchorPanel(panel.vectors[anchors], GROUPS[anchors], WEIGHTS)
    found = respond(turned.against(without[carriers], 0.35), copies[carriers])
    for left, right in zip(found, respond(panel.against(without, 0.35), copies), strict=True):
        assert np.allclose(left, right[carriers], atol=1e-6, equal_nan=True)


# balanced

topics = st.lists(st.sampled_from("abcd"), max_size=25)


@settings(max_examples=200)
@given(topics, st.integers(0, 30), st.integers(0, 5))
def test_no_group_gets_two_more_than_another_while_that_one_lasts(groups, count, seed):
    drawn = balanced(groups, count, seed)
    assert len(set(drawn)) == len(drawn) == min(count, len(groups))
    sizes = Counter(groups)
    for end in range(len(drawn) + 1):
        taken = Counter(groups[index] for index in drawn[:end])
        lasting = [taken[group] for group in sizes if taken[group] < sizes[group]]
        assert max(taken.values(), default=0) <= min(lasting, default=len(groups)) + 1


@settings(max_examples=50)
@given(topics, st.integers(0, 30), st.integers(0, 5))
def test_a_smaller_draw_is_the_beginning_of_a_larger_one(groups, count, seed):
    assert balanced(groups, count, seed) == balanced(groups, len(groups), seed)[:count]


def test_every_item_has_the_same_chance_to_come_first():
    groups, draws = ["a"] * 2 + ["b"] * 6, 2000
    found = Counter(balanced(groups, 1, seed)[0] for seed in range(draws))
    for index in range(8):
        assert abs(found[index] - draws / 8) <= 4 * math.sqrt(draws / 8)


def test_every_item_of_a_group_has_the_same_chance_to_be_drawn():
    groups, draws = ["a"] * 3 + ["b"] * 5, 2000
    found = Counter(index for seed in range(draws) for index in balanced(groups, 4, seed))
    for index in range(8):
        share = 2 / groups.count(groups[index])
        assert abs(found[index] / draws - share) <= 4 * math.sqrt(share * (1 - share) / draws)
