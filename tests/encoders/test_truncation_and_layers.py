"""Encoders that read fewer components of the vectors, or the vectors after an earlier layer."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Normalize, WeightedLayerPooling

import tiny_architectures as architectures
from naming import naming
from stickytoken import load_encoder
from stickytoken.encoders import Prompting
from stickytoken.encoders.protocol import reads_ids
from stickytoken.errors import InputError, ModelError
from stickytoken.inspection import inspector_of
from stickytoken.loading import load_from_spec
from stickytoken.unit_vectors import unit_vectors

TEXTS = ["the river sings", "a", "the old bird walks near the window of the market", "the river sings"]


def units(encoder):
    return unit_vectors(encoder.encode(TEXTS))


@pytest.fixture
def saved(backbone, tmp_path):
    model = architectures.stacked(backbone("bert"), dense=24, normalize=True)
    return architectures.saved(model, tmp_path / "model")


# Truncated vectors.


def test_truncated_vectors_are_those_of_sentence_transformers(saved):
    theirs = SentenceTransformer(str(saved), device="cpu", truncate_dim=8)
    expected = theirs.encode(TEXTS, normalize_embeddings=True)
    encoder = load_encoder(saved, device="cpu", truncate_dim=8)
    assert encoder.dimension == encoder.identify().dimension == 8
    assert reads_ids(encoder)
    assert np.allclose(units(encoder), expected, atol=1e-5)
    assert np.allclose(encoder.encode_ids(encoder.content_ids(TEXTS)), encoder.encode(TEXTS), atol=1e-6)


def test_a_loaded_model_keeps_its_own_truncation(backbone):
    model = architectures.stacked(backbone("bert"))
    encoder = load_encoder(model, truncate_dim=8)
    assert (encoder.dimension, model.truncate_dim, load_encoder(model).dimension) == (8, None, 32)
    assert np.allclose(encoder.encode(TEXTS), load_encoder(model).encode(TEXTS)[:, :8], atol=1e-6)


def test_new_weights_of_a_loaded_model_are_followed(backbone):
    model = architectures.stacked(backbone("bert"))
    encoder = load_encoder(model, truncate_dim=8, layer=1)
    before = encoder.encode(TEXTS)
    with torch.no_grad():
        model[0].model.embeddings.word_embeddings.weight *= 1.5
    assert not np.allclose(encoder.encode(TEXTS), before, atol=1e-3)
    assert encoder.identify() == load_encoder(model, truncate_dim=8, layer=1).identify()


def test_all_components_are_the_model_as_it_is(saved):
    encoder = load_encoder(saved, device="cpu", truncate_dim=24, layer=2)
    assert encoder.identify() == load_encoder(saved, device="cpu").identify()
    assert (encoder.spec.truncate_dim, encoder.spec.prompting.layer) == (None, None)


def test_the_identity_of_a_reading_is_its_own(saved):
    options = ({}, {"truncate_dim": 8}, {"truncate_dim": 9}, {"layer": 1}, {"layer": 1, "truncate_dim": 8})
    assert (
        len({load_encoder(saved, device="cpu", **options_of_case).identify() for options_of_case in options})
        == 5
    )


def test_a_reading_is_loaded_again_with_its_dimension_and_layer(saved):
    encoder = load_encoder(saved, device="cpu", truncate_dim=8, layer=1)
    again = load_from_spec(replace(encoder.spec, model=str(saved)))
    assert again.identify() == encoder.identify()
    assert np.array_equal(again.encode(TEXTS), encoder.encode(TEXTS))


def test_a_saved_truncation_is_respected_when_the_model_is_loaded(backbone, tmp_path):
    cut, untruncated = (architectures.stacked(backbone("bert"), truncate_dim=width) for width in (8, None))
    path = architectures.saved(cut, tmp_path / "model")
    encoder = load_encoder(path, device="cpu")
    assert encoder.dimension == encoder.identify().dimension == 8
    assert encoder.identify().modules != load_encoder(untruncated).identify().modules
    assert np.allclose(encoder.encode(TEXTS), load_encoder(untruncated).encode(TEXTS)[:, :8], atol=1e-6)
    assert load_from_spec(replace(encoder.spec, model=str(path))).identify() == encoder.identify()
    with pytest.raises(InputError, match=naming("truncate_dim", 9, 8)):
        load_encoder(path, device="cpu", truncate_dim=9)


def test_what_is_looked_at_inside_is_truncated_and_cut_too(saved):
    encoder = load_encoder(saved, device="cpu", truncate_dim=8, layer=1)
    ids = encoder.content_ids(TEXTS[:1])
    (inside,) = inspector_of(encoder).look(ids, [[0] * len(ids[0])], 1)
    assert np.allclose(inside.vector, encoder.encode(TEXTS[:1])[0], atol=1e-6)
    assert len(inside.hidden) == 2  # the embeddings and one layer


def test_a_function_of_texts_is_truncated():
    encoder = load_encoder(lambda texts: np.ones((len(texts), 6)) * np.arange(1, 7), truncate_dim=2)
    assert (encoder.dimension, encoder.identify().dimension) == (2, 2)
    assert encoder.encode(["a", "b"]).tolist() == [[1, 2], [1, 2]]
    assert encoder.encode([]).shape == (0, 2)


@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        (0, 1),
        (-3, 1),
        (2.5, "whole"),
        ("8", "whole"),
        (True, "whole"),
        (33, 32),
    ],
)
def test_a_truncation_that_is_no_number_of_components_is_refused(value, allowed, model):
    with pytest.raises(InputError, match=naming("truncate_dim", repr(value), allowed)):
        load_encoder(model, truncate_dim=value)


def test_more_components_than_a_function_gives_are_refused():
    with pytest.raises(InputError, match=naming("truncate_dim", 7, 6)):
        load_encoder(lambda texts: np.ones((len(texts), 6)), truncate_dim=7)


# Layers.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "owner", "stack"),
    [
        ("bert", "encoder", "layer"),
        ("modernbert", "", "layers"),
        ("t5", "encoder", "block"),
        ("gemma2", "", "layers"),
    ],
)
def test_the_vectors_after_a_layer_are_those_of_the_model_cut_to_it(name, owner, stack, backbone):
    dense = Dense(32, 24, activation_function=torch.nn.Tanh())

    def stacked():
        model = architectures.stacked(backbone(name))
        model.extend([dense, Normalize()])
        return model

    model = stacked()
    encoder = load_encoder(model, layer=1)
    cut = stacked()
    layers = cut[0].model.get_submodule(owner)
    setattr(layers, stack, getattr(layers, stack)[:1])
    for config in (cut[0].model.config, getattr(layers, "config", cut[0].model.config)):
        config.num_hidden_layers = 1
    assert np.allclose(encoder.encode(TEXTS), load_encoder(cut).encode(TEXTS), atol=1e-5)
    assert not np.allclose(encoder.encode(TEXTS), load_encoder(model).encode(TEXTS), atol=1e-2)
    assert np.allclose(load_encoder(model).encode(TEXTS), load_encoder(stacked()).encode(TEXTS), atol=1e-6)


def test_a_loaded_model_keeps_all_its_layers(backbone):
    model = architectures.stacked(backbone("bert"))
    before = load_encoder(model).identify()
    names = [name for name, _ in model.named_modules()]
    encoder = load_encoder(model, layer=1)
    assert load_encoder(model).identify() == before
    assert [name for name, _ in model.named_modules()] == names
    shared = {weight.data_ptr() for weight in model.parameters()}
    assert all(weight.data_ptr() in shared for weight in encoder.model.parameters())


def test_inputs_that_begin_alike_have_the_vectors_of_their_layer(backbone):
    model = architectures.stacked(backbone("qwen2"), pooling="lasttoken")
    ids = [(5, 6, 7, *(8,) * count) for count in range(1, 9)]
    encoder = load_encoder(model, layer=1)
    alone = np.concatenate([encoder.encode_ids([row]) for row in ids])
    assert np.allclose(encoder.encode_ids(ids), alone, atol=1e-5)


def test_the_layer_may_be_named_in_a_prompting(saved):
    named = load_encoder(saved, device="cpu", prompt=Prompting("the song: ", layer=1))
    assert named.identify() == load_encoder(saved, device="cpu", prompt="the song: ", layer=1).identify()
    with pytest.raises(InputError, match=naming("layer", 2, 1, "Prompting")):
        load_encoder(saved, device="cpu", prompt=Prompting(layer=1), layer=2)


@pytest.mark.parametrize(
    ("value", "allowed"), [(0, "1 to 2"), (-1, "1 to 2"), (3, "1 to 2"), (1.5, "whole"), ("1", "whole")]
)
def test_a_layer_that_the_model_has_not_is_refused(value, allowed, model):
    with pytest.raises(InputError, match=naming("layer", repr(value), allowed)):
        load_encoder(model, layer=value)


def test_a_model_without_layers_is_refused():
    with pytest.raises(ModelError, match=naming("StaticEmbedding")):
        load_encoder(architectures.static_model(), layer=1)


def test_a_model_that_mixes_its_layers_is_refused(backbone):
    model = architectures.stacked(backbone("bert"))
    model.insert(1, WeightedLayerPooling(32, num_hidden_layers=2, layer_start=1))
    with pytest.raises(ModelError, match=naming("WeightedLayerPooling")):
        load_encoder(model, layer=1)


def test_a_model_whose_layers_do_more_than_follow_each_other_is_refused(backbone):
    model = architectures.stacked(backbone("bert"))
    backbone_model = model[0].model
    forward = type(backbone_model.encoder).forward

    def by_depth(encoder, hidden_states, *arguments, **options):
        return forward(encoder, hidden_states * len(encoder.layer), *arguments, **options)

    backbone_model.encoder.forward = by_depth.__get__(backbone_model.encoder)
    with pytest.raises(ModelError, match=naming("BertModel")):
        load_encoder(model, layer=1)


def test_a_function_has_no_layers():
    with pytest.raises(InputError, match=naming("layer")):
        load_encoder(lambda texts: np.ones((len(texts), 6)), layer=1)
