"""Explanations of models with a prompt."""

import numpy as np
import pytest
import torch

import planted
import profiled
import tiny
import tiny_decoders
from prompted_loading import encoder_of, load_prompted, read
from stickytoken.data.sentences import collect_sentences
from stickytoken.explanation import ExplainSettings, explain

SMALL = ExplainSettings(
    copies=4, carriers=4, benign=4, attribution_carriers=1, attribution_benign=3, steps=4, directions=10
)
CORPUS = collect_sentences(tiny.sentences(40), "test")
AREAS = {"attention", "hidden states", "pooling", "attribution", "embedding", "similarity"}


@pytest.mark.parametrize(
    ("prompt", "span", "layer", "pooling"),
    [
        ("prompteol", (1, 3), 4, "lasttoken"),
        ("echo", None, 4, "mean"),
        pytest.param("metaeol", None, 1, "lasttoken of several prompts", marks=pytest.mark.nightly),
    ],
)
def test_a_planted_token_is_told_from_ordinary_ones(prompt, span, layer, pooling):
    """The embedding of one word is long and lies along one dimension."""
    encoder = encoder_of(read(prompt, span, layer), "llama")
    token_id = encoder.tokenize(["a garden"])[0].ids[-1]
    with torch.no_grad():
        row = 50 * torch.eye(tiny_decoders.DIMENSION)[0]
        encoder.prompted.decoder.embedding.weight[token_id] = row
    found = explain(encoder, [token_id], sentences=CORPUS, settings=SMALL)
    assert set(found.measures["area"]) == AREAS
    assert "embedding_norm" in {each.measure for each in found.tokens[0].findings}
    assert found.pooling == pooling
    layers = dict(found.measures.group_by("measure").agg("layer").iter_rows())
    assert list(layers["attention_received"]) == list(range(1, layer + 1))
    for pair in found.pairs.to_dicts():
        carrier, anchor = encoder.encode([pair["carrier"], pair["anchor"]]).astype(float)
        before = carrier @ anchor / np.linalg.norm(carrier) / np.linalg.norm(anchor)
        assert pair["similarity_before"] == pytest.approx(before, abs=1e-5)


@pytest.mark.slow
def test_the_command_explains_tokens_of_a_prompted_run(tmp_path):
    reading = {"prompt": "prompteol", "token_prepending": True, "start": 1, "exit": 3, "layer": 3}
    encoder = load_prompted(tiny_decoders.saved_decoder(tmp_path / "model"), device="cpu", **reading)
    corpus = collect_sentences(tiny.sentences(200), "test")
    run = profiled.detect_profile(encoder, tmp_path / "run", sentences=corpus, sample=40)
    asked = ["explain", run.path, run.tokens["token_id"][0], "--ids", "--device", "cpu", "--copies", 3]
    small = ["--set", "carriers=3", "--set", "benign=3", "--set", "steps=3", "--format", "json"]
    document = planted.document(planted.command(*asked, *small))
    assert [each["token_id"] for each in document["tokens"]] == run.tokens["token_id"].to_list()[:1]
    assert document["pooling"] == "lasttoken"
