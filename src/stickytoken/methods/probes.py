"""Insert copies of a token into texts, and measure how the copies change similarities."""

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

# Number of tokens reserved for each copy that is inserted as text. The tokenizer may split such a copy into
# several tokens.
_TOKENS_PER_TEXT_COPY = 8
# Numbers of copies in a symptom curve.
SYMPTOM_COPIES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
# Number of carriers over which a symptom curve averages.
SYMPTOM_CARRIERS = 12
# Smallest difference that counts as a rise of a similarity. Similarities are float32 numbers, so smaller
# differences are rounding errors.
_ROUNDING = 1e-6
# Smallest number of words of a carrier that is shown as an example. A shorter carrier tells a reader too
# little.
_LEAST_SHOWN_WORDS = 4


def require_insertion(encoder: Encoder, insertion: Insertion) -> None:
    """Raise an InputError if the insertion needs token ids and the encoder reads only texts."""
    if insertion is Insertion.IDS:
        require_ids(encoder, "insertion 'ids'", "set insertion to 'text'")


def as_carriers(encoder: Encoder, insertion: Insertion, texts: Sequence[str]) -> tuple[Carrier, ...]:
    """Tokenize texts for insertion as ids; return them unchanged for insertion as text."""
    if insertion is Insertion.IDS:
        return tuple(require_ids(encoder, "insertion 'ids'", "set insertion to 'text'").tokenize(texts))
    return tuple(texts)


