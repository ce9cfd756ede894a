"""Models with routes for queries and documents, held against `encode_query` and `encode_document`."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from tokenizers import Tokenizer

import planted
import tiny
import tiny_architectures as architectures
from naming import naming, says
from stickytoken import detect, load_encoder, load_tokenizer, open_run
from stickytoken.encoders.compute.batches import worker_count
from stickytoken.encoders.roles import Role, in_role
from stickytoken.errors import InputError, ModelError

TEXTS = ["the old river sings", "a bird", "stone under a tree"]
CLOSE = {"rtol": 0, "atol": 1e-5}


def modules(folder, pooling="mean"):
    return list(tiny.sentence_transformer(folder, pooling=pooling))


@pytest.fixture(scope="module")
def two_tokenizers(tmp_path_factory):
    """A static query side with words, and a document side with a byte-level transformer; no default."""
    root = tmp_path_factory.mktemp("routes")
    documents = modules(architectures.modernbert(root / "documents"))
    router = Router(
        {"query": list(architectures.static_model()), "document": documents}, allow_empty_key=False
    )
    model = SentenceTransformer(modules=[router], device="cpu", prompts={"query": "song: "})
    return architectures.saved(model, root / "model")


@pytest.mark.parametrize("route", ["query", "document"])
def test_each_route_gives_the_vectors_of_the_library(two_tokenizers, route):
    library = SentenceTransformer(str(two_tokenizers), device="cpu")
    expected = library.encode_query(TEXTS) if route == "query" else library.encode_document(TEXTS)
    encoder = load_encoder(two_tokenizers, device="cpu", route=route)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, **CLOSE)


def test_a_loaded_model_takes_a_route_too(two_tokenizers):
    library = SentenceTransformer(str(two_tokenizers), device="cpu")
    encoder = load_encoder(library, route="document")
    np.testing.assert_allclose(encoder.encode(TEXTS), library.encode_document(TEXTS), **CLOSE)


def test_each_route_has_its_own_tokenizer(two_tokenizers):
    for route in ("query", "document"):
        loaded = load_encoder(two_tokenizers, device="cpu", route=route).tokenizer
        assert dict(loaded.entries) == dict(load_tokenizer(two_tokenizers, route=route).entries)
    assert len(load_tokenizer(two_tokenizers, route="query").entries) < 200 < len(loaded.entries)


def test_routes_of_the_earlier_asym_module_have_their_tokenizers(two_tokenizers, tmp_path):
    model = Path(shutil.copytree(two_tokenizers, tmp_path / "asym"))
    router = json.loads((model / "modules.json").read_text("utf-8"))[0]["path"]
    (model / router / "router_config.json").rename(model / router / "config.json")
    for route in ("query", "document"):
        tokenizer = load_tokenizer(two_tokenizers, route=route)
        assert dict(load_tokenizer(model, route=route).entries) == dict(tokenizer.entries)
        assert load_encoder(model, device="cpu", route=route).dimension > 0


def test_routes_differ_in_identity(two_tokenizers):
    query, document = (load_encoder(two_tokenizers, route=route) for route in ("query", "document"))
    assert query.identify().modules != document.identify().modules


@pytest.mark.parametrize("load", [load_encoder, load_tokenizer])
def test_without_a_default_a_route_must_be_named(two_tokenizers, load):
    with pytest.raises(InputError, match=naming("query", "document")):
        load(two_tokenizers)


def test_an_unknown_route_is_refused(two_tokenizers):
    with pytest.raises(InputError, match=naming("'image'", "query", "document")):
        load_encoder(two_tokenizers, route="image")


def test_the_default_route_is_that_of_encode_and_is_named(backbone, tmp_path):
    mean, cls = (architectures.stacked(backbone("bert"), pooling=pooling) for pooling in ("mean", "cls"))
    library = architectures.router(mean, cls)
    folder = architectures.saved(library, tmp_path / "model")
    encoder = load_encoder(folder, device="cpu")
    np.testing.assert_allclose(encoder.encode(TEXTS), library.encode(TEXTS), **CLOSE)
    assert says(encoder.route.description, "document", "default", "query")


def test_a_router_behind_other_modules_is_followed(backbone):
    first, pooling = architectures.stacked(backbone("bert"), pooling="mean")
    dense = [architectures.stacked(backbone("bert"), dense=size)[2] for size in (8, 12)]
    router = Router({"query": dense[:1], "document": dense[1:]}, default_route="document")
    library = SentenceTransformer(modules=[first, pooling, router], device="cpu")
    for route, expected in (
        ("query", library.encode_query(TEXTS)),
        ("document", library.encode_document(TEXTS)),
        (None, library.encode(TEXTS)),
    ):
        np.testing.assert_allclose(load_encoder(library, route=route).encode(TEXTS), expected, **CLOSE)


def test_mappings_of_tasks_are_followed(backbone):
    mean, cls = (
        list(architectures.stacked(backbone("bert"), pooling=pooling)) for pooling in ("mean", "cls")
    )
    mappings = {("query", "text"): "small", (None, "text"): "large"}
    router = Router({"small": mean, "large": cls}, route_mappings=mappings)
    library = SentenceTransformer(modules=[router], device="cpu")
    encoder = load_encoder(library, route="query")
    np.testing.assert_allclose(encoder.encode(TEXTS), library.encode_query(TEXTS), **CLOSE)
    assert (encoder.route.route, load_encoder(library).route.route) == ("small", "large")


def test_without_a_router_a_route_is_its_prompt(backbone):
    library = architectures.stacked(backbone("bert"), pooling="mean")
    library.prompts = {"query": "song: ", "passage": "tree: "}
    for route, expected in (
        ("query", library.encode_query(TEXTS)),
        ("document", library.encode_document(TEXTS)),
    ):
        np.testing.assert_allclose(load_encoder(library, route=route).encode(TEXTS), expected, **CLOSE)


def test_a_model_that_reads_all_texts_alike_has_no_routes(bert_folder):
    with pytest.raises(InputError, match=naming("'query'")):
        load_encoder(bert_folder, route="query")


def test_later_changes_of_the_whole_model_are_followed(two_tokenizers):
    library = SentenceTransformer(str(two_tokenizers), device="cpu")
    encoder = load_encoder(library, route="query")
    assert encoder.encode(TEXTS).shape == (3, 32)
    library.truncate_dim = 8
    assert encoder.encode(TEXTS).shape == (3, 8)
    library.prompts["query"] = "tree: "
    np.testing.assert_allclose(encoder.encode(TEXTS), library.encode_query(TEXTS), **CLOSE)


def test_a_run_records_its_route(two_tokenizers, tmp_path):
    encoder = load_encoder(two_tokenizers, device="cpu", route="query")
    detect(encoder, sentences=tiny.sentences(300), sample=6, out=tmp_path / "run")
    model = open_run(tmp_path / "run").record.model
    assert (model.route, model.loading.settings.route) == ("query", "query")


def test_the_command_line_names_the_route(two_tokenizers, tmp_path):
    (tmp_path / "texts.txt").write_text("the old river sings\n")
    files = ("--input", tmp_path / "texts.txt", "--out", tmp_path / "vectors.parquet")
    result = planted.command("embed", two_tokenizers, "--route", "query", *files)
    assert result.exit_code == 0
    assert "route: query" in result.stderr
    planted.assert_refused("tokens", two_tokenizers, saying=naming("query", "document", "--route"))
    assert planted.command("tokens", two_tokenizers, "--route", "query").exit_code == 0


def test_the_words_of_a_static_route_are_its_own(two_tokenizers):
    backend = architectures.static_model().tokenizer
    assert isinstance(backend, Tokenizer)
    encoder = load_encoder(two_tokenizers, route="query")
    assert len(encoder.tokenizer.entries) == backend.get_vocab_size()


def test_a_route_is_read_at_a_dimension_and_still_follows_the_prompts_of_the_model(two_tokenizers):
    library = SentenceTransformer(str(two_tokenizers), device="cpu")
    encoder = load_encoder(library, route="query", truncate_dim=5)
    np.testing.assert_allclose(encoder.encode(TEXTS), library.encode_query(TEXTS)[:, :5], **CLOSE)
    library.prompts["query"] = "bird: "
    np.testing.assert_allclose(encoder.encode(TEXTS), library.encode_query(TEXTS)[:, :5], **CLOSE)
    assert library.truncate_dim is None


def test_a_route_is_read_after_a_layer(two_tokenizers):
    library = SentenceTransformer(str(two_tokenizers), device="cpu")
    route = SentenceTransformer(modules=list(library[0].sub_modules["document"]), device="cpu")
    expected = load_encoder(route, layer=1)
    encoder = load_encoder(two_tokenizers, device="cpu", route="document", layer=1)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected.encode(TEXTS), **CLOSE)
    assert (encoder.route.route, encoder.spec.route, encoder.spec.prompting.layer) == (
        "document",
        "document",
        1,
    )
    document_encoder = load_encoder(two_tokenizers, device="cpu", route="document")
    assert not np.allclose(encoder.encode(TEXTS), document_encoder.encode(TEXTS))


class Centred(SentenceTransformer):
    """Subtracts a centre that is kept in an attribute."""

    def forward(self, inputs, **options):
        features = super().forward(inputs, **options)
        features["sentence_embedding"] = features["sentence_embedding"] - self.centre
        return features


def center_output(model, inputs, features):
    return features | {"sentence_embedding": features["sentence_embedding"] - 1}


def with_hook(model):
    model.register_forward_hook(center_output)
    return model


def with_class(model):
    model.__class__ = Centred
    model.centre = 1
    return model


@pytest.mark.parametrize("change", [with_hook, with_class])
@pytest.mark.parametrize("kind", ["router", "prompts"])
def test_each_role_keeps_hooks_and_class_of_the_model(kind, change, backbone):
    mean, cls = (architectures.stacked(backbone("bert"), pooling=pooling) for pooling in ("mean", "cls"))
    library = mean
    if kind == "router":
        library = architectures.router(mean, cls)
    library.prompts = {"query": "song: ", "document": ""}
    plain = library.encode_document(TEXTS)
    library = change(library)
    np.testing.assert_allclose(library.encode_document(TEXTS), plain - 1, **CLOSE)
    encoder = load_encoder(library)
    for role, encode in (
        (Role.QUERY, library.encode_query),
        (Role.DOCUMENT, library.encode_document),
        (None, library.encode),
    ):
        np.testing.assert_allclose(in_role(encoder, role).encode(TEXTS), encode(TEXTS), **CLOSE)
    assert worker_count(in_role(encoder, Role.QUERY).model) == 1


@pytest.mark.parametrize("method", ["forward", "preprocess"])
def test_a_method_replaced_on_the_object_is_refused_with_a_route(method, backbone):
    library = architectures.stacked(backbone("bert"), prompts={"query": "song: "})
    setattr(library, method, getattr(library, method))
    encoder = load_encoder(library)
    np.testing.assert_allclose(encoder.encode(TEXTS), library.encode(TEXTS), **CLOSE)
    with pytest.raises(ModelError, match=naming(method, "subclass")):
        in_role(encoder, Role.QUERY)
