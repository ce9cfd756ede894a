"""Anchors in groups and the response of carriers, against loops over pairs."""

import hashlib
import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stickytoken.insertion import Token, TokenizedText
from stickytoken.methods.probes import AnchorPanel, Response, SymptomStage, balanced

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


def respond(carriers, copies):
    """The response of one token's copies."""
    return Response(*(part[0] for part in carriers.response(copies[None])))


def weighted(by_group):
    """Mean over the groups that have any pair, by weight; 0 where none has."""
    present = {group: mean for group, mean in enumerate(by_group) if not math.isnan(mean)}
    total = sum(WEIGHTS[group] for group in present)
    return sum(WEIGHTS[group] * mean for group, mean in present.items()) / total if total else 0.0


def slow_response(panel, before, after, u):
    """One carrier: lift, lift by group, share that rises."""
    pairs = list(zip(before, after, panel.groups, strict=True))
    changes = [[b - a for a, b, g in pairs if g == group and a < u] for group in range(len(WEIGHTS))]
    by_group = [np.mean(own) if own else math.nan for own in changes]
    rising = [np.mean([c > 0 for c in own]) if own else math.nan for own in changes]
    return weighted(by_group), by_group, weighted(rising)


# AnchorPanel


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


# balanced

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


# The symptom curve, against loops over pairs.

TOKEN = Token(7, " x")
COPIES = (1, 2, 5)
TEXTS = ("a boat", "", "three more words", "one")
TOKENIZED = tuple(TokenizedText((1,), ((10 * place,), (11, 12))) for place in range(4))
PROBE_DIMENSION, ANCHORS = 5, 6


def vector_of(probe):
    """A vector that depends on nothing but the probe, not of length 1."""
    seed = int.from_bytes(hashlib.sha256(repr(probe).encode()).digest()[:8], "big")
    return (np.random.default_rng(seed).normal(size=PROBE_DIMENSION) + 0.5).astype(np.float32)


def vectors_of(probes):
    return np.stack([vector_of(probe) for probe in probes])


def units_of(probes):
    vectors = vectors_of(probes)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def stage_of(carriers, u):
    # Groups and their weights are for the lift alone: a curve is a plain mean over pairs.
    groups, weights = np.array([0, 0, 0, 0, 1, 1]), np.array([0.9, 0.1])
    panel = AnchorPanel(units_of([f"anchor {k}" for k in range(ANCHORS)]), groups, weights)
    return SymptomStage(carriers, COPIES, panel.against(units_of(carriers), u))


def slow_curves(carriers, u, probe_of):
    """Mean similarity of the pairs on either side of u, for 0 copies and each number of them."""
    anchors = [[float(x) for x in row] for row in units_of([f"anchor {k}" for k in range(ANCHORS)])]
    curves = {"below": [], "above": []}
    before = {}
    for copies in (0, *COPIES):
        sides = {"below": [], "above": []}
        for place, carrier in enumerate(carriers):
            own = units_of([probe_of(carrier, copies) if copies else carrier])[0].tolist()
            for k, anchor in enumerate(anchors):
                similarity = sum(a * b for a, b in zip(own, anchor, strict=True))
                before.setdefault((place, k), similarity)
                sides["below" if before[place, k] < u else "above"].append(similarity)
        for side, found in sides.items():
            curves[side] += [sum(found) / len(found)] if found else []
    return curves


def text_with(carrier, copies):
    return carrier + " x" * copies


def ids_with(carrier, copies):
    return (1, *(own for word in carrier.words for own in word), *[7] * copies)


KINDS = [pytest.param(TEXTS, text_with, id="text"), pytest.param(TOKENIZED, ids_with, id="ids")]


@pytest.mark.parametrize(("carriers", "probe_of"), KINDS)
def test_every_carrier_ends_with_each_number_of_copies_carriers_slowest(carriers, probe_of):
    stage = stage_of(carriers, 0.3)
    found = list(stage.probes(TOKEN))
    assert found == [probe_of(carrier, copies) for carrier in carriers for copies in COPIES]
    assert stage.probes_per_token == len(found) == 12


@pytest.mark.parametrize("u", [-2.0, -0.2, 0.6, 2.0])  # the first and the last leave a side empty
@pytest.mark.parametrize(("carriers", "probe_of"), KINDS)
def test_curves_equal_loops_over_pairs(carriers, probe_of, u):
    stage = stage_of(carriers, u)
    found = stage.measure(TOKEN, vectors_of(stage.probes(TOKEN)))
    expected = slow_curves(carriers, u, probe_of)
    assert set(found) == {"below", "above"}
    for side in ("below", "above"):
        assert found[side] == pytest.approx(expected[side], abs=1e-6)


@pytest.mark.parametrize("u", [-2.0, -0.2, 0.6, 2.0])  # with the first, no text is unrelated
def test_ranks_equal_loops_over_queries_and_their_unrelated_texts(u):
    panel = stage_of(TEXTS, u).panel
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
