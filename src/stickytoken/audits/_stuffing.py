"""Insert copies of tokens into one document at a time, and search for that document with all queries."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.audits._index import Index
from stickytoken.audits._job import AuditJob
from stickytoken.audits.results import TIMES_FURTHER
from stickytoken.encoders.fitting import fit_texts
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Token
from stickytoken.intervals import Interval, Intervals
from stickytoken.methods.probes import room_for
from stickytoken.methods.profile.documents import DocumentPanel
from stickytoken.methods.runner import Runner
from stickytoken.search import COPIES, TOP, ExactSearch, depth_of, push_ratios
from stickytoken.settings.audit import AuditSettings
from stickytoken.words import counted

SHARD_TEXTS = 512
"""Number of documents with copies in a shard. Encoding one takes about half a minute on two cores."""
# Fewest wrong results of all documents without copies. The push is a ratio to their number, which would
# depend on chance if there were fewer.
_LEAST_RESULTS = 10
# Keys of the random generators that draw documents and bootstrap samples.
_DOCUMENTS_KEY = 3
_SAMPLES_KEY = 4


class StuffedDocuments(NamedTuple):
    """Which documents receive copies, as ascending positions in the index."""

    for_every_token: list[int]
    for_tokens_that_may_push: list[int]  # includes those for every token


def choose_stuffed(index: Index, with_findings: Collection[int], settings: AuditSettings) -> StuffedDocuments:
    """Draw the documents into which copies are written, from those that have none yet.

    Documents that answer a query are drawn first, and of several duplicates at most one: copies do the same
    to all of them.

    Args:
        index: the index.
        with_findings: numbers of the documents that have copies, as in `Index.documents`.
        settings: settings of the audit.
    """
    answering = frozenset[int]().union(*index.queries.answers)  # positions in the index
    generator = np.random.default_rng([settings.seed, len(index.document_numbers), _DOCUMENTS_KEY])
    order = generator.permutation(len(index.document_numbers)).tolist()
    clean = []
    chosen_texts = set()  # each as the position of the first of its duplicates
    for position in order:
        first_of_duplicates = index.duplicates.get(position, [position])[0]
        has_findings = index.document_numbers[position] in with_findings
        if not has_findings and first_of_duplicates not in chosen_texts:
            chosen_texts.add(first_of_duplicates)
            clean.append(position)
    # Answering documents come first. The sort keeps the random order among them, and among the rest.
    clean.sort(key=lambda position: position not in answering)
    if len(clean) < 2:  # a single document says nothing of other documents, so there would be no interval
        raise InputError(
            f"{index.record.name} has {len(clean)} different documents without copies of a word, but at "
            "least two are needed to insert copies into"
        )
    return StuffedDocuments(
        for_every_token=sorted(clean[: settings.stuffed]),
        for_tokens_that_may_push=sorted(clean[: TIMES_FURTHER * settings.stuffed]),
    )


def require_queries(index: Index, settings: AuditSettings) -> None:
    """Check, before anything is encoded, that there are enough queries to expect enough wrong results.

    How many there are shows only once vectors are known; `prepare_panel` checks that.

    Raises:
        InputError: there are too few.
    """
    documents = len(index.document_numbers)
    receiving = min(settings.stuffed, len(index.distinct))
    # `prepare_panel` looks at the first 1% of the results, or at up to `TOP` if this is more.
    most_results = max(TOP, depth_of(documents))
    # How many of a query's results are documents that receive copies, on average.
    results_per_query = most_results * receiving / len(index.distinct)
    needed = math.ceil(_LEAST_RESULTS / results_per_query)
    queries = index.queries
    if queries.asked < needed:
        raise InputError(
            f"{counted(queries.asked, 'query', 'queries')} ({queries.source}) cannot be enough for "
            f"{documents:,} documents, of which {receiving} receive copies: pass more queries, say {needed}"
        )


def prepare_panel(
    job: AuditJob,
    search: ExactSearch,
    positions: Sequence[int],
    runner: Runner,
    stage: str,
    depth: int | None = None,
) -> DocumentPanel:
    """Prepare the documents at these positions to receive copies.

    With copies, they are compared with themselves. So they are encoded again without copies, as the
    ``stage``, if some are truncated further to make room for the copies, or if the index has compressed
    vectors.

    Only the queries that are searched have a weight. First sentences beside a user's queries have none,
    because they only show whether their own documents are found. The first results of a query are the first
    ``depth``; if None, 1% of the documents. If these documents are then hardly ever among them, as in a small
    collection, the first results are more, up to ten.

    Raises:
        InputError: these documents are too seldom wrong results, even among the first ten.
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
    for query_number, own_positions in queries.own_documents.items():
        weights[query_number, [position in own_positions for position in positions]] = 0.0
    probes = [text.as_probe(insertion) for text in fitted]
    own_vectors = None
    are_shortened = probes != [index.truncated[position].as_probe(insertion) for position in positions]
    if are_shortened or not index.stored_is_exact:
        own_vectors = search.similarity.prepared(runner.encode(stage, probes))
    panel = DocumentPanel(
        places=tuple(positions),
        carriers=tuple(text.content if is_tokenized else text.text for text in fitted),
        texts=tuple(text.text for text in fitted),
        search=search,
        depth=depth_of(len(search.documents)) if depth is None else depth,
        is_answer=is_answer,
        weights=weights,
        own_vectors=own_vectors,
    )
    while count_results_without(panel) < _LEAST_RESULTS:
        if panel.depth >= TOP:
            advice = "pass more queries"
            if len(positions) == job.settings.stuffed:  # there may be further documents
                advice += f", or let more documents receive copies (--set stuffed={4 * len(positions)})"
            raise InputError(
                f"{counted(queries.asked, 'query', 'queries')} have the {len(positions)} documents that "
                f"receive copies only {count_results_without(panel)} times among their first {panel.depth} "
                f"results: {advice}"
            )
        panel = replace(panel, depth=panel.depth + 1)
    return panel


