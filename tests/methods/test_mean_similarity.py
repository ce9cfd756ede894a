"""u, the mean cosine over the vocabulary, against slow ways."""

import numpy as np
import pytest
import torch
import transformers
from sklearn.metrics.pairwise import cosine_similarity

import profiled
import tiny_architectures as architectures
from naming import naming
from stickytoken import load_encoder
from stickytoken.errors import EncodingError
from stickytoken.measurement.engine import LocalEngine, ignore_progress
from stickytoken.measurement.store import ResultFolder
from stickytoken.methods.runner import Runner
from stickytoken.methods.std.mean_similarity import measure_mean_similarity


def mean_similarity(encoder):
    return measure_mean_similarity(encoder, Runner.in_memory(encoder, ignore_progress))


def slow_mean(encoder, strings):
    return pytest.approx(cosine_similarity(encoder.encode(strings).astype(np.float64)).mean(), abs=1e-6)


@pytest.mark.parametrize("prompt", ["", "the song: "])
def test_u_equals_the_mean_over_all_pairs(bert_folder, prompt):
    encoder = load_encoder(bert_folder, prompt=prompt)
    strings = list(encoder.tokenizer.entries.values())
    result = mean_similarity(encoder)
    assert result.entry_count == len(strings)
    assert result.value == slow_mean(encoder, strings)
    assert 0.05 < result.value < 0.99


def test_entries_that_are_too_long_or_nothing_are_left_out(tmp_path):
    left_out = ["." * 120, "\ufffd"]
    vocabulary = architectures.bert_tokenizer().get_vocab()
    vocabulary |= {entry: len(vocabulary) + number for number, entry in enumerate(left_out)}
    tokenizer = transformers.BertTokenizer(vocab=vocabulary, model_max_length=architectures.MAX_LENGTH)
    encoder = load_encoder(architectures.stacked(architectures.bert(tmp_path / "bert", tokenizer)))
    assert [len(text.ids) for text in encoder.tokenize(left_out)] == [120, 0]
    result = mean_similarity(encoder)
    strings = [entry for entry in encoder.tokenizer.entries.values() if entry not in left_out]
    assert result.entry_count == len(strings)
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
    assert result.entry_count == len(strings)
    assert result.value == slow_mean(encoder, strings)
    weights.data.zero_()
    with pytest.raises(EncodingError, match=naming(encoder.name, 0, len(encoder.tokenizer.entries))):
        mean_similarity(encoder)


def test_an_interrupted_estimate_encodes_no_entry_twice(tmp_path):
    encoder = load_encoder(profiled.planted_model(0))
    texts = []

    def run(progress):
        folder = ResultFolder(tmp_path)
        runner = Runner(LocalEngine(encoder), folder, progress)
        return measure_mean_similarity(encoder, runner), folder.total_cost().sequences

    def interrupt(step):
        texts.append(step.computed)
        if step.computed:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(interrupt)
    events = []
    result, cost = run(events.append)
    assert sum(event.computed for event in events) + texts[-1] == len(encoder.tokenizer.entries) == cost
    assert result == mean_similarity(encoder)
