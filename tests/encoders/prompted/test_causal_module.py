"""A prompt as a module of sentence-transformers: encode, save, load in a fresh process, evaluate."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.sentence_transformer.modules import Normalize

import tiny
import tiny_decoders
from stickytoken import load_encoder
from stickytoken.encoders import Prompting
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.prompted.module import CausalPrompt
from stickytoken.errors import EncodingError, InputError, ModelError

SENTENCES = [*tiny.sentences(7), "", 'is it "the old" bird?']
OPTIONS = {"token_prepending": True, "start": 1, "exit": 3, "layer": 3}


def stacked(prompt="prompteol", *, kind="qwen2", normalize=False, **options):
    module = CausalPrompt(*tiny_decoders.decoder(kind), prompt=prompt, **(options or OPTIONS))
    return SentenceTransformer(modules=[module, *([Normalize()] if normalize else [])], device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen2", "llama", "gemma2", "gpt2"])
@pytest.mark.parametrize("prompt", ["prompteol", "metaeol"])
def test_it_gives_the_encoder_s_vectors_whatever_the_batch(kind, prompt):
    model = stacked(prompt, kind=kind)
    encoder = load_encoder(model)
    assert isinstance(encoder, CausalPromptEncoder)
    expected = encoder.encode(SENTENCES)
    scale = np.abs(expected).max()
    for batch_size in (1, 4, 32):
        found = model.encode(SENTENCES, batch_size=batch_size)
        assert np.abs(found - expected).max() < 1e-5 * max(1, scale)
    assert model.get_embedding_dimension() == tiny_decoders.DIMENSION


def fresh_process(folder, texts, out):
    code = (
        "import sys, json, numpy as np\n"
        "from sentence_transformers import SentenceTransformer\n"
        "folder, texts, out = sys.argv[1:]\n"
        "model = SentenceTransformer(folder, device='cpu', trust_remote_code=True)\n"
        "np.save(out, model.encode(json.loads(texts)))\n"
    )
    subprocess.run([sys.executable, "-c", code, str(folder), json.dumps(texts), str(out)], check=True)
    return np.load(out)


@pytest.mark.slow
def test_saved_and_loaded_in_a_fresh_process_it_gives_the_same_vectors(tmp_path):
    model = stacked("metaeol", normalize=True)
    model.save(str(tmp_path / "saved"), create_model_card=False)
    listed = json.loads((tmp_path / "saved" / "modules.json").read_text("utf-8"))
    assert listed[0]["type"] == "stickytoken.encoders.causal_module.CausalPrompt"  # what is on disk stays
    expected = model.encode(SENTENCES)
    assert np.array_equal(fresh_process(tmp_path / "saved", SENTENCES, tmp_path / "vectors.npy"), expected)
    # Ours needs no leave to run code: the module is its own.
    loaded = load_encoder(tmp_path / "saved", device="cpu")
    assert np.abs(loaded.encode(SENTENCES) - expected).max() < 1e-5
    assert loaded.identity == load_encoder(model).identity
    assert "<PST>" not in (tmp_path / "saved" / "tokenizer.json").read_text("utf-8")


@pytest.mark.parametrize("prompt", ["echo", 'A title: "{sentence}" is about'])
def test_other_prompts_are_saved_too(tmp_path, prompt):
    model = stacked(prompt, layer=-1)
    model.save(str(tmp_path), create_model_card=False)
    assert (
        np.abs(load_encoder(tmp_path, device="cpu").encode(SENTENCES[:4]) - model.encode(SENTENCES[:4])).max()
        < 1e-5
    )


def test_it_is_evaluated():
    evaluator = EmbeddingSimilarityEvaluator(SENTENCES[:5], SENTENCES[1:6], [0.1, 0.5, 0.3, 0.9, 0.2])
    found = evaluator(stacked())
    assert all(np.isfinite(value) for value in found.values())


def test_a_prompt_of_the_library_goes_in_front_of_the_sentence():
    model = stacked()
    found = model.encode(["river"], prompt="the old ")
    assert np.array_equal(found, model.encode(["the old river"]))


def test_what_a_loaded_model_cannot_meet_is_refused(tmp_path):
    model = stacked()
    with pytest.raises(InputError, match="already loaded with its prompt"):
        load_encoder(model, prompt=Prompting(layer=2))
    model.save(str(tmp_path), create_model_card=False)
    with pytest.raises(InputError, match="saved with its prompt"):
        load_encoder(tmp_path, device="cpu", prompt="cot")
    (tmp_path / "causal_prompt_config.json").write_text("{")
    with pytest.raises(ModelError, match="damaged"):
        load_encoder(tmp_path, device="cpu")
    with pytest.raises(InputError, match="only Normalize is supported"):
        load_encoder(SentenceTransformer(modules=[model[0], Normalize(), Normalize()], device="cpu"))
    with pytest.raises(InputError, match="one text, got a tuple"):
        model[0].preprocess([("a", "b")])
    with pytest.raises(EncodingError, match="the model reads 512"):
        model.encode(["the river " * 400])


def test_it_moves_and_trains_like_any_module():
    model = stacked()
    features = model.preprocess(SENTENCES[:2])
    model.train()
    model(features)["sentence_embedding"].sum().backward()
    weight = model[0].model.layers[0].mlp.up_proj.weight
    assert weight.grad is not None
    assert weight.grad.abs().sum() > 0
    model.double()
    assert model.encode(SENTENCES[:2]).dtype == np.float64
    assert model[0].model.dtype == torch.float64
