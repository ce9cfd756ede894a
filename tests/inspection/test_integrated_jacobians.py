"""Integrated Jacobians against captum and the vectors themselves, and their rule of integration."""

import numpy as np
import pytest
import torch
from captum.attr import LayerIntegratedGradients
from hypothesis import given
from hypothesis import strategies as st

import tiny_architectures as architectures
from stickytoken.encoders import load_encoder
from stickytoken.inspection import inspector_of
from stickytoken.inspection.integrated_jacobians import JacobianIntegrator, rule_along, whole_rule
from stickytoken.inspection.module_embedding import backbone_of


def captum_attributions(encoder, ids, direction):
    """What the content tokens add to the product of a text's vector with a direction."""
    model, features = encoder.model, encoder.features([tuple(ids)])
    content = slice(1, 1 + len(ids))

    def score(input_ids):
        repeated = {
            key: value.expand(len(input_ids), -1) if torch.is_tensor(value) else value
            for key, value in features.items()
        }
        return model({**repeated, "input_ids": input_ids})["sentence_embedding"] @ torch.tensor(direction)

    baseline = features["input_ids"].clone()
    baseline[:, content] = model.tokenizer.pad_token_id
    gradients = LayerIntegratedGradients(score, backbone_of(model.eval()).get_input_embeddings())
    attributed = gradients.attribute(features["input_ids"], baselines=baseline, n_steps=100)
    return attributed.sum(dim=-1)[0, content].detach().numpy()


STEPS = 24
TEXT = "the river sings near the bridge"


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    return architectures.bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def encoder(backbone):
    return load_encoder(architectures.stacked(backbone, normalize=True))


def contributions(encoder, ids, labels=None, steps=STEPS, **options):
    labels = range(len(ids)) if labels is None else labels
    return JacobianIntegrator(inspector_of(encoder), **options).contributions(ids, labels, steps)


def test_the_sum_of_the_parts_is_the_vector_and_one_direction_is_what_captum_attributes(encoder):
    ids, direction = encoder.tokenize([TEXT])[0].ids, encoder.encode(["a bird walks"])[0]
    found = contributions(encoder, ids)
    assert found.error < 1e-5
    np.testing.assert_allclose(found.vector, encoder.encode([TEXT])[0], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm([found.vector, found.reference], axis=1), 1, atol=1e-9)
    expected = captum_attributions(encoder, ids, direction)
    np.testing.assert_allclose(found.parts @ direction, expected, atol=1e-4)
    parts = contributions(encoder, ids, [k % 2 for k in range(len(ids))]).parts
    np.testing.assert_allclose(
        parts, [found.parts[::2].sum(axis=0), found.parts[1::2].sum(axis=0)], atol=1e-5
    )


@pytest.mark.parametrize("save", [architectures.t5, architectures.modernbert, architectures.gemma2])
def test_a_model_is_attributed_and_left_as_it_was(save, tmp_path):
    model = architectures.stacked(save(tmp_path), dense=12, normalize=True)
    encoder = load_encoder(model)
    ids = encoder.tokenize(["the river sings"])[0].ids
    before = backbone_of(model).config._attn_implementation
    found = contributions(encoder, ids, steps=64)
    assert backbone_of(model).config._attn_implementation == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    np.testing.assert_allclose(found.vector, encoder.encode_ids([ids])[0], atol=1e-5)
    assert found.error < 0.02
    assert np.linalg.norm(found.parts, axis=1).max() > 0.01


def test_a_static_model_is_attributed_exactly():
    encoder = load_encoder(architectures.static_model())
    ids = encoder.tokenize([TEXT])[0].ids
    found = contributions(encoder, ids, steps=1)
    rows = encoder.model[0].embedding.weight.detach().numpy()[list(ids)]
    np.testing.assert_allclose(found.parts, rows / np.linalg.norm(rows.sum(axis=0)), atol=1e-6)
    assert not found.reference.any()


@pytest.mark.parametrize("one_part_a_token", [False, True])
def test_a_text_that_turns_sharply_gets_more_steps(backbone, one_part_a_token):
    encoder = load_encoder(architectures.stacked(backbone, normalize=True))
    rows = backbone_of(encoder.model).get_input_embeddings().weight
    ids = encoder.tokenize([TEXT])[0].ids
    with torch.no_grad():
        rows[ids[-1]] *= 20
    ids = (*ids, *ids[-1:] * 6)
    labels = list(range(len(ids))) if one_part_a_token else [0] * len(ids)
    found, fixed = (contributions(encoder, ids, labels, 6, **options) for options in ({}, {"most": 1}))
    assert fixed.error > 0.01 > found.error


@given(st.lists(st.floats(0, 5), min_size=1, max_size=60), st.integers(1, 50), st.integers(0, 7))
def test_points_are_in_order_and_polynomials_are_integrated_exactly(legs, points, degree):
    travelled = np.concatenate([[0.0], np.cumsum(legs)])
    for (places, weights), exact in (
        (rule_along(travelled, points), 8 if points >= 4 else 2 * points),
        (whole_rule(points), 2 * points),
    ):
        assert places.shape == weights.shape == (points,)
        assert (np.diff(places) > 0).all()
        assert 0 < places[0] <= places[-1] < 1
        if degree < exact:
            assert weights @ places**degree == pytest.approx(1 / (degree + 1), abs=1e-9)


@pytest.mark.parametrize("turn", [0.31, 0.62])
def test_a_sharp_turn_is_met(turn):
    value = np.tanh((np.linspace(0, 1, 81) - turn) / 0.01)
    travelled = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(value)))])
    exact = value[-1] - value[0]
    error, plain = (
        abs(weights @ (1 / np.cosh((places - turn) / 0.01) ** 2 / 0.01) - exact)
        for places, weights in (rule_along(travelled, 40), whole_rule(40))
    )
    assert error < 0.05 * exact
    assert error < plain / 2
