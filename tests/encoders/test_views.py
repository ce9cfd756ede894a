"""Views of vectors, truncations and layers, and u, the mean cosine over the vocabulary, against slow ways."""

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, strategies as st
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Normalize
from sklearn.metrics.pairwise import cosine_similarity

import profiled
import tiny_architectures as architectures
from stickytoken.encoders import load_encoder
from stickytoken.encoders.loading import loaded_like
from stickytoken.encoders.views import (
    View,
    isoscore,
    mean_similarities,
    mean_similarity,
    view_encoders,
    views_of,
    whole_vectors,
)
from stickytoken.errors import EncodingError, InputError, ModelError
from stickytoken.inspection import inspector_of
from stickytoken.machine import cache_folder
from stickytoken.methods.base import model_mean
from stickytoken.unit_vectors import unit_vectors

TEXTS = ["the river sings", "a", "the old bird walks near the window of the market", "the river sings"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "owner", "layers"),
    [
        ("bert", "encoder", "layer"),
        ("modernbert", "", "layers"),
        ("t5", "encoder", "block"),
        ("gemma2", "", "layers"),
    ],
)
def test_the_vectors_after_a_layer_are_those_of_the_model_cut_to_it(name, owner, layers, backbone):
    dense = Dense(32, 24, activation_function=torch.nn.Tanh())

    def stacked():
        model = architectures.stacked(backbone(name))
        model.extend([dense, Normalize()])
        return model

    model = stacked()
    plain, found = load_encoder(model).encode(TEXTS), load_encoder(model).whole((1, 2)).encode(TEXTS)
    assert np.allclose(found[:, :24], plain, atol=1e-5)
    assert np.allclose(found[:, 48:], plain, atol=1e-5)
    cut = stacked()
    stack = cut[0].model.get_submodule(owner)
    setattr(stack, layers, getattr(stack, layers)[:1])
    for config in (cut[0].model.config, getattr(stack, "config", cut[0].model.config)):
        config.num_hidden_layers = 1
    assert np.allclose(found[:, 24:48], load_encoder(cut).encode(TEXTS), atol=1e-5)
    assert not np.allclose(found[:, 24:48], plain, atol=1e-2)


def test_whole_vectors_are_those_without_truncation_and_follow_the_model(backbone):
    model = architectures.stacked(backbone("bert"), truncate_dim=8)
    encoder = load_encoder(model)
    whole = whole_vectors(encoder)
    assert (encoder.dimension, whole.dimension, model.truncate_dim) == (8, 32, 8)
    before = whole.encode(TEXTS)
    assert np.array_equal(before[:, :8], encoder.encode(TEXTS))
    assert whole_vectors(encoder) is whole
    assert whole_vectors(whole) is whole
    assert whole.encode_ids(encoder.content_ids(TEXTS)).shape == (4, 32)
    with torch.no_grad():
        model[0].model.embeddings.word_embeddings.weight *= 1.5
    after = whole_vectors(encoder).encode(TEXTS)
    assert not np.allclose(before, after, atol=1e-3)
    assert np.array_equal(after[:, :8], encoder.encode(TEXTS))
    model.truncate_dim = None
    assert whole_vectors(encoder) is encoder


def test_inputs_that_begin_alike_have_the_vectors_of_their_layers(backbone):
    encoder = load_encoder(architectures.stacked(backbone("qwen2"), pooling="lasttoken"))
    ids = [(5, 6, 7, *(8,) * count) for count in range(1, 9)]
    assert np.allclose(encoder.whole((1, 2)).encode_ids(ids)[:, 64:], encoder.encode_ids(ids), atol=1e-5)


def test_views_are_columns_of_what_is_side_by_side(model):
    encoder = load_encoder(model)
    views = views_of(encoder, [8, 32], [1, 2])
    assert views.own == views.whole == View(32)
    assert views.asked == (View(8, 1, 32), View(32, 1, 32), View(8), View(32))
    assert views.further == views.asked[:3]
    vectors = views.reading(encoder).encode(TEXTS)
    assert vectors.shape == (4, 96)
    assert np.array_equal(views.asked[1].of(vectors), vectors[:, 32:64])
    assert [str(view) for view in views.asked[1:3]] == ["layer 1, dimension 32", "dimension 8"]
    assert [view.key for view in views.asked] == ["layer1-8", "layer1-32", "8", "32"]
    with pytest.raises(InputError, match=r"layers include 3, and .* has 2"):
        views_of(encoder, [], [3])