def count_results_without(panel: DocumentPanel) -> int:
    """Return how often a document without copies is a first result of a query that it doesn't answer."""
    return int((panel.is_wrong_result * panel.weights).sum())


class Stuffed(NamedTuple):
    """What copies of a token do to documents.

    Attributes:
        token: the token.
        documents: number of documents that received copies to measure the push.
        push: in how many times as many wrong results documents with copies are.
        found: share of the queries that find a document that answers them; None if it is not known which
            documents answer a query.
        queries: number of the queries that are searched and don't contain the token.
    """

    token: Token
    documents: int
    push: Interval[float]
    found: Interval[float] | None
    queries: int


def measure_stuffed(
    job: AuditJob, runner: Runner, tokens: Sequence[Token], panel: DocumentPanel, stage: str
) -> dict[int, Stuffed]:
    """Insert copies of each token into each of n documents, in turn, and search for it with Q queries.

    The push of a token is the number of pairs in which a document with copies is a wrong result of a query,
    divided by that without copies. Queries that contain the token don't count. A token is left out if no
    wrong result without copies remains, or if a server gave no vector for one of its texts.

    A run measures tokens with `measure_in_documents` of `profile`, where all tokens have the same queries.
    Here, each token has queries of its own.

    Returns:
        What was measured of each token, keyed by token id, in ascending order.
    """
    queries = job.index.queries
    confidence = job.rule.confidence
    # How much each pair of a query and a document counts for a token, shape (Q, n), keyed by token id.
    weights_of = {token.id: panel.weights * queries.mark_those_without(token)[:, None] for token in tokens}
    measurable = [token for token in tokens if (panel.is_wrong_result * weights_of[token.id]).any()]
    if not measurable:
        raise InputError(
            "no token can be measured: all queries with a wrong result contain it, so pass more queries"
        )
    measurable.sort(key=lambda token: token.id)  # the order of the results
    results = panel.measure(runner, measurable, stage)
    # A mean takes the place of a vector that a server didn't give. It would change the intervals of `found`,
    # which are estimated from all tokens together.
    is_answered = np.array([token.id not in runner.unanswered for token in measurable])
    answered = [token for token in measurable if token.id not in runner.unanswered]
    found: Sequence[Interval[float] | None] = [None] * len(answered)
    if panel.is_answer.any():
        # `results.found` has one column per pair of a query and a document that answers it. The mask puts
        # each column in its place.
        is_found = np.zeros((len(answered), *panel.is_answer.shape), dtype=np.bool_)
        is_found[:, panel.is_answer] = results.found[is_answered]
        found = estimate_found(is_found, panel.is_answer, confidence).of_each()
    sampling_key = [job.settings.seed, _SAMPLES_KEY]
    # Whether each document is a wrong result of each query, shape (Q, n), for one token after the other. A
    # document that answers the query is none.
    wrong_results = results.wrong_results[is_answered]
    stuffed = {}
    for token, is_wrong_result, found_share in zip(answered, wrong_results, found, strict=True):
        weights = weights_of[token.id]
        only_this_token = is_wrong_result[None]  # `push_ratios` takes T tokens: shape (1, Q, n)
        ratios = push_ratios(only_this_token, panel.is_wrong_result, weights, confidence, sampling_key)
        stuffed[token.id] = Stuffed(
            token=token,
            documents=len(panel.places),
            push=ratios.of_each()[0],
            found=found_share,
            queries=int((weights > 0).any(axis=1).sum()),
        )
    return stuffed


