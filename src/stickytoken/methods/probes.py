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
# Smallest difference that counts as a rise of a similarity. Similarities are float32 numbers, so smaller
# differences are rounding errors.
_ROUNDING = 1e-6
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
    """Return the numbers of copies in ``counts`` that fit the model even in the longest text.

    If none of these numbers fits, the result is ``(1,)``.
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
        """Return a path for each carrier: the index of the gap between words into which each copy goes.

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

    def against(self, carriers: NDArray[np.float32], mean_similarity: float) -> CarrierPanel:
        """Compare the anchors with carriers that have no copies, and return the similarities.

        Args:
            carriers: unit vectors of the carriers, shape (K, d).
            mean_similarity: limit for the lift. Only pairs of carrier and anchor below this similarity count.
        """
        before = (carriers @ self.vectors.T).astype(np.float64)
        return CarrierPanel(self, carriers, before, before < mean_similarity)


class Response(NamedTuple):
    """How copies of T tokens change the similarities between K carriers and the anchors in G groups.

    A pair of carrier and anchor counts if its similarity without copies is below the limit for the lift,
    which is usually the model's mean similarity.

    Attributes:
        lifts: weighted mean rise of the similarity over the pairs that count, shape (T, K).
        group_lifts: mean rise over the pairs that count in each group of anchors, shape (T, K, G); NaN if no
            pair of the carrier counts in the group.
        rising_shares: among the pairs that count, the weighted share of those whose similarity rises, shape
            (T, K).
    """

    lifts: Vector
    group_lifts: Vector
    rising_shares: Vector


@dataclass(frozen=True)
class CarrierPanel:
    """The similarities between K carriers, without copies, and A anchors in G groups.

    Attributes:
        panel: the anchors.
        vectors: unit vectors of the carriers, shape (K, d).
        before: cosines between carriers and anchors, shape (K, A).
        below: mask of the pairs that count for the lift, because their cosine is below the limit, which is
            usually the model's mean similarity; shape (K, A).
    """

    panel: AnchorPanel
    vectors: NDArray[np.float32]
    before: Vector
    below: NDArray[np.bool_]

    @cached_property
    def _counts(self) -> Vector:
        """Number of pairs that count for the lift, for each carrier and group, shape (K, G)."""
        return np.asarray(self.below @ self.panel.membership, dtype=np.float64)

    @cached_property
    def pair_weights(self) -> Vector:
        """Weight of each pair in its carrier's lift, shape (K, A).

        Each row sums to 1, or to 0 if no pair of the carrier counts.
        """
        shares = np.divide(
            self._group_shares, self._counts, out=np.zeros_like(self._counts), where=self._counts > 0
        )
        return np.where(self.below, shares[:, self.panel.groups], 0.0)

    @cached_property
    def _group_shares(self) -> Vector:
        """Weight of each group in each carrier's lift, shape (K, G).

        Each row sums to 1, or to 0 if no pair of the carrier counts.
        """
        present = np.where(self._counts > 0, self.panel.group_weights, 0.0)
        totals = present.sum(axis=1, keepdims=True)
        shares: Vector = np.divide(present, totals, out=np.zeros_like(present), where=totals > 0)
        return shares

    @cached_property
    def _group_means(self) -> Vector:
        """For each carrier and group, the mean of the anchors that count, shape (K, G, d); 0 if none does."""
        carriers, groups = self._counts.shape
        pairs = self.below[:, None, :] * self.panel.membership.T
        # One large matrix product is faster than many small ones, whose threads would wait for each other.
        sums = pairs.reshape(carriers * groups, -1).astype(np.float64) @ self.panel.vectors.astype(np.float64)
        counts = np.maximum(self._counts, 1)
        return np.asarray(sums.reshape(carriers, groups, -1) / counts[..., None], dtype=np.float64)

    def ahead(self, similarities: Vector) -> list[float]:
        """Return the share of the unrelated documents that a document with copies outranks in a search.

        Every anchor serves as a query. The unrelated documents of a query are the carriers whose similarity
        to the query is below the limit for the lift. Copies are added to one of these documents at a time,
        and this document is ranked among the others, which have no copies.

        Args:
            similarities: cosines between carriers and anchors, with C different numbers of copies in the
                carrier, shape (K, C, A).

        Returns:
            For each number of copies, the mean share of the other unrelated documents that the document with
            copies outranks; an empty list if no query has two unrelated documents.
        """
        is_another = ~np.eye(len(self.below), dtype=np.bool_)
        # The axes are the document with copies, the document that it is compared with, and the query.
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
        """Return a panel of only the carriers with these indices."""
        rows = np.array(carriers, dtype=np.intp)
        return CarrierPanel(self.panel, self.vectors[rows], self.before[rows], self.below[rows])

    def response(self, vectors: NDArray[np.float32]) -> Response:
        """Return how copies change the similarities.

        The lift on a group is computed from the mean vector of its anchors: the mean rise over the anchors
        equals the rise of the dot product with their mean vector.

        Args:
            vectors: unit vectors of the carriers with copies, shape (T, K, d).
        """
        before = np.einsum("kd,kgd->kg", self.vectors.astype(np.float64), self._group_means)
        after = np.einsum("tkd,kgd->tkg", vectors.astype(np.float64), self._group_means)
        changes = after - before
        lifts = (changes * self._group_shares).sum(axis=2)
        group_lifts = np.where(self._counts > 0, changes, np.nan)

        token_count, carrier_count, dimension = vectors.shape
        similarities = vectors.reshape(token_count * carrier_count, dimension) @ self.panel.vectors.T
        bounds = (self.before + _ROUNDING).astype(np.float32)
        rises = (similarities.reshape(token_count, carrier_count, -1) > bounds).astype(np.float32)
        rising_shares = np.einsum("tka,ka->tk", rises, self.pair_weights.astype(np.float32))
        return Response(lifts, group_lifts, rising_shares.astype(np.float64))


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

        The curve ``below`` averages over the pairs that count for the lift, ``above`` over all other pairs.
        """
        return self._averages(self._similarities(vectors))

    def _similarities(self, vectors: NDArray[np.float32]) -> Vector:
        """Return the cosines between carriers and anchors, shape (K, C, A).

        The C numbers of copies are 0 and the numbers in ``copies``.
        """
        units = unit_vectors(vectors).reshape(len(self.carriers), len(self.copies), -1)
        after = units @ self.panel.panel.vectors.T
        return np.concatenate([self.panel.before[:, None], after.astype(np.float64)], axis=1)

    def _averages(self, curves: Vector) -> dict[str, Measured]:
        """Average similarities, shape (K, C, A), over the pairs that count for the lift and over the rest."""
        below = self.panel.below[:, None]
        return {"below": _mean_curve(curves, below), "above": _mean_curve(curves, ~below)}


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
        """Return two pairs that count for the lift: a typical pair, and the pair with the largest rise.

        The typical pair is the one whose rise is closest to the lift.

        Args:
            after: similarities with copies, shape (K, A).

        Returns:
            The columns of both pairs (see `_pair_columns`), or no columns if no pair counts for the lift.
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
        lift = float(lifts.mean()) if len(lifts) else 0.0  # 0 if no pair counts
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