def test_a_vector_that_cannot_be_used_in_a_view_is_refused_and_named():
    vectors = np.eye(3, dtype=np.float32)
    with pytest.raises(EncodingError, match="1 of 3 vectors are zero at dimension 2"):
        View(2).units(vectors)
    vectors[0, 0] = np.nan
    with pytest.raises(EncodingError, match="are not finite at dimension 3"):
        View(3).units(vectors)
    assert np.allclose(np.linalg.norm(View(1, None, 2).units(vectors[2:]), axis=1), 1)


def test_an_encoder_of_a_view_encodes_every_text_once(model):
    encoder = load_encoder(model)
    encoders = view_encoders(encoder, views_of(encoder, [8]))
    assert list(encoders) == [View(32), View(8)]
    wanted, calls = encoder.encode(TEXTS), []
    inner = encoder.encode
    encoder.encode = lambda texts, **options: calls.append(len(texts)) or inner(texts, **options)
    for view, each in encoders.items():
        assert each.dimension == view.dimension
        assert np.allclose(each.encode(TEXTS), wanted[:, : view.dimension], atol=1e-5)
        assert np.allclose(each.encode_ids(encoder.content_ids(TEXTS)), each.encode(TEXTS), atol=1e-5)
    assert calls == [3]
    assert encoders[View(8)].encode([]).shape == (0, 8)
    with pytest.raises(InputError, match="has no precision bfloat16"):
        encoders[View(8)].at("bfloat16")


def test_a_model_of_texts_only_gives_its_vectors_as_a_whole_and_no_layers():
    encoder = load_encoder(lambda texts: np.ones((len(texts), 6)) * np.arange(1, 7))
    assert whole_vectors(encoder) is encoder
    assert views_of(encoder, [3]).asked == (View(3),)
    with pytest.raises(InputError, match=r"dimensions include 7, and the vectors of .* have 6 components"):
        views_of(encoder, [7])
    with pytest.raises(ModelError, match=r"the layers of .* cannot be read: --layers needs"):
        views_of(encoder, (), [1])


def test_a_saved_truncation_is_respected_when_the_model_is_loaded(backbone, tmp_path):
    cut, whole = (architectures.stacked(backbone("bert"), truncate_dim=width) for width in (8, None))
    path = architectures.saved(cut, tmp_path / "model")
    encoder = load_encoder(path, device="cpu")
    assert encoder.dimension == encoder.identity.dimension == 8
    assert encoder.identity.modules != load_encoder(whole).identity.modules
    assert np.allclose(encoder.encode(TEXTS), load_encoder(whole).encode(TEXTS)[:, :8], atol=1e-6)
    assert loaded_like(encoder, path).identity == encoder.identity
    ids = encoder.content_ids(TEXTS[:1])
    (inside,) = inspector_of(encoder).look(ids, [[0] * len(ids[0])], 1)
    assert np.allclose(inside.vector, encoder.encode(TEXTS[:1])[0], atol=1e-6)


def slow_mean(encoder, strings):
    return pytest.approx(cosine_similarity(encoder.encode(strings).astype(np.float64)).mean(), abs=1e-6)


@pytest.mark.parametrize(("prompt", "chunk"), [("", 7), ("the song: ", 4096)])
def test_u_equals_the_mean_over_all_pairs_and_every_chunk_is_reported(model, prompt, chunk):
    encoder = load_encoder(model, prompt=prompt)
    strings, calls = list(encoder.tokenizer.entries.values()), []
    size = len(strings)
    found = mean_similarity(encoder, lambda *done: calls.append(done), chunk=chunk)
    assert (found.entries, found.left_out, found.error) == (size, 0, 0)
    assert found.value == slow_mean(encoder, strings)
    assert 0.05 < found.value < 0.99
    assert calls == [(0, size), *((min(done, size), size) for done in range(chunk, size + chunk, chunk))]