def estimate_found(is_found: NDArray[np.bool_], is_answer: NDArray[np.bool_], confidence: float) -> Intervals:
    """Return the share of the pairs of a query and a document that answers it that are found, for T tokens.

    Pairs of a query and a document are not independent if they share one of them, so they count as fewer
    trials: as many independent ones as would give the share the same variance. The interval is then that of
    Clopper and Pearson, as in Korn and Graubard (1998, "Confidence intervals for proportions with small
    expected number of positive counts estimated from survey data", Survey Methodology 24). The variance is
    that between queries, plus that between documents, minus that between pairs (Cameron, Gelbach and Miller
    2011, "Robust inference with multiway clustering", Journal of Business & Economic Statistics 29). If no
    pairs share anything, the interval is exact.

    Args:
        is_found: whether each query finds each of n documents that answer it, shape (T, Q, n).
        is_answer: whether each document answers each query, shape (Q, n).
        confidence: coverage of the two-sided intervals.
    """
    from scipy.stats import beta, t

    pairs = int(is_answer.sum())
    queries = int(is_answer.any(axis=1).sum())
    documents = int(is_answer.any(axis=0).sum())
    clusters = min(queries, documents)
    tail = (1 - confidence) / 2
    shares = is_found[:, is_answer].mean(axis=1)  # one for each token
    # How much pairs depend on each other is estimated once, from all tokens. One with which no query finds
    # anything says nothing of it, and could otherwise have a wider interval than one with which some do.
    deviations = np.where(is_answer, is_found - shares[:, None, None], 0.0)
    of_pairs = (deviations**2).sum()
    of_queries = (deviations.sum(axis=2) ** 2).sum()
    of_documents = (deviations.sum(axis=1) ** 2).sum()
    # If all pairs agree, or all have the same query or document, the dependence is unknown: at worst, total.
    trials = float(clusters)
    if of_pairs > 0 and clusters > 1:
        # How many times the variance of independent pairs. Less than one would be due to chance.
        variance_ratio = max(1.0, (of_queries + of_documents - of_pairs) / of_pairs)
        # A variance of few clusters is itself uncertain: n* of Korn and Graubard.
        few_clusters_factor = (t.ppf(tail, pairs - 1) / t.ppf(tail, clusters - 1)) ** 2
        trials = pairs / variance_ratio * few_clusters_factor
    successes = shares * trials
    with np.errstate(invalid="ignore"):  # the distribution isn't defined where a share is 0 or 1
        low = np.where(shares > 0, beta.ppf(tail, successes, trials - successes + 1), 0.0)
        high = np.where(shares < 1, beta.ppf(1 - tail, successes + 1, trials - successes), 1.0)
    return Intervals(value=shares, low=low, high=high)
