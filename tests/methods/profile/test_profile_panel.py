"""Anchors in groups and the response of carriers, against loops over pairs."""

import math
from collections import Counter
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import profiled
from stickytoken.insertion import Token
from stickytoken.methods.probes import AnchorPanel, SymptomStage, balanced

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


def similarities(carriers, anchors):
    """As the encoder's vectors give them, in single precision."""
    return (carriers @ anchors.T).astype(float).tolist()


def test_pairs_count_strictly_below_the_mean_similarity():
    panel, carriers = panel_of(3), draw([3, 2], 5)
    before = np.array(similarities(carriers, panel.vectors))
    u = float(np.median(before[0]))
    edge = float(before[0, 0])
    assert np.array_equal(panel.against(carriers, u).below, before < u)
    assert np.array_equal(panel.against(carriers, u).before, before)
    assert not panel.against(carriers, edge).below[0, 0]
    assert panel.against(carriers, np.nextafter(edge, 2)).below[0, 0]


topics = st.lists(st.sampled_from("abcd"), max_size=25)


@settings(max_examples=200)
@given(topics, st.integers(0, 30), st.integers(0, 5))
def test_no_group_gets_two_more_than_another_while_that_one_lasts(groups, count, seed):
    drawn = balanced(groups, count, seed)
    assert len(set(drawn)) == len(drawn) == min(count, len(groups))
    assert drawn == balanced(groups, len(groups), seed)[:count]
    sizes = Counter(groups)
    for end in range(len(drawn) + 1):
        taken = Counter(groups[index] for index in drawn[:end])
        lasting = [taken[group] for group in sizes if taken[group] < sizes[group]]
        assert max(taken.values(), default=0) <= min(lasting, default=len(groups)) + 1


def test_every_item_has_the_same_chance_to_come_first():
    groups, draws = ["a"] * 2 + ["b"] * 6, 2000
    found = Counter(balanced(groups, 1, seed)[0] for seed in range(draws))
    for index in range(8):
        assert abs(found[index] - draws / 8) <= 4 * math.sqrt(draws / 8)


# Copies behind texts, one number of them after another.

TOKEN = Token(7, " x")
COPIES = (1, 2, 5)
TEXTS = ("a boat", "", "three more words", "one")
PROBE_DIMENSION, ANCHORS = 5, 6


def stage_of(u):
    # Groups and their weights are for the lift alone: a curve is a plain mean over pairs.
    groups, weights = np.array([0, 0, 0, 0, 1, 1]), np.array([0.9, 0.1])
    anchors = profiled.hashed_vectors([f"anchor {k}" for k in range(ANCHORS)], PROBE_DIMENSION)
    panel = AnchorPanel(unit(anchors), groups, weights)
    return SymptomStage(
        TEXTS, COPIES, panel.against(unit(profiled.hashed_vectors(TEXTS, PROBE_DIMENSION)), u)
    )


@pytest.mark.parametrize("u", [-2.0, -0.2, 0.6, 2.0])  # the first and the last leave a side empty
def test_curves_equal_loops_over_pairs(u):
    stage = stage_of(u)
    probes = list(stage.probes(TOKEN))
    assert probes == [text + " x" * copies for text in TEXTS for copies in COPIES]
    assert stage.probes_per_token == len(probes)
    vectors = profiled.hashed_vectors(probes, PROBE_DIMENSION)
    after = (unit(vectors) @ stage.panel.panel.vectors.T).reshape(len(TEXTS), len(COPIES), ANCHORS)
    expected = {"below": [], "above": []}
    for copies in range(1 + len(COPIES)):
        sides = {"below": [], "above": []}
        for text, query in product(range(len(TEXTS)), range(ANCHORS)):
            before = stage.panel.before[text, query]
            own = before if copies == 0 else after[text, copies - 1, query]
            sides["below" if before < u else "above"].append(own)
        for side, found in sides.items():
            expected[side] += [sum(found) / len(found)] if found else []
    found = stage.measure(TOKEN, vectors)
    assert set(found) == set(expected)
    for side, curve in expected.items():
        assert found[side] == pytest.approx(curve, abs=1e-6)


@pytest.mark.parametrize("u", [-2.0, -0.2, 0.6, 2.0])  # with the first, no text is unrelated
def test_ranks_equal_loops_over_queries_and_their_unrelated_texts(u):
    panel = stage_of(u).panel
    changed = np.random.default_rng(4).uniform(-1, 1, panel.before.shape)
    similarities, expected = np.stack([panel.before, changed], axis=1), []
    for after in similarities.swapaxes(0, 1):
        shares, weights = [], []
        for query in range(ANCHORS):
            unrelated = [text for text in range(len(TEXTS)) if panel.before[text, query] < u]
            won = [
                after[own, query] > panel.before[other, query] for own, other in permutations(unrelated, 2)
            ]
            if won:
                shares.append(np.mean(won))
                weights.append(panel.panel.weights[query])
        expected += [np.average(shares, weights=weights)] if shares else []
    assert panel.ahead(similarities) == pytest.approx(expected)
    assert expected[:1] in ([], [0.5])