def room_for(encoder: Encoder, insertion: Insertion, copies: int) -> int:
    """Return how many tokens of an input to leave free for copies: at most half of the model's limit."""
    room = copies if insertion is Insertion.IDS else copies * _TOKENS_PER_TEXT_COPY
    return room if encoder.max_length is None else min(room, encoder.max_length // 2)


def fitting_copies(
    encoder: Encoder, insertion: Insertion, texts: Sequence[str], counts: Sequence[int] = SYMPTOM_COPIES
) -> tuple[int, ...]:
    """Return those numbers of copies with which the longest text still fits into the model.

    If there is no such number, the result is ``(1,)``.
    """
    longest = max(encoder.content_ids(texts), key=len)
    tokens_per_copy = 1 if insertion is Insertion.IDS else _TOKENS_PER_TEXT_COPY
    fitting = [count for count in counts if encoder.fits((*longest, *(0,) * (count * tokens_per_copy)))]
    return tuple(fitting) or (1,)


def with_copies(token: Token, carrier: Carrier, placement: Placement, copies: int, path: Path = ()) -> Probe:
    """Return a carrier with copies of a token.

    Random placement needs a path: for each copy, the index of the gap between words into which it goes.
    """
    if isinstance(carrier, str):
        return copies_as_text(token, carrier, placement, copies, path)
    return copies_as_ids(token, carrier, placement, copies, path)


def word_count(carrier: Carrier) -> int:
    """Return the number of words of a carrier."""
    return len(carrier.split()) if isinstance(carrier, str) else len(carrier.words)


def balanced(groups: Sequence[str], count: int, seed: int | Sequence[int]) -> list[int]:
    """Draw elements at random from all groups in turn.

    The same number of elements is drawn from every group; a smaller group contributes all it has.

    Args:
        groups: name of the group of each element.
        count: largest number of elements to draw.
        seed: seed of the draw.

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
    """Return the number of words that one copy adds to a text; a copy as a token id counts as one word."""
    return 1 if insertion is Insertion.IDS else len(token.text.split())


@dataclass(frozen=True)
class KeyedPaths:
    """Random placements of copies in K carriers, which depend only on seed, key, token id and carrier.

    Attributes:
        seed: seed of the run.
        key: number of the stage. Stages with different keys draw independently.
        words: number of words in each carrier, shape (K,).
        copies: number of copies in each carrier.
        insertion: how copies are put into a text.
    """

    seed: int
    key: int
    words: tuple[int, ...]
    copies: int
    insertion: Insertion = Insertion.TEXT

    def of(self, token: Token) -> list[Path]:
        """Return a path for each carrier: for each copy, its gap among the words and the earlier copies."""
        added = words_added(token, self.insertion)
        paths: list[Path] = []
        for index, words in enumerate(self.words):
            generator = np.random.default_rng([self.seed, self.key, token.id, index])
            gaps = [int(generator.integers(0, words + copy * added + 1)) for copy in range(self.copies)]
            paths.append(tuple(gaps))
        return paths


@dataclass(frozen=True)
class AnchorPanel:
    """A anchors in G groups. Each group has a weight in the lift, which its anchors share equally.

    Attributes:
        vectors: unit vectors of the anchors, shape (A, d).
        groups: index of the group of each anchor, shape (A,).
        group_weights: weights of the groups, which sum to 1, shape (G,). A group of weight 0 is measured, but
            is not part of the lift.
    """

    vectors: NDArray[np.float32]
    groups: NDArray[np.intp]
    group_weights: Vector

    @cached_property
    def weights(self) -> Vector:
        """Weight of each anchor in the lift, shape (A,)."""
        sizes = np.bincount(self.groups, minlength=len(self.group_weights))
        weights: Vector = (self.group_weights / sizes)[self.groups]
        return weights

    @cached_property
    def membership(self) -> NDArray[np.float32]:
        """1 where an anchor (row) belongs to a group (column), else 0; shape (A, G)."""
        return np.eye(len(self.group_weights), dtype=np.float32)[self.groups]

    def against(self, carriers: NDArray[np.float32], mean_similarity: float) -> CarrierPanel:
        """Return the similarities between the anchors and the carriers without copies.

        Args:
            carriers: unit vectors of the carriers, shape (K, d).
            mean_similarity: pairs with a similarity below it count for the lift.
        """
        before = (carriers @ self.vectors.T).astype(np.float64)
        return CarrierPanel(self, carriers, before, before < mean_similarity)


class Response(NamedTuple):
    """What copies of T tokens do to the similarities of K carriers with anchors in G groups.

    A pair of carrier and anchor counts if its similarity without copies is below the mean similarity.

    Attributes:
        lifts: weighted mean rise of the similarity over the pairs that count, shape (T, K).
        group_lifts: mean rise by group of anchors over the pairs that count; NaN where a carrier has no such
            pair in the group, shape (T, K, G).
        rising_shares: weighted share of the pairs that count whose similarity rises, shape (T, K).
    """

    lifts: Vector
    group_lifts: Vector
    rising_shares: Vector


@dataclass(frozen=True)
class CarrierPanel:
    """The similarities of K carriers without copies with A anchors in G groups.

    Attributes:
        panel: the anchors.
        vectors: unit vectors of the carriers, shape (K, d).
        before: cosines of carriers with anchors, shape (K, A).
        below: whether a pair lies below the mean similarity and thus counts for the lift, shape (K, A).
    """

    panel: AnchorPanel
    vectors: NDArray[np.float32]
    before: Vector
    below: NDArray[np.bool_]

    @cached_property
    def _counts(self) -> Vector:
        """Number of pairs below the mean similarity, by carrier and group, shape (K, G)."""
        return np.asarray(self.below @ self.panel.membership, dtype=np.float64)

    @cached_property
    def pair_weights(self) -> Vector:
        """Weights of the pairs in the lift, shape (K, A). A row sums to 1, or to 0 if no pair counts."""
        shares = np.divide(
            self._group_shares, self._counts, out=np.zeros_like(self._counts), where=self._counts > 0
        )
        return np.where(self.below, shares[:, self.panel.groups], 0.0)

    @cached_property
    def _group_shares(self) -> Vector:
        """Weights of the groups in the lift, shape (K, G). A row sums to 1, or to 0 if no pair counts."""
        present = np.where(self._counts > 0, self.panel.group_weights, 0.0)
        totals = present.sum(axis=1, keepdims=True)
        shares: Vector = np.divide(present, totals, out=np.zeros_like(present), where=totals > 0)
        return shares

    @cached_property
    def _group_means(self) -> Vector:
        """Mean vector of each group's anchors that count for a carrier; zeros if none do, shape (K, G, d)."""
        carriers, groups = self._counts.shape
        pairs = self.below[:, None, :] * self.panel.membership.T
        # One large matrix product is faster than many small ones, whose threads would wait for each other.
        sums = pairs.reshape(carriers * groups, -1).astype(np.float64) @ self.panel.vectors.astype(np.float64)
        counts = np.maximum(self._counts, 1)
        return np.asarray(sums.reshape(carriers, groups, -1) / counts[..., None], dtype=np.float64)

    def ahead(self, similarities: Vector) -> list[float]:
        """Return how far a document with copies rises among the results of a search.

        Every anchor is a query. Its unrelated documents are the carriers below the mean similarity to it.
        Each of these documents in turn gets copies and is ranked among the others, which have none.

        Args:
            similarities: cosines with the anchors, by carrier and number of copies, shape (K, C, A).

        Returns:
            For each number of copies, the mean share of the other documents that the document with copies
            outranks; an empty list if no query has two unrelated documents.
        """
        is_another = ~np.eye(len(self.below), dtype=np.bool_)
        # Axes: the document with copies, the document that it is compared with, the query.
        compared = self.below[:, None] & self.below & is_another[..., None]
        counts = compared.sum(axis=(0, 1))
        query_weights = np.where(counts > 0, self.panel.weights, 0.0)
        if not query_weights.any():
            return []
        weights = compared * (query_weights / query_weights.sum() / np.maximum(counts, 1))
        shares = []
        for with_copies_added in similarities.swapaxes(0, 1):
            own_similarities = with_copies_added[:, None]
            outranks = (own_similarities > self.before) + 0.5 * (own_similarities == self.before)
            shares.append(float((outranks * weights).sum()))
        return shares

    def chosen(self, carriers: Sequence[int]) -> CarrierPanel:
        """Return the panel of the carriers with these indices."""
        rows = np.array(carriers, dtype=np.intp)
        return CarrierPanel(self.panel, self.vectors[rows], self.before[rows], self.below[rows])

    def response(self, vectors: NDArray[np.float32]) -> Response:
        """Return how copies change the similarities.

        The mean rise over a group of anchors is computed as the rise of the similarity to the mean anchor.

        Args:
            vectors: unit vectors of the carriers with copies, shape (T, K, d).
        """
        before = np.einsum("kd,kgd->kg", self.vectors.astype(np.float64), self._group_means)
        after = np.einsum("tkd,kgd->tkg", vectors.astype(np.float64), self._group_means)
        changes = after - before
        lifts = (changes * self._group_shares).sum(axis=2)
        group_lifts = np.where(self._counts > 0, changes, np.nan)

        tokens, carriers, dimension = vectors.shape
        similarities = vectors.reshape(tokens * carriers, dimension) @ self.panel.vectors.T
        bounds = (self.before + _ROUNDING).astype(np.float32)
        rises = (similarities.reshape(tokens, carriers, -1) > bounds).astype(np.float32)
        rising_shares = np.einsum("tka,ka->tk", rises, self.pair_weights.astype(np.float32))
        return Response(lifts, group_lifts, rising_shares.astype(np.float64))


@dataclass(frozen=True)
class SymptomStage:
    """Measures a symptom curve: mean similarities by number of copies at the end of the carriers.

    Attributes:
        carriers: the K carriers.
        copies: the numbers of copies, without 0.
        panel: the similarities between the anchors and the carriers without copies.
        name: name of the stage.
        precision: precision of the model; None is its own.
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
        """Return the carriers with copies of a token, carrier by carrier."""
        return [
            with_copies(token, carrier, Placement.SUFFIX, copies)
            for carrier in self.carriers
            for copies in self.copies
        ]

    def measure(self, token: Token, vectors: NDArray[np.float32]) -> dict[str, Measured]:
        """Return both curves of a token (``below``, ``above``) from the vectors of its probes."""
        return self._averages(self._similarities(vectors))

    def _similarities(self, vectors: NDArray[np.float32]) -> Vector:
        """Return similarities of carriers with anchors for 0 copies and each number of copies: (K, C, A)."""
        units = unit_vectors(vectors).reshape(len(self.carriers), len(self.copies), -1)
        after = units @ self.panel.panel.vectors.T
        return np.concatenate([self.panel.before[:, None], after.astype(np.float64)], axis=1)

    def _averages(self, curves: Vector) -> dict[str, Measured]:
        """Average similarities (K, C, A) over pairs below the mean similarity, and over all other pairs."""
        below = self.panel.below[:, None]
        return {"below": _mean_curve(curves, below), "above": _mean_curve(curves, ~below)}


def _mean_curve(curves: Vector, pairs: NDArray[np.bool_]) -> list[float]:
    """Average similarities (K, C, A) over pairs (K, 1, A), by number of copies; empty if there is no pair."""
    count = int(pairs.sum())
    if not count:
        return []
    sums = np.where(pairs, curves, 0.0).sum(axis=(0, 2))
    return [float(total / count) for total in sums]


# Edges of the histogram bins for similarities of pairs. The bins are 0.02 wide, which is finer than the
# detail that a few thousand pairs can show.
SIMILARITY_EDGES: Sequence[float] = [round(-1 + 0.02 * step, 2) for step in range(101)]


def similarity_counts(similarities: Vector) -> list[int]:
    """Return the number of similarities in each bin of `SIMILARITY_EDGES`, after clipping to -1 to 1."""
    counts: list[int] = np.histogram(similarities.clip(-1, 1), SIMILARITY_EDGES)[0].tolist()
    return counts


@dataclass(frozen=True)
class EvidenceStage(SymptomStage):
    """Measures a symptom curve and ranks in a search, and picks two pairs of texts as examples.

    Attributes:
        pair_copies: number of copies in the example pairs; it must be one of ``copies``.
        texts: the carriers as text.
        sentences: the anchors as text.
    """

    name: str = "evidence"
    pair_copies: int = 1
    texts: Sequence[str] = ()
    sentences: Sequence[str] = ()

    def measure(self, token: Token, vectors: NDArray[np.float32]) -> dict[str, Measured]:
        """Return the curves, the ranks by number of copies (``ahead``) and the example pairs of a token."""
        curves = self._similarities(vectors)
        row = self._averages(curves)
        row["ahead"] = self.panel.ahead(curves)
        after = curves[:, 1 + self.copies.index(self.pair_copies)]
        row["similarities_after"] = similarity_counts(after)
        return row | self._example_pairs(after)

    def _example_pairs(self, after: Vector) -> dict[str, Measured]:
        """Return two pairs below the mean similarity: a typical one, and the one that rises most.

        The typical pair is the one whose rise is nearest to the lift.

        Args:
            after: similarities with copies, shape (K, A).

        Returns:
            The columns of both pairs, see `_pair_columns`; empty if no pair lies below the mean similarity.
        """
        panel = self.panel
        is_readable = np.array([word_count(carrier) >= _LEAST_SHOWN_WORDS for carrier in self.carriers])
        candidates = panel.below & is_readable[:, None]
        if not candidates.any():
            candidates = panel.below
        pairs = np.argwhere(candidates)
        if not len(pairs):
            return {}
        changes = after - panel.before
        has_pairs = panel.pair_weights.sum(axis=1) > 0
        lifts = (panel.pair_weights * changes).sum(axis=1)[has_pairs]
        lift = float(lifts.mean()) if len(lifts) else 0.0  # there may be no pair in a group with a weight
        rises = changes[candidates]
        row = self._pair_columns("typical", pairs[np.abs(rises - lift).argmin()], after)
        return row | self._pair_columns("largest", pairs[rises.argmax()], after)

    def _pair_columns(self, kind: str, pair: NDArray[np.intp], after: Vector) -> dict[str, Measured]:
        """Return texts and similarities of a pair, by column; the column names begin with the kind."""
        carrier, anchor = pair.tolist()
        return {
            f"{kind}_carrier": self.texts[carrier],
            f"{kind}_anchor": self.sentences[anchor],
            f"{kind}_before": float(self.panel.before[carrier, anchor]),
            f"{kind}_after": float(after[carrier, anchor]),
        }
