"""Backbones compiled by OpenVINO, against the models themselves."""

import logging

import numpy as np
import pytest
import torch

import tiny
import tiny_architectures as architectures
from stickytoken import load_encoder
from stickytoken.encoders import sentence_transformer as module
from stickytoken.encoders.cpu.openvino_backbone import CompiledBackbone, compilable
from stickytoken.machine import cache_folder, keep
from torch_threads import torch_threads

ENCODERS = ("bert", "distilbert", "mpnet", "roberta", "xlm-roberta", "modernbert", "t5", "byt5")
TEXTS = [f"the {word} sings {'near the bridge ' * (place % 5)}" for place, word in enumerate(tiny.WORDS)]


@pytest.fixture(autouse=True)
def used_whatever_its_speed(monkeypatch, tmp_path):
    monkeypatch.setenv("STICKYTOKEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STICKYTOKEN_PACKED_LAYERS")
    monkeypatch.setattr(module, "_ENOUGH_TEXTS", len(TEXTS))
    monkeypatch.setattr(module, "measured", lambda *_: {"openvino": 1.0, "own": 2.0})


def model_of(name, folder, **options):
    architecture = next(each for each in architectures.ARCHITECTURES if each.name == name)
    return architectures.stacked(architecture.save(folder), **options)


@pytest.fixture
def calls(monkeypatch):
    """Batches that OpenVINO computed."""
    found = []
    own = CompiledBackbone._forward
    monkeypatch.setattr(
        CompiledBackbone, "_forward", lambda self, **given: found.append(1) or own(self, **given)
    )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_compiled_vectors_are_those_of_the_model(name, tmp_path, calls):
    model = model_of(name, tmp_path, normalize=True)
    encoder = load_encoder(model)
    for threads in (1, 2):
        with torch_threads(threads):
            found = encoder.encode(TEXTS)
        np.testing.assert_allclose(found, model.encode(TEXTS), atol=4e-6)
    assert calls
    assert "forward" not in vars(model[0].model)


def test_it_is_for_calls_of_many_texts_and_not_against_the_users_word(tmp_path, calls, monkeypatch):
    model = model_of("bert", tmp_path)
    load_encoder(model).encode(TEXTS[:-1])
    for packed in (True, False):
        load_encoder(model, packed_layers=packed).encode(TEXTS)
    monkeypatch.setenv("STICKYTOKEN_PACKED_LAYERS", "1")
    load_encoder(model).encode(TEXTS)
    assert not calls


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_changed_weights_are_not_those_that_were_compiled(pooling, tmp_path, calls):
    model = model_of("bert", tmp_path, pooling=pooling)
    encoder = load_encoder(model)
    encoder.encode(TEXTS)
    assert calls
    calls.clear()
    model[0].model.encoder.layer[0].output.dense.weight.data.mul_(2)
    found = encoder.encode(TEXTS)
    np.testing.assert_allclose(found, model.encode(TEXTS), atol=4e-6)
    assert not calls


@pytest.mark.parametrize("name", ["qwen2", "mistral", "gemma2"])
def test_causal_models_keep_their_reuse_of_common_beginnings(name, tmp_path, calls):
    model = model_of(name, tmp_path, pooling="lasttoken")
    assert compilable(model) is None
    np.testing.assert_allclose(load_encoder(model).encode(TEXTS), model.encode(TEXTS), atol=1e-5)
    assert not calls


def test_without_the_package_nothing_changes(tmp_path, monkeypatch, calls):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    model = model_of("bert", tmp_path)
    assert compilable(model) is None
    load_encoder(model).encode(TEXTS)
    assert not calls


def test_where_it_was_slower_it_is_not_compiled_again(tmp_path, monkeypatch, caplog, calls):
    model = model_of("bert", tmp_path)
    monkeypatch.setattr(module, "measured", lambda *_: {"openvino": 2.0, "own": 1.0})
    with caplog.at_level(logging.INFO, "stickytoken"):
        load_encoder(model).encode(TEXTS)
    assert "OpenVINO is not faster, measured on this machine (2.000 s, own layers 1.000 s)" in caplog.text
    monkeypatch.undo()
    monkeypatch.setenv("STICKYTOKEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STICKYTOKEN_PACKED_LAYERS")
    monkeypatch.setattr(module, "_ENOUGH_TEXTS", len(TEXTS))
    load_encoder(model).encode(TEXTS)
    (path,) = cache_folder().glob("openvino-*.json")
    keep(path.stem, {"openvino": 2.0, "own": 1.0})
    monkeypatch.setattr(module, "CompiledBackbone", None)  # would fail
    load_encoder(model).encode(TEXTS)


def test_a_backbone_that_cannot_be_converted_is_computed_as_before(tmp_path, caplog, monkeypatch):
    model = model_of("bert", tmp_path)

    def failing(*_):
        raise RuntimeError("no such operation")

    monkeypatch.setattr(module, "CompiledBackbone", failing)
    with caplog.at_level(logging.INFO, "stickytoken"):
        np.testing.assert_allclose(load_encoder(model).encode(TEXTS), model.encode(TEXTS), atol=4e-6)
    assert "OpenVINO does not compile it: no such operation" in caplog.text


def test_vectors_that_differ_are_refused(tmp_path, monkeypatch, calls):
    model = model_of("bert", tmp_path)
    own = CompiledBackbone._forward

    def wrong(self, **given):
        found = own(self, **given)
        found.last_hidden_state *= 1 + 1e-3 * torch.arange(found.last_hidden_state.shape[-1])
        return found

    monkeypatch.setattr(CompiledBackbone, "_forward", wrong)
    np.testing.assert_allclose(load_encoder(model).encode(TEXTS), model.encode(TEXTS), atol=4e-6)
