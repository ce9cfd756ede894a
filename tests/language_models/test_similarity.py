"""Tasks are scored by the similarity that a model declares, as the evaluators of the library do."""

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.evaluation import (
    EmbeddingSimilarityEvaluator,
    InformationRetrievalEvaluator,
)
from sentence_transformers.util import SimilarityFunction

import tiny
import tiny_architectures as architectures
from naming import naming
from stickytoken import load_encoder, probe
from stickytoken.data.metrics import RetrievalTask, SimilarityTask
from stickytoken.errors import StickyTokenWarning
from stickytoken.evaluation import compare
from stickytoken.unit_vectors import Similarity

NAMES = ["cosine", "dot", "euclidean", "manhattan"]


@pytest.fixture(params=NAMES)
def model(request):
    """Rows of very different lengths, so that similarities rank differently."""
    static = architectures.static_model(similarity_fn_name=request.param)
    lengths = torch.rand(len(static[0].embedding.weight), 1, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        static[0].embedding.weight *= 4 * lengths + 0.1
    return static


def test_retrieval_is_scored_as_the_library_does(model):
    documents = {f"d{number}": text for number, text in enumerate(tiny.sentences(60))}
    queries = {f"q{number}": " ".join(documents[f"d{number}"].split()[:2]) for number in range(20)}
    relevant = {f"q{number}": {f"d{number}": 1} for number in range(20)}
    task = RetrievalTask("task", queries, documents, relevant)
    (score,) = compare(load_encoder(model), task).scores
    name = model.similarity_fn_name
    evaluator = InformationRetrievalEvaluator(
        queries,
        documents,
        {query: set(relevant_ids) for query, relevant_ids in relevant.items()},
        write_csv=False,
    )
    expected = evaluator(model)[f"{name}_ndcg@10"]
    assert score.scores["ndcg_at_10"] == pytest.approx(100 * expected, abs=1e-3)


def test_pairs_are_scored_as_the_library_does(model):
    first = tiny.sentences(40, seed=1)
    second = tiny.sentences(40, seed=2)
    gold = [float(number % 7) for number in range(40)]
    task = SimilarityTask("task", tuple(first), tuple(second), tuple(gold))
    comparison = compare(load_encoder(model), task)
    name = model.similarity_fn_name
    evaluator = EmbeddingSimilarityEvaluator(
        first, second, gold, main_similarity=SimilarityFunction(name), write_csv=False
    )
    expected = evaluator(model)["spearman_" + name]
    assert comparison.scores[0].scores["spearman"] == pytest.approx(100 * expected, abs=1e-3)
    assert comparison.similarity == name


def test_detection_says_that_it_measures_the_cosine():
    static = architectures.static_model(similarity_fn_name="dot")
    with pytest.warns(StickyTokenWarning, match=naming("dot", "cosine")):
        probe(static, ["river"], sentences=tiny.sentences(300))


@pytest.mark.parametrize("name", NAMES)
def test_a_query_that_is_a_document_is_not_ranked_for_itself(name):
    vectors = {"query": np.array([[1.0, 0.0]]), "document": np.array([[1.0, 0.0], [0.8, 0.6], [-1.0, 0.0]])}
    texts = {"a": "own", "b": "near", "c": "far"}
    task = RetrievalTask("t", {"a": "own"}, texts, {"a": {"b": 1}}, unranked=("a",))
    scores = task.outcomes(vectors, seed=1, similarity=Similarity(name))
    assert dict(zip(task.metrics, scores[0], strict=True))["mrr"] == 1
