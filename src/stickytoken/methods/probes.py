"""The texts that probe a token: every carrier, placement and number of copies."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import InputError
from stickytoken.insertion import (
    Insertion,
    Placement,
    Probe,
    Token,
    TokenizedText,
    copies_as_ids,
    copies_as_text,
    insert_as_ids,
    insert_as_text,
)
from stickytoken.machine import Precision
from stickytoken.unit_vectors import unit_vectors

Carrier: TypeAlias = str | TokenizedText
Path: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class ProbeGrid:
    """All combinations of carriers, placements and numbers of copies.

    Attributes:
        carriers: texts (text insertion) or tokenized texts (ids insertion).
        placements: where the copies go.
        counts: probes hold 1 to this many copies.
        paths: for random placement, one path per carrier.
    """

    carriers: tuple[Carrier, ...]
    placements: tuple[Placement, ...]
    counts: int
    paths: PathSource

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of carriers, placements and copy counts."""
        return len(self.carriers), len(self.placements), self.counts

    def probes(self, token: Token) -> list[Probe]:
        """Return all probes of one token; counts vary fastest, carriers slowest."""
        paths = self.paths.of(token) if Placement.RANDOM in self.placements else ()
        return [
            probe
            for place, carrier in enumerate(self.carriers)
            for placement in self.placements
            for probe in self._insert(token, carrier, placement, paths[place] if paths else ())
        ]

    def alone(self, token: Token) -> Probe:
        """Return the token by itself, after the prompt."""
        carrier = self.carriers[0]
        return token.text if isinstance(carrier, str) else (*carrier.head, token.id, *carrier.tail)

    def _insert(self, token: Token, carrier: Carrier, placement: Placement, path: Path) -> Sequence[Probe]:
        if isinstance(carrier, str):
            return insert_as_text(token, carrier, placement, self.counts, path)
        return insert_as_ids(token, carrier, placement, self.counts, path)


def word_count(carrier: Carrier) -> int:
    """Count the words that whitespace separates."""
    return len(carrier.split()) if isinstance(carrier, str) else len(carrier.words)


@dataclass(frozen=True)
class KeyedPaths:
    """Random placement, drawn from a generator keyed by (seed, key, token, carrier).

    The paths of a token do not depend on the other tokens.

    Attributes:
        seed: seed of the run.
        key: keeps the stages of a run apart.
        words: number of words in each carrier.
        counts: number of steps.
        insertion: with ids, a copy counts as one word, whatever its text.
    """

    seed: int
    key: int
    words: tuple[int, ...]
    counts: int
    insertion: Insertion = Insertion.TEXT

    def of(self, token: Token) -> list[Path]:
        """Return one path per carrier."""
        return [
            tuple(
                int(generator.integers(0, gaps + 1))
                for gaps in _gaps(words, _words_added(token, self.insertion), self.counts)
            )
            for place, words in enumerate(self.words)
            for generator in [np.random.default_rng([self.seed, self.key, token.id, place])]
        ]


@dataclass(frozen=True)
class WalkedPaths:
    """Random placement, drawn from one stream that walks the whole vocabulary.

    Attributes:
        paths: by token id, one path per carrier.
    """

    paths: Mapping[int, tuple[Path, ...]]

    def of(self, token: Token) -> Sequence[Path]:
        """Return one path per carrier."""
        if token.id not in self.paths:
            raise InputError(f"token {token.id} ({token.text!r}) is not in the vocabulary that was walked")
        return self.paths[token.id]


PathSource: TypeAlias = KeyedPaths | WalkedPaths


def walk_vocabulary(
    seed: int,
    vocabulary: Sequence[Token],
    wanted: Sequence[Token],
    words: Sequence[int],
    counts: int,
    insertion: Insertion = Insertion.TEXT,
) -> WalkedPaths:
    """Replay the random stream of the published runs.

    The published code drew all gaps from one ``random.Random(42)``, token by token in order
    of id, so the gaps of a token depend on the tokens before it. Walking the stream up front
    makes them a function of seed, vocabulary and carriers alone: the order of computation,
    a resume and the number of workers change nothing.
    """
    stream = random.Random(seed)
    keep = {token.id for token in wanted}
    last = max(keep, default=-1)
    found: dict[int, tuple[Path, ...]] = {}
    for token in vocabulary:
        if token.id > last:
            break
        added = _words_added(token, insertion)
        paths = tuple(
            tuple(stream.randint(0, gaps) for gaps in _gaps(start, added, counts)) for start in words
        )
        if token.id in keep:
            found[token.id] = paths
    return WalkedPaths(found)


