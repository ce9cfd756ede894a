"""Insert copies of a token into texts, and measure how they change the similarities between texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, require_ids
from stickytoken.insertion import (
    Insertion,
    Placement,
    Probe,
    Token,
    TokenizedText,
    copies_as_ids,
    copies_as_text,
)
from stickytoken.machine import Precision
from stickytoken.measurement.engine import Measured
from stickytoken.unit_vectors import unit_vectors

Carrier: TypeAlias = str | TokenizedText
Path: TypeAlias = tuple[int, ...]
Vector = NDArray[np.float64]

# Number of tokens reserved for each copy that is inserted as text, because the tokenizer may split the copy
# into several tokens.
_TOKENS_PER_TEXT_COPY = 8
# Numbers of copies in a symptom curve.
SYMPTOM_COPIES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
# Number of carriers whose similarities are averaged in a symptom curve.
SYMPTOM_CARRIERS = 12
# Minimum number of words in a carrier that is shown as an example. A shorter carrier tells a reader too
# little.
_LEAST_SHOWN_WORDS = 4


def require_insertion(encoder: Encoder, insertion: Insertion) -> None:
    """Raise an InputError if copies are to be inserted as token ids, but the encoder accepts only texts."""
    if insertion is Insertion.IDS:
        require_ids(encoder, "insertion 'ids'", "set insertion to 'text'")


def as_carriers(encoder: Encoder, insertion: Insertion, texts: Sequence[str]) -> tuple[Carrier, ...]:
    """Return texts as carriers: tokenized if copies are inserted as token ids, otherwise unchanged."""
    if insertion is Insertion.IDS:
        return tuple(require_ids(encoder, "insertion 'ids'", "set insertion to 'text'").tokenize(texts))
    return tuple(texts)


def room_for(encoder: Encoder, insertion: Insertion, copies: int) -> int:
    """Return the number of tokens to keep free for copies in a text, at most half of the model's limit."""
    room = copies if insertion is Insertion.IDS else copies * _TOKENS_PER_TEXT_COPY
    return room if encoder.max_length is None else min(room, encoder.max_length // 2)


def fitting_copies(
    encoder: Encoder, insertion: Insertion, texts: Sequence[str], counts: Sequence[int] = SYMPTOM_COPIES
) -> tuple[int, ...]:
    """Return the numbers of copies in ``counts`` with which the model reads even the longest text in full.

    If no number in ``counts`` is small enough, the result is ``(1,)``.
    """
    longest = max(encoder.content_ids(texts), key=len)
    tokens_per_copy = 1 if insertion is Insertion.IDS else _TOKENS_PER_TEXT_COPY
    fitting = [count for count in counts if encoder.fits((*longest, *(0,) * (count * tokens_per_copy)))]
    return tuple(fitting) or (1,)


def with_copies(token: Token, carrier: Carrier, placement: Placement, copies: int, path: Path = ()) -> Probe:
    """Return a carrier with copies of a token inserted.

    Random placement needs a ``path``: for each copy, the index of the gap between words that the copy goes
    into.
    """
    if isinstance(carrier, str):
        return copies_as_text(token, carrier, placement, copies, path)
    return copies_as_ids(token, carrier, placement, copies, path)


def word_count(carrier: Carrier) -> int:
    """Return the number of words in a carrier."""
    return len(carrier.split()) if isinstance(carrier, str) else len(carrier.words)


def balanced(groups: Sequence[str], count: int, seed: int | Sequence[int]) -> list[int]:
    """Draw elements at random, one from each group in turn.

    Every group thus contributes the same number of elements, or all of its elements if it has fewer.

    Args:
        groups: for each element, the name of its group.
        count: maximum number of elements to draw.
        seed: seed of the random generator.

    Returns:
        Indices of the drawn elements.
    """
    generator = np.random.default_rng(seed)
    queues: dict[str, list[int]] = {}
    for index in generator.permutation(len(groups)):
        queues.setdefault(groups[index], []).append(int(index))
    rounds = max(map(len, queues.values()), default=0)
    order = [queue[turn] for turn in range(rounds) for queue in queues.values() if turn < len(queue)]
    return order[:count]


def words_added(token: Token, insertion: Insertion) -> int:
    """Return the number of words that a copy adds to a text. A copy inserted as an id counts as one word."""
    return 1 if insertion is Insertion.IDS else len(token.text.split())


@dataclass(frozen=True)
class KeyedPaths:
    """Random placements of copies in K carriers.

    A placement depends only on the seed, the key, the token id and the index of the carrier.

    Attributes:
        seed: seed of the run.
        key: number that identifies the stage. Placements that are drawn with different keys are independent.
        words: number of words in each carrier, shape (K,).
        copies: number of copies in each carrier.
        insertion: how copies are inserted into a text.
    """

    seed: int
    key: int
    words: tuple[int, ...]
    copies: int
    insertion: Insertion = Insertion.TEXT

    def of(self, token: Token) -> list[Path]:
        """Return a path for each carrier, which lists the index of the gap between words for each copy.

        Copies that were inserted earlier count as words of the carrier.
        """
        added = words_added(token, self.insertion)
        paths: list[Path] = []
        for index, words in enumerate(self.words):
            generator = np.random.default_rng([self.seed, self.key, token.id, index])
            gaps = [int(generator.integers(0, words + copy * added + 1)) for copy in range(self.copies)]
            paths.append(tuple(gaps))
        return paths


@dataclass(frozen=True)
class AnchorPanel:
    """The vectors of A anchors, which are divided into G groups.

    The weight of a group in the lift is divided equally among its anchors.

    Attributes:
        vectors: unit vectors of the anchors, shape (A, d).
        groups: index of the group of each anchor, shape (A,).
        group_weights: weights of the groups, which sum to 1, shape (G,). Similarities to a group of weight 0
            are measured, but are not part of the lift.
    """

    vectors: NDArray[np.float32]
    groups: NDArray[np.intp]
    group_weights: Vector

    @classmethod
    def of_one_group(cls, vectors: NDArray[np.float32]) -> AnchorPanel:
        """Return a panel whose anchors form a single group, so that they all have the same weight."""
        return cls(vectors, groups=np.zeros(len(vectors), dtype=np.intp), group_weights=np.ones(1))

    @cached_property
    def weights(self) -> Vector:
        """Weight of each anchor in the lift, shape (A,)."""
        sizes = np.bincount(self.groups, minlength=len(self.group_weights))
        weights: Vector = (self.group_weights / sizes)[self.groups]
        return weights

    @cached_property
    def membership(self) -> NDArray[np.float32]:
        """Indicator matrix, shape (A, G): 1 if the anchor (row) is in the group (column), else 0."""
        return np.eye(len(self.group_weights), dtype=np.float32)[self.groups]

    def against(self, carriers: NDArray[np.float32], unrelated_below: float) -> CarrierPanel:
        """Compare the anchors with carriers that have no copies, and return the similarities.

        Args:
            carriers: unit vectors of the carriers, shape (K, d).
            unrelated_below: similarity below which a carrier and an anchor are unrelated, usually the model's
                mean similarity.
        """
        before = (carriers @ self.vectors.T).astype(np.float64)
        return CarrierPanel(self, carriers, before, is_unrelated=before < unrelated_below)


class Response(NamedTuple):
    """How copies of T tokens change the similarities between K carriers and the anchors in G groups.

    Only unrelated pairs are averaged. A carrier and an anchor are unrelated if their similarity without
    copies is below a limit, usually the model's mean similarity.

    Attributes:
        lifts: weighted mean rise of the similarity over the unrelated pairs of each carrier, shape (T, K).
        group_lifts: mean rise over the unrelated pairs of each carrier and group, shape (T, K, G); NaN if the
            carrier has no unrelated anchor in the group.
    """

    lifts: Vector
    group_lifts: Vector


@dataclass(frozen=True)
class CarrierPanel:
    """The similarities between K carriers, without copies, and A anchors in G groups.

    Attributes:
        panel: the anchors.
        vectors: unit vectors of the carriers, shape (K, d).
        before: cosines between carriers and anchors, shape (K, A).
        is_unrelated: mask of the unrelated pairs, shape (K, A). A carrier and an anchor are unrelated if
            their cosine is below a limit, usually the model's mean similarity. The lift is a mean over
            unrelated pairs.
    """

    panel: AnchorPanel
    vectors: NDArray[np.float32]
    before: Vector
    is_unrelated: NDArray[np.bool_]

    @cached_property
    def _unrelated_counts(self) -> Vector:
        """Number of unrelated anchors of each carrier in each group, shape (K, G)."""
        return np.asarray(self.is_unrelated @ self.panel.membership, dtype=np.float64)

    @cached_property
    def pair_weights(self) -> Vector:
        """Weight of each pair in its carrier's lift, shape (K, A).

        The weights of a carrier's pairs sum to 1, or to 0 if the carrier has no unrelated anchor.
        """
        counts = self._unrelated_counts
        weights = np.divide(self._group_weights, counts, out=np.zeros_like(counts), where=counts > 0)
        return np.where(self.is_unrelated, weights[:, self.panel.groups], 0.0)

    @cached_property
    def _group_weights(self) -> Vector:
        """Weight of each group in each carrier's lift, shape (K, G).

        The weight of a group without unrelated anchors is 0. The weights of all other groups are scaled up
        for each carrier, so that they sum to 1. A carrier without any unrelated anchor has only weights of 0.
        """
        present = np.where(self._unrelated_counts > 0, self.panel.group_weights, 0.0)
        totals = present.sum(axis=1, keepdims=True)
        weights: Vector = np.divide(present, totals, out=np.zeros_like(present), where=totals > 0)
        return weights

    @cached_property
    def _mean_unrelated_anchors(self) -> Vector:
        """Mean of each carrier's unrelated anchors in each group, shape (K, G, d); 0 if there are none."""
        carriers, groups = self._unrelated_counts.shape
        pairs = self.is_unrelated[:, None, :] * self.panel.membership.T
        # One large matrix product is faster than many small ones, whose threads would wait for each other.
        sums = pairs.reshape(carriers * groups, -1).astype(np.float64) @ self.panel.vectors.astype(np.float64)
        counts = np.maximum(self._unrelated_counts, 1)
        return np.asarray(sums.reshape(carriers, groups, -1) / counts[..., None], dtype=np.float64)

    def ahead(self, similarities: Vector) -> list[float]:
        """Return the share of the unrelated documents that a document with copies outranks in a search.

        Every anchor serves as a query, and the carriers are the documents. Copies are added to the unrelated
        documents of a query, one document at a time. The document with copies is ranked among the query's
        other unrelated documents, which have no copies.

        Args:
            similarities: cosines between carriers and anchors, with C different numbers of copies in the
                carrier, shape (K, C, A).

        Returns:
            For each number of copies, the share of comparisons that the document with copies wins, as a
            weighted mean over the queries. A comparison is with another unrelated document of the query;
            equal similarities count as half a win. The list is empty if no query has two unrelated documents.
        """
        # A comparison is between a document with copies and another document without copies, for a query that
        # is unrelated to both. The arrays of comparisons have shape (K, K, A). The axes are the document with
        # copies, the document without copies, and the query.
        with_copies_is_unrelated = self.is_unrelated[:, None, :]
        without_copies_is_unrelated = self.is_unrelated[None, :, :]
        is_another = ~np.eye(len(self.is_unrelated), dtype=np.bool_)[:, :, None]
        is_compared = with_copies_is_unrelated & without_copies_is_unrelated & is_another
        counts = is_compared.sum(axis=(0, 1))  # number of comparisons for each query
        query_weights = np.where(counts > 0, self.panel.weights, 0.0)  # shape (A,)
        if not query_weights.any():
            return []
        # The weight of a query is divided equally among its comparisons, and all weights sum to 1. A pair of
        # documents that is not compared for a query has the weight 0.
        weights = is_compared * (query_weights / query_weights.sum() / np.maximum(counts, 1))
        before = self.before[None, :, :]  # the similarities of the documents without copies, shape (1, K, A)
        shares = []
        for similarities_with_copies in similarities.swapaxes(0, 1):
            after = similarities_with_copies[:, None, :]  # shape (K, 1, A)
            wins = after > before
            ties = after == before
            shares.append(float(((wins + 0.5 * ties) * weights).sum()))
        return shares

    def chosen(self, carriers: Sequence[int]) -> CarrierPanel:
        """Return a panel of only the carriers with these indices."""
        rows = np.array(carriers, dtype=np.intp)
        return CarrierPanel(self.panel, self.vectors[rows], self.before[rows], self.is_unrelated[rows])

    def response(self, vectors: NDArray[np.float32]) -> Response:
        """Return how copies of T tokens change the similarities.

        Args:
            vectors: unit vectors of the carriers with copies of each token, shape (T, K, d).

        Returns:
            The lifts over all groups of anchors, and the lifts on each group.
        """
        # The mean similarity to several anchors equals the dot product with their mean vector, so the
        # similarities to single anchors are not needed. `_mean_unrelated_anchors` holds one mean vector for
        # each carrier k and group g.
        before = np.einsum("kd,kgd->kg", self.vectors.astype(np.float64), self._mean_unrelated_anchors)
        after = np.einsum("tkd,kgd->tkg", vectors.astype(np.float64), self._mean_unrelated_anchors)
        mean_rises = after - before  # for each token, carrier and group, shape (T, K, G)
        lifts = (mean_rises * self._group_weights).sum(axis=2)
        group_lifts = np.where(self._unrelated_counts > 0, mean_rises, np.nan)
        return Response(lifts, group_lifts)


@dataclass(frozen=True)
class SymptomStage:
    """Measures the symptom curve of a token: the mean similarity as a function of the number of copies.

    The copies are appended to the carriers.

    Attributes:
        carriers: the K carriers.
        copies: the numbers of copies, excluding 0.
        panel: the similarities between the anchors and the carriers without copies.
        name: name of the stage.
        precision: precision to run the model in; if None, the model's own.
    """

    carriers: tuple[Carrier, ...]
    copies: tuple[int, ...]
    panel: CarrierPanel
    name: str = "symptoms"
    precision: Precision | None = None

    @property
    def probes_per_token(self) -> int:
        """Number of texts that are encoded for each token."""
        return len(self.carriers) * len(self.copies)

    def probes(self, token: Token) -> Sequence[Probe]:
        """Return every carrier with each number of copies of a token, carrier by carrier."""
        return [
            with_copies(token, carrier, Placement.SUFFIX, copies)
            for carrier in self.carriers
            for copies in self.copies
        ]

    def measure(self, token: Token, vectors: NDArray[np.float32]) -> dict[str, Measured]:
        """Compute a token's curves from the vectors of its probes.

        The curve ``below`` averages over the unrelated pairs, and the curve ``above`` over all other pairs. A
        curve is a list with one mean for 0 copies, followed by one for each number in ``copies``. The list is
        empty if there are no pairs to average over.
        """
        return self._averages(self._similarities(vectors))

    def _similarities(self, vectors: NDArray[np.float32]) -> Vector:
        """Return the cosines between K carriers and A anchors for C numbers of copies, shape (K, C, A).

        The numbers of copies are 0, followed by the numbers in ``copies``.
        """
        units = unit_vectors(vectors).reshape(len(self.carriers), len(self.copies), -1)
        after = units @ self.panel.panel.vectors.T
        return np.concatenate([self.panel.before[:, None], after.astype(np.float64)], axis=1)

    def _averages(self, curves: Vector) -> dict[str, Measured]:
        """Average similarities, shape (K, C, A), over the unrelated pairs and over all other pairs."""
        is_unrelated = self.panel.is_unrelated[:, None]
        return {"below": _mean_curve(curves, is_unrelated), "above": _mean_curve(curves, ~is_unrelated)}


def _mean_curve(curves: Vector, pairs: NDArray[np.bool_]) -> list[float]:
    """Average the similarities, shape (K, C, A), over the pairs in the mask ``pairs``, shape (K, 1, A).

    Return one mean per number of copies, or an empty list if the mask is empty.
    """
    count = int(pairs.sum())
    if not count:
        return []
    sums = np.where(pairs, curves, 0.0).sum(axis=(0, 2))
    return [float(total / count) for total in sums]


# Edges of the histogram bins for similarities of pairs. The bins are 0.02 wide, which is finer than any
# detail that a few thousand pairs can show.
SIMILARITY_EDGES: Sequence[float] = [round(-1 + 0.02 * step, 2) for step in range(101)]


def similarity_counts(similarities: Vector) -> list[int]:
    """Clip similarities to [-1, 1], and count them in each bin of `SIMILARITY_EDGES`."""
    counts: list[int] = np.histogram(similarities.clip(-1, 1), SIMILARITY_EDGES)[0].tolist()
    return counts


@dataclass(frozen=True)
class EvidenceStage(SymptomStage):
    """Measures a token's symptom curve and its effect on search ranks, and picks two example pairs of texts.

    Attributes:
        pair_copies: number of copies of the token in the example pairs; one of the numbers in ``copies``.
        texts: the texts of the carriers.
        sentences: the texts of the anchors.
    """

    name: str = "evidence"
    pair_copies: int = 1
    texts: Sequence[str] = ()
    sentences: Sequence[str] = ()

    def measure(self, token: Token, vectors: NDArray[np.float32]) -> dict[str, Measured]:
        """Return the curves, the ranks (``ahead``), a histogram of similarities and the example pairs."""
        curves = self._similarities(vectors)
        row = self._averages(curves)
        row["ahead"] = self.panel.ahead(curves)
        after = curves[:, 1 + self.copies.index(self.pair_copies)]
        row["similarities_after"] = similarity_counts(after)
        return row | self._example_pairs(after)

    def _example_pairs(self, after: Vector) -> dict[str, Measured]:
        """Return a typical unrelated pair, and the unrelated pair with the largest rise in similarity.

        The typical pair is the unrelated pair whose rise is closest to the token's lift, the mean over the
        carriers. A pair whose carrier has fewer than `_LEAST_SHOWN_WORDS` words is chosen only if all
        unrelated pairs have such carriers.

        Args:
            after: similarities with copies, shape (K, A).

        Returns:
            The columns of the two example pairs (see `_pair_columns`), or no columns if there are no
            unrelated pairs.
        """
        panel = self.panel
        is_readable = np.array([word_count(carrier) >= _LEAST_SHOWN_WORDS for carrier in self.carriers])
        candidates = panel.is_unrelated & is_readable[:, None]
        if not candidates.any():
            candidates = panel.is_unrelated
        pairs = np.argwhere(candidates)  # one row (carrier, anchor) per candidate, in the order of ``rises``
        if not len(pairs):
            return {}
        changes = after - panel.before
        has_pairs = panel.pair_weights.sum(axis=1) > 0  # carriers with an unrelated anchor
        lifts = (panel.pair_weights * changes).sum(axis=1)[has_pairs]
        lift = float(lifts.mean()) if len(lifts) else 0.0  # no pair is in a group with a weight
        rises = changes[candidates]
        row = self._pair_columns("typical", pairs[np.abs(rises - lift).argmin()], after)
        return row | self._pair_columns("largest", pairs[rises.argmax()], after)

    def _pair_columns(self, kind: str, pair: NDArray[np.intp], after: Vector) -> dict[str, Measured]:
        """Return the texts and similarities of a pair, keyed by column. Column names begin with ``kind``."""
        carrier, anchor = pair.tolist()
        return {
            f"{kind}_carrier": self.texts[carrier],
            f"{kind}_anchor": self.sentences[anchor],
            f"{kind}_before": float(self.panel.before[carrier, anchor]),
            f"{kind}_after": float(after[carrier, anchor]),
        }
