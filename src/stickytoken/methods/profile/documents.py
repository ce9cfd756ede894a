"""Copies in documents: how much they push documents, and whether queries still find them.

A document with copies competes with all other documents of a collection, which have none. A result is wrong
if the document doesn't answer the query, and the push is the number of wrong results with copies, divided by
that without. A run measures tokens in a few documents first, and then, as long as they may reach their
threshold, in twice as many. A recheck measures its tokens in all documents at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.data import Sentences, collect_sentences
from stickytoken.data.collection import Collection, bundled_collection, join_collection
from stickytoken.data.readability import LARGEST_UNKNOWN, drop_indistinguishable
from stickytoken.encoders.fitting import fit_texts
from stickytoken.encoders.protocol import Encoder, require_words, similarity_of
from stickytoken.encoders.roles import Role, in_role
from stickytoken.encoders.text_encoder import require_whole_texts_read
from stickytoken.insertion import Insertion, Placement, Probe, Token
from stickytoken.intervals import Interval, Intervals
from stickytoken.measurement.stages import RowValue
from stickytoken.methods.base import Job, MethodSettings, Scope
from stickytoken.methods.measures import ERASED, PUSH, thresholds as thresholds_of
from stickytoken.methods.probes import Carrier, balanced, room_for, with_copies
from stickytoken.methods.profile.records import DocumentsRecord
from stickytoken.methods.profile.verdict import bound_hidden_share
from stickytoken.methods.runner import Runner
from stickytoken.methods.statistics import Effects
from stickytoken.search import COPIES, TOP, ExactSearch, ResultLimits, depth_of, push_ratios
from stickytoken.settings.profile import ProfileSettings
from stickytoken.unit_vectors import Similarity
from stickytoken.words import percent, quoted

# Numbers of documents in which tokens are measured, one after the other. In four, the ratios of random tokens
# have a rank correlation of about 0.7 with those in all others; in 64, their intervals are about 0.25 wide.
DOCUMENT_COUNTS = (4, 8, 16, 32, 64)
# Share of the tokens that is measured in twice as many documents, those with the largest ratios. Without a
# limit, the wide intervals from few documents would keep most tokens.
_KEPT_SHARE = 0.25
# Smallest number of documents in which the tokens that are displayed are measured.
_DOCUMENTS_FOR_DISPLAYED = 32
# Fewest documents in a collection that is joined from a user's texts. In a smaller one, hardly any document
# is a wrong result of other queries.
_LEAST_DOCUMENTS = 40
_MOST_DOCUMENTS = 240
# A run over fewer tokens of a vocabulary searches only the documents that receive copies, and has fewer
# pilots and carriers, so that most of its texts are about its tokens.
FEW_TOKENS = 1024
# Beginning of the names of the stages that measure special tokens. It is also the name of the step that says
# that no special token does anything.
SPECIAL = "special tokens"
# Keys of the random generators that draw documents and bootstrap samples.
_DOCUMENTS_KEY = 5
_SAMPLES_KEY = 6


def measures_few_tokens(job: Job[MethodSettings]) -> bool:
    """Return whether a job is over few tokens of its vocabulary."""
    return job.scope is not Scope.WHOLE and len(job.tokens) < FEW_TOKENS


def choose_collection(encoder: Encoder, corpus: Sentences) -> Collection | None:
    """Return the bundled documents and queries for the bundled corpus, if the tokenizer can read them.

    Otherwise, documents and queries are joined from the texts of the corpus. The result is None if there are
    too few texts to join.
    """
    if corpus.bundled:
        bundled = bundled_collection()
        bundled_texts = collect_sentences(bundled.documents, bundled.source)
        # None if the tokenizer does not say which characters it knows.
        unknown_share = drop_indistinguishable(bundled_texts, encoder.tokenizer).unknown
        if unknown_share is None or unknown_share <= LARGEST_UNKNOWN:
            return bundled
    joined = join_collection(corpus.texts, corpus.source, _MOST_DOCUMENTS)
    return joined if len(joined.documents) >= _LEAST_DOCUMENTS else None


def plan_documents(
    encoder: Encoder,
    corpus: Sentences,
    seed: int,
    *,
    few_documents: bool,
    is_allowed: Callable[[str], bool] | None = None,
) -> DocumentsRecord | None:
    """Draw the documents that receive copies, as evenly as possible from all kinds of text.

    Args:
        encoder: the model.
        corpus: decides which documents there are; see `choose_collection`.
        seed: seed of the random draw.
        few_documents: whether only the documents that receive copies are searched, if they are enough.
        is_allowed: returns whether a document may be drawn. If ``is_allowed`` is None, all may.

    Returns:
        The documents to search, and which of them receive copies; None if there is no collection.
    """
    collection = choose_collection(encoder, corpus)
    if collection is None:
        return None
    order = balanced(collection.kinds, len(collection.kinds), [seed, _DOCUMENTS_KEY])
    allowed = [index for index in order if is_allowed is None or is_allowed(collection.documents[index])]
    most_chosen = DOCUMENT_COUNTS[-1]
    chosen = allowed[:most_chosen]
    indexed = None  # the documents to search; None for all
    # For few tokens, encoding the whole collection would cost more than measuring them.
    if few_documents and _LEAST_DOCUMENTS <= len(chosen) < len(collection.documents):
        indexed = sorted(chosen)
    searched = len(collection.documents) if indexed is None else len(indexed)
    return DocumentsRecord(
        source=collection.source,
        fingerprint=collection.fingerprint,
        documents=searched,
        queries=len(collection.queries),
        depth=depth_of(searched),
        similarity=similarity_of(encoder),
        chosen=chosen,
        indexed=indexed,
    )


class ResultsWithCopies(NamedTuple):
    """Which of n documents are results of M queries when they have copies of T tokens.

    Attributes:
        ids: token ids, ascending, shape (T,).
        wrong_results: whether each document is a wrong first result of each query, shape (T, M, n).
        found: for each pair of a query and the document that answers it, whether the query finds the
            document, shape (T, pairs).
    """

    ids: NDArray[np.int64]
    wrong_results: NDArray[np.bool_]
    found: NDArray[np.bool_]


@dataclass(frozen=True)
class DocumentPanel:
    """A collection as the model encodes it, and the n documents that receive copies.

    Attributes:
        places: positions of the n documents among the documents that are searched.
        carriers: the n documents, as texts or tokenized.
        texts: the n documents as texts.
        search: exact search of the M queries in the collection.
        depth: how many results of a query are its first results.
        is_answer: whether each document answers each query, shape (M, n).
        weights: how much each pair of a query and a document counts for the push, shape (M, n).
        own_vectors: prepared vectors of the n documents without copies, shape (n, d), if those in the index
            are of longer documents, or compressed; otherwise None.
    """

    places: tuple[int, ...]
    carriers: tuple[Carrier, ...]
    texts: tuple[str, ...]
    search: ExactSearch
    depth: int
    is_answer: NDArray[np.bool_]
    weights: NDArray[np.float64]
    own_vectors: NDArray[np.float64] | None = None

    @cached_property
    def similarities(self) -> NDArray[np.float64]:
        """Similarity of every query to each of the documents without copies, shape (M, n)."""
        if self.own_vectors is None:
            return self.search.similarities[:, list(self.places)]
        return self.search.similarity.of_all(self.search.queries, self.own_vectors)

    @cached_property
    def limits(self) -> ResultLimits:
        """What each document must exceed, with or without copies, to be a result of each query."""
        # A document competes with the others only: in a tiny collection, with fewer than `TOP`.
        top = min(TOP, len(self.search.documents) - 1)
        return ResultLimits(
            first=self.search.limits(self.places, self.depth),
            top=self.search.limits(self.places, top),
            is_answer=self.is_answer,
        )

    @cached_property
    def is_wrong_result(self) -> NDArray[np.bool_]:
        """Whether each document without copies is a wrong first result of each query, shape (M, n)."""
        return self.limits.wrong_results(self.similarities)

    @cached_property
    def is_found(self) -> NDArray[np.bool_]:
        """For each query and document that answers it: whether it is found without copies, shape (pairs,)."""
        return self.limits.found(self.similarities)

    def measure(
        self,
        runner: Runner,
        tokens: Sequence[Token],
        stage_name: str,
        start: int = 0,
        stop: int | None = None,
    ) -> ResultsWithCopies:
        """Put copies of T tokens into the documents from ``start`` up to ``stop``, and search for them."""
        part = slice(start, stop)
        stage = DocumentStage(
            name=stage_name,
            carriers=self.carriers[part],
            queries=self.search.queries,
            similarity=self.search.similarity,
            limits=self.limits.of_documents(part),
        )
        # Copies that are written may take more tokens than documents have room for. A search index truncates
        # such documents, too.
        rows = runner(stage, tokens, truncate=True).sort("token_id")
        query_count, document_count = stage.limits.is_answer.shape
        # Each row has one bit per query and document, eight to a byte. The bits that only fill up the last
        # byte are cut off.
        packed = np.array(rows["wrong_results"].to_list(), dtype=np.uint8)
        bits = np.unpackbits(packed, axis=1, count=query_count * document_count)
        return ResultsWithCopies(
            ids=rows["token_id"].to_numpy(),
            wrong_results=bits.reshape(len(rows), query_count, document_count).astype(np.bool_),
            found=np.array(rows["found"].to_list(), dtype=np.bool_),
        )


def _weigh_kinds_equally(kinds: NDArray[np.str_]) -> NDArray[np.float64]:
    _, kind_indices, sizes = np.unique(kinds, return_inverse=True, return_counts=True)
    return np.asarray(1 / sizes[kind_indices])


def encode_documents(
    encoder: Encoder,
    corpus: Sentences,
    record: DocumentsRecord | None,
    runner: Runner,
    insertion: Insertion,
) -> DocumentPanel | None:
    """Encode the documents and queries of a plan; None if the plan has none.

    Args:
        encoder: the model.
        corpus: the corpus of the plan; see `choose_collection`.
        record: what the plan says about documents.
        runner: encodes texts.
        insertion: whether copies are inserted as ids, into tokenized documents, or as text.

    Raises:
        ModelError: the model is a user's object that cuts long texts, which nothing says.
    """
    collection = choose_collection(encoder, corpus)
    if record is None or collection is None:
        return None
    # A number in ``indexed`` counts the documents of the whole collection; a position counts only the
    # documents that are searched.
    indexed = record.indexed or list(range(len(collection.documents)))  # all, unless the plan lists some
    position_of = {number: position for position, number in enumerate(indexed)}
    word_encoder = require_words(encoder, "profile")
    # Copies that are written need most room. With it, documents are truncated alike, however copies are
    # inserted.
    room = room_for(word_encoder, Insertion.TEXT, COPIES)
    indexed_texts = [collection.documents[number] for number in indexed]
    truncated = fit_texts(word_encoder, indexed_texts, room, Insertion.TEXT, collection.source)
    require_whole_texts_read(word_encoder, [document.text for document in truncated])
    query_encoder = in_role(word_encoder, Role.QUERY)
    no_room = 0  # queries receive no copies
    queries = fit_texts(query_encoder, collection.queries, no_room, Insertion.TEXT, collection.source)
    query_texts = [query.text for query in queries]
    similarity = similarity_of(encoder)
    search = ExactSearch(
        queries=similarity.prepared(runner.encode("queries", query_texts, Role.QUERY)),
        documents=similarity.prepared(runner.encode("documents", [document.text for document in truncated])),
        similarity=similarity,
    )
    places = _spread_evenly([position_of[number] for number in record.chosen], search)
    is_tokenized = insertion is Insertion.IDS
    receiving = [truncated[place] for place in places]
    # A query whose document isn't searched has no answer: no document has the position -1.
    answer_positions = np.array([position_of.get(number, -1) for number in collection.answers])
    kinds = np.array(collection.kinds)
    kinds_of_receiving = kinds[indexed][list(places)]
    kinds_of_queries = kinds[list(collection.answers)]  # a query is of the kind of its document
    document_weights = _weigh_kinds_equally(kinds_of_receiving)
    query_weights = _weigh_kinds_equally(kinds_of_queries)
    return DocumentPanel(
        places=places,
        carriers=tuple(text.content if is_tokenized else text.text for text in receiving),
        texts=tuple(text.text for text in receiving),
        search=search,
        depth=record.depth,
        is_answer=np.asarray(answer_positions[:, None] == np.array(places)[None, :]),
        weights=query_weights[:, None] * document_weights[None, :],
    )


def _spread_evenly(places: Sequence[int], search: ExactSearch) -> tuple[int, ...]:
    """Order documents so that the first few are as similar to the queries as all are on average.

    Otherwise, what copies do to the first eight could differ much from what they do to 64. The same holds for
    the documents with copies in front, which are every other one, and those with copies at the end.
    """
    by_similarity = sorted(places, key=lambda place: float(search.similarities[:, place].mean()))
    # The van der Corput sequence counts 0, 1, 2 ... and reverses the binary digits of each number. Its first
    # 2, 4, 8 ... terms are spread evenly over all positions.
    digits = max(1, (len(places) - 1).bit_length())
    reversed_numbers = [int(f"{number:0{digits}b}"[::-1], 2) for number in range(len(places))]
    sequence = np.argsort(np.argsort(reversed_numbers)).tolist()  # as positions from 0, without gaps
    # In each pair of neighbours, the first comes from the lower half, where documents are less similar. So
    # that copies in front aren't all there, pairs are swapped by the Thue-Morse sequence, which balances
    # every trend: those whose number has an odd count of binary ones.
    for pair in range(len(sequence) // 2):
        if pair.bit_count() % 2:
            first, second = 2 * pair, 2 * pair + 1
            sequence[first], sequence[second] = sequence[second], sequence[first]
    return tuple(by_similarity[position] for position in sequence)


@dataclass(frozen=True)
class DocumentStage:
    """Puts copies of each token before and behind n documents, in turn, and searches for them with M queries.

    Attributes:
        name: name of the stage, under which a run folder stores its rows.
        carriers: the documents, tokenized or as text.
        queries: prepared vectors of the queries, shape (M, d).
        similarity: how the model compares vectors.
        limits: the similarity that each document must exceed to be a result of each query.
    """

    name: str
    carriers: tuple[Carrier, ...]
    queries: NDArray[np.float64]
    similarity: Similarity
    limits: ResultLimits

    @property
    def probes_per_token(self) -> int:
        return len(self.carriers)

    def probes(self, token: Token) -> Sequence[Probe]:
        placements = cycle((Placement.PREFIX, Placement.SUFFIX))  # endless, so `zip` is not strict
        return [
            with_copies(token, carrier, placement, COPIES)
            for carrier, placement in zip(self.carriers, placements, strict=False)
        ]

    def measure(self, tokens: Sequence[Token], vectors: NDArray[np.float32]) -> list[Mapping[str, RowValue]]:
        """Return which documents are wrong first results, and which are found by the queries they answer.

        In the row of a token, ``wrong_results`` has a bit for each query and document, eight to a number;
        ``found`` a 1 or 0 for each pair of a query and a document that answers it.
        """
        rows: list[Mapping[str, RowValue]] = []
        for vectors_of_token in np.split(vectors, len(tokens)):
            similarities = self.similarity.of_all(self.queries, self.similarity.prepared(vectors_of_token))
            rows.append(
                {
                    "wrong_results": np.packbits(self.limits.wrong_results(similarities)).tolist(),
                    "found": self.limits.found(similarities).astype(int).tolist(),
                }
            )
        return rows


@dataclass(frozen=True)
class InDocuments:
    """What copies of T tokens do to documents.

    Attributes:
        ids: token ids, ascending, shape (T,).
        push: number of wrong results with copies, divided by that without, shape (T,).
        found: share of the queries that still find the document that answers them, shape (T,); NaN if the
            documents answer no query.
        queries: number of queries that the documents with copies of each token answer, shape (T,).
        documents: number of documents in which each token was measured, shape (T,).
        found_without: share of the queries that find the document that answers them without copies.
    """

    ids: NDArray[np.int64]
    push: Intervals
    found: NDArray[np.float64]
    queries: NDArray[np.int64]
    documents: NDArray[np.int64]
    found_without: float

    def without(self, ids: NDArray[np.int64]) -> InDocuments:
        """Return the results of the tokens that are not in ``ids``."""
        rows = np.flatnonzero(~np.isin(self.ids, ids))
        return InDocuments(
            ids=self.ids[rows],
            push=self.push.of_rows(rows),
            found=self.found[rows],
            queries=self.queries[rows],
            documents=self.documents[rows],
            found_without=self.found_without,
        )


def _estimate_push(
    wrong_results: NDArray[np.bool_], panel: DocumentPanel, settings: ProfileSettings
) -> Intervals:
    # Whether each document with copies is a wrong result of each query: shape (T, M, measured documents).
    measured_count = wrong_results.shape[2]
    return push_ratios(
        wrong_results,
        panel.is_wrong_result[:, :measured_count],
        panel.weights[:, :measured_count],
        settings.confidence,
        [settings.seed, _SAMPLES_KEY],
    )


class SoFar(NamedTuple):
    """What copies of a token do in the documents in which the token has been measured so far.

    Attributes:
        push: number of wrong results with copies, divided by that without.
        found: for each query that one of the documents answers, 1 if it still finds this document, else 0.
        documents: number of these documents.
    """

    push: Interval[float]
    found: Sequence[int]
    documents: int


def measure_in_documents(
    panel: DocumentPanel,
    runner: Runner,
    tokens: Sequence[Token],
    settings: ProfileSettings,
    label: str,
    *,
    push_thresholds: Mapping[int, float] | None = None,
    ids_in_all: Iterable[int] = (),
    displayed_count: int = 0,
    report: Callable[[str, Mapping[int, SoFar]], None] | None = None,
) -> InDocuments:
    """Measure tokens in a few documents, then those that may reach their threshold in more and more.

    Args:
        panel: the collection.
        runner: executes a stage for the given tokens.
        tokens: the tokens.
        settings: provides the confidence level and the seed.
        label: beginning of the names of the stages.
        push_thresholds: threshold of each token's push, keyed by token id. Without thresholds, all tokens are
            measured in all documents at once.
        ids_in_all: ids of the tokens that are measured in all documents whatever they do.
        displayed_count: number of tokens with the largest pushes that are measured in at least
            `_DOCUMENTS_FOR_DISPLAYED` documents, because they are displayed.
        report: called after every step with the name of its stage and what is known of the tokens measured in
            it, keyed by token id.
    """
    # Keyed by token id, for each step: whether each of its documents is a wrong result of each query, shape
    # (queries, documents of the step).
    wrong_results: dict[int, list[NDArray[np.bool_]]] = {token.id: [] for token in tokens}
    # Keyed by token id, for each query that a document answers: 1 if it still finds this document, else 0.
    found: dict[int, list[int]] = {token.id: [] for token in tokens}
    so_far: dict[int, SoFar] = {}
    remaining = list(tokens)
    done = 0  # number of documents in which the remaining tokens have been measured
    # The last step ends with the last document, however many there are.
    ends_of_steps = [len(panel.places)]
    if push_thresholds is not None:
        ends_of_steps = [count for count in DOCUMENT_COUNTS if count < len(panel.places)] + ends_of_steps
    for end in ends_of_steps:
        stage_name = f"{label}-{end}"
        results = panel.measure(runner, remaining, stage_name, start=done, stop=end)
        done = end
        ids = results.ids.tolist()
        found_in_step = results.found.astype(int).tolist()
        for token_id, is_wrong_result, is_found in zip(
            ids, results.wrong_results, found_in_step, strict=True
        ):
            wrong_results[token_id].append(is_wrong_result)
            found[token_id] += is_found
        in_all_steps = np.stack([np.concatenate(wrong_results[token_id], axis=1) for token_id in ids])
        push = _estimate_push(in_all_steps, panel, settings)
        measured_in_step = {
            token_id: SoFar(push_of_token, found[token_id], done)
            for token_id, push_of_token in zip(ids, push.of_each(), strict=True)
        }
        so_far |= measured_in_step
        if report is not None:
            report(stage_name, measured_in_step)
        if push_thresholds is None:  # this was the only step
            break
        next_ids = _find_ids_that_may_push(measured_in_step, push_thresholds).union(ids_in_all)
        if done < _DOCUMENTS_FOR_DISPLAYED:
            largest_first = sorted(ids, key=lambda token_id: -so_far[token_id].push.value)
            next_ids |= set(largest_first[:displayed_count])
        remaining = [token for token in remaining if token.id in next_ids]
        if not remaining:
            break
    ordered_ids = sorted(so_far)
    found_shares = [np.mean(found[token_id]) if found[token_id] else np.nan for token_id in ordered_ids]
    return InDocuments(
        ids=np.array(ordered_ids, dtype=np.int64),
        push=Intervals.of_tokens([so_far[token_id].push for token_id in ordered_ids]),
        found=np.array(found_shares, dtype=np.float64),
        queries=np.array([len(found[token_id]) for token_id in ordered_ids], dtype=np.int64),
        documents=np.array([so_far[token_id].documents for token_id in ordered_ids], dtype=np.int64),
        found_without=float(panel.is_found.mean()),
    )


def _find_ids_that_may_push(so_far: Mapping[int, SoFar], push_thresholds: Mapping[int, float]) -> set[int]:
    """Return the ids of the tokens to measure in further documents.

    These are all tokens whose push reaches its threshold so far, and of the quarter with the largest push, in
    relation to the threshold, those whose interval reaches it. This is sequential halving (Karnin et al.
    2013, "Almost optimal exploration in multi-armed bandits"), except that no token that reaches its
    threshold is dropped. So whether a token is sticky by its push is decided by all documents.
    """
    largest_first = sorted(
        so_far, key=lambda token_id: -so_far[token_id].push.value / push_thresholds[token_id]
    )
    largest = largest_first[: math.ceil(_KEPT_SHARE * len(so_far))]
    # A push of NaN counts as reaching, because nothing is known yet; so the condition is not ``>=``.
    reaching = {
        token_id for token_id in so_far if not so_far[token_id].push.value < push_thresholds[token_id]
    }
    possible = {token_id for token_id in largest if so_far[token_id].push.high >= push_thresholds[token_id]}
    return reaching | possible


def join_results_of_tokens(results_of_groups: Sequence[InDocuments | None]) -> InDocuments | None:
    """Join what was measured of groups of tokens in the same documents; None if nothing was of any group."""
    results = [result for result in results_of_groups if result is not None]
    if not results:
        return None
    ids = np.concatenate([result.ids for result in results])
    order = np.argsort(ids)
    push = Intervals(
        value=np.concatenate([result.push.value for result in results]),
        low=np.concatenate([result.push.low for result in results]),
        high=np.concatenate([result.push.high for result in results]),
    )
    return InDocuments(
        ids=ids[order],
        push=push.of_rows(order),
        found=np.concatenate([result.found for result in results])[order],
        queries=np.concatenate([result.queries for result in results])[order],
        documents=np.concatenate([result.documents for result in results])[order],
        # Without copies, all groups have the same documents, and so the same share.
        found_without=results[0].found_without,
    )


def describe_so_far(
    token: Token,
    so_far: SoFar,
    panel: DocumentPanel,
    vector_deviation: float | None,
    settings: ProfileSettings,
) -> str | None:
    """Say what copies of a token do in documents; None unless its whole interval lies beyond a threshold.

    More documents may deny what a few documents show, so that a token only *may* push until it has been
    measured in all. Whether a token hides documents is decided by its erased share, which is measured later.
    """
    token_thresholds = thresholds_of(vector_deviation, settings)
    in_all = so_far.documents == len(panel.places)
    searched = f"{so_far.documents} documents" if in_all else f"{so_far.documents} documents so far"
    push = so_far.push
    if push.low >= token_thresholds[PUSH.key]:
        pushes = "pushes" if in_all else "may push"
        interval = PUSH.interval(push.low, push.high)
        return (
            f"{quoted(token.text)} {pushes}: {COPIES} copies put a document into {PUSH.text(push.value)} as "
            f"many wrong results ({interval}, {searched})"
        )
    found = sum(so_far.found)
    queries = len(so_far.found)
    # The same documents without copies: the first ones may be easier to find than the others, or harder.
    measured = slice(so_far.documents)
    is_found_without = panel.limits.of_documents(measured).found(panel.similarities[:, measured])
    found_without = float(is_found_without.mean()) if queries else 0.0
    surely_hidden = bound_hidden_share(found, queries, found_without, settings.confidence)
    if surely_hidden >= token_thresholds[ERASED.key]:
        return (
            f"{quoted(token.text)} may hide documents: with {COPIES} copies, {found} of {queries} queries "
            f"find the document that answers them ({percent(found_without)} without, {searched})"
        )
    return None


# The ways of comparing vectors by which a push can be predicted. Both are linear in the vector of a document.
PREDICTABLE = (Similarity.COSINE, Similarity.DOT)
# Number of tokens whose ratios are predicted at a time, which limits the memory needed.
_BLOCK_ROWS = 256


def predict_push(effects: Effects, panel: DocumentPanel) -> NDArray[np.float64]:
    """Predict the push of each token from what its copies do to sentences, shape (T,).

    With copies, the similarity of a document to a query is (1 - k) times that without, plus the dot product
    of the query and the pull p; see `stickytoken.methods.statistics.Effects`. The pull was fitted to vectors
    of length 1. The push is the weighted number of pairs in which a document exceeds the limit for a first
    result of a query that it doesn't answer, with copies divided by without. If vectors of other lengths are
    compared by their dot product, the pull is multiplied by the length of the document's vector, and copies
    are assumed not to change this length. Copies do more in a sentence than in a document, so the prediction
    only ranks tokens.

    The similarity of the panel must be one of `PREDICTABLE`.
    """
    # All matrices have shape (M, n): M queries, and n documents that would receive copies.
    before = panel.similarities.astype(np.float32)
    limits = panel.limits.first.astype(np.float32)
    weights = np.where(panel.is_answer, 0.0, panel.weights).astype(np.float32)
    queries = panel.search.queries.astype(np.float32)
    lengths = np.linalg.norm(panel.search.documents[list(panel.places)], axis=1).astype(np.float32)
    wrong_without = float((weights * (before > limits)).sum())
    if not wrong_without:  # there is nothing that copies could multiply
        return np.ones(len(effects.ids))
    predictions = np.empty(len(effects.ids))
    for start in range(0, len(effects.ids), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        pulls = effects.pull[block].astype(np.float32) @ queries.T  # shape (tokens, M)
        kept = (1 - effects.contraction[block]).astype(np.float32)  # shape (tokens,)
        after = kept[:, None, None] * before + pulls[:, :, None] * lengths  # shape (tokens, M, n)
        predictions[block] = ((after > limits) * weights).sum(axis=(1, 2)) / wrong_without
    return predictions
