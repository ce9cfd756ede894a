"""With CLS pooling, the last layer works on the first token alone."""

import numpy as np
import pytest
import torch
from sentence_transformers.base.modules import Dense

import tiny_architectures as architectures
from stickytoken import load_encoder

TEXTS = ["the old river sings", "a bird", "stone under a tree near the bridge", "river"]


def seen_by_the_last_layer(model, encoder):
    """Number of tokens that the last feed-forward part gets for a text."""
    seen = set()
    part = model[0].model.encoder.layer[-1].intermediate
    handle = part.register_forward_pre_hook(lambda _, given: seen.add(given[0].shape[1]))
    encoder.encode(TEXTS)
    handle.remove()
    return seen


@pytest.mark.parametrize("name", ["bert", "mpnet"])
def test_vectors_stay_and_one_token_reaches_the_last_feed_forward_part(name, backbone):
    model = architectures.stacked(backbone(name), pooling="cls", normalize=True)
    torch.manual_seed(0)
    model.append(Dense(model.get_embedding_dimension(), 8))
    encoder, expected = load_encoder(model), model.encode(TEXTS)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=2e-6)
    # A hook on the model turns packed layers of that module off, and nothing else.
    assert seen_by_the_last_layer(model, encoder) == {1}
    np.testing.assert_allclose(model.encode(TEXTS), expected, atol=0)
    assert not any("forward" in vars(each) for each in model.modules())
    with torch.no_grad():
        model[0].model.encoder.layer[-1].output.dense.weight.mul_(2)
    np.testing.assert_allclose(encoder.encode(TEXTS), model.encode(TEXTS), atol=2e-6)


def test_a_last_layer_that_mixes_tokens_after_its_attention_is_noticed(backbone):
    """As a user's own change of the model may."""
    model = architectures.stacked(backbone("bert"), pooling="cls")

    class Mixing(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, states):
            return self.inner(states + states.mean(dim=1, keepdim=True))

    layer = model[0].model.encoder.layer[-1]
    layer.intermediate = Mixing(layer.intermediate)
    encoder = load_encoder(model)
    np.testing.assert_allclose(encoder.encode(TEXTS), model.encode(TEXTS, batch_size=1), atol=2e-6)
    assert 1 not in seen_by_the_last_layer(model, encoder)


def test_a_forward_that_the_user_replaced_is_left_alone(backbone):
    model = architectures.stacked(backbone("bert"), pooling="cls")
    attention = model[0].model.encoder.layer[-1].attention
    own = attention.forward = attention.forward
    encoder = load_encoder(model)
    assert 1 not in seen_by_the_last_layer(model, encoder)
    assert vars(attention)["forward"] is own