def _words_added(token: Token, insertion: Insertion) -> int:
    """Count the words that one copy adds."""
    return 1 if insertion is Insertion.IDS else len(token.text.split())


def _gaps(words: int, added: int, counts: int) -> Iterator[int]:
    """Count the words of the sentence at each step; this is the largest gap index."""
    return (words + step * added for step in range(counts))


Vector = NDArray[np.float64]


# Similarities are float32 numbers: a smaller rise is none.
_ROUNDING = 1e-6


class Response(NamedTuple):
    """How copies of T tokens changed the similarities of K carriers to the anchors.

    Attributes:
        lifts: mean change over the pairs below the mean similarity, shape (T, K).
        groups: the same by group of anchors, NaN if no pair of the group lies below, shape (T, K, G).
        rising: share of the pairs below that rise, shape (T, K).
    """

    lifts: Vector
    groups: Vector
    rising: Vector


@dataclass(frozen=True)
class AnchorPanel:
    """Anchors; those of one group weigh the same.

    Attributes:
        vectors: unit vectors, shape (A, d).
        groups: group of each anchor, 0 to G - 1, shape (A,).
        group_weights: weights in the lift, which sum to 1; a group of weight 0 is measured beside it,
            shape (G,).
    """

    vectors: NDArray[np.float32]
    groups: NDArray[np.intp]
    group_weights: Vector

    @cached_property
    def weights(self) -> Vector:
        """Weight of each anchor, shape (A,)."""
        sizes = np.bincount(self.groups, minlength=len(self.group_weights))
        weights: Vector = (self.group_weights / sizes)[self.groups]
        return weights

    @cached_property
    def membership(self) -> NDArray[np.float32]:
        """1 if an anchor belongs to a group, else 0; shape (A, G)."""
        return np.eye(len(self.group_weights), dtype=np.float32)[self.groups]

    def against(self, carriers: NDArray[np.float32], mean_similarity: float) -> CarrierPanel:
        """Compare carriers, still without copies, with all anchors."""
        before = (carriers @ self.vectors.T).astype(np.float64)
        return CarrierPanel(self, carriers, before, before < mean_similarity)


@dataclass(frozen=True)
class CarrierPanel:
    """Carriers without copies against the anchors.

    Attributes:
        panel: the anchors.
        vectors: unit vectors of the carriers, shape (K, d).
        before: similarities, shape (K, A).
        below: pairs that count for the lift, shape (K, A).
    """

    panel: AnchorPanel
    vectors: NDArray[np.float32]
    before: Vector
    below: NDArray[np.bool_]

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

    def chosen(self, places: Sequence[int]) -> CarrierPanel:
        """Keep some of the carriers."""
        kept = np.array(places, dtype=np.intp)
        return CarrierPanel(self.panel, self.vectors[kept], self.before[kept], self.below[kept])

    def response(self, vectors: NDArray[np.float32]) -> Response:
        """Measure the carriers with copies of many tokens in them.

        A mean of similarities is the similarity to the mean anchor, so only the shares of rising pairs need
        every similarity.
        """
        groups = np.empty((len(vectors), *self._counts.shape))
        rising = np.empty(groups.shape[:2])
        for place, means in enumerate(self._group_means):
            after, before = vectors[:, place], self.vectors[place].astype(np.float64)
            groups[:, place] = after.astype(np.float64) @ means.T - means @ before
            bounds = (self.before[place] + _ROUNDING).astype(np.float32)
            rises = (after @ self.panel.vectors.T > bounds).astype(np.float32)
            rising[:, place] = rises @ self.pair_weights[place].astype(np.float32)
        lifts = (groups * self._group_shares).sum(axis=2)
        return Response(lifts, np.where(self._counts > 0, groups, np.nan), rising)


def balanced(groups: Sequence[str], count: int, seed: int | Sequence[int]) -> list[int]:
    """Draw indices from all groups in turn, so that the groups stay level until they run out."""
    generator = np.random.default_rng(seed)
    queues: dict[str, list[int]] = {}
    for index in generator.permutation(len(groups)):
        queues.setdefault(groups[index], []).append(int(index))
    rounds = max(map(len, queues.values()), default=0)
    drawn = [queue[turn] for turn in range(rounds) for queue in queues.values() if turn < len(queue)]
    return drawn[:count]


SYMPTOM_COPIES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
SYMPTOM_CARRIERS = 12