def test_entries_that_are_too_long_or_nothing_are_left_out_and_counted(tmp_path):
    left_out = ["." * 120, "\ufffd"]
    vocabulary = architectures.bert_tokenizer().get_vocab()
    vocabulary |= {entry: len(vocabulary) + place for place, entry in enumerate(left_out)}
    tokenizer = transformers.BertTokenizer(vocab=vocabulary, model_max_length=architectures.MAX_LENGTH)
    encoder = load_encoder(architectures.stacked(architectures.bert(tmp_path / "bert", tokenizer)))
    assert [len(text.ids) for text in encoder.tokenize(left_out)] == [120, 0]
    found = mean_similarity(encoder)
    strings = [entry for entry in encoder.tokenizer.entries.values() if entry not in left_out]
    assert (found.entries, found.left_out) == (len(strings), 2)
    assert found.value == slow_mean(encoder, strings)


def test_entries_with_a_zero_vector_are_left_out_and_a_vocabulary_of_them_is_refused():
    model = architectures.static_model()
    weights = model[0].embedding.weight
    zero = [model.tokenizer.token_to_id(word) for word in ("stone", "river")]
    with torch.no_grad():
        weights[zero] = 0
    encoder = load_encoder(model)
    found = mean_similarity(encoder)
    strings = [entry for token_id, entry in encoder.tokenizer.entries.items() if token_id not in zero]
    assert (found.entries, found.left_out) == (len(strings), 2)
    assert found.value == slow_mean(encoder, strings)
    with torch.no_grad():
        weights[:, :8] = 0
    with pytest.raises(EncodingError, match=r"can be encoded with a vector that is not zero at dimension 8"):
        mean_similarities(encoder, [View(32), View(8)])
    weights.data.zero_()
    for options in ({}, {"most": 9}):
        with pytest.raises(EncodingError, match="can be encoded"):
            mean_similarity(encoder, **options)


@pytest.mark.parametrize("most", [None, 50])
def test_u_of_several_views_is_that_of_each(backbone, most):
    encoder = load_encoder(architectures.stacked(backbone("bert")))
    views = [View(32), View(8), View(20)]
    for view, u in zip(views, mean_similarities(encoder, views, most=most), strict=True):
        alone = mean_similarity(
            load_encoder(architectures.stacked(backbone("bert"), truncate_dim=view.dimension)), most=most
        )
        assert tuple(u) == pytest.approx(tuple(alone), abs=1e-6)
        assert (u.error > 0) is (most is not None)


@given(st.integers(2, 40), st.data())
def test_k_of_n_dimensions_score_k_minus_1_of_n_minus_1_however_the_cloud_is_turned(size, data):
    used = data.draw(st.integers(1, size))
    turn, _ = np.linalg.qr(np.random.default_rng(size).normal(size=(size, size)))
    covariance = turn @ np.diag([7.0] * used + [0.0] * (size - used)) @ turn.T
    assert isoscore(covariance) == pytest.approx((used - 1) / (size - 1), abs=1e-9)
    assert isoscore(np.zeros((size, size))) is isoscore(np.ones((1, 1))) is None  # where nothing varies


def test_the_score_of_a_vocabulary_is_that_of_its_unit_vectors():
    encoder = load_encoder(profiled.planted_model(0))
    found = mean_similarity(encoder)
    vectors = encoder.encode(list(encoder.tokenizer.entries.values()), allow_zero=True).astype(np.float64)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert found.entries == len(units)
    assert found.isoscore == pytest.approx(isoscore(np.cov(units, rowvar=False, bias=True)), abs=1e-6)
    assert mean_similarity(encoder, most=200).isoscore == pytest.approx(found.isoscore, abs=0.1)


def counted(encoder, *sample):
    events = []
    found = model_mean(encoder, events.append, *sample)
    return found, events[-1].sequences


@pytest.fixture
def library(model, tmp_path, monkeypatch):
    monkeypatch.setenv("STICKYTOKEN_CACHE", str(tmp_path / "cache"))
    return model


def test_a_known_model_is_not_computed_again_not_even_by_another_encoder(library):
    found, encoded = counted(load_encoder(library))
    assert found == mean_similarity(load_encoder(library))
    assert encoded == found.entries
    assert counted(load_encoder(library)) == (found, 0)


def test_a_changed_model_and_a_sample_have_values_of_their_own(library):
    encoder = load_encoder(library)
    found, _ = counted(encoder)
    assert counted(encoder, 40)[0].entries == 40
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
