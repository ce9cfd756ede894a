"""The evaluator in the training loop of sentence-transformers, with a tiny model."""

import csv
import random

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.evaluation import SequentialEvaluator
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

import profiled
import tiny
from naming import naming
from stickytoken.errors import InputError
from stickytoken.evaluators import StickyTokenEvaluator

SENTENCES = profiled.sentences(1200)  # enough for documents


def evaluator(**options):
    return StickyTokenEvaluator(4, sentences=SENTENCES, settings=profiled.SMALL, **options)


@pytest.fixture
def build_model(tmp_path):
    backbone = tiny.bert_backbone(tmp_path / "backbone", words=profiled.WORDS)
    return lambda: tiny.sentence_transformer(backbone, normalize=True)


def train(model, folder, *watching):
    similarity = EmbeddingSimilarityEvaluator(SENTENCES[:8], SENTENCES[8:16], list(np.linspace(0, 1, 8)))
    pairs = Dataset.from_dict({"anchor": SENTENCES[:32], "positive": SENTENCES[32:64]})
    arguments = SentenceTransformerTrainingArguments(
        folder,
        num_train_epochs=2,
        per_device_train_batch_size=16,
        eval_strategy="epoch",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = SentenceTransformerTrainer(
        model,
        arguments,
        train_dataset=pairs,
        loss=MultipleNegativesRankingLoss(model),
        evaluator=SequentialEvaluator([similarity, *watching]),
    )
    trainer.train()
    return trainer


@pytest.mark.slow
def test_a_training_that_is_watched_gives_the_same_weights_and_two_rows(build_model, tmp_path):
    model = build_model()
    trainer = train(model, tmp_path / "watched", evaluator(name="dev"))
    unwatched = build_model()
    train(unwatched, tmp_path / "unwatched")
    for weight, expected in zip(model.parameters(), unwatched.parameters(), strict=True):
        assert torch.equal(weight, expected)

    with (tmp_path / "watched/eval/sticky_tokens_dev_results.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["epoch"], row["steps"]) for row in rows] == [("1.0", "2"), ("2.0", "4")]
    logged = [entry for entry in trainer.state.log_history if "eval_dev_hidden" in entry]
    for name in ("sticky", "hidden", "pushed"):
        assert [entry[f"eval_dev_{name}"] for entry in logged] == [float(row[name]) for row in rows]
    # The last of the evaluators is the score of the sequence.
    assert logged[-1]["eval_sequential_score"] == logged[-1]["eval_dev_sticky"]
    # The weights have changed in between.
    assert rows[0]["hidden"] != rows[1]["hidden"]


def test_metrics_follow_the_weights_and_the_model_stays_as_it_was(tmp_path):
    model = profiled.planted_model(0.0)
    rows = model[0].embedding.weight
    token_id = model.tokenizer.token_to_id("[CLS]")
    before = rows[token_id].detach().clone()
    model.train()
    torch.manual_seed(5)
    states = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy())  # noqa: NPY002
    watching = evaluator()
    first = watching(model, tmp_path)
    with torch.no_grad():
        rows[token_id] = 30 * torch.eye(len(before))[0]
    planted = watching(model, tmp_path)
    with torch.no_grad():
        rows[token_id] = before
    assert watching(model, tmp_path) == first
    assert planted["sticky"] > first["sticky"]
    assert planted["hidden"] > max(0.5, first["hidden"])

    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert rows.requires_grad
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])  # noqa: NPY002
    assert [path.name for path in tmp_path.iterdir()] == ["sticky_tokens_results.csv"]


def test_the_card_of_the_model_has_the_metrics(tmp_path):
    model = profiled.planted_model(0.0)
    watching = evaluator(name="dev", write_csv=False)
    metrics = watching(model, tmp_path)
    assert watching.primary_metric == "dev_sticky"
    assert model.model_card_data.eval_results_dict[watching] == metrics
    assert watching.description == "Sticky Token"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sample", [0, -1, 1.5, "many"])
def test_a_sample_must_be_a_positive_number(sample):
    with pytest.raises(InputError, match=naming("sample", sample)):
        StickyTokenEvaluator(sample)