@dataclass(frozen=True)
class SymptomStage:
    """Append each number of copies to every carrier.

    Attributes:
        carriers: texts, or tokenized texts for ids insertion.
        copies: numbers of copies to try, without 0.
        panel: the carriers without copies against the anchors.
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
        """Number of carriers times the number of copy counts."""
        return len(self.carriers) * len(self.copies)

    def probes(self, token: Token) -> Sequence[Probe]:
        """Insert the copies; the carrier varies slowest."""
        return [self._probe(token, carrier, copies) for carrier in self.carriers for copies in self.copies]

    def measure(self, token: Token, vectors: NDArray[np.float32]) -> Mapping[str, float | list[float]]:
        """Average the similarity by number of copies, 0 first, over the pairs below and those above.

        A side without a pair gets an empty list.
        """
        units = unit_vectors(vectors).reshape(len(self.carriers), len(self.copies), -1)
        after = units @ self.panel.panel.vectors.T
        curves = np.concatenate([self.panel.before[:, None], after.astype(np.float64)], axis=1)
        below = self.panel.below[:, None]
        return {"below": _means(curves, below), "above": _means(curves, ~below)}

    def _probe(self, token: Token, carrier: Carrier, copies: int) -> Probe:
        if isinstance(carrier, str):
            return copies_as_text(token, carrier, Placement.SUFFIX, copies)
        return copies_as_ids(token, carrier, Placement.SUFFIX, copies)


def _means(curves: NDArray[np.float64], pairs: NDArray[np.bool_]) -> list[float]:
    count = int(pairs.sum())
    sums = np.where(pairs, curves, 0.0).sum(axis=(0, 2))
    return [float(total / count) for total in sums] if count else []


class ShownPair(NamedTuple):
    """A carrier and an anchor below the mean similarity.

    Attributes:
        carrier: index of the carrier.
        anchor: index of the anchor.
        before: their similarity without copies.
        after: their similarity with the copies in the carrier.
    """

    carrier: int
    anchor: int
    before: float
    after: float


@dataclass(frozen=True)
class EvidenceStage:
    """Measure the symptom curve of a token, and pick two of the pairs behind it.

    Attributes:
        symptoms: the curve.
        copies: number of copies in the pairs; one of the numbers in the curve.
        name: name of the stage.
        precision: precision of the model; None is its own.
    """

    symptoms: SymptomStage
    copies: int
    name: str = "evidence"
    precision: Precision | None = None

    @property
    def probes_per_token(self) -> int:
        """Number of probes of the curve."""
        return self.symptoms.probes_per_token

    def probes(self, token: Token) -> Sequence[Probe]:
        """Return the probes of the curve."""
        return self.symptoms.probes(token)

    def measure(self, token: Token, vectors: NDArray[np.float32]) -> Mapping[str, float | list[float]]:
        """Measure the curve, the typical pair and the pair that rises most; empty if no pair lies below.

        The typical pair is the one whose rise is nearest to the mean over the pairs below, which weigh as
        they do in the lift.
        """
        row = dict(self.symptoms.measure(token, vectors))
        panel = self.symptoms.panel
        place = self.symptoms.copies.index(self.copies)
        units = unit_vectors(vectors)
        inserted = units.reshape(len(self.symptoms.carriers), len(self.symptoms.copies), -1)[:, place]
        after = (inserted @ panel.panel.vectors.T).astype(np.float64)
        pairs = pairs_to_show(panel.before, after, panel.below, _lift(panel, after))
        return row | {name: list(map(float, pair)) for name, pair in pairs.items()}


def _lift(panel: CarrierPanel, after: NDArray[np.float64]) -> float:
    """Average the rise over the carriers that have pairs below; 0 without a pair."""
    present = panel.pair_weights.sum(axis=1) > 0
    rises = (panel.pair_weights * (after - panel.before)).sum(axis=1)[present]
    return float(rises.mean()) if len(rises) else 0.0


def pairs_to_show(
    before: NDArray[np.float64], after: NDArray[np.float64], shown: NDArray[np.bool_], typical: float
) -> dict[str, ShownPair | tuple[()]]:
    """Find the pair whose rise is nearest to the typical one and the pair that rises most.

    Ties go to the first pair.
    """
    places = np.argwhere(shown)
    if not len(places):
        return {"typical": (), "largest": ()}
    rises = (after - before)[shown]

    def pair(place: np.intp) -> ShownPair:
        carrier, anchor = (int(index) for index in places[place])
        return ShownPair(carrier, anchor, float(before[carrier, anchor]), float(after[carrier, anchor]))

    return {
        "typical": pair(np.abs(rises - typical).argmin()),
        "largest": pair(rises.argmax()),
    }
