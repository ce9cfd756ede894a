"""Explanations of models with a prompt."""

import json

import numpy as np
import pytest
import torch

import planted
import profiled
import tiny
import tiny_decoders
from prompted_loading import load_prompted
from stickytoken.corpora.corpus import collect_sentences
from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
from stickytoken.encoders.prompted.layer_states import TokenPrepending
from stickytoken.encoders.prompted.model import Reading
from stickytoken.encoders.prompted.prompts import find_prompt
from stickytoken.explanation import ExplainSettings, explain

READING = {"prompt": "prompteol", "token_prepending": True, "start": 1, "exit": 3, "layer": 3}
SMALL = ExplainSettings(
    copies=4, carriers=6, benign=5, attribution_carriers=1, attribution_benign=3, steps=4, directions=10
)
CORPUS = collect_sentences(tiny.sentences(40), "test")
AREAS = {"attention", "hidden states", "pooling", "attribution", "embedding", "similarity"}


def encoder_with_long_row(prompt, span=None):
    """A Llama in which the embedding of one word is long and lies along one dimension."""
    model, tokenizer = tiny_decoders.decoder("llama")
    reading = Reading(find_prompt(prompt), None if span is None else TokenPrepending(*span), -1)
    encoder = CausalPromptEncoder(model, tokenizer, "tiny", reading)
    token_id = encoder.tokenize(["a garden"])[0].ids[-1]
    with torch.no_grad():
        model.get_input_embeddings().weight[token_id] = 50 * torch.eye(tiny_decoders.DIMENSION)[0]
    return encoder, token_id


@pytest.mark.parametrize(
    ("prompt", "span"),
    [("prompteol", None), ("prompteol", (1, 3)), ("{sentence}", None), ("echo", None)],
    ids=str,
)
def test_a_planted_token_is_told_from_ordinary_ones(prompt, span):
    encoder, token_id = encoder_with_long_row(prompt, span)
    found = explain(encoder, [token_id], sentences=CORPUS, settings=SMALL)
    assert set(found.measures["area"]) == AREAS
    differing = {each.measure for each in found.tokens[0].findings}
    assert "embedding_norm" in differing
    assert any(each.area == "hidden states" for each in found.tokens[0].findings)
    assert found.pooling == ("mean" if prompt == "echo" else "lasttoken")
    layers = dict(found.measures.group_by("measure").agg("layer").iter_rows())
    assert set(layers["attention_received"]) == {1, 2, 3, 4}
    for pair in found.pairs.to_dicts():
        carrier, anchor = encoder.encode([pair["carrier"], pair["anchor"]]).astype(float)
        before = carrier @ anchor / np.linalg.norm(carrier) / np.linalg.norm(anchor)
        assert pair["similarity_before"] == pytest.approx(before, abs=1e-5)


@pytest.mark.slow
def test_several_prompts_are_explained_without_attribution():
    encoder, token_id = encoder_with_long_row("metaeol")
    settings = ExplainSettings(copies=3, carriers=3, benign=3, attribution=False, directions=8)
    found = explain(encoder, [token_id], sentences=CORPUS, settings=settings)
    assert set(found.measures["area"]) == AREAS - {"attribution"}
    assert found.pooling == "lasttoken of several prompts"


@pytest.mark.slow
def test_the_command_explains_tokens_of_a_prompted_run(tmp_path):
    folder = tiny_decoders.saved_decoder(tmp_path / "model")
    run = profiled.detect_profile(
        load_prompted(folder, device="cpu", **READING),
        tmp_path / "run",
        sentences=collect_sentences(tiny.sentences(200), "test"),
        sample=40,
    )
    token = run.tokens["token_id"][0]
    asked = ["explain", run.path, token, "--ids", "--device", "cpu"]
    small = ["--copies", 3, "--carriers", 3, "--benign", 3, "--steps", 3]
    result = planted.command(*asked, *small, "--format", "json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert [each["token_id"] for each in document["tokens"]] == [token]
    # Token prepending reads layer 3 of 4, as the run did.
    written = json.loads(next((run.path / "explain").glob("*/explanation.json")).read_text("utf-8"))
    assert written["pooling"] == "lasttoken"
    assert planted.command("report", run.path).exit_code == 0
    page = (run.path / "report.html").read_text("utf-8")
    assert "Pooling of this model: lasttoken" in page
