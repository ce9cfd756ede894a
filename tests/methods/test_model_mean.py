"""u of a model: computed once, and not looked up when the model is another."""

import numpy as np
import pytest
import torch

import tiny_architectures as architectures
from stickytoken.encoders import load_encoder, mean_similarity
from stickytoken.machine import cache_folder
from stickytoken.methods.job import model_mean

SAMPLE = 40


class Counted:
    """Counts the entries that were encoded."""

    def __init__(self):
        self.encoded = 0

    def __call__(self, progress):
        self.encoded = progress.sequences


@pytest.fixture
def library(tmp_path, monkeypatch):
    monkeypatch.setenv("STICKYTOKEN_CACHE", str(tmp_path / "cache"))
    return architectures.stacked(architectures.bert(tmp_path / "bert"))


def test_a_known_model_is_not_computed_again_not_even_by_another_encoder(library):
    first, second = Counted(), Counted()
    found = model_mean(load_encoder(library), first)
    assert found == mean_similarity(load_encoder(library))
    assert model_mean(load_encoder(library), second) == found
    assert first.encoded == found.entries
    assert second.encoded == 0


def test_a_changed_model_and_a_sample_have_values_of_their_own(library):
    encoder = load_encoder(library)
    found = model_mean(encoder, Counted())
    sampled = model_mean(encoder, Counted(), SAMPLE)
    assert sampled.entries == SAMPLE
    with torch.no_grad():
        library[0].model.get_input_embeddings().weight[50:].mul_(3)
    changed = Counted()
    assert model_mean(encoder, changed).value != found.value
    assert changed.encoded > 0


@pytest.mark.parametrize("content", ["", "{", "[]", '{"value": 1}', '{"value": 1, "color": 2}'])
def test_a_damaged_file_is_computed_again(library, content):
    encoder = load_encoder(library)
    found = model_mean(encoder, Counted())
    (path,) = cache_folder().iterdir()
    path.write_text(content, encoding="utf-8")
    assert model_mean(encoder, Counted()) == found
    assert model_mean(encoder, again := Counted()) == found
    assert again.encoded == 0


def test_a_cache_that_cannot_be_written_is_no_error(library, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("here", encoding="utf-8")
    monkeypatch.setenv("STICKYTOKEN_CACHE", str(tmp_path / "file"))
    assert model_mean(load_encoder(library), Counted()).entries > 0


def test_an_object_that_encodes_texts_is_never_looked_up(library):
    class Own:
        tokenizer = library.tokenizer
        max_seq_length = 64

        def encode(self, texts):
            return library.encode(texts)

    encoder = load_encoder(Own())
    model_mean(encoder, Counted())
    assert not cache_folder().exists()


def test_a_sample_estimates_the_mean_and_knows_its_error(library):
    encoder = load_encoder(library)
    whole = mean_similarity(encoder)
    strings = list(encoder.tokenizer.entries.values())
    vectors = encoder.encode(strings).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    generator, size = np.random.default_rng(0), 60
    estimates = []
    for _ in range(2000):
        mean = vectors[generator.permutation(len(strings))[:size]].mean(axis=0)
        of_two = (size * mean @ mean - 1) / (size - 1)
        estimates.append(of_two + (1 - of_two) / len(strings))
    found = mean_similarity(encoder, most=size)
    assert np.mean(estimates) == pytest.approx(whole.value, abs=4 * np.std(estimates) / np.sqrt(2000))
    assert found.error == pytest.approx(np.std(estimates), rel=0.5)
    assert abs(found.value - whole.value) < 4 * found.error
    assert mean_similarity(encoder, most=size) == found
    assert mean_similarity(encoder, most=10**6) == whole
