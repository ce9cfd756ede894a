"""Folders of edited models: what changes, what does not, and what is refused."""

import json
import shutil
import stat
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

import planted
import tiny_architectures as architectures
from naming import naming
from stickytoken.errors import RepairError, RunError
from stickytoken.repairs.model_folder import rows_writable, workshop, write_model
from stickytoken.repairs.tokenizer_edit import ModelEdit

ROWS = {7: np.linspace(-1, 1, 32, dtype=np.float32), 60: np.full(32, 0.1, dtype=np.float32)}


@pytest.fixture
def model(pristine, tmp_path):
    shutil.copytree(pristine, tmp_path / "model")
    return tmp_path / "model"


def tensors(folder):
    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


def assert_rows(before, after, name="embeddings.word_embeddings.weight"):
    """The rows are new, to the precision of the weights; every other bit is old."""
    assert before.keys() == after.keys()
    expected = {name: value.clone() for name, value in before.items()}
    for token_id, row in ROWS.items():
        expected[name][token_id] = torch.from_numpy(row).to(before[name].dtype)
    for each, value in expected.items():
        assert after[each].dtype == value.dtype
        assert torch.equal(after[each].view(torch.uint8), value.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_rows_are_new_and_every_other_bit_is_old(dtype, model, tmp_path):
    converted(model, dtype)
    before = planted.files_of(model)
    write_model(model, tmp_path / "out", ModelEdit(rows=ROWS))
    assert_rows(tensors(model), tensors(tmp_path / "out"))
    after = planted.files_of(tmp_path / "out")
    assert {name for name in before | after if before.get(name) != after.get(name)} == {"model.safetensors"}
    assert planted.files_of(model) == before


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta", "modernbert", "t5", "qwen3"])
def test_a_loaded_model_has_the_new_rows(kind, tmp_path):
    (save,) = (architecture.save for architecture in architectures.ARCHITECTURES if architecture.name == kind)
    folder = architectures.saved(architectures.stacked(save(tmp_path / "backbone")), tmp_path / "model")
    write_model(folder, tmp_path / "out", ModelEdit(rows=ROWS))
    loaded = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    rows_found = loaded[0].model.get_input_embeddings().weight.detach()
    for token_id, row in ROWS.items():
        assert np.array_equal(rows_found[token_id].numpy(), row)


def test_sharded_weights_are_edited_in_their_shard_and_a_missing_one_is_named(model, tmp_path):
    backbone = AutoModel.from_pretrained(model)
    (model / "model.safetensors").unlink()
    backbone.save_pretrained(model, max_shard_size="20KB")
    assert len(list(model.glob("*.safetensors"))) > 2
    write_model(model, tmp_path / "out", ModelEdit(rows=ROWS))
    assert_rows(tensors(model), tensors(tmp_path / "out"))
    gone = sorted(model.glob("model-*.safetensors"))[0]
    gone.unlink()
    with pytest.raises(RepairError, match=naming(gone.name)):
        write_model(model, tmp_path / "other", ModelEdit(rows=ROWS))


def test_tied_embeddings_stored_twice_are_both_edited(tmp_path):
    folder = architectures.t5(tmp_path / "t5")
    weights = load_file(folder / "model.safetensors")
    weights["encoder.embed_tokens.weight"] = weights["shared.weight"].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    write_model(folder, tmp_path / "out", ModelEdit(rows=ROWS))
    after = tensors(tmp_path / "out")
    assert torch.equal(after["encoder.embed_tokens.weight"], after["shared.weight"])
    assert np.array_equal(after["shared.weight"][7].numpy(), ROWS[7])


def test_weights_with_the_name_of_a_larger_model_are_found(model, tmp_path):
    weights = {f"bert.{name}": value for name, value in tensors(model).items()}
    weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"].clone()
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    write_model(model, tmp_path / "out", ModelEdit(rows=ROWS))
    assert_rows(weights, tensors(tmp_path / "out"), "bert.embeddings.word_embeddings.weight")


def test_a_model_in_a_folder_of_modules_is_edited(tmp_path):
    source = architectures.saved(architectures.static_model(), tmp_path / "static")
    write_model(source, tmp_path / "out", ModelEdit(ROWS, unreachable=(50,)))
    loaded = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert np.array_equal(loaded[0].embedding.weight[7].detach().numpy(), ROWS[7])


def test_permissions_hidden_files_and_links_are_kept_as_files(model, tmp_path):
    (model / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    (model / "config.json").chmod(0o440)
    (model / "model.safetensors").chmod(0o444)
    blob = tmp_path / "blob"
    shutil.move(model / "tokenizer.json", blob)
    (model / "tokenizer.json").symlink_to(blob)
    content = blob.read_bytes()
    write_model(model, tmp_path / "out", ModelEdit(ROWS, unreachable=(50,)))
    out = tmp_path / "out"
    assert (out / ".gitattributes").is_file()
    assert stat.S_IMODE((out / "config.json").stat().st_mode) == 0o440
    assert stat.S_IMODE((out / "model.safetensors").stat().st_mode) == 0o444
    assert not (out / "tokenizer.json").is_symlink()
    assert blob.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blob", "model", "out"]


def test_old_weights_in_other_formats_are_left_out_only_where_weights_change(model, tmp_path):
    (model / "pytorch_model.bin").write_bytes(b"old")
    (model / "onnx").mkdir()
    (model / "onnx" / "model.onnx").write_bytes(b"old")
    for name, edit in (("rows", ModelEdit(rows=ROWS)), ("tokenizer", ModelEdit(unreachable=(50,)))):
        write_model(model, tmp_path / name, edit)
        for old in ("onnx/model.onnx", "pytorch_model.bin"):
            assert (tmp_path / name / old).exists() is (name == "tokenizer")


def test_copies_of_the_tokenizer_beside_exported_weights_are_edited_or_left_out(model, tmp_path):
    for folder in ("onnx", "openvino"):
        (model / folder).mkdir()
        for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
            shutil.copy(model / name, model / folder / name)
    (model / "openvino" / "tokenizer.json").write_text("{}")  # it is no copy
    content = json.loads((model / "tokenizer.json").read_text("utf-8"))
    (model / "onnx" / "tokenizer.json").write_text(json.dumps(content))  # it is one, written in another way
    separator_id = AutoTokenizer.from_pretrained(model).sep_token_id
    write_model(model, tmp_path / "out", ModelEdit(plain_specials=(separator_id,)))
    for folder in (tmp_path / "out", tmp_path / "out" / "onnx"):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert separator_id not in tokenizer("a [SEP] b", add_special_tokens=False)["input_ids"]
    exported = [path.name for path in (tmp_path / "out" / "openvino").iterdir()]
    assert sorted(exported) == ["config.json", "tokenizer_config.json"]


def test_weights_in_other_precisions_are_left_out_where_weights_change(model, tmp_path):
    shutil.copy(model / "model.safetensors", model / "model.fp16.safetensors")
    shutil.copy(model / "model.safetensors", model / "model.fp16-00001-of-00001.safetensors")
    (model / "model.safetensors.index.fp16.json").write_text("{}")
    for edit, expected in ((ModelEdit(rows=ROWS), 1), (ModelEdit(unreachable=(50,)), 4)):
        out = tmp_path / f"{expected} files"
        write_model(model, out, edit)
        assert len(list(out.glob("model*"))) == expected


def test_weights_of_other_modules_stay_in_any_format(model, tmp_path):
    dense = model / "2_Dense"
    dense.mkdir()
    (dense / "pytorch_model.bin").write_bytes(b"weights")
    write_model(model, tmp_path / "out", ModelEdit(rows=ROWS))
    assert (tmp_path / "out" / "2_Dense" / "pytorch_model.bin").read_bytes() == b"weights"


def test_a_folder_that_is_there_is_left_alone(model, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(RepairError, match=naming(tmp_path / "out")):
        write_model(model, tmp_path / "out", ModelEdit(rows=ROWS))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def named_by_router(model):
    modules = json.loads((model / "modules.json").read_text())
    modules[0]["type"] = "sentence_transformers.models.Router"
    (model / "modules.json").write_text(json.dumps(modules))


def converted(model, dtype):
    weights = {name: value.to(dtype) for name, value in tensors(model).items()}
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda model: (model / "adapter_config.json").write_text("{}"), naming("adapter")),
        (
            lambda model: (model / "model.safetensors").rename(model / "pytorch_model.bin"),
            naming("safetensors"),
        ),
        (lambda model: converted(model, torch.int8), naming("I8")),
        (named_by_router, naming("Router")),
    ],
)
def test_a_model_whose_rows_cannot_be_written_is_refused(spoil, match, model, tmp_path):
    spoil(model)
    assert not rows_writable(model)
    with pytest.raises(RepairError, match=match):
        write_model(model, tmp_path / "out", ModelEdit(rows=ROWS))
    assert not (tmp_path / "out").exists()


def test_a_row_that_overflows_its_type_is_refused(model, tmp_path):
    converted(model, torch.float16)
    huge = {7: np.full(32, 1e6, dtype=np.float32)}
    with pytest.raises(RepairError, match=naming(7, "float16")):
        write_model(model, tmp_path / "out", ModelEdit(rows=huge))


def test_a_full_disk_is_said_in_few_words(model, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "copytree", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(RepairError, match=naming(tmp_path / "out")) as error:
        write_model(model, tmp_path / "out", ModelEdit(rows=ROWS))
    assert "No space left on device" not in str(error.value)


def test_errors_name_the_folder_that_was_passed(model, tmp_path):
    out = tmp_path / "out"
    with workshop(out) as folder:
        with pytest.raises(RunError, match=naming(out)) as error:
            workshop(out).__enter__()
        assert "repairing" not in str(error.value)
        write_model(model, folder, ModelEdit(rows=ROWS))
    with pytest.raises(RunError, match=naming(out / "REPAIR.md")), workshop(out):
        raise RunError(f"no space left to write {folder}/REPAIR.md")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
