"""u, the mean cosine over the vocabulary, and the IsoScore, against slow ways."""

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, strategies as st
from sklearn.metrics.pairwise import cosine_similarity

import profiled
import tiny_architectures as architectures
from stickytoken.encoders import load_encoder
from stickytoken.encoders.mean_similarity import isoscore, mean_similarity
from stickytoken.errors import EncodingError
from stickytoken.machine import cache_folder
from stickytoken.methods.base import model_mean
from stickytoken.unit_vectors import unit_vectors


def slow_mean(encoder, strings):
    return pytest.approx(cosine_similarity(encoder.encode(strings).astype(np.float64)).mean(), abs=1e-6)


@pytest.mark.parametrize(("prompt", "chunk"), [("", 7), ("the song: ", 4096)])
def test_u_equals_the_mean_over_all_pairs_and_every_chunk_is_reported(model, prompt, chunk):
    encoder = load_encoder(model, prompt=prompt)
    strings = list(encoder.tokenizer.entries.values())
    calls = []
    size = len(strings)
    result = mean_similarity(encoder, lambda *done: calls.append(done), chunk=chunk)
    assert (result.entries, result.left_out, result.error) == (size, 0, 0)
    assert result.value == slow_mean(encoder, strings)
    assert 0.05 < result.value < 0.99
    assert calls == [(0, size), *((min(done, size), size) for done in range(chunk, size + chunk, chunk))]


def test_entries_that_are_too_long_or_nothing_are_left_out_and_counted(tmp_path):
    left_out = ["." * 120, "\ufffd"]
    vocabulary = architectures.bert_tokenizer().get_vocab()
    vocabulary |= {entry: len(vocabulary) + number for number, entry in enumerate(left_out)}
    tokenizer = transformers.BertTokenizer(vocab=vocabulary, model_max_length=architectures.MAX_LENGTH)
    encoder = load_encoder(architectures.stacked(architectures.bert(tmp_path / "bert", tokenizer)))
    assert [len(text.ids) for text in encoder.tokenize(left_out)] == [120, 0]
    result = mean_similarity(encoder)
    strings = [entry for entry in encoder.tokenizer.entries.values() if entry not in left_out]
    assert (result.entries, result.left_out) == (len(strings), 2)
    assert result.value == slow_mean(encoder, strings)


def test_entries_with_a_zero_vector_are_left_out_and_a_vocabulary_of_them_is_refused():
    model = architectures.static_model()
    weights = model[0].embedding.weight
    zero = [model.tokenizer.token_to_id(word) for word in ("stone", "river")]
    with torch.no_grad():
        weights[zero] = 0
    encoder = load_encoder(model)
    result = mean_similarity(encoder)
    strings = [entry for token_id, entry in encoder.tokenizer.entries.items() if token_id not in zero]
    assert (result.entries, result.left_out) == (len(strings), 2)
    assert result.value == slow_mean(encoder, strings)
    weights.data.zero_()
    for options in ({}, {"most": 9}):
        with pytest.raises(EncodingError, match="can be encoded"):
            mean_similarity(encoder, **options)


@given(st.integers(2, 40), st.data())
def test_k_of_n_dimensions_score_k_minus_1_of_n_minus_1_however_the_cloud_is_turned(size, data):
    used = data.draw(st.integers(1, size))
    turn, _ = np.linalg.qr(np.random.default_rng(size).normal(size=(size, size)))
    covariance = turn @ np.diag([7.0] * used + [0.0] * (size - used)) @ turn.T
    assert isoscore(covariance) == pytest.approx((used - 1) / (size - 1), abs=1e-9)
    assert isoscore(np.zeros((size, size))) is isoscore(np.ones((1, 1))) is None  # where nothing varies


def test_the_score_of_a_vocabulary_is_that_of_its_unit_vectors():
    encoder = load_encoder(profiled.planted_model(0))
    result = mean_similarity(encoder)
    vectors = encoder.encode(list(encoder.tokenizer.entries.values()), allow_zero=True).astype(np.float64)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert result.entries == len(units)
    assert result.isoscore == pytest.approx(isoscore(np.cov(units, rowvar=False, bias=True)), abs=1e-6)
    assert mean_similarity(encoder, most=200).isoscore == pytest.approx(result.isoscore, abs=0.1)


def counted(encoder, *sample):
    events = []
    result = model_mean(encoder, events.append, *sample)
    return result, events[-1].sequences


@pytest.fixture
def library(model, tmp_path, monkeypatch):
    monkeypatch.setenv("STICKYTOKEN_CACHE", str(tmp_path / "cache"))
    return model


def test_a_known_model_is_not_computed_again_not_even_by_another_encoder(library):
    result, encoded = counted(load_encoder(library))
    assert result == mean_similarity(load_encoder(library))
    assert encoded == result.entries
    assert counted(load_encoder(library)) == (result, 0)


def test_a_changed_model_and_a_sample_have_values_of_their_own(library):
    encoder = load_encoder(library)
    result, _ = counted(encoder)
    assert counted(encoder, 40)[0].entries == 40
    with torch.no_grad():
        library[0].model.get_input_embeddings().weight[50:].mul_(3)
    changed, encoded = counted(encoder)
    assert changed.value != result.value
    assert encoded > 0


@pytest.mark.parametrize("content", ["", "[]", '{"value": 1}', '{"value": 1, "color": 2}'])
def test_a_damaged_file_is_computed_again(library, content):
    encoder = load_encoder(library)
    result, _ = counted(encoder)
    (path,) = cache_folder().iterdir()
    path.write_text(content, encoding="utf-8")
    assert counted(encoder) == (result, result.entries)
    assert counted(encoder) == (result, 0)


def test_a_sample_estimates_the_mean_and_knows_its_error(library):
    encoder = load_encoder(library)
    exact = mean_similarity(encoder)
    vectors = unit_vectors(encoder.encode(list(encoder.tokenizer.entries.values()))).astype(np.float64)
    generator = np.random.default_rng(0)
    size = 60
    means = np.stack([generator.permutation(vectors)[:size].mean(axis=0) for _ in range(2000)])
    of_two = (size * (means**2).sum(axis=1) - 1) / (size - 1)
    estimates = of_two + (1 - of_two) / len(vectors)
    result = mean_similarity(encoder, most=size)
    assert np.mean(estimates) == pytest.approx(exact.value, abs=4 * np.std(estimates) / np.sqrt(2000))
    assert result.error == pytest.approx(np.std(estimates), rel=0.5)
    assert abs(result.value - exact.value) < 4 * result.error
    assert mean_similarity(encoder, most=10**6) == exact
