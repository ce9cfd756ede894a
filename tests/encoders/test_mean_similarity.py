"""The mean cosine over the vocabulary, held against the slow mean over all pairs."""

import numpy as np
import pytest
import torch
import transformers
from sklearn.metrics.pairwise import cosine_similarity

import tiny_architectures as architectures
from stickytoken.encoders import load_encoder, mean_similarity
from stickytoken.errors import EncodingError

LONG, NOTHING = "." * 120, "\ufffd"


def slow_mean(vectors: np.ndarray) -> float:
    """All pairs at once in float64, each vector with itself included."""
    return float(cosine_similarity(vectors.astype(np.float64)).mean())


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    return architectures.bert(tmp_path_factory.mktemp("mean") / "bert")


@pytest.mark.parametrize("prompt", ["", "the song: "])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_it_equals_the_mean_over_all_pairs(backbone, pooling, prompt):
    encoder = load_encoder(architectures.stacked(backbone, pooling=pooling), prompt=prompt)
    found = mean_similarity(encoder)
    strings = list(encoder.tokenizer.entries.values())
    assert (found.entries, found.left_out) == (len(strings), 0)
    assert found.value == pytest.approx(slow_mean(encoder.encode(strings)), abs=1e-6)
    assert 0.05 < found.value < 0.99


def test_it_equals_the_mean_over_the_vectors_of_the_library(backbone):
    library = architectures.stacked(backbone)
    vectors = library.encode(list(library.tokenizer.get_vocab()))
    assert mean_similarity(load_encoder(library)).value == pytest.approx(slow_mean(vectors), abs=1e-5)


def test_the_length_of_vectors_does_not_count(backbone):
    plain = mean_similarity(load_encoder(architectures.stacked(backbone)))
    normalized = mean_similarity(load_encoder(architectures.stacked(backbone, normalize=True)))
    assert plain.value == pytest.approx(normalized.value, abs=1e-6)


def test_entries_that_are_too_long_or_nothing_are_left_out_and_counted(tmp_path):
    vocabulary = architectures.bert_tokenizer().get_vocab()
    for entry in (LONG, NOTHING):
        vocabulary[entry] = len(vocabulary)
    tokenizer = transformers.BertTokenizer(vocab=vocabulary, model_max_length=architectures.MAX_LENGTH)
    backbone = architectures.bert(tmp_path / "bert", tokenizer)
    encoder = load_encoder(architectures.stacked(backbone))
    assert [len(text.ids) for text in encoder.tokenize([LONG, NOTHING])] == [120, 0]
    found = mean_similarity(encoder)
    strings = [entry for entry in encoder.tokenizer.entries.values() if entry not in (LONG, NOTHING)]
    assert (found.entries, found.left_out) == (len(strings), 2)
    assert found.value == pytest.approx(slow_mean(encoder.encode(strings)), abs=1e-6)


def test_entries_with_a_zero_vector_are_left_out_and_counted():
    model = architectures.static_model()
    zero = [model.tokenizer.token_to_id(word) for word in ("stone", "river")]
    with torch.no_grad():
        model[0].embedding.weight[zero] = 0
    encoder = load_encoder(model)
    found = mean_similarity(encoder)
    strings = [entry for token_id, entry in encoder.tokenizer.entries.items() if token_id not in zero]
    assert (found.entries, found.left_out) == (len(strings), 2)
    assert found.value == pytest.approx(slow_mean(encoder.encode(strings)), abs=1e-6)


def test_identical_vectors_have_the_mean_one_and_opposite_ones_the_square_of_their_balance():
    model = architectures.static_model()
    weights = model[0].embedding.weight
    with torch.no_grad():
        weights[:] = torch.linspace(0.1, 1, architectures.DIMENSION)
    assert mean_similarity(load_encoder(model)).value == pytest.approx(1, abs=1e-6)
    with torch.no_grad():
        weights[::2] *= -np.e
    encoder = load_encoder(model)
    signs = np.sign(encoder.encode(list(encoder.tokenizer.entries.values()))[:, 0])
    assert set(signs) == {-1, 1}
    assert mean_similarity(encoder).value == pytest.approx(signs.mean() ** 2, abs=1e-6)


def test_a_vocabulary_of_zero_vectors_is_refused():
    model = architectures.static_model()
    with torch.no_grad():
        model[0].embedding.weight[:] = 0
    with pytest.raises(EncodingError, match="no vocabulary entry can be encoded"):
        mean_similarity(load_encoder(model))


@pytest.mark.parametrize("chunk", [1, 7, 4096])
def test_it_is_the_same_in_chunks_and_reports_each_of_them(backbone, chunk):
    encoder = load_encoder(architectures.stacked(backbone))
    expected = slow_mean(encoder.encode(list(encoder.tokenizer.entries.values())))
    calls: list[tuple[int, int]] = []
    found = mean_similarity(encoder, lambda done, entries: calls.append((done, entries)), chunk=chunk)
    size = len(encoder.tokenizer.entries)
    assert found.value == pytest.approx(expected, abs=1e-6)
    assert calls == [(0, size), *((min(done, size), size) for done in range(chunk, size + chunk, chunk))]
