"""Insert copies of tokens into one document at a time, and search for that document with all queries."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.audits._index import Index
from stickytoken.audits._job import AuditJob
from stickytoken.encoders.fitting import fit_texts
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Token
from stickytoken.intervals import Interval, Intervals, estimate_share
from stickytoken.methods.probes import room_for
from stickytoken.methods.profile.documents import DocumentPanel
from stickytoken.methods.runner import Runner
from stickytoken.search import COPIES, TOP, ExactSearch, depth_of, push_ratios
from stickytoken.settings.audit import AuditSettings
from stickytoken.words import counted

STUFFED = "stuffed"
"""Name of the stage that measures the tokens."""
STUFFED_FURTHER = "stuffed further"
"""Name of the stage that measures those whose push reaches its threshold in more documents."""
# In how many times as many documents these are measured.
_TIMES_FURTHER = 4
SHARD_TEXTS = 512
"""Number of documents with copies in a shard. Encoding one takes about half a minute on two cores."""
# Fewest wrong results of all documents without copies. A ratio to fewer would be chance.
_LEAST_RESULTS = 10
# Keys of the random generators that draw documents and bootstrap samples.
_DOCUMENTS_KEY = 3
_SAMPLES_KEY = 4


class StuffedDocuments(NamedTuple):
    """Which documents receive copies, as ascending positions in the index."""

    of_all: list[int]  # copies of all tokens
    further: list[int]  # copies of the tokens that may push, judging by those documents; they include them


def choose_stuffed(index: Index, with_findings: Collection[int], settings: AuditSettings) -> StuffedDocuments:
    """Draw the documents into which copies are written, from those that have none yet.

    Documents that answer a query are drawn first.

    Args:
        index: the index.
        with_findings: positions, in `Index.documents`, of the documents that have copies.
        settings: settings of the audit.
    """
    answering = frozenset[int]().union(*index.queries.answers)
    generator = np.random.default_rng([settings.seed, len(index.places), _DOCUMENTS_KEY])
    order = generator.permutation(len(index.places)).tolist()
    # The index may hold a sample: the document at a position in it is number ``places[position]`` of all.
    clean = [position for position in order if index.places[position] not in with_findings]
    # Answering documents first; the sort keeps the random order among them, and among the others.
    clean.sort(key=lambda position: position not in answering)
    if len(clean) < 2:  # a single document says nothing of others, so there would be no interval
        raise InputError(
            f"{index.record.name} has {len(clean)} documents without copies of a word, but at least two are "
            "needed to insert copies into"
        )
    return StuffedDocuments(
        of_all=sorted(clean[: settings.stuffed]),
        further=sorted(clean[: _TIMES_FURTHER * settings.stuffed]),
    )


def require_queries(index: Index, settings: AuditSettings) -> None:
    """Check, before anything is encoded, that there are enough queries to expect enough wrong results.

    Raises:
        InputError: there are too few.
    """
    documents = len(index.places)
    receiving = min(settings.stuffed, documents)
    # `prepare_panel` looks at the first 1% of the results, or at up to `TOP` if this is more.
    most_results = max(TOP, depth_of(documents))
    # How many of them are documents that receive copies, on average.
    results_per_query = most_results * receiving / documents
    needed = math.ceil(_LEAST_RESULTS / results_per_query)
    queries = index.queries
    if queries.asked < needed:
        raise InputError(
            f"{counted(queries.asked, 'query', 'queries')} ({queries.source}) cannot be enough for "
            f"{documents:,} documents, of which {receiving} receive copies: pass more queries, say {needed}"
        )


def prepare_panel(
    job: AuditJob, search: ExactSearch, positions: Sequence[int], depth: int | None = None
) -> DocumentPanel:
    """Prepare the documents at these positions to receive copies.

    Only the queries that are searched have a weight; the others show only whether their own documents are
    found. A query's first results are the first ``depth``; if None, 1% of the documents. In small
    collections, they are up to ten if the documents are in hardly any otherwise.

    Raises:
        InputError: the queries have too few other documents among their results.
    """
    index = job.index
    insertion = job.settings.inserted_as
    # The documents are truncated so that the model reads all copies.
    room = room_for(job.encoder, insertion, COPIES)
    texts = [index.document_at(position).text for position in positions]
    fitted = fit_texts(job.encoder, texts, room, insertion, index.record.name)
    is_tokenized = insertion is Insertion.IDS
    queries = index.queries
    # Both have one row per query, and one column per document that receives copies.
    is_answer = np.zeros((len(queries.texts), len(positions)), dtype=np.bool_)
    for query_number, answers in enumerate(queries.answers):
        is_answer[query_number] = [position in answers for position in positions]
    weights = np.zeros(is_answer.shape)
    weights[: queries.asked] = 1.0
    panel = DocumentPanel(
        places=tuple(positions),
        carriers=tuple(text.content if is_tokenized else text.text for text in fitted),
        texts=tuple(text.text for text in fitted),
        search=search,
        depth=depth_of(len(search.documents)) if depth is None else depth,
        is_answer=is_answer,
        weights=weights,
    )
    while count_results_without(panel) < _LEAST_RESULTS:
        if panel.depth >= TOP:
            raise InputError(
                f"{counted(queries.asked, 'query', 'queries')} have the {len(positions)} documents that "
                f"receive copies only {count_results_without(panel)} times among their first {panel.depth} "
                "results: pass more queries"
            )
        panel = replace(panel, depth=panel.depth + 1)
    return panel


def count_results_without(panel: DocumentPanel) -> int:
    """Return how often a document without copies is a first result of a query that it doesn't answer."""
    return int((panel.is_wrong_result * panel.weights).sum())


