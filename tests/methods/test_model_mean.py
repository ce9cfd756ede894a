"""u of a model: computed once, and not looked up when the model is another."""

import numpy as np
import pytest
import torch

import tiny_architectures as architectures
from stickytoken.encoders import load_encoder, mean_similarity
from stickytoken.machine import cache_folder
from stickytoken.methods.base import model_mean
from stickytoken.unit_vectors import unit_vectors

SAMPLE = 40


def counted(encoder, *sample):
    """u of a model, and how many entries were encoded for it."""
    events = []
    found = model_mean(encoder, events.append, *sample)
    return found, events[-1].sequences


@pytest.fixture
def library(tmp_path, monkeypatch):
    monkeypatch.setenv("STICKYTOKEN_CACHE", str(tmp_path / "cache"))
    return architectures.stacked(architectures.bert(tmp_path / "bert"))


def test_a_known_model_is_not_computed_again_not_even_by_another_encoder(library):
    found, encoded = counted(load_encoder(library))
    assert found == mean_similarity(load_encoder(library))
    assert encoded == found.entries
    assert counted(load_encoder(library)) == (found, 0)


def test_a_changed_model_and_a_sample_have_values_of_their_own(library):
    encoder = load_encoder(library)
    found, _ = counted(encoder)
    assert counted(encoder, SAMPLE)[0].entries == SAMPLE
    with torch.no_grad():
        library[0].model.get_input_embeddings().weight[50:].mul_(3)
    changed, encoded = counted(encoder)
    assert changed.value != found.value
    assert encoded > 0


@pytest.mark.parametrize("content", ["", "[]", '{"value": 1}', '{"value": 1, "color": 2}'])
def test_a_damaged_file_is_computed_again(library, content):
    encoder = load_encoder(library)
    found, _ = counted(encoder)
    (path,) = cache_folder().iterdir()
    path.write_text(content, encoding="utf-8")
    assert counted(encoder) == (found, found.entries)
    assert counted(encoder) == (found, 0)


def test_a_sample_estimates_the_mean_and_knows_its_error(library):
    encoder = load_encoder(library)
    whole = mean_similarity(encoder)
    vectors = unit_vectors(encoder.encode(list(encoder.tokenizer.entries.values()))).astype(np.float64)
    generator, size = np.random.default_rng(0), 60
    means = np.stack([generator.permutation(vectors)[:size].mean(axis=0) for _ in range(2000)])
    of_two = (size * (means**2).sum(axis=1) - 1) / (size - 1)
    estimates = of_two + (1 - of_two) / len(vectors)
    found = mean_similarity(encoder, most=size)
    assert np.mean(estimates) == pytest.approx(whole.value, abs=4 * np.std(estimates) / np.sqrt(2000))
    assert found.error == pytest.approx(np.std(estimates), rel=0.5)
    assert abs(found.value - whole.value) < 4 * found.error
    assert mean_similarity(encoder, most=10**6) == whole
