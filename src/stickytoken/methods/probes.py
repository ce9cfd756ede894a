"""The texts that probe a token, and what copies in them do to similarities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

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

# A copy that is joined to a text may become several tokens; this many at most are reckoned with.
_TOKENS_PER_TEXT_COPY = 8
SYMPTOM_COPIES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
SYMPTOM_CARRIERS = 12


def require_insertion(encoder: Encoder, insertion: Insertion) -> None:
    if insertion is Insertion.IDS:
        require_ids(encoder, "insertion 'ids'", "set insertion to 'text'")


def as_carriers(encoder: Encoder, insertion: Insertion, texts: Sequence[str]) -> tuple[Carrier, ...]:
    if insertion is Insertion.IDS:
        return tuple(require_ids(encoder, "insertion 'ids'", "set insertion to 'text'").tokenize(texts))
    return tuple(texts)


def room_for(encoder: Encoder, insertion: Insertion, copies: int) -> int:
    room = copies if insertion is Insertion.IDS else copies * _TOKENS_PER_TEXT_COPY
    return room if encoder.max_length is None else min(room, encoder.max_length // 2)


def fitting_copies(
    encoder: Encoder, insertion: Insertion, texts: Sequence[str], counts: Sequence[int] = SYMPTOM_COPIES
) -> tuple[int, ...]:
    longest = max(encoder.content_ids(texts), key=len)
    pieces = 1 if insertion is Insertion.IDS else _TOKENS_PER_TEXT_COPY
    return tuple(n for n in counts if encoder.fits((*longest, *(0,) * (n * pieces)))) or (1,)


def with_copies(token: Token, carrier: Carrier, placement: Placement, copies: int, path: Path = ()) -> Probe:
    if isinstance(carrier, str):
        return copies_as_text(token, carrier, placement, copies, path)
    return copies_as_ids(token, carrier, placement, copies, path)


def word_count(carrier: Carrier) -> int:
    return len(carrier.split()) if isinstance(carrier, str) else len(carrier.words)


def balanced(groups: Sequence[str], count: int, seed: int | Sequence[int]) -> list[int]:
    """Draw indices from all groups in turn, so that the groups stay level until they run out."""
    generator = np.random.default_rng(seed)
    queues: dict[str, list[int]] = {}
    for index in generator.permutation(len(groups)):
        queues.setdefault(groups[index], []).append(int(index))
    rounds = max(map(len, queues.values()), default=0)
    drawn = [queue[turn] for turn in range(rounds) for queue in queues.values() if turn < len(queue)]
    return drawn[:count]


def words_added(token: Token, insertion: Insertion) -> int:
    return 1 if insertion is Insertion.IDS else len(token.text.split())


@dataclass(frozen=True)
class KeyedPaths:
    """Random placement, drawn from a generator keyed by (seed, key, token, carrier)."""

    seed: int
    key: int  # keeps the stages of a run apart
    words: tuple[int, ...]  # number of words in each carrier
    counts: int  # number of steps
    insertion: Insertion = Insertion.TEXT  # with ids, a copy counts as one word, whatever its text

    def of(self, token: Token) -> list[Path]:
        added, paths = words_added(token, self.insertion), []
        for place, words in enumerate(self.words):
            generator = np.random.default_rng([self.seed, self.key, token.id, place])
            largest = (words + step * added for step in range(self.counts))
            paths.append(tuple(int(generator.integers(0, gap + 1)) for gap in largest))
        return paths


# Similarities are float32 numbers: a smaller rise is none.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class AnchorPanel:
    vectors: NDArray[np.float32]  # unit vectors, shape (A, d)
    groups: NDArray[np.intp]  # group of each anchor, shape (A,); those of one group weigh the same
    group_weights: Vector  # they sum to 1; a group of weight 0 is measured beside the lift; shape (G,)

    @cached_property
    def weights(self) -> Vector:
        sizes = np.bincount(self.groups, minlength=len(self.group_weights))
        weights: Vector = (self.group_weights / sizes)[self.groups]
        return weights

    @cached_property
    def membership(self) -> NDArray[np.float32]:
        return np.eye(len(self.group_weights), dtype=np.float32)[self.groups]

    def against(self, carriers: NDArray[np.float32], mean_similarity: float) -> CarrierPanel:
        before = (carriers @ self.vectors.T).astype(np.float64)
        return CarrierPanel(self, carriers, before, before < mean_similarity)


@dataclass(frozen=True)
class CarrierPanel:
    panel: AnchorPanel
    vectors: NDArray[np.float32]  # unit vectors of the carriers, shape (K, d)
    before: Vector  # similarities, shape (K, A)
    below: NDArray[np.bool_]  # pairs that count for the lift, shape (K, A)

    @cached_property
    def _counts(self) -> Vector:
        return np.asarray(self.below @ self.panel.membership, dtype=np.float64)

    @cached_property
    def pair_weights(self) -> Vector:
        """Weights of the pairs below; each carrier's row sums to 1, or to 0 without pairs; shape (K, A)."""
        shares = np.divide(
            self._group_shares, self._counts, out=np.zeros_like(self._counts), where=self._counts > 0
        )
        return np.where(self.below, shares[:, self.panel.groups], 0.0)

    @cached_property
    def _group_shares(self) -> Vector:
        """Weights of the groups that have a pair below; each carrier's row sums to 1, or to 0; (K, G)."""
        present = np.where(self._counts > 0, self.panel.group_weights, 0.0)
        totals = present.sum(axis=1, keepdims=True)
        shares: Vector = np.divide(present, totals, out=np.zeros_like(present), where=totals > 0)
        return shares

    @cached_property
    def _group_means(self) -> Vector:
        """Mean anchor of each group over the pairs below, zero without one, shape (K, G, d)."""
        shares = self.below[:, None, :] * self.panel.membership.T[None]
        sums = shares.astype(np.float64) @ self.panel.vectors.astype(np.float64)
        return np.asarray(sums / np.maximum(self._counts, 1)[..., None], dtype=np.float64)

    def ahead(self, similarities: Vector) -> list[float]:
        """Compute the mean share of unrelated carriers that a carrier is ahead of, by number of copies."""
        # Every anchor is a query, and the carriers below the mean similarity to it are its unrelated
        # documents: each in turn, with copies, is ranked among the others without. Similarities have shape
        # (K, C, A); nothing is returned where no query has two unrelated carriers.
        others = self.below[:, None] & self.below & ~np.eye(len(self.below), dtype=np.bool_)[..., None]
        counts = others.sum(axis=(0, 1))
        queries = np.where(counts > 0, self.panel.weights, 0.0)
        if not queries.any():
            return []
        weights = others * (queries / queries.sum() / np.maximum(counts, 1))
        shares = []
        for own in similarities.swapaxes(0, 1)[:, :, None]:
            is_ahead = (own > self.before) + 0.5 * (own == self.before)
            shares.append(float((is_ahead * weights).sum()))
        return shares

    def chosen(self, places: Sequence[int]) -> CarrierPanel:
        kept = np.array(places, dtype=np.intp)
        return CarrierPanel(self.panel, self.vectors[kept], self.before[kept], self.below[kept])

    def response(self, vectors: NDArray[np.float32]) -> tuple[Vector, Vector, Vector]:
        """Return lifts over the pairs below, (T, K), by group, (T, K, G), and the share that rise, (T, K)."""
        # From vectors of shape (T, K, d); NaN where a group has no such pair. Means need only mean anchors.
        groups = np.empty((len(vectors), *self._counts.shape))
        rising = np.empty(groups.shape[:2])
        for place, means in enumerate(self._group_means):
            after, before = vectors[:, place], self.vectors[place].astype(np.float64)
            groups[:, place] = after.astype(np.float64) @ means.T - means @ before
            bounds = (self.before[place] + _ROUNDING).astype(np.float32)
            rises = (after @ self.panel.vectors.T > bounds).astype(np.float32)
            rising[:, place] = rises @ self.pair_weights[place].astype(np.float32)
        lifts = (groups * self._group_shares).sum(axis=2)
        return lifts, np.where(self._counts > 0, groups, np.nan), rising


