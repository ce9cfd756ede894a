"""Contraction and pull: exact where the model holds, else least squares, and lifts computed from them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stickytoken.methods.probes import AnchorPanel
from stickytoken.methods.statistics import Anchorage, Pull, anchorage, fit_pull, predicted_lifts

seeds = st.integers(0, 2**32 - 1)
DIMENSION = 7


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def draw(generator, count, dimension=DIMENSION):
    return unit(generator.normal(size=(count, dimension)) + 0.3)


# fit_pull


def fitted(before, after):
    """Contraction and pull of one token."""
    found = fit_pull(before, after[None])
    return found.contraction[0], found.pull[0]


@given(seeds, st.floats(-0.5, 1.5), st.integers(2, 9))
def test_what_follows_the_model_is_recovered_exactly(seed, contraction, carriers):
    generator = np.random.default_rng(seed)
    before, pull = draw(generator, carriers).astype(np.float64), generator.normal(size=DIMENSION)
    found, vector = fitted(before, (1 - contraction) * before + pull)
    assert found == pytest.approx(contraction, abs=1e-9)
    assert vector == pytest.approx(pull, abs=1e-9)


@given(seeds, st.integers(2, 12))
def test_the_fit_is_that_of_least_squares_over_carriers_and_dimensions(seed, carriers):
    """One slope for all dimensions, and a constant for each: as a design matrix, solved by numpy."""
    generator = np.random.default_rng(seed)
    before, after = draw(generator, carriers), draw(generator, carriers)
    design = np.hstack([before.reshape(-1, 1).astype(float), np.tile(np.eye(DIMENSION), (carriers, 1))])
    kept, *constants = np.linalg.lstsq(design, after.ravel().astype(float), rcond=None)[0]
    contraction, pull = fitted(before, after)
    assert contraction == pytest.approx(1 - kept, abs=1e-5)
    assert pull == pytest.approx(constants, abs=1e-5)


def test_copies_that_change_nothing_have_neither_and_those_that_erase_the_text_leave_one_point():
    generator = np.random.default_rng(1)
    before = draw(generator, 5)
    contraction, pull = fitted(before, before)
    assert (contraction, *pull) == pytest.approx([0] * 8, abs=1e-6)
    point = draw(generator, 1)[0]
    contraction, pull = fitted(before, np.tile(point, (5, 1)))
    assert contraction == pytest.approx(1)
    assert pull == pytest.approx(point, abs=1e-6)


@pytest.mark.parametrize("carriers", [1, 4])
def test_where_the_carriers_do_not_differ_all_of_the_change_is_pull(carriers):
    generator = np.random.default_rng(2)
    before, after = np.tile(draw(generator, 1), (carriers, 1)), draw(generator, carriers)
    contraction, pull = fitted(before, after)
    assert contraction == pytest.approx(0, abs=1e-6)
    assert pull == pytest.approx((after - before).mean(axis=0), abs=1e-6)


@settings(max_examples=40)
@given(seeds, st.permutations(range(6)))
def test_the_order_of_the_carriers_changes_nothing_and_a_turn_of_the_space_turns_the_pull(seed, order):
    generator = np.random.default_rng(seed)
    before, after = draw(generator, 6), draw(generator, 6)
    contraction, pull = fitted(before, after)
    shuffled = fitted(before[list(order)], after[list(order)])
    assert shuffled[0] == pytest.approx(contraction, abs=1e-6)
    assert shuffled[1] == pytest.approx(pull, abs=1e-6)
    turn, _ = np.linalg.qr(generator.normal(size=(DIMENSION, DIMENSION)))
    turned = fitted((before @ turn).astype(np.float32), (after @ turn).astype(np.float32))
    assert turned[0] == pytest.approx(contraction, abs=1e-5)
    assert turned[1] == pytest.approx(pull @ turn, abs=1e-5)


# anchorage, predicted_lifts

GROUPS = np.array([0, 0, 1, 2, 2, 2, 1, 0])
WEIGHTS = np.array([0.3, 0.7, 0.0])  # a group of weight 0 is measured beside the lift


def panel_of(generator, carriers=6, level=0.5):
    anchors = AnchorPanel(draw(generator, len(GROUPS)), GROUPS, WEIGHTS)
    before = draw(generator, carriers)
    u = float(np.quantile(before @ anchors.vectors.T, level))
    return anchors.against(before, u)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("level", [0.08, 0.5, 1.0])
def test_the_anchorage_averages_over_the_pairs_that_count_one_by_one(seed, level):
    carriers = panel_of(np.random.default_rng(seed), level=level)
    means, similarities = [], []
    for k in range(6):
        vectors, values, weights = [], [], []
        present = {g for a, g in enumerate(GROUPS) if carriers.below[k, a] and WEIGHTS[g] > 0}
        for a, group in enumerate(GROUPS):
            if carriers.below[k, a] and group in present:
                size = sum(carriers.below[k, b] for b in range(len(GROUPS)) if GROUPS[b] == group)
                weights.append(WEIGHTS[group] / size / sum(WEIGHTS[g] for g in present))
                vectors.append(weights[-1] * carriers.panel.vectors[a].astype(float))
                values.append(weights[-1] * carriers.before[k, a])
        if weights:
            assert sum(weights) == pytest.approx(1)
            means.append(sum(vectors))
            similarities.append(sum(values))
    found = anchorage(carriers)
    assert found.mean == pytest.approx(np.mean(means, axis=0), abs=1e-9)
    assert found.similarity == pytest.approx(np.mean(similarities), abs=1e-9)


def test_a_low_level_leaves_out_groups_and_whole_carriers():
    """Otherwise the test above would prove nothing about them."""
    panels = [panel_of(np.random.default_rng(seed), level=0.08) for seed in range(6)]
    rows = np.concatenate([panel.pair_weights.sum(axis=1) for panel in panels])
    assert set(np.round(rows, 9)) == {0.0, 1.0}


@pytest.mark.parametrize("level", [0.08, 0.4, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_where_the_model_holds_the_predicted_lift_is_the_mean_change_over_the_pairs_below(seed, level):
    """Texts with copies need not have length 1 for that: the response is linear in them."""
    generator = np.random.default_rng([seed, 1])
    carriers = panel_of(generator, level=level)
    tokens = Pull(generator.uniform(-0.2, 1, 9), generator.normal(size=(9, DIMENSION)))
    predicted = predicted_lifts(tokens, anchorage(carriers))
    for row in range(9):
        after = (1 - tokens.contraction[row]) * carriers.vectors + tokens.pull[row]
        lifts = carriers.response(after[None].astype(np.float32)).lifts[0]
        counting = carriers.pair_weights.sum(axis=1) > 0
        assert predicted[row] == pytest.approx(lifts[counting].mean(), abs=1e-5)


def test_without_a_pair_below_there_is_no_lift_to_predict():
    generator = np.random.default_rng(4)
    panel = AnchorPanel(draw(generator, 8), GROUPS, WEIGHTS).against(draw(generator, 3), -2.0)
    found = anchorage(panel)
    assert not found.mean.any()
    assert found.similarity == 0
    assert predicted_lifts(Pull(np.ones(2), np.ones((2, DIMENSION))), found).tolist() == [0, 0]


def test_contraction_lifts_where_unrelated_texts_lie_below_zero_and_lowers_where_they_lie_above():
    flat = Pull(np.array([0.0, 0.5, 1.0]), np.zeros((3, 2)))
    assert predicted_lifts(flat, Anchorage(np.zeros(2), -0.2)) == pytest.approx([0, 0.1, 0.2])
    assert predicted_lifts(flat, Anchorage(np.zeros(2), 0.3)) == pytest.approx([0, -0.15, -0.3])
