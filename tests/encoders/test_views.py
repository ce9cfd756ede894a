"""Views of vectors: truncations and layers, against models that are truncated or cut."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

import profiled
import tiny
import tiny_architectures
from stickytoken import load_encoder
from stickytoken.encoders.loading.load import loaded_like
from stickytoken.encoders.views import (
    View,
    mean_similarities,
    mean_similarity,
    view_encoders,
    views_of,
    whole_vectors,
)
from stickytoken.errors import EncodingError, InputError, ModelError
from stickytoken.inspection import inspector_of

TEXTS = ["the river sings", "a", "the old bird walks near the window of the market", "the river sings"]
# Where each architecture keeps its list of layers.
LAYERS = ("encoder.layer", "transformer.layer", "layers", "h", "encoder.block", "blocks", "encoder.layers")


def layers_of(backbone):
    for path in LAYERS:
        owner, found = backbone, backbone
        for name in path.split("."):
            owner, found = found, getattr(found, name, None)
        if isinstance(found, torch.nn.ModuleList):
            return owner, path.split(".")[-1], found
    return None


def stacked(folder, *later):
    transformer = Transformer(str(folder))
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode="mean")
    return SentenceTransformer(modules=[transformer, pooling, *later], device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", tiny_architectures.ARCHITECTURES, ids=lambda each: each.name)
def test_the_vectors_after_a_layer_are_those_of_the_model_cut_to_it(architecture, tmp_path):
    folder = architecture.save(tmp_path / "backbone")
    dense = Dense(32, 24, activation_function=torch.nn.Tanh())
    model = stacked(folder, dense, Normalize())
    place = layers_of(model[0].model)
    if place is None:
        pytest.skip("its layers are not a list")
    wide = load_encoder(model).whole((1, 2))
    plain = load_encoder(model).encode(TEXTS)
    found = wide.encode(TEXTS)
    assert np.allclose(found[:, :24], plain, atol=1e-5)
    assert np.allclose(found[:, 48:], plain, atol=1e-5)
    cut = stacked(folder, dense, Normalize())
    owner, name, layers = layers_of(cut[0].model)
    setattr(owner, name, layers[:1])
    for config in (cut[0].model.config, getattr(owner, "config", None)):
        if config is not None:
            config.num_hidden_layers = 1
    assert np.allclose(found[:, 24:48], load_encoder(cut).encode(TEXTS), atol=1e-5)
    assert not np.allclose(found[:, 24:48], plain, atol=1e-2)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    return tiny.bert_backbone(tmp_path_factory.mktemp("backbone"), words=profiled.WORDS)


def test_whole_vectors_are_those_without_truncation_and_share_the_model(backbone):
    model = tiny.sentence_transformer(backbone, normalize=True, truncate_dim=8)
    encoder = load_encoder(model)
    whole = whole_vectors(encoder)
    assert (encoder.dimension, whole.dimension) == (8, 32)
    assert np.array_equal(whole.encode(TEXTS)[:, :8], encoder.encode(TEXTS))
    assert whole_vectors(encoder) is whole
    assert whole_vectors(whole) is whole
    assert model.truncate_dim == 8
    assert whole.encode_ids(encoder.content_ids(TEXTS)).shape == (4, 32)
    plain = load_encoder(tiny.sentence_transformer(backbone))
    assert whole_vectors(plain) is plain


def test_a_change_of_the_model_is_seen(backbone):
    model = tiny.sentence_transformer(backbone, truncate_dim=8)
    encoder = load_encoder(model)
    before = whole_vectors(encoder).encode(TEXTS)
    with torch.no_grad():
        model[0].model.embeddings.word_embeddings.weight *= 1.5
    after = whole_vectors(encoder).encode(TEXTS)
    assert not np.allclose(before, after, atol=1e-3)
    assert np.array_equal(after[:, :8], encoder.encode(TEXTS))
    model.truncate_dim = None
    assert whole_vectors(encoder) is encoder


def test_views_are_columns_of_what_is_side_by_side(backbone):
    encoder = load_encoder(tiny.sentence_transformer(backbone))
    views = views_of(encoder, [8, 32], [1, 2])
    assert views.own == views.whole == View(32)
    assert views.asked == (View(8, 1, 32), View(32, 1, 32), View(8), View(32))
    assert views.further == views.asked[:3]
    vectors = views.reading(encoder).encode(TEXTS)
    assert vectors.shape == (4, 96)
    assert np.array_equal(views.asked[1].of(vectors), vectors[:, 32:64])
    assert [str(view) for view in views.asked[:1]] == ["layer 1, dimension 8"]
    assert len({view.key for view in views.asked}) == 4


def test_u_of_several_views_is_that_of_each(backbone):
    encoder = load_encoder(tiny.sentence_transformer(backbone, normalize=True))
    views = [View(32), View(8), View(20)]
    for most in (None, 50):
        found = mean_similarities(encoder, views, most=most)
        for view, u in zip(views, found, strict=True):
            truncated = load_encoder(
                tiny.sentence_transformer(backbone, normalize=True, truncate_dim=view.dimension)
            )
            alone = mean_similarity(truncated, most=most)
            assert u.value == pytest.approx(alone.value, abs=1e-6)
            assert u.error == pytest.approx(alone.error, abs=1e-6)
            assert (u.entries, u.left_out) == (alone.entries, alone.left_out)


def test_a_zero_vector_in_a_view_is_refused_and_named():
    vectors = np.eye(3, dtype=np.float32)
    with pytest.raises(EncodingError, match="1 of 3 vectors are zero at dimension 2"):
        View(2).units(vectors)
    vectors[0, 0] = np.nan
    with pytest.raises(EncodingError, match="are not finite at dimension 3"):
        View(3).units(vectors)
    assert np.allclose(np.linalg.norm(View(1, None, 2).units(vectors[2:]), axis=1), 1)


def test_an_encoder_of_a_view_encodes_every_text_once(backbone):
    encoder = load_encoder(tiny.sentence_transformer(backbone))
    views = views_of(encoder, [8])
    encoders = view_encoders(encoder, views)
    assert list(encoders) == [View(32), View(8)]
    wanted, calls = encoder.encode(TEXTS), []
    inner = encoder.encode
    encoder.encode = lambda texts, **options: calls.append(len(texts)) or inner(texts, **options)
    for view, each in encoders.items():
        assert each.dimension == view.dimension
        assert np.allclose(each.encode(TEXTS), wanted[:, : view.dimension], atol=1e-5)
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
    """The identity, the vectors and what looks inside are those of the truncated model."""
    tiny.sentence_transformer(backbone, normalize=True, truncate_dim=8).save(str(tmp_path / "model"))
    encoder = load_encoder(tmp_path / "model", device="cpu")
    whole = load_encoder(tiny.sentence_transformer(backbone, normalize=True))
    assert encoder.dimension == encoder.identity.dimension == 8
    assert encoder.identity.modules != whole.identity.modules
    assert np.allclose(encoder.encode(TEXTS), whole.encode(TEXTS)[:, :8], atol=1e-6)
    again = loaded_like(encoder, tmp_path / "model")
    assert again.identity == encoder.identity
    ids = encoder.content_ids(TEXTS[:1])
    (inside,) = inspector_of(encoder).look(ids, [[0] * len(ids[0])], 1)
    assert np.allclose(inside.vector, encoder.encode(TEXTS[:1])[0], atol=1e-6)
