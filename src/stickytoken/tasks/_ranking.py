"""Tasks that rank documents by query: retrieval from a corpus, and reranking of candidates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import require_package
from stickytoken.insertion import Side
from stickytoken.tasks.protocol import Outcomes, fingerprint
from stickytoken.unit_vectors import exact_unit_vectors

# Depth of a ranking, as in trec_eval and MTEB.
_DEPTH = 1000
_QUERIES_AT_ONCE = 256
_MEASURES = {"ndcg_cut.10", "recall.100", "map", "recip_rank"}


@dataclass(frozen=True)
class _Ranking:
    """Queries, documents and relevance judgements.

    Attributes:
        name: name of the task.
        queries: queries by id.
        documents: documents by id.
        relevant: relevance of documents, by query id and document id; every query has a relevant document.
    """

    name: str
    queries: Mapping[str, str]
    documents: Mapping[str, str]
    relevant: Mapping[str, Mapping[str, int]]

    layout: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]
    unit = "queries"

    def __post_init__(self) -> None:
        """Fail before anything is encoded, not once metrics are computed."""
        require_package("pytrec_eval", f"the {self.layout} task {self.name!r}", "impact")

    @property
    def units(self) -> int:
        """Number of queries."""
        return len(self.queries)

    @property
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        """Texts of queries and documents."""
        return {"query": tuple(self.queries.values()), "document": tuple(self.documents.values())}

    def edited(self, side: Side) -> frozenset[str]:
        """Return the chosen side, or both."""
        return side.roles

    def scores(
        self, metric: str, outcomes: NDArray[np.float64], sample: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        """Average a metric over queries."""
        values = outcomes[:, :, self.metrics.index(metric)]
        mean: NDArray[np.float64] = (values if sample is None else values[:, sample]).mean(axis=1)
        return mean


class RetrievalTask(_Ranking):
    """A corpus that every query searches, as in BEIR."""

    layout = "retrieval"
    metrics = ("ndcg_at_10", "recall_at_100", "map", "mrr")
    columns = metrics

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of queries, documents and relevance."""
        relevant = {query: dict(found) for query, found in self.relevant.items()}
        return fingerprint(self.layout, dict(self.queries), dict(self.documents), relevant)

    def outcomes(self, vectors: Mapping[str, NDArray[np.float32]], seed: int) -> Outcomes:
        """Compute the four metrics of each query with pytrec_eval, over its best 1,000 documents."""
        del seed
        measures = ("ndcg_cut_10", "recall_100", "map", "recip_rank")
        found = evaluate_ranking(self.relevant, self._run(vectors), measures)
        return np.array([[found[query][measure] for measure in measures] for query in self.queries])

    def _run(self, vectors: Mapping[str, NDArray[np.float32]]) -> dict[str, dict[str, float]]:
        queries, documents = exact_unit_vectors(vectors["query"]), exact_unit_vectors(vectors["document"])
        ids, names = list(self.documents), list(self.queries)
        depth = min(_DEPTH, len(ids))
        run: dict[str, dict[str, float]] = {}
        for start in range(0, len(names), _QUERIES_AT_ONCE):
            cosines = queries[start : start + _QUERIES_AT_ONCE] @ documents.T
            best = np.argpartition(-cosines, depth - 1, axis=1)[:, :depth]
            for query, row, places in zip(names[start:], cosines, best, strict=False):
                run[query] = {ids[place]: float(row[place]) for place in places}
        return run


@dataclass(frozen=True)
class RerankingTask(_Ranking):
    """Candidates of each query, to be ranked.

    Attributes:
        candidates: document ids by query id.
    """

    candidates: Mapping[str, tuple[str, ...]]

    layout = "reranking"
    metrics = ("map",)
    columns = metrics

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of queries, candidates and relevance."""
        relevant = {query: dict(found) for query, found in self.relevant.items()}
        candidates = {query: list(ids) for query, ids in self.candidates.items()}
        return fingerprint(self.layout, dict(self.queries), dict(self.documents), relevant, candidates)

    def outcomes(self, vectors: Mapping[str, NDArray[np.float32]], seed: int) -> Outcomes:
        """Compute the average precision of each query over its candidates with pytrec_eval."""
        del seed
        queries, documents = exact_unit_vectors(vectors["query"]), exact_unit_vectors(vectors["document"])
        places = {document: place for place, document in enumerate(self.documents)}
        run = {}
        for vector, (query, ids) in zip(queries, self.candidates.items(), strict=True):
            cosines = documents[[places[document] for document in ids]] @ vector
            run[query] = dict(zip(ids, cosines.tolist(), strict=True))
        found = evaluate_ranking(self.relevant, run, ("map",))
        return np.array([[found[query]["map"]] for query in self.queries])


def evaluate_ranking(
    relevant: Mapping[str, Mapping[str, int]],
    run: Mapping[str, Mapping[str, float]],
    measures: tuple[str, ...],
) -> dict[str, dict[str, float]]:
    """Compute trec_eval measures by query."""
    import pytrec_eval

    judged = {query: dict(found) for query, found in relevant.items()}
    evaluator = pytrec_eval.RelevanceEvaluator(judged, _MEASURES)
    found: dict[str, dict[str, float]] = evaluator.evaluate({query: dict(row) for query, row in run.items()})
    return {query: {measure: row[measure] for measure in measures} for query, row in found.items()}
