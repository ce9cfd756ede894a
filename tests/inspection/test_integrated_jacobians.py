"""Integrated Jacobians against finite differences, captum and the similarity itself."""

import numpy as np
import pytest
import torch

import tiny
import tiny_architectures as architectures
from captum_oracle import captum_attributions
from stickytoken.encoders import load_encoder
from stickytoken.inspection import inspector_of
from stickytoken.inspection.integrated_jacobians import JacobianIntegrator
from stickytoken.inspection.module_embedding import backbone_of

STEPS = 24
TEXT = "the river sings near the bridge"


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    """A tiny BERT with a row for its padding."""
    return architectures.bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def encoder(backbone):
    """Mean pooling and normalisation behind it."""
    return load_encoder(architectures.stacked(backbone, normalize=True))


@pytest.fixture(scope="module")
def found(encoder):
    """A text's contributions, one part a token."""
    ids = encoder.tokenize([TEXT])[0].ids
    return JacobianIntegrator(inspector_of(encoder)).contributions(ids, range(len(ids)), STEPS)


def vectors_along(encoder, ids, row_of):
    """The model's unit vector, with rows of the text's content replaced."""
    model, features = encoder.model, encoder.features([tuple(ids)])
    embeddings = backbone_of(model).get_input_embeddings()
    handle = embeddings.register_forward_hook(lambda _, __, rows: row_of(rows))
    try:
        with torch.no_grad():
            return model.eval()(features)["sentence_embedding"][0].double().numpy()
    finally:
        handle.remove()


def test_the_sum_of_the_parts_is_the_vector(encoder, found):
    assert found.error < 1e-5
    np.testing.assert_allclose(found.vector, encoder.encode([TEXT])[0], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm([found.vector, found.reference], axis=1), 1, atol=1e-9)


@pytest.mark.slow
def test_contributions_are_integrals_of_finite_differences(encoder, found):
    ids = encoder.tokenize([TEXT])[0].ids
    model = encoder.model.double()
    try:
        padding = backbone_of(model).get_input_embeddings().weight[model.tokenizer.pad_token_id].detach()
        points, width, step = 60, len(ids), 1e-5
        for token in (0, width - 1):
            total = 0
            for place in (np.arange(points) + 0.5) / points:

                def moved(rows, place=place, token=token, step=step):
                    reference = rows.clone()
                    reference[:, 1 : 1 + width] = padding
                    along = reference + place * (rows - reference)
                    along[:, 1 + token] += step * (rows - reference)[:, 1 + token]
                    return along

                high = vectors_along(encoder, ids, moved)
                low = vectors_along(encoder, ids, lambda rows, moved=moved: moved(rows, step=-step))
                total = total + (high - low) / (2 * step) / points
            np.testing.assert_allclose(found.parts[token], total, atol=2e-4)
    finally:
        encoder.model.float()


def test_parts_are_sums_of_their_tokens(encoder, found):
    ids = encoder.tokenize([TEXT])[0].ids
    labels = [k % 2 for k in range(len(ids))]
    parts = JacobianIntegrator(inspector_of(encoder)).contributions(ids, labels, STEPS)
    for part in (0, 1):
        expected = found.parts[[k for k in range(len(ids)) if labels[k] == part]].sum(axis=0)
        np.testing.assert_allclose(parts.parts[part], expected, atol=1e-5)


def test_one_direction_of_the_vector_is_what_captum_attributes(encoder, found):
    ids = encoder.tokenize([TEXT])[0].ids
    direction = encoder.encode(["a bird walks"])[0]
    expected = captum_attributions(encoder, ids, direction)
    np.testing.assert_allclose(found.parts @ direction, expected, atol=1e-4)


@pytest.mark.parametrize("architecture", architectures.ARCHITECTURES, ids=lambda each: each.name)
def test_every_architecture_is_attributed_and_left_as_it_was(architecture, tmp_path):
    model = architectures.stacked(
        architecture.save(tmp_path), pooling=architecture.poolings[-1], dense=12, normalize=True
    )
    encoder = load_encoder(model)
    ids = encoder.tokenize(["the river sings"])[0].ids
    before = backbone_of(model).config._attn_implementation
    found = JacobianIntegrator(inspector_of(encoder)).contributions(ids, range(len(ids)), 64)
    assert backbone_of(model).config._attn_implementation == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    np.testing.assert_allclose(found.vector, encoder.encode_ids([ids])[0], atol=1e-5)
    assert found.error < 0.02
    assert np.linalg.norm(found.parts, axis=1).max() > 0.01


def test_a_static_model_is_attributed_exactly():
    encoder = load_encoder(architectures.static_model())
    ids = encoder.tokenize([TEXT])[0].ids
    found = JacobianIntegrator(inspector_of(encoder)).contributions(ids, range(len(ids)), 1)
    rows = encoder.model[0].embedding.weight.detach().numpy()[list(ids)]
    np.testing.assert_allclose(found.parts, rows / np.linalg.norm(rows.sum(axis=0)), atol=1e-6)
    assert not found.reference.any()


def test_more_steps_miss_less(encoder):
    ids = encoder.tokenize([tiny.sentences(1)[0]])[0].ids
    integrator = JacobianIntegrator(inspector_of(encoder), most=1)
    errors = [integrator.contributions(ids, [0] * len(ids), steps).error for steps in (1, 4, 16)]
    assert errors[0] > errors[1] > errors[2]


@pytest.mark.parametrize("one_part_a_token", [False, True])
def test_a_text_that_turns_sharply_gets_more_steps(backbone, one_part_a_token):
    encoder = load_encoder(architectures.stacked(backbone, normalize=True))
    rows = backbone_of(encoder.model).get_input_embeddings().weight
    ids = encoder.tokenize([TEXT])[0].ids
    with torch.no_grad():
        rows[ids[-1]] *= 20
    ids = (*ids, *ids[-1:] * 6)
    labels = list(range(len(ids))) if one_part_a_token else [0] * len(ids)
    inspector = inspector_of(encoder)
    found = JacobianIntegrator(inspector).contributions(ids, labels, 6)
    fixed = JacobianIntegrator(inspector, most=1).contributions(ids, labels, 6)
    assert fixed.error > 0.01 > found.error