@dataclass(frozen=True)
class SymptomStage:
    carriers: tuple[Carrier, ...]
    copies: tuple[int, ...]  # numbers to append, without 0
    panel: CarrierPanel  # the carriers without copies against the anchors
    name: str = "symptoms"
    precision: Precision | None = None

    @property
    def probes_per_token(self) -> int:
        return len(self.carriers) * len(self.copies)

    def probes(self, token: Token) -> Sequence[Probe]:
        return [
            with_copies(token, carrier, Placement.SUFFIX, copies)
            for carrier in self.carriers
            for copies in self.copies
        ]

    def measure(self, token: Token, vectors: NDArray[np.float32]) -> dict[str, Measured]:
        return self._averages(self._similarities(vectors))

    def _similarities(self, vectors: NDArray[np.float32]) -> Vector:
        """Compare the carriers with all anchors, by number of copies, 0 first; shape (K, C, A)."""
        units = unit_vectors(vectors).reshape(len(self.carriers), len(self.copies), -1)
        after = units @ self.panel.panel.vectors.T
        return np.concatenate([self.panel.before[:, None], after.astype(np.float64)], axis=1)

    def _averages(self, curves: Vector) -> dict[str, Measured]:
        row: dict[str, Measured] = {}
        for side, pairs in (("below", self.panel.below[:, None]), ("above", ~self.panel.below[:, None])):
            count = int(pairs.sum())
            sums = np.where(pairs, curves, 0.0).sum(axis=(0, 2))
            row[side] = [float(total / count) for total in sums] if count else []
        return row


@dataclass(frozen=True)
class EvidenceStage(SymptomStage):
    name: str = "evidence"
    pair_copies: int = 1  # number of copies in the pairs; one of the numbers in the curve
    texts: Sequence[str] = ()  # of the carriers
    sentences: Sequence[str] = ()  # of the anchors

    def measure(self, token: Token, vectors: NDArray[np.float32]) -> dict[str, Measured]:
        panel, curves = self.panel, self._similarities(vectors)
        row = self._averages(curves) | {"ahead": panel.ahead(curves)}
        # A text of a word or two says little to a reader.
        readable = np.array([word_count(carrier) >= 4 for carrier in self.carriers])
        shown = panel.below & readable[:, None]
        shown = shown if shown.any() else panel.below
        pairs = np.argwhere(shown)
        if not len(pairs):
            return row
        after = curves[:, 1 + self.copies.index(self.pair_copies)]
        changes = after - panel.before
        present = panel.pair_weights.sum(axis=1) > 0
        lifts = (panel.pair_weights * changes).sum(axis=1)[present]
        lift = float(lifts.mean()) if len(lifts) else 0.0
        rises = changes[shown]
        for kind, nearest in (("typical", np.abs(rises - lift).argmin()), ("largest", rises.argmax())):
            carrier, anchor = map(int, pairs[nearest])
            row[f"{kind}_carrier"], row[f"{kind}_anchor"] = self.texts[carrier], self.sentences[anchor]
            row[f"{kind}_before"] = float(panel.before[carrier, anchor])
            row[f"{kind}_after"] = float(after[carrier, anchor])
        return row
