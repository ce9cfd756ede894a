"""Shorter ways to the same vectors: the last layer on the first token alone, and OpenVINO."""

import logging

import numpy as np
import pytest
import torch
from sentence_transformers.base.modules import Dense

import tiny
import tiny_architectures as architectures
from stickytoken import load_encoder
from stickytoken.encoders import sentence_transformer as module
from stickytoken.encoders.compute.batches import first_token_only, last_attention
from stickytoken.encoders.compute.workers import CompiledBackbone, compilable, measured
from stickytoken.machine import cache_folder, keep
from torch_threads import torch_threads

TEXTS = ["the old river sings", "a bird", "stone under a tree near the bridge", "river"]
MANY = [f"the {word} sings {'near the bridge ' * (place % 5)}" for place, word in enumerate(tiny.WORDS)]


# --- with CLS pooling, the last layer works on the first token alone


def seen_by_the_last_layer(model, encoder):
    """Number of tokens that the last feed-forward part gets for a text."""
    seen = set()
    part = model[0].model.encoder.layer[-1].intermediate
    handle = part.register_forward_pre_hook(lambda _, given: seen.add(given[0].shape[1]))
    encoder.encode(TEXTS)
    handle.remove()
    return seen


@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta", "mpnet"])
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


@pytest.mark.parametrize(
    ("name", "pooling"),
    [
        *(("bert", pooling) for pooling in ("mean", "max", "lasttoken", "weightedmean")),
        *((name, "cls") for name in ("distilbert", "modernbert", "t5")),
    ],
)
def test_other_poolings_and_other_layers_are_left_alone(name, pooling, backbone):
    model = architectures.stacked(backbone(name), pooling=pooling)
    encoder = load_encoder(model)
    assert last_attention(model) is None
    np.testing.assert_allclose(encoder.encode(TEXTS), model.encode(TEXTS), atol=4e-6)
    assert name != "bert" or 1 not in seen_by_the_last_layer(model, encoder)


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
    assert last_attention(model) is not None
    np.testing.assert_allclose(encoder.encode(TEXTS), model.encode(TEXTS, batch_size=1), atol=2e-6)
    assert 1 not in seen_by_the_last_layer(model, encoder)


def test_a_replaced_forward_is_left_alone(backbone):
    attention = last_attention(architectures.stacked(backbone("bert"), pooling="cls"))
    own = attention.forward = attention.forward
    with first_token_only(attention):
        assert vars(attention)["forward"] is own
    assert vars(attention)["forward"] is own


# --- backbones compiled by OpenVINO


@pytest.fixture
def openvino(monkeypatch, tmp_path):
    """Use it whatever its speed, and count the batches that it computes."""
    monkeypatch.setenv("STICKYTOKEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STICKYTOKEN_PACKED_LAYERS")
    monkeypatch.setattr(module, "_ENOUGH_TEXTS", len(MANY))
    monkeypatch.setattr(module, "measured", lambda *_: {"openvino": 1.0, "own": 2.0})
    calls = []
    own = CompiledBackbone._forward
    monkeypatch.setattr(
        CompiledBackbone, "_forward", lambda self, **given: calls.append(1) or own(self, **given)
    )
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("name", ["distilbert", "mpnet", "xlm-roberta", "modernbert", "t5"])
def test_compiled_vectors_are_those_of_the_model(name, backbone, openvino):
    model = architectures.stacked(backbone(name), normalize=True)
    encoder = load_encoder(model)
    for threads in (1, 2):
        with torch_threads(threads):
            found = encoder.encode(MANY)
        np.testing.assert_allclose(found, model.encode(MANY), atol=4e-6)
    assert openvino
    assert "forward" not in vars(model[0].model)


def test_it_is_for_calls_of_many_texts_and_not_against_the_users_word(model, openvino, monkeypatch):
    load_encoder(model).encode(MANY[:-1])
    for packed in (True, False):
        load_encoder(model, packed_layers=packed).encode(MANY)
    monkeypatch.setenv("STICKYTOKEN_PACKED_LAYERS", "1")
    load_encoder(model).encode(MANY)
    monkeypatch.delenv("STICKYTOKEN_PACKED_LAYERS")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert compilable(model) is None
    load_encoder(model).encode(MANY)
    assert not openvino


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_changed_weights_are_not_those_that_were_compiled(pooling, backbone, openvino):
    model = architectures.stacked(backbone("bert"), pooling=pooling)
    encoder = load_encoder(model)
    encoder.encode(MANY)
    assert openvino
    openvino.clear()
    model[0].model.encoder.layer[0].output.dense.weight.data.mul_(2)
    np.testing.assert_allclose(encoder.encode(MANY), model.encode(MANY), atol=4e-6)
    assert not openvino


def test_causal_models_keep_their_reuse_of_common_beginnings(backbone, openvino):
    model = architectures.stacked(backbone("mistral"), pooling="lasttoken")
    assert compilable(model) is None
    np.testing.assert_allclose(load_encoder(model).encode(MANY), model.encode(MANY), atol=1e-5)
    assert not openvino


def test_where_it_was_slower_it_is_not_compiled_again(model, openvino, monkeypatch, caplog):
    with monkeypatch.context() as slower, caplog.at_level(logging.INFO, "stickytoken"):
        slower.setattr(module, "measured", lambda *_: {"openvino": 2.0, "own": 1.0})
        load_encoder(model).encode(MANY)
    assert "OpenVINO is not faster, measured on this machine (2.000 s, own layers 1.000 s)" in caplog.text
    monkeypatch.setattr(module, "measured", measured)
    load_encoder(model).encode(MANY)
    (path,) = cache_folder().glob("openvino-*.json")
    keep(path.stem, {"openvino": 2.0, "own": 1.0})
    monkeypatch.setattr(module, "CompiledBackbone", None)  # would fail
    load_encoder(model).encode(MANY)


def test_a_backbone_that_cannot_be_converted_is_computed_as_before(model, openvino, monkeypatch, caplog):
    def failing(*_):
        raise RuntimeError("no such operation")

    monkeypatch.setattr(module, "CompiledBackbone", failing)
    with caplog.at_level(logging.INFO, "stickytoken"):
        np.testing.assert_allclose(load_encoder(model).encode(MANY), model.encode(MANY), atol=4e-6)
    assert "OpenVINO does not compile it: no such operation" in caplog.text


def test_compiled_vectors_that_differ_are_refused(model, openvino, monkeypatch):
    own = CompiledBackbone._forward

    def wrong(self, **given):
        found = own(self, **given)
        found.last_hidden_state *= 1 + 1e-3 * torch.arange(found.last_hidden_state.shape[-1])
        return found

    monkeypatch.setattr(CompiledBackbone, "_forward", wrong)
    np.testing.assert_allclose(load_encoder(model).encode(MANY), model.encode(MANY), atol=4e-6)
