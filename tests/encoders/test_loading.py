"""From a folder or an object to an encoder or a tokenizer, on a device, and what is said when that fails."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForSequenceClassification

import saved_models
import tiny
import tiny_architectures as architectures
from stickytoken.encoders import load_encoder, load_tokenizer
from stickytoken.encoders.loading import resolution
from stickytoken.errors import InputError, ModelError, StickyTokenWarning

pytestmark = pytest.mark.usefixtures("hub_cache")


@pytest.fixture
def folder(pristine, tmp_path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "model"))


@pytest.mark.parametrize("load", [load_encoder, load_tokenizer])
@pytest.mark.parametrize("name", ["no-such/model", "no such model"])
def test_without_the_hub_an_unknown_name_gives_one_line_that_names_it(name, load):
    with pytest.raises(ModelError, match="not in the hub cache") as caught:
        load(name)
    assert repr(name) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    "name", ["", "/no/such/folder", "./none", "a/b/c", "C:\\models", "~nobody-here/x", "x" * 300]
)
def test_what_is_neither_a_folder_nor_a_hub_name_is_refused(name, pristine, monkeypatch):
    monkeypatch.chdir(pristine)
    for load in (load_encoder, load_tokenizer):
        with pytest.raises(ModelError) as caught:
            load(name)
        assert repr(name)[1:50] in str(caught.value)
        with pytest.raises(ModelError, match=r"is a file: pass the folder"):
            load(pristine / "model.safetensors")


def test_a_folder_without_a_model_or_weights_is_refused(folder, tmp_path):
    (empty := tmp_path / "empty").mkdir()
    (alone := tmp_path / "alone").mkdir()
    tokenizer = architectures.roberta_tokenizer()
    tokenizer.save_pretrained(alone)
    (folder / "model.safetensors").unlink()
    for place, said in (
        (empty, "has no model"),
        (alone, r"has a tokenizer but no model.*needs the weights"),
        (folder, "has no weights"),
    ):
        with pytest.raises(ModelError, match=said):
            load_encoder(place)
    with pytest.raises(ModelError, match="has no tokenizer"):
        load_tokenizer(empty)
    assert load_tokenizer(alone).encode_many(["the river"]) == [
        tokenizer("the river", add_special_tokens=False).input_ids
    ]
    assert load_tokenizer(folder).entries


def test_a_cross_encoder_is_refused(tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForSequenceClassification(BertConfig(num_labels=1, **sizes)).save_pretrained(tmp_path)
    tiny.wordpiece_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"cross-encoder \(BertForSequenceClassification\)"):
        load_encoder(tmp_path)


def _edited(**changes):
    return lambda path: saved_models.edit(path, lambda config: config.update(changes))


def _pickled(path):
    path.unlink()
    path.with_name("pytorch_model.bin").write_bytes(b"PK\x03\x04broken")


OTHER_MODULE = '[{"idx": 0, "name": "0", "path": "", "type": "no.such.Module"}]'
DAMAGES = {
    "zeros for weights": ("model.safetensors", lambda path: path.write_bytes(bytes(100))),
    "pickled weights": ("model.safetensors", _pickled),
    "modules.json that is not JSON": ("modules.json", "not json"),
    "a module without a path": ("modules.json", '[{"type": "sentence_transformers.models.Pooling"}]'),
    "a module of no library": ("modules.json", OTHER_MODULE),
    "a configuration of an unknown model": ("config.json", _edited(model_type="no-such-model")),
    "a configuration of another size": ("config.json", _edited(intermediate_size=128)),
    "a tokenizer without a model": ("tokenizer.json", "{}"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_a_damaged_folder_gives_one_line_that_names_it(damage, folder):
    name, harm = damage
    (folder / name).write_text(harm, "utf-8") if isinstance(harm, str) else harm(folder / name)
    with pytest.raises(ModelError) as caught:
        load_encoder(folder, device="cpu")
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


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
    assert np.array_equal(first.encode(saved_models.TEXTS), second.encode(saved_models.TEXTS))
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
        mean = saved_models.vectors(folder)
    saved_models.edit(
        folder / "config.json", lambda config: config.update(architectures=["Qwen2ForCausalLM"])
    )
    with pytest.warns(StickyTokenWarning, match="last"):
        last = saved_models.vectors(folder)
    assert np.abs(mean - last).max() > 0.1


def test_an_unknown_precision_is_refused_and_the_known_ones_are_named(folder):
    with pytest.raises(InputError, match=r"'int8'.*float32, float16, bfloat16"):
        load_encoder(folder, dtype="int8")


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
    with pytest.raises(ModelError, match="trust_remote_code") as caught:
        load_encoder(folder, device="cpu")
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    encoder = load_encoder(folder, device="cpu", trust_remote_code=True)
    np.testing.assert_allclose(
        encoder.encode(saved_models.TEXTS), saved_models.vectors(pristine), rtol=0, atol=1e-6
    )


# --- devices


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("", "is unknown"),
        ("CPU", "is unknown"),
        ("cuda:-1", "is unknown"),
        ("cuda:99", "is not available"),
        ("meta:0", "no values"),
    ],
)
def test_a_device_that_cannot_be_used_is_refused_before_the_model_is_looked_for(device, reason):
    with pytest.raises(InputError, match=reason) as caught:
        load_encoder("no-such/model", device=device)
    message = str(caught.value)
    assert message.startswith(f"device {device!r} ")
    assert f"this machine has {', '.join(resolution.available_devices())}" in message


def test_one_of_two_accelerators_is_taken_and_a_third_refused(monkeypatch):
    assert resolution.available_devices()[0] == "cpu"
    monkeypatch.setattr(resolution, "available_devices", lambda: ["cpu", "cuda:0", "cuda:1"])
    for device in ("cpu", "cpu:0", torch.device("cpu"), "cuda", "cuda:0", "cuda:1"):
        resolution.require_device(device)
    for device in ("cuda:2", "xpu", "mps"):
        with pytest.raises(InputError, match="is not available: this machine has cpu, cuda:0, cuda:1"):
            resolution.require_device(device)


def test_a_loaded_model_stays_on_its_device_and_needs_one_with_values(model):
    with pytest.raises(InputError, match=r"on cpu, not meta"):
        load_encoder(model, device="meta")
    assert load_encoder(model, device="cpu").device == "cpu"
    with pytest.raises(InputError, match="is on the meta device, which holds no values"):
        load_encoder(architectures.static_model().to("meta"))
