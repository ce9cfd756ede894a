"""With CLS pooling, the last layer works on the first token alone."""

import numpy as np
import pytest
import torch
from sentence_transformers.base.modules import Dense

import tiny
import tiny_architectures as architectures
from stickytoken import load_encoder
from stickytoken.encoders._batch_runner import first_token_only, last_attention

TEXTS = ["the old river sings", "a bird", "stone under a tree near the bridge", "river"]
LIKE_BERT = ("bert", "roberta", "xlm-roberta", "mpnet")


def of(name, folder, pooling="cls"):
    architecture = next(each for each in architectures.ARCHITECTURES if each.name == name)
    return architectures.stacked(architecture.save(folder), pooling=pooling, normalize=True)


def seen_by_the_last_layer(model, encoder):
    """Number of tokens that the last feed-forward part gets for a text."""
    seen = []
    handle = (
        model[0]
        .model.encoder.layer[-1]
        .intermediate.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[1]))
    )
    encoder.encode(TEXTS)
    handle.remove()
    return set(seen)


@pytest.mark.parametrize("name", LIKE_BERT)
def test_vectors_stay_and_one_token_reaches_the_last_feed_forward_part(name, tmp_path):
    model = of(name, tmp_path)
    encoder = load_encoder(model)
    expected = model.encode(TEXTS)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=2e-6)
    # A hook on the model turns packed layers of that module off, and nothing else.
    assert seen_by_the_last_layer(model, encoder) == {1}
    np.testing.assert_allclose(model.encode(TEXTS), expected, atol=0)
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("pooling", ["mean", "max", "lasttoken", "weightedmean"])
def test_other_poolings_read_every_token(pooling, tmp_path):
    model = of("bert", tmp_path, pooling)
    assert last_attention(model) is None
    assert 1 not in seen_by_the_last_layer(model, load_encoder(model))


@pytest.mark.parametrize("name", ["distilbert", "modernbert", "t5"])
def test_layers_that_are_built_in_another_way_are_left_alone(name, tmp_path):
    model = of(name, tmp_path)
    assert last_attention(model) is None
    np.testing.assert_allclose(load_encoder(model).encode(TEXTS), model.encode(TEXTS), atol=2e-6)


def test_a_last_layer_that_mixes_tokens_after_its_attention_is_noticed(tmp_path):
    """As a user's own change of the model may."""
    model = of("bert", tmp_path)

    class Mixing(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, states):
            return self.inner(states + states.mean(dim=1, keepdim=True))

    layer = model[0].model.encoder.layer[-1]
    layer.intermediate = Mixing(layer.intermediate)
    encoder = load_encoder(model)
    assert last_attention(model) is not None
    unpadded = model.encode(TEXTS, batch_size=1)
    np.testing.assert_allclose(encoder.encode(TEXTS), unpadded, atol=2e-6)
    assert 1 not in seen_by_the_last_layer(model, encoder)


def test_a_change_of_the_weights_or_of_the_pooling_is_followed(tmp_path):
    model = of("bert", tmp_path)
    encoder = load_encoder(model)
    encoder.encode(TEXTS)
    with torch.no_grad():
        model[0].model.encoder.layer[-1].output.dense.weight.mul_(2)
    np.testing.assert_allclose(encoder.encode(TEXTS), model.encode(TEXTS), atol=2e-6)


def test_modules_behind_the_pooling_get_the_same_vector(tmp_path):
    model = tiny.sentence_transformer(tiny.bert_backbone(tmp_path))
    model[1].pooling_mode = "cls"
    torch.manual_seed(0)
    model.append(Dense(model.get_embedding_dimension(), 8))
    np.testing.assert_allclose(load_encoder(model).encode(TEXTS), model.encode(TEXTS), atol=2e-6)


def test_a_replaced_forward_is_left_alone(tmp_path):
    attention = last_attention(of("bert", tmp_path))
    own = attention.forward
    attention.forward = own
    with first_token_only(attention):
        assert vars(attention)["forward"] is own
    assert vars(attention)["forward"] is own
