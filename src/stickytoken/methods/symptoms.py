"""The symptom curve: similarity of pairs below and above the mean similarity as copies are added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stickytoken.insertion import Placement, Probe, Token, copies_as_ids, copies_as_text
from stickytoken.methods.panel import CarrierPanel
from stickytoken.methods.probes import Carrier
from stickytoken.precision import Precision
from stickytoken.unit_vectors import unit_vectors

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
