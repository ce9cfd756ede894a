"""Clean figures without stickytoken: plain sentence-transformers, and the libraries of the metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytrec_eval
from scipy.stats import spearmanr
from sklearn.cluster import KMeans
from sklearn.metrics import v_measure_score

from stickytoken.encoders.loading.resolution import resolve_model


def plain_model(name: str) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(resolve_model(name).location, device="cpu", local_files_only=True)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def units(model: Any, texts: list[str]) -> np.ndarray:
    vectors = model.encode(texts, show_progress_bar=False).astype(np.float64)
    normed: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return normed


def plain_sts(model: Any, path: Path) -> float:
    rows = rows_of(path)
    first, second = (units(model, [row[side] for row in rows]) for side in ("sentence1", "sentence2"))
    return float(spearmanr([row["score"] for row in rows], (first * second).sum(axis=1)).statistic)


def plain_clustering(model: Any, path: Path, seed: int) -> float:
    rows = rows_of(path)
    labels = [row["label"] for row in rows]
    clusters = KMeans(len(set(labels)), n_init=10, random_state=seed).fit_predict(
        units(model, [row["text"] for row in rows])
    )
    return float(v_measure_score(labels, clusters))


class Search(NamedTuple):
    """A plain search of Cranfield: ids of queries and documents, and their similarities."""

    queries: list[str]
    documents: list[str]
    similarities: np.ndarray


def plain_search(model: Any, folder: Path, copies: int) -> Search:
    """Documents are cut where the model would cut if it read as many tokens less as there are copies."""
    documents = {
        row["_id"]: f"{row['title']} {row['text']}".strip() for row in rows_of(folder / "corpus.jsonl")
    }
    judged = judgements(folder)
    queries = {row["_id"]: row["text"] for row in rows_of(folder / "queries.jsonl") if row["_id"] in judged}
    asked = units(model, list(queries.values()))
    longest = model.max_seq_length
    model.max_seq_length = longest - copies
    found = asked @ units(model, list(documents.values())).T
    model.max_seq_length = longest
    return Search(list(queries), list(documents), found)


def judgements(folder: Path) -> dict[str, dict[str, int]]:
    """Relevance by query and document."""
    judged: dict[str, dict[str, int]] = {}
    for line in (folder / "qrels" / "test.tsv").read_text("utf-8").splitlines()[1:]:
        query, document, score = line.split("\t")
        judged.setdefault(query, {})[document] = int(score)
    return judged


def plain_retrieval(search: Search, folder: Path) -> dict[str, float]:
    """The metrics of a search, by pytrec_eval."""
    run = {}
    for query, row in zip(search.queries, search.similarities, strict=True):
        best = np.argsort(-row)[:1000]
        run[query] = {search.documents[place]: float(row[place]) for place in best}
    measures = {"ndcg_cut_10", "recall_100", "map", "recip_rank"}
    values = pytrec_eval.RelevanceEvaluator(judgements(folder), measures).evaluate(run)
    names = {"ndcg_at_10": "ndcg_cut_10", "recall_at_100": "recall_100", "map": "map", "mrr": "recip_rank"}
    return {ours: float(np.mean([row[theirs] for row in values.values()])) for ours, theirs in names.items()}