@dataclass(frozen=True)
class Stuffed:
    """What copies of T tokens do to documents.

    Attributes:
        tokens: the tokens.
        documents: number of documents that received copies to measure the push, shape (T,).
        push: in how many times as many wrong results documents with copies are; shape (T,) each.
        found: share of the queries that find a document that answers them, shape (T,) each; None if it is not
            known which documents answer a query.
        queries: number of the queries that are searched and don't contain the token, shape (T,).
        by_topic: their push for the queries of each topic, as rows of topics.parquet.
    """

    tokens: list[Token]
    documents: list[int]
    push: Intervals
    found: Intervals | None
    queries: list[int]
    by_topic: list[dict[str, Any]]


def measure_stuffed(
    job: AuditJob, runner: Runner, tokens: Sequence[Token], panel: DocumentPanel, stage: str = STUFFED
) -> Stuffed:
    """Insert copies of each token into each document, one document at a time, and search for it.

    A pair of a query and a document is left out of the push if the document answers the query, or if the
    query contains the token. The tokens of which no pair with a result remains are left out, and so are those
    for which a server gave no vector.
    """
    queries = job.index.queries
    confidence = job.rule.confidence
    # Weights of the pairs, shape (Q, n). A query that contains the token weighs nothing.
    weights_of = {token.id: panel.weights * queries.find_lacking(token)[:, None] for token in tokens}
    measurable = [token for token in tokens if (panel.is_wrong_result * weights_of[token.id]).any()]
    if not measurable:
        raise InputError(
            "no token can be measured: all queries with a wrong result contain it, so pass more queries"
        )
    measurable.sort(key=lambda token: token.id)  # the order of the results
    results = panel.measure(runner, measurable, stage)
    answered = [row for row, token in enumerate(measurable) if token.id not in runner.unanswered]
    answered_tokens = [measurable[row] for row in answered]
    sampling_key = [job.settings.seed, _SAMPLES_KEY]

    def push_ratio(is_wrong_result: NDArray[np.bool_], weights: NDArray[np.float64]) -> Interval[float]:
        """Return the push of one token over the pairs that have a weight."""
        of_one_token = is_wrong_result[None]  # shape (1, Q, n)
        ratios = push_ratios(of_one_token, panel.is_wrong_result, weights, confidence, sampling_key)
        return ratios.of_each()[0]

    queries_of_topics = _choose_topics(panel, queries.topics)
    push = []
    topic_rows = []
    for token, is_wrong_result in zip(answered_tokens, results.wrong_results[answered], strict=True):
        weights = weights_of[token.id]
        push.append(push_ratio(is_wrong_result, weights))
        for topic, is_of_topic in queries_of_topics.items():
            weights_of_topic = np.where(is_of_topic[:, None], weights, 0.0)
            ratio = push_ratio(is_wrong_result, weights_of_topic)
            if np.isfinite(ratio.value):  # not if all queries with a wrong result contain the token
                row = {"token_id": token.id, "topic": topic, "queries": _count_queries(weights_of_topic)}
                topic_rows.append(row | ratio.as_columns("push"))
    found = None
    if panel.is_answer.any():
        # `results.found` has one column per pair of a query and a document that answers it. The mask puts
        # them in their places.
        is_found = np.zeros((len(measurable), *panel.is_answer.shape), dtype=np.bool_)
        is_found[:, panel.is_answer] = results.found
        found = estimate_found(is_found[answered], panel.is_answer, confidence, sampling_key)
    return Stuffed(
        tokens=answered_tokens,
        documents=[len(panel.places)] * len(answered_tokens),
        push=Intervals.of_tokens(push),
        found=found,
        queries=[_count_queries(weights_of[token.id]) for token in answered_tokens],
        by_topic=topic_rows,
    )


