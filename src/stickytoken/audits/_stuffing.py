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
"""Name of the stage in which the tokens that seem to help are measured again, with other documents."""
# Maximum number of documents in the second round, as a multiple of the number in the first round. With four
# times as many documents, the intervals are about half as wide: their width falls with the square root of the
# number.
_SECOND_ROUND_FACTOR = 4


@dataclass(frozen=True)
class _StuffingWork:
    """Ranks documents with copies of a token for all queries; one shard per token.

    A shard has one row for each number of copies and each document: first all documents with the first number
    of copies, then all documents with the second number, and so on.

    Attributes:
        name: name of the stage.
        settings: where and how copies are inserted.
        copies: the numbers of copies.
        fitted: for each number of copies, all documents, truncated to leave room for that number of copies.
        positions: index positions of the documents.
        search: exact search in the index.
    """

    name: str
    settings: ImpactSettings
    copies: tuple[int, ...]
    fitted: Sequence[Sequence[FittedText]]
    positions: Sequence[int]
    search: ExactSearch

    def prepare(self, shard: Shard[Token], encoder: Encoder) -> Sequence[Probe]:
        """Return the inputs of the model: every document with every number of copies of the shard's token."""
        (token,) = shard.items
        condition = _condition_of(token, self.settings.seed)
        probes = [
            with_copies(self.settings, text, condition, copies)
            for copies, texts in zip(self.copies, self.fitted, strict=True)
            for text in texts
        ]
        return engines.tokenized_probes(encoder, probes, truncate=True)

    def compute(self, prepared: Sequence[Probe], encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        """Return the rows of a shard with the ranks for all queries, and the number of encoded texts."""
        vectors = engines.encode_probes(encoder, prepared)
        ranks = self.search.ranks(vectors, list(self.positions) * len(self.copies))
        rows = [{UNIT: unit, "ranks": ranks_of_text.tolist()} for unit, ranks_of_text in enumerate(ranks.T)]
        return rows, len(rows)


def _condition_of(token: Token, seed: int) -> Condition:
    """Return the condition in which copies of this token are inserted."""
    return Condition(kind=Kind.STICKY, tokens=(token,), repetition=0, seed=seed)


@dataclass(frozen=True)
class StuffedDocuments:
    """The documents that receive copies, given by their positions in the index.

    No document is used in both rounds, so the documents of the second round do not affect which tokens are
    measured again.

    Attributes:
        first: documents of the first round, in which all tokens are measured.
        second: documents of the second round, in which the tokens that seem to help are measured again; empty
            if the index has too few documents.
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
        The index positions of the documents for the first round and for the second round.
    """
    # For each position in the index, `Index.places` has the number of the document in `Index.documents`.
    clean_positions = [
        position for position, number in enumerate(index.places) if number not in with_findings
    ]
    generator = np.random.default_rng([settings.seed, len(index.places), 3])
    shuffled = [clean_positions[entry] for entry in generator.permutation(len(clean_positions)).tolist()]
    first = shuffled[: settings.stuffed]
    second = shuffled[settings.stuffed :][: _SECOND_ROUND_FACTOR * settings.stuffed]
    # A second round is useful only if it has more documents than the first.
    if len(second) <= len(first):
        second = []
    return StuffedDocuments(first=sorted(first), second=sorted(second))


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

    Each measurement inserts copies of one token into one document, and leaves all other documents unchanged.

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
    conditions = [_condition_of(token, settings.seed) for token in tokens]
    texts = [index.document_at(position).text for position in stuffed]

    def make_work() -> tuple[_StuffingWork, ShardCost]:
        """Truncate the documents for each number of copies, and return the work and the cost of preparing it.

        The cost is zero, because truncation encodes no text.
        """
        fitted = []
        for copies in settings.copies:
            # The number of tokens that the copies take.
            room = needed_room(encoder, conditions, copies, settings.insertion)
            fitted.append(fit_texts(encoder, texts, room, settings.insertion, index.record.name))
        # `_StuffingWork` needs no settings other than these: the number of copies is an argument of
        # `with_copies`.
        impact_settings = ImpactSettings(
            placement=settings.placement, insertion=settings.insertion, seed=settings.seed
        )
        work = _StuffingWork(
            name=stage,
            settings=impact_settings,
            copies=settings.copies,
            fitted=fitted,
            positions=stuffed,
            search=search,
        )
        return work, ShardCost(seconds=0, sequences=0)

    rows_per_token = len(settings.copies) * len(stuffed)
    shards = [Shard(number, (token,)) for number, token in enumerate(tokens)]

    def row_keys(_: Shard[Token]) -> list[int]:
        """Return the keys of a shard's rows; they are the same for every token."""
        return list(range(rows_per_token))

    # Each shard is one unit of progress.
    rows: engines.Rows[Shard[Token]] = engines.Rows(keys=row_keys, column=UNIT, size=lambda _: 1)
    frames = engines.run_work(stage, make_work, shards, rows, engine, folder, progress)
    ranks = np.array([frame["ranks"].to_list() for frame in frames], dtype=np.int64)
    # The rows of a shard are ordered by number of copies, then by document; see `_StuffingWork`.
    by_copies = ranks.reshape(len(tokens), len(settings.copies), len(stuffed), len(index.queries))
    return by_copies.transpose(0, 1, 3, 2)


@dataclass(frozen=True)
class HitStatistics:
    """How often documents with copies are in the top 10 of queries.

    Attributes:
        share: share of the evaluated pairs in which the document, with copies, is in the query's top 10.
        rise: ``share`` minus the share without copies.
        mean_rank: mean rank of the documents with copies.
    """

    share: Interval
    rise: Interval
    mean_rank: float


@dataclass(frozen=True)
class Pairs:
    """Which pairs of a query and a document are evaluated, and bootstrap samples of these pairs.

    Attributes:
        evaluated: whether each pair is evaluated, shape (queries, documents).
        query_weights: how often each query occurs in each sample, shape (samples, queries).
        document_weights: how often each document occurs in each sample, shape (samples, documents).
        confidence: nominal coverage of the intervals.
    """

    evaluated: NDArray[np.bool_]
    query_weights: NDArray[np.float64]
    document_weights: NDArray[np.float64]
    confidence: float

    def hits(self, ranks_with: NDArray[np.int64], ranks_without: NDArray[np.int64]) -> HitStatistics:
        """Compare the ranks with and without copies, both of shape (queries, documents)."""
        shares_with = self._shares(ranks_with <= TOP)
        shares_without = self._shares(ranks_without <= TOP)
        return HitStatistics(
            share=self._interval(shares_with),
            rise=self._interval(shares_with - shares_without),
            mean_rank=float(ranks_with[self.evaluated].mean()),
        )

    def _shares(self, is_hit: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the share of hits among the evaluated pairs, followed by the share in each bootstrap sample.

        ``is_hit`` has the shape (queries, documents), and the result has the shape (1 + samples,).
        """
        weights = self.evaluated.astype(np.float64)
        hits_of_samples = self._sums(weights * is_hit)
        pairs_of_samples = np.maximum(self._sums(weights), 1)
        return np.concatenate([[is_hit[self.evaluated].mean()], hits_of_samples / pairs_of_samples])

    def _sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum of values over all pairs in each bootstrap sample."""
        return np.asarray(((self.query_weights @ values) * self.document_weights).sum(axis=1))

    def _interval(self, values: NDArray[np.float64]) -> Interval:
        """Return the first value, with an interval computed from the other values (bootstrap samples)."""
        tail = (1 - self.confidence) / 2
        low, high = np.quantile(values[1:], [tail, 1 - tail]).tolist()
        return Interval(float(values[0]), low, high)


def resampled_pairs(evaluated: NDArray[np.bool_], settings: AuditSettings) -> Pairs:
    """Draw bootstrap samples of the queries and, independently, of the documents (Owen 2007).

    Queries and documents are both resampled, because the choice of either affects the share of hits.

    Args:
        evaluated: whether each pair of a query and a document is evaluated, shape (queries, documents).
        settings: the number of samples, the seed, and the confidence level of the intervals.

    Returns:
        The pairs, with two weight matrices that say how often each query and each document occurs in each
        bootstrap sample.
    """
    queries, documents = evaluated.shape
    generator = np.random.default_rng([settings.seed, queries, documents])

    def weights(size: int) -> NDArray[np.float64]:
        """Return how often each of ``size`` items occurs in each bootstrap sample, shape (samples, size)."""
        return generator.multinomial(size, np.full(size, 1 / size), settings.resamples).astype(np.float64)

    return Pairs(
        evaluated=evaluated,
        query_weights=weights(queries),
        document_weights=weights(documents),
        confidence=settings.confidence,
    )
