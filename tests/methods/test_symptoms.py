"""The symptom curve, against loops over pairs."""

import hashlib
import json

import numpy as np
import pytest

from stickytoken.insertion import Token, TokenizedText
from stickytoken.methods.probes import SYMPTOM_CARRIERS, SYMPTOM_COPIES, AnchorPanel, SymptomStage

TOKEN = Token(7, " x")
COPIES = (1, 2, 5)
TEXTS = ("a boat", "", "three more words", "one")
TOKENIZED = tuple(TokenizedText((1,), ((10 * place,), (11, 12))) for place in range(4))
DIMENSION, ANCHORS = 5, 6


def vector_of(probe):
    """A vector that depends on nothing but the probe, not of length 1."""
    seed = int.from_bytes(hashlib.sha256(repr(probe).encode()).digest()[:8], "big")
    return (np.random.default_rng(seed).normal(size=DIMENSION) + 0.5).astype(np.float32)


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


@pytest.mark.parametrize("u", [-0.2, 0.3, 0.6])
@pytest.mark.parametrize(("carriers", "probe_of"), KINDS)
def test_curves_equal_loops_over_pairs(carriers, probe_of, u):
    stage = stage_of(carriers, u)
    assert stage.panel.below.any()
    assert not stage.panel.below.all()
    found = stage.measure(TOKEN, vectors_of(stage.probes(TOKEN)))
    expected = slow_curves(carriers, u, probe_of)
    assert set(found) == {"below", "above"}
    for side in ("below", "above"):
        assert len(found[side]) == 1 + len(COPIES)
        assert found[side] == pytest.approx(expected[side], abs=1e-6)


def test_without_copies_the_sides_lie_on_their_sides_of_the_mean_similarity():
    stage = stage_of(TEXTS, 0.3)
    found = stage.measure(TOKEN, vectors_of(stage.probes(TOKEN)))
    assert found["below"][0] < 0.3 <= found["above"][0]


@pytest.mark.parametrize(("u", "empty", "full"), [(-2.0, "below", "above"), (2.0, "above", "below")])
def test_a_side_without_pairs_has_no_curve(u, empty, full):
    stage = stage_of(TEXTS, u)
    found = stage.measure(TOKEN, vectors_of(stage.probes(TOKEN)))
    assert found[empty] == []
    everything = slow_curves(TEXTS, u, text_with)[full]
    assert found[full] == pytest.approx(everything, abs=1e-6)


def test_the_length_of_vectors_changes_nothing():
    stage = stage_of(TEXTS, 0.3)
    vectors = vectors_of(stage.probes(TOKEN))
    longer = stage.measure(TOKEN, vectors * np.linspace(0.1, 9, 12, dtype=np.float32)[:, None])
    for side, curve in stage.measure(TOKEN, vectors).items():
        assert longer[side] == pytest.approx(curve, abs=1e-6)


def test_copies_that_make_every_carrier_the_same_text_flatten_both_curves_to_one_point():
    stage = stage_of(TEXTS, 0.3)
    same = np.tile(vector_of("the same"), (12, 1))
    similarities = stage.panel.panel.vectors @ (same[0] / np.linalg.norm(same[0]))
    row = stage.measure(TOKEN, same)
    for side, pairs in (("below", stage.panel.below), ("above", ~stage.panel.below)):
        expected = sum(float(similarities[k]) for _, k in np.argwhere(pairs)) / pairs.sum()
        assert row[side][1:] == pytest.approx([expected] * 3, abs=1e-6)


def test_a_row_holds_plain_numbers_that_json_takes():
    stage = stage_of(TEXTS, 0.3)
    row = dict(stage.measure(TOKEN, vectors_of(stage.probes(TOKEN))))
    assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_the_documented_numbers_of_copies_rise_from_one_and_leave_zero_to_the_carrier():
    assert tuple(sorted(set(SYMPTOM_COPIES))) == SYMPTOM_COPIES
    assert SYMPTOM_COPIES[0] == 1
    assert SYMPTOM_CARRIERS > 1
    assert stage_of(TEXTS, 0.3).name == "symptoms"