def replace_push(stuffed: Stuffed, further: Stuffed) -> Stuffed:
    """Return what was measured, with the push of those tokens that were measured in more documents.

    Which queries find their documents stays: that is compared with all random tokens, and few of them, if
    any, were measured in more.
    """
    row_of = {token.id: row for row, token in enumerate(stuffed.tokens)}
    documents = list(stuffed.documents)
    pushes = stuffed.push.of_each()
    for further_row, token in enumerate(further.tokens):
        row = row_of[token.id]
        documents[row] = further.documents[further_row]
        pushes[row] = further.push.of_each()[further_row]
    further_ids = {token.id for token in further.tokens}
    topic_rows = [row for row in stuffed.by_topic if row["token_id"] not in further_ids]
    return replace(
        stuffed,
        documents=documents,
        push=Intervals.of_tokens(pushes),
        by_topic=[*topic_rows, *further.by_topic],
    )


def _count_queries(weights: NDArray[np.float64]) -> int:
    # A query weighs the same for all documents, or nothing for any.
    return int((weights[:, 0] > 0).sum())


def estimate_found(
    is_found: NDArray[np.bool_], is_answer: NDArray[np.bool_], confidence: float, key: Sequence[int]
) -> Intervals:
    """Return the share of the queries that find a document that answers them, for T tokens.

    Queries and documents are resampled, as for the push. If all samples agree, because no query or each one
    finds its document, the interval would be a point. It is then the exact one of a share, which takes each
    pair of a query and a document for a trial of its own.

    Args:
        is_found: whether each query finds each document that answers it, shape (T, Q, n).
        is_answer: whether each document answers each query, shape (Q, n).
        confidence: coverage of the two-sided intervals.
        key: seed of the random draw.
    """
    # The push is a ratio of two numbers of pairs of a query and a document: those with copies to those
    # without. The number of answers found to the number of all is a share.
    equal_weights = np.ones(is_answer.shape)
    shares = push_ratios(is_found, is_answer, equal_weights, confidence, key).of_each()
    pairs = int(is_answer.sum())
    for row, share in enumerate(shares):
        if share.low == share.high:  # all samples agree
            shares[row] = estimate_share(int(is_found[row].sum()), pairs, confidence)
    return Intervals.of_tokens(shares)


# Maximum number of topics that are measured separately: those with the most wrong results.
_MOST_TOPICS = 12
# Fewest wrong results of a topic without copies. Ratios to few have wide intervals.
_LEAST_OF_TOPIC = 5


def _choose_topics(panel: DocumentPanel, topics: Sequence[str | None]) -> dict[str, NDArray[np.bool_]]:
    """Those with the most wrong results without copies, each with a mask of its queries, shape (Q,)."""
    topic_names = np.array([topic or "" for topic in topics])  # empty if a query's topic is unknown
    is_query_of = {str(name): topic_names == name for name in np.unique(topic_names) if name}
    if len(is_query_of) < 2:  # a single topic would only repeat the push over all queries
        return {}
    result_counts = {}
    for topic, is_of_topic in is_query_of.items():
        weighted_results = panel.is_wrong_result[is_of_topic] * panel.weights[is_of_topic]
        result_counts[topic] = int(weighted_results.sum())
    by_count = sorted(result_counts, key=lambda topic: (-result_counts[topic], topic))
    return {
        topic: is_query_of[topic]
        for topic in by_count[:_MOST_TOPICS]
        if result_counts[topic] >= _LEAST_OF_TOPIC
    }
