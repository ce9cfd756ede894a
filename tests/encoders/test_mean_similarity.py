"""u, the mean cosine over the vocabulary, against slow ways."""

import itertools

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, strategies as st
from sklearn.metrics.pairwise import cosine_similarity

import profiled
import tiny_architectures as architectures
from naming import naming
from stickytoken import load_encoder
from stickytoken.encoders.mean_similarity import isoscore, mean_similarity
from stickytoken.errors import EncodingError
from stickytoken.measurement import ResultFolder
from stickytoken.measurement.engine import LocalEngine, ignore_progress
from stickytoken.methods._mean_similarity import measure_mean_similarity
from stickytoken.methods.runner import Runner
from stickytoken.unit_vectors import unit_vectors


def slow_mean(encoder, strings):
    return pytest.approx(cosine_similarity(encoder.encode(strings).astype(np.float64)).mean(), abs=1e-6)


@pytest.mark.parametrize("prompt", ["", "the song: "])
def test_u_equals_the_mean_over_all_pairs(model, prompt):
    encoder = load_encoder(model, prompt=prompt)
    strings = list(encoder.tokenizer.entries.values())
    result = mean_similarity(encoder)
    assert (result.entries, result.left_out, result.error) == (len(strings), 0, 0)
    assert result.value == slow_mean(encoder, strings)
    assert 0.05 < result.value < 0.99


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
    for options, drawn in (({}, len(encoder.tokenizer.entries)), ({"most": 9}, 9)):
        with pytest.raises(EncodingError, match=naming(encoder.name, 0, f"{drawn:,}")):
            mean_similarity(encoder, **options)


def test_a_sample_estimates_the_mean_and_knows_its_error(model):
    encoder = load_encoder(model)
    exact = mean_similarity(encoder)
    vectors = unit_vectors(encoder.encode(list(encoder.tokenizer.entries.values()))).astype(np.float64)
    generator = np.random.default_rng(0)
    size = 60
    means = np.stack([generator.permutation(vectors)[:size].mean(axis=0) for _ in range(2000)])
    of_two = (size * (means**2).sum(axis=1) - 1) / (size - 1)
    estimates = of_two + (1 - of_two) / len(vectors)
    results = [mean_similarity(encoder, most=size)]
    assert np.mean(estimates) == pytest.approx(exact.value, abs=4 * np.std(estimates) / np.sqrt(2000))
    assert results[0].error == pytest.approx(np.std(estimates), rel=0.5)
    assert abs(results[0].value - exact.value) < 4 * results[0].error
    assert mean_similarity(encoder, most=10**6) == exact


def test_a_sample_grows_until_its_error_is_small_and_no_further():
    words = ["x".join(pair) for pair in itertools.product(profiled.SYLLABLES, repeat=2)]
    encoder = load_encoder(profiled.planted_model(0, words=words))
    entries = len(encoder.tokenizer.entries)
    exact = mean_similarity(encoder)
    sizes = []
    for tolerance in (1.0, 0.005, 0.0):
        result = measure_mean_similarity(encoder, Runner.in_memory(encoder, ignore_progress), tolerance)
        sizes.append(result.entries)
        assert abs(result.value - exact.value) <= 4 * result.error + 1e-9
    assert sizes[0] == 256 < sizes[2] == min(2048, entries)
    assert sizes == sorted(sizes)


def test_an_interrupted_estimate_encodes_no_entry_twice(tmp_path):
    encoder = load_encoder(profiled.planted_model(0))
    texts = []

    def run(progress):
        folder = ResultFolder(tmp_path)
        runner = Runner(LocalEngine(encoder), folder, progress)
        return measure_mean_similarity(encoder, runner, 0.0), folder.total_cost().sequences

    def interrupt(step):
        texts.append(step.computed)
        if step.computed:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(interrupt)
    events = []
    result, cost = run(events.append)
    assert sum(event.computed for event in events) + texts[-1] == len(encoder.tokenizer.entries) == cost
    assert result == measure_mean_similarity(encoder, Runner.in_memory(encoder, ignore_progress), 0.0)


@given(st.integers(2, 40), st.data())
def test_k_of_n_dimensions_score_k_minus_1_of_n_minus_1_however_the_cloud_is_turned(size, data):
    used = data.draw(st.integers(1, size))
    turn, _ = np.linalg.qr(np.random.default_rng(size).normal(size=(size, size)))
    axes = np.eye(size)[:used]
    cloud = np.concatenate([axes, -axes]) @ turn
    assert isoscore(cloud) == pytest.approx((used - 1) / (size - 1), abs=1e-9)
    assert isoscore(np.zeros((3, size))) is isoscore(np.ones((3, 1))) is None  # where nothing varies
