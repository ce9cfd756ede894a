"""Measure what copies do to the documents that have them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import IdReader, content_limit
from stickytoken.errors import InputError
from stickytoken.machine import digest
from stickytoken.measurement.stage import Progress, ProgressCallback
from stickytoken.methods.statistics import TokenEffects
from stickytoken.scanning._token_pass import TOKENS, Keeper, Tally
from stickytoken.unit_vectors import unit_vectors

QUERIES = 100
REFERENCE = 200
QUERY_WORDS = 30
MOST_QUERIES = 500
_LEAST = 10

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Texts:
    """Texts of a panel."""

    queries: tuple[str, ...]
    reference: tuple[str, ...]
    source: str

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all texts."""
        return digest([self.queries, self.reference])


@dataclass(frozen=True)
class Panel:
    """Queries and clean documents as the model sees them.

    Attributes:
        queries: Unit vectors, shape (q, d).
        reference: Unit vectors, shape (n, d).
        ranked: Similarities of the clean documents to each query, ascending, shape (n, q).
        spread: Standard deviation of these similarities.
    """

    queries: Vectors
    reference: Vectors
    ranked: Vectors
    spread: float


def panel_texts(sample: Sequence[str], own: Sequence[str] | None, source: str, name: str) -> Texts:
    """Choose queries and clean documents.

    Without queries of one's own, the first words of random clean documents stand for what users look for;
    these documents are not among those that ranks are computed against.
    """
    needed = _LEAST if own is not None else 2 * _LEAST
    if len(sample) < needed:
        raise InputError(
            f"{name} has {len(sample)} documents without findings, and {needed} are needed to compare the "
            "others with: pass more documents, or leave effects out"
        )
    if own is not None:
        return Texts(tuple(own), tuple(sample[:REFERENCE]), source)
    drawn = min(QUERIES, len(sample) // 2)
    queries = tuple(" ".join(text.split()[:QUERY_WORDS]) for text in sample[:drawn])
    return Texts(queries, tuple(sample[drawn : drawn + REFERENCE]), f"the first words of {drawn} documents")


def encoded_panel(texts: Texts, encoder: IdReader, limit: int | None) -> Panel:
    """Encode a panel."""
    queries, reference = (
        unit_vectors(encoder.encode_ids([text.ids[:limit] for text in encoder.tokenize(each)]))
        for each in (texts.queries, texts.reference)
    )
    similarities = reference @ queries.T
    spread = float(similarities.std())
    if spread < 1e-6:
        raise InputError(
            f"{encoder.name} gives all documents the same similarity to the queries: pass others"
        )
    return Panel(queries, reference, np.sort(similarities, axis=0), spread)


PASSED = 0.1
"""A document moves up if it passes this share of the clean ones."""
_MOST_ERASED = 0.9

Vector = NDArray[np.float64]


class Shifts(NamedTuple):
    """Effects of copies on n documents; positive where they bring documents closer to queries.

    Attributes:
        shift: Mean change of the similarity to the queries, shape (n,).
        rise: Mean share of the clean documents that a document passes, shape (n,).
        moves_up: Share of the queries for which it passes a tenth of them, shape (n,).
    """

    shift: Vector
    rise: Vector
    moves_up: Vector


def measured_shifts(found: Vectors, rest: Vectors, panel: Panel) -> Shifts:
    """Compare documents with copies and without."""
    after, before = found @ panel.queries.T, rest @ panel.queries.T
    passed = (_behind(panel.ranked, after) - _behind(panel.ranked, before)) / len(panel.reference)
    return Shifts(
        (after - before).mean(axis=1, dtype=np.float64), passed.mean(axis=1), (passed >= PASSED).mean(axis=1)
    )


def predicted_shifts(
    found: Vectors, removed: Sequence[Counter[int]], effects: TokenEffects, panel: Panel
) -> Vector:
    """Predict the mean change of similarity from documents as they are.

    A token draws every text toward one point, its pull divided by its contraction. How far the copies have
    drawn a document, its own vector tells: it lies that far from the mean of the clean documents toward the
    point. What short texts showed of a token says where documents go, but not how far.
    """
    center = panel.reference.mean(axis=0, dtype=np.float64)
    queries = panel.queries.mean(axis=0, dtype=np.float64)
    shifts = np.full(len(found), np.nan)
    for row, copies in enumerate(removed):
        point = _drawn_to(copies, effects)
        if point is None:
            continue
        way = point - center
        covered = float(np.clip((found[row] - center) @ way / (way @ way), 0.0, 1.0))
        shifts[row] = covered * float(way @ queries)
    return shifts


def _drawn_to(copies: Counter[int], effects: TokenEffects) -> Vector | None:
    """Return the point toward which copies draw every text, shape (d,)."""
    ids = np.array(sorted(copies), dtype=np.int64)
    rows = np.searchsorted(effects.ids, ids)
    known = (rows < len(effects.ids)) & (effects.ids[np.minimum(rows, len(effects.ids) - 1)] == ids)
    if not known.any():
        return None
    rows, ids = rows[known], ids[known]
    contraction = np.minimum(effects.contraction[rows], _MOST_ERASED)
    shares = np.array([copies[token_id] for token_id in ids.tolist()]) / (1 - contraction)
    weight = float(shares @ contraction)
    return (shares @ effects.pull[rows].astype(np.float64)) / weight if weight > 0 else None


def _behind(ranked: Vectors, similarities: Vectors) -> Vector:
    """Count the clean documents that are less similar to each query, shape (n, q)."""
    columns = [
        np.searchsorted(ranked[:, query], similarities[:, query], side="left")
        for query in range(ranked.shape[1])
    ]
    return np.stack(columns, axis=1).astype(np.float64)


class Effect(StrEnum):
    """How to determine what copies do to a document."""

    MEASURED = "measured"
    """Encode each document with the copies and without."""
    PREDICTED = "predicted"
    """Encode each document as it is, and compute the rest from the pull and contraction of its tokens."""


COLUMNS = ("shift", "rise", "moves_up", "predicted")


@dataclass(frozen=True)
class EffectPass:
    """Computes effects batch by batch, and keeps them.

    Attributes:
        kind: Measured or predicted.
        encoder: The model of the run.
        effects: Contraction and pull of the run's tokens; None if its method does not measure them.
        texts: What to compare documents with.
        identity: What the vectors depend on.
        keeper: Where effects are kept.
        progress: Called after every batch.
    """

    kind: Effect
    encoder: IdReader
    effects: TokenEffects | None
    texts: Texts
    identity: str
    keeper: Keeper
    progress: ProgressCallback

    def run(self, tally: Tally) -> Panel:
        """Compute the effects of all documents with findings."""
        limit = content_limit(self.encoder)
        panel = encoded_panel(self.texts, self.encoder, limit)
        done, computed, encoded = 0, 0, 0
        for index, batch in enumerate(tally.digests):
            found = found_in(self.keeper, index, batch)
            key = self.key(batch)
            if found and self.keeper.load(self.kind.value, index, key) is None:
                rows, texts = self._rows(found, panel, limit)
                self.keeper.save(self.kind.value, index, key, rows, texts)
                computed, encoded = computed + len(found), encoded + texts
            done += len(found)
            if found:
                self.progress(Progress("effects", done, tally.found, computed, encoded))
        return panel

    def key(self, batch: str) -> str:
        """Return a hash of everything that the effects of a batch depend on."""
        return digest([batch, self.texts.fingerprint, self.identity])

    def _rows(
        self, found: Sequence[Mapping[str, Any]], panel: Panel, limit: int | None
    ) -> tuple[dict[str, Any], int]:
        """Return columns of effects, and how many texts were encoded."""
        with_copies = self._ids([each["text"] for each in found], limit)
        without = self._ids([each["rest"] for each in found], limit)
        rows = [row for row, ids in enumerate(without) if ids and with_copies[row]]
        columns = {name: np.full(len(found), np.nan) for name in COLUMNS}
        encoded = 0
        if rows:
            vectors, whole = self._vectors([with_copies[row] for row in rows])
            encoded += len(rows)
            if self.effects is not None:
                removed = [Counter(with_copies[row]) - Counter(without[row]) for row in rows]
                columns["predicted"][rows] = predicted_shifts(vectors, removed, self.effects, panel)
                unread = [row for row in rows if with_copies[row] == without[row]]
                columns["predicted"][unread] = 0.0
            if self.kind is Effect.MEASURED:
                clean, readable = self._vectors([without[row] for row in rows])
                encoded += len(rows)
                whole &= readable
                shifts = measured_shifts(vectors, clean, panel)
                for name, values in shifts._asdict().items():
                    columns[name][rows] = np.where(whole, values, np.nan)
            columns["predicted"][rows] = np.where(whole, columns["predicted"][rows], np.nan)
        return {name: [_known(value) for value in values] for name, values in columns.items()}, encoded

    def _ids(self, texts: Sequence[str], limit: int | None) -> list[tuple[int, ...]]:
        return [text.ids[:limit] for text in self.encoder.tokenize(texts)]

    def _vectors(self, ids: Sequence[tuple[int, ...]]) -> tuple[Vectors, NDArray[np.bool_]]:
        """Return unit vectors, and which of the texts have one."""
        vectors = self.encoder.encode_ids(ids, allow_zero=True)
        usable = np.linalg.norm(vectors, axis=1) > 0
        vectors[~usable] = 1.0
        return unit_vectors(vectors), usable


def found_in(keeper: Keeper, index: int, batch: str) -> list[dict[str, Any]]:
    """Return the documents of a batch that have findings."""
    values = keeper.load(TOKENS, index, batch)
    found: list[dict[str, Any]] = [] if values is None else values["found"]
    return found


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
