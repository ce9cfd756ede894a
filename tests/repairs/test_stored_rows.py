"""Rows of static models with a mapping, weights or both, and checks of what is written."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

import tiny
from naming import naming
from stickytoken.encoders.files.stored_rows import read_stored_tensors, static_rows
from stickytoken.errors import ModelError, RepairError
from stickytoken.repairs._plans import TokenFacts, plan_without_editing
from stickytoken.repairs.model_folder import rows_writable, write_model
from stickytoken.repairs.tokenizer_edit import ModelEdit
from stickytoken.settings.repair import Strategy

TOKENIZER = tiny.wordpiece_tokenizer().backend_tokenizer
TOKENS = TOKENIZER.get_vocab_size()
LAYOUTS = {"mapping": (20, False), "weights": (None, True), "both": (20, True), "plain": (None, False)}
ROWS = {7: np.linspace(-1, 1, 16, dtype=np.float32), TOKENS - 1: np.full(16, 0.25, dtype=np.float32)}


def static_folder(folder, stored_rows, weighted, dtype=torch.float32):
    folder.mkdir()
    generator = torch.Generator().manual_seed(1)
    matrix = torch.randn(stored_rows or TOKENS, 16, generator=generator)
    if dtype is torch.int8:
        matrix *= 40
    tensors = {"embeddings": matrix.to(dtype)}
    if stored_rows:
        tensors["mapping"] = torch.randint(stored_rows, (TOKENS,), generator=generator)
    if weighted:
        tensors["weights"] = torch.rand(TOKENS, generator=generator) + 0.5
    save_file(tensors, folder / "model.safetensors")
    TOKENIZER.save(str(folder / "tokenizer.json"))
    module = {"idx": 0, "name": "0", "path": ".", "type": "sentence_transformers.models.StaticEmbedding"}
    (folder / "modules.json").write_text(json.dumps([module]))
    return folder


def loaded_rows(folder):
    return SentenceTransformer(str(folder), device="cpu")[0].embedding.weight.detach()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_are_read_as_sentence_transformers_reads_them(layout, dtype, tmp_path):
    folder = static_folder(tmp_path / "model", *LAYOUTS[layout], dtype)
    rows = static_rows(read_stored_tensors(folder / "model.safetensors"))
    assert torch.equal(torch.from_numpy(rows.read(0, len(rows))), loaded_rows(folder).to(torch.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_the_rows_of_the_edit_change(layout, dtype, tmp_path):
    folder = static_folder(tmp_path / "model", *LAYOUTS[layout], dtype)
    write_model(folder, tmp_path / "out", ModelEdit(rows=ROWS))
    before = loaded_rows(folder)
    after = loaded_rows(tmp_path / "out")
    assert after.dtype == before.dtype
    assert (before != after).any(dim=1).nonzero().flatten().tolist() == list(ROWS)
    for token_id, row in ROWS.items():
        assert torch.equal(after[token_id], torch.from_numpy(row).to(before.dtype))


def test_integers_with_weights_are_unfolded_and_without_weights_are_refused(tmp_path):
    weighted = static_folder(tmp_path / "weighted", 20, True, torch.int8)
    write_model(weighted, tmp_path / "out", ModelEdit(rows=ROWS))
    changed = (loaded_rows(weighted) != loaded_rows(tmp_path / "out")).any(dim=1)
    assert changed.nonzero().flatten().tolist() == list(ROWS)
    plain = static_folder(tmp_path / "plain", None, False, torch.int8)
    assert not rows_writable(plain)
    with pytest.raises(RepairError, match=naming("I8")):
        write_model(plain, tmp_path / "other", ModelEdit(rows=ROWS))


def test_a_token_without_a_row_is_refused_before_anything_is_written(tmp_path):
    folder = static_folder(tmp_path / "model", None, False)
    with pytest.raises(RepairError, match=naming(TOKENS)):
        write_model(folder, tmp_path / "out", ModelEdit(rows={TOKENS: ROWS[7]}))
    assert not (tmp_path / "out").exists()


def test_a_mapping_to_a_row_that_is_not_there_is_refused(tmp_path):
    folder = static_folder(tmp_path / "model", 20, False)
    tensors = load_file(folder / "model.safetensors")
    tensors["mapping"][5] = 20
    save_file(tensors, folder / "model.safetensors")
    rows = static_rows(read_stored_tensors(folder / "model.safetensors"))
    with pytest.raises(ModelError, match=naming(20, 5)):
        rows.read(0, 6)


@pytest.mark.parametrize("name", ["mapping", "weights"])
def test_a_mapping_or_weights_of_an_unreadable_type_are_refused(name, tmp_path):
    folder = static_folder(tmp_path / "model", *LAYOUTS["both"])
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = tensors[name].to(torch.bool)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=naming(name, "BOOL")):
        static_rows(read_stored_tensors(folder / "model.safetensors"))


@pytest.mark.parametrize("tied", [True, False])
def test_a_language_model_keeps_output_embeddings_of_its_own(tied, tmp_path):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = tiny.wordpiece_tokenizer()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=tied,
    )
    folder = tiny.save_backbone(tmp_path / "model", Qwen3ForCausalLM(config), tokenizer)
    write_model(folder, tmp_path / "out", ModelEdit(rows={7: ROWS[7]}))
    before, after = (
        Qwen3ForCausalLM.from_pretrained(model_folder) for model_folder in (folder, tmp_path / "out")
    )
    assert np.array_equal(after.get_input_embeddings().weight[7].detach().numpy(), ROWS[7])
    outputs = (before.get_output_embeddings().weight != after.get_output_embeddings().weight).any(dim=1)
    assert outputs.nonzero().flatten().tolist() == ([7] if tied else [])


@pytest.mark.parametrize("asked", ["unreachable", "plain-specials", "relatives"])
def test_a_python_tokenizer_is_never_advised_what_needs_a_fast_one(asked):
    with pytest.raises(RepairError, match=naming("'x'", "ByT5Tokenizer", "nearest", "stickytoken clean")):
        plan_without_editing(Strategy(asked), TokenFacts("token 'x' (id 7)"), "ByT5Tokenizer")


@pytest.mark.parametrize("asked", [Strategy.AUTO, Strategy.NEAREST])
def test_a_python_tokenizer_leaves_rows_that_need_no_pieces(asked):
    assert plan_without_editing(asked, TokenFacts("x"), "ByT5Tokenizer").strategies == (Strategy.NEAREST,)


def test_a_token_that_a_python_tokenizer_puts_into_every_text_is_refused():
    with pytest.raises(RepairError, match=naming("x")):
        plan_without_editing(Strategy.AUTO, TokenFacts("x", templated=True), "ByT5Tokenizer")
