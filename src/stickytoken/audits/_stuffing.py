"""Insert copies of tokens into one document at a time, and rank that document for all queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.audits._index import Index
from stickytoken.audits._tokens import Candidate
from stickytoken.bootstrap import Interval
from stickytoken.encoders.fitting import FittedText, fit_texts
from stickytoken.encoders.protocol import Encoder, WordEncoder
from stickytoken.impacts.editing import Condition, Kind, needed_room, with_copies
from stickytoken.impacts.running import UNIT, Shard
from stickytoken.impacts.search import ExactSearch
from stickytoken.impacts.statistics import TOP
from stickytoken.insertion import Probe, Token
from stickytoken.measurement import ResultFolder, ShardCost, engine as engines
from stickytoken.settings.audit import AuditSettings
from stickytoken.settings.impact import ImpactSettings

STUFFED = "stuffed"
"""Name of the stage that measures all tokens."""
SECOND_ROUND = "second-round"
"""Name of the stage that measures tokens that seem to help again, with more documents."""
# The second round has up to this many times as many documents as the first. Four times as many documents make
# the intervals about half as wide.
_SECOND_ROUND_FACTOR = 4


@dataclass(frozen=True)
class _StuffingWork:
    """Ranks each document with each number of copies for all queries; one shard per token."""

    name: str
    settings: ImpactSettings
    copies: tuple[int, ...]
    # The documents for each number of copies, truncated to leave room for that number.
    fitted: Sequence[Sequence[FittedText]]
    places: Sequence[int]  # index positions of the documents
    search: ExactSearch

    def prepare(self, shard: Shard[Token], encoder: Encoder) -> Sequence[Probe]:
        (token,) = shard.items
        condition = Condition(Kind.STICKY, (token,), 0, self.settings.seed)
        probes = [
            with_copies(self.settings, text, condition, copies)
            for copies, texts in zip(self.copies, self.fitted, strict=True)
            for text in texts
        ]
        return engines.tokenized_probes(encoder, probes, truncate=True)

    def compute(self, prepared: Sequence[Probe], encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        vectors = engines.encode_probes(encoder, prepared)
        ranks = self.search.ranks(vectors, list(self.places) * len(self.copies))
        rows = [{UNIT: unit, "ranks": column.tolist()} for unit, column in enumerate(ranks.T)]
        return rows, len(rows)


@dataclass(frozen=True)
class StuffedDocuments:
    """Positions in the index of the documents that receive copies.

    Attributes:
        first: documents of the first round, which measures all tokens.
        second: documents of the second round, which measures tokens that seem to help again. None of them is
            in the first round, so they did not affect the choice of these tokens. Empty if the index has too
            few documents.
    """

    first: list[int]
    second: list[int]


def choose_stuffed(index: Index, with_findings: set[int], settings: AuditSettings) -> StuffedDocuments:
    """Draw random documents that do not contain copies of any word yet.

    Args:
        index: the index.
        with_findings: indices, as in `Index.documents`, of the documents that contain copies.
        settings: settings of the audit.

    Returns:
        The documents for the first round and for the second.
    """
    clean = [position for position, document in enumerate(index.places) if document not in with_findings]
    generator = np.random.default_rng([settings.seed, len(index.places), 3])
    order = [clean[place] for place in generator.permutation(len(clean)).tolist()]
    first = order[: settings.stuffed]
    others = order[settings.stuffed :]
    second = others[: _SECOND_ROUND_FACTOR * settings.stuffed]
    # A second round is useful only if it has more documents than the first.
    if len(second) <= len(first):
        second = []
    return StuffedDocuments(sorted(first), sorted(second))


def measure_ranks(
    stage: str,
    candidates: Sequence[Candidate],
    index: Index,
    stuffed: Sequence[int],
    search: ExactSearch,
    encoder: WordEncoder,
    settings: AuditSettings,
    engine: engines.Engine,
    folder: ResultFolder,
    progress: engines.ProgressCallback,
) -> NDArray[np.int64]:
    """Rank documents with copies of each token among the other documents of the index.

    Args:
        stage: name of the stage.
        candidates: the tokens.
        index: the index.
        stuffed: index positions of the documents that receive copies.
        search: exact search in the index.
        encoder: the model.
        settings: settings of the audit.
        engine: where to compute.
        folder: folder of the audit, which keeps the shards.
        progress: called after every step.

    Returns:
        Ranks, starting at 1, shape (tokens, numbers of copies, queries, documents).
    """
    tokens = [Token(candidate.token_id, candidate.text) for candidate in candidates]
    conditions = [Condition(Kind.STICKY, (token,), 0, settings.seed) for token in tokens]
    texts = [index.documents[index.places[position]].text for position in stuffed]

    def make_work() -> tuple[_StuffingWork, ShardCost]:
        # Truncate each document so that the copies fit into the model's input.
        fitted = []
        for copies in settings.copies:
            room = needed_room(encoder, conditions, copies, settings.insertion)
            fitted.append(fit_texts(encoder, texts, room, settings.insertion, index.record.name))
        impact_settings = ImpactSettings(
            placement=settings.placement, insertion=settings.insertion, seed=settings.seed
        )
        work = _StuffingWork(stage, impact_settings, settings.copies, fitted, stuffed, search)
        return work, ShardCost(0, 0)

    rows_per_token = len(settings.copies) * len(stuffed)
    shards = [Shard(number, (token,)) for number, token in enumerate(tokens)]

    def units_of(_: Shard[Token]) -> list[int]:
        return list(range(rows_per_token))

    rows: engines.Rows[Shard[Token]] = engines.Rows(units_of, UNIT, lambda _: 1)
    frames = engines.run_work(stage, make_work, shards, rows, engine, folder, progress)
    ranks = np.array([frame["ranks"].to_list() for frame in frames], dtype=np.int64)
    by_copies = ranks.reshape(len(tokens), len(settings.copies), len(stuffed), len(index.queries))
    return by_copies.transpose(0, 1, 3, 2)


@dataclass(frozen=True)
class Share:
    """How many queries have a document with copies in their top 10.

    Attributes:
        share: share of queries that have a document with copies in their top 10.
        rise: ``share`` minus the share without copies.
        mean_rank: mean rank of the documents with copies.
    """

    share: Interval
    rise: Interval
    mean_rank: float


@dataclass(frozen=True)
class Pairs:
    """Which pairs of a query and a document count, and how they are resampled.

    Attributes:
        counted: whether each pair counts, shape (queries, documents).
        query_weights: how often each query occurs in each sample, shape (samples, queries).
        document_weights: how often each document occurs in each sample, shape (samples, documents).
        confidence: nominal coverage of the intervals.
    """

    counted: NDArray[np.bool_]
    query_weights: NDArray[np.float64]
    document_weights: NDArray[np.float64]
    confidence: float

    def share(self, with_copies: NDArray[np.int64], without: NDArray[np.int64]) -> Share:
        """Compare the ranks with and without copies, both of shape (queries, documents)."""
        hits = self._shares(with_copies <= TOP)
        hits_without = self._shares(without <= TOP)
        return Share(
            share=self._interval(hits),
            rise=self._interval(hits - hits_without),
            mean_rank=float(with_copies[self.counted].mean()),
        )

    def _shares(self, hits: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the share of hits among the pairs that count, then that share in each bootstrap sample."""
        counted = self.counted.astype(np.float64)
        hits_of_samples = self._sums(counted * hits)
        pairs_of_samples = np.maximum(self._sums(counted), 1)
        return np.concatenate([[hits[self.counted].mean()], hits_of_samples / pairs_of_samples])

    def _sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum of values over all pairs in each bootstrap sample."""
        return np.asarray(((self.query_weights @ values) * self.document_weights).sum(axis=1))

    def _interval(self, values: NDArray[np.float64]) -> Interval:
        tail = (1 - self.confidence) / 2
        low, high = np.quantile(values[1:], [tail, 1 - tail]).tolist()
        return Interval(float(values[0]), low, high)


def make_pairs(counted: NDArray[np.bool_], settings: AuditSettings) -> Pairs:
    """Draw bootstrap samples of the queries and, independently, of the documents (Owen 2007).

    Both are resampled, because both the choice of queries and the choice of documents affect the share.
    """
    queries, documents = counted.shape
    generator = np.random.default_rng([settings.seed, queries, documents])

    def weights(size: int) -> NDArray[np.float64]:
        return generator.multinomial(size, np.full(size, 1 / size), settings.resamples).astype(np.float64)

    return Pairs(counted, weights(queries), weights(documents), settings.confidence)
