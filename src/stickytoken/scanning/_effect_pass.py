"""Measure what copies do to the documents that have them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.content_limit import content_limit
from stickytoken.encoders.protocol import IdReader
from stickytoken.hashing import digest
from stickytoken.measurement.progress import Progress, ProgressCallback
from stickytoken.methods.token_effects import TokenEffects
from stickytoken.scanning._keeping import Keeper
from stickytoken.scanning._measuring import measured_shifts, predicted_shifts
from stickytoken.scanning._panel import Panel, Texts, Vectors, encoded_panel
from stickytoken.scanning._token_pass import TOKENS, Tally
from stickytoken.unit_vectors import unit_vectors


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
