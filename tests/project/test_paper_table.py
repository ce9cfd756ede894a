"""The table over the paper's models, on tiny models of the same architectures under the same settings."""

import json
from pathlib import Path

import pytest

import parity
import saved_models
import tiny
import tiny_architectures as architectures
from stickytoken.methods.std.plan import StdSettings

SETTINGS = StdSettings(sentences=40, pairs=200, scoring_pairs=1, validation_pairs=4, copies=3)
LOCAL = {
    "sentence-t5-base": (architectures.t5, "mean"),
    "e5-small": (architectures.bert, "mean"),
    "all-mpnet-base-v2": (architectures.mpnet, "mean"),
    "sup-simcse-roberta-base": (architectures.roberta, "cls"),
    "jina-embeddings-v3": (architectures.xlm_roberta, "mean"),
    "e5-mistral-7b-instruct": (architectures.mistral, "lasttoken"),
    "gte-Qwen2-1.5B-instruct": (architectures.qwen2, "lasttoken"),
}


def reach_far(config: dict) -> None:
    """Rotary positions have no table that would have to grow."""
    config["max_position_embeddings"] = 2**17


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    published = parity.paper_models()
    for name, (save, pooling) in LOCAL.items():
        backbone = save(tmp_path_factory.mktemp("backbone"))
        side = published[name]["padding_side"]
        model = architectures.stacked(backbone, pooling=pooling, padding_side=side, normalize=True)
        architectures.saved(model, folder / name)
        if published[name]["max_length"]:  # the published models have positions for it
            saved_models.edit(folder / name / "config.json", reach_far)
    broken = folder / "gte-small"
    architectures.saved(tiny.sentence_transformer(architectures.bert(tmp_path_factory.mktemp("b"))), broken)
    (broken / "model.safetensors").write_bytes(b"not weights")
    return folder


def test_the_forty_published_models_are_there_with_their_numbers():
    models = parity.paper_models().values()
    assert len({model["model"] for model in models}) == 40
    assert sum(model["sticky"] for model in models) == 868
    assert all(model["hub_name"].endswith("/" + model["model"]) for model in models)


@pytest.mark.slow
def test_models_run_under_their_settings_and_failures_do_not_stop_the_others(root, tmp_path, capsys):
    corpus = tmp_path / "sentences.txt"
    corpus.write_text("\n".join(tiny.sentences(60)), encoding="utf-8")
    names = ["bge-small-en-v1.5", "gte-small", *LOCAL]
    found = parity.run_models(
        names, root, "cpu", tmp_path / "runs", sentences=str(corpus), sample=5, settings=SETTINGS
    )
    assert [each["model"] for each in found] == names
    failures = {each["model"]: each["failure"] for each in found if each["failure"]}
    assert set(failures) == {"bge-small-en-v1.5", "gte-small"}
    assert "BAAI/bge-small-en-v1.5" in failures["bge-small-en-v1.5"]
    assert {each["ours"]["scored"] for each in found if each["ours"]} == {5}
    precisions = {
        name: json.loads((tmp_path / "runs" / name / "run.json").read_text())["identity_parts"]["encoder"][
            "dtype"
        ]
        for name in LOCAL
    }
    assert precisions.pop("e5-mistral-7b-instruct") == "bfloat16"
    assert set(precisions.values()) == {"float32"}
    printed = capsys.readouterr().out
    assert "not run: gte-small" in printed
    assert "sentence-t5-base" in printed
