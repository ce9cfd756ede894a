"""Choose pairs that show a reader what copies of a token do to two texts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.insertion import Probe, Token
from stickytoken.methods.panel import CarrierPanel
from stickytoken.methods.symptoms import SymptomStage
from stickytoken.precision import Precision
from stickytoken.unit_vectors import unit_vectors


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

    Args:
        before: similarities, shape (K, A).
        after: similarities with copies in the carrier, shape (K, A).
        shown: pairs that may be shown, shape (K, A).
        typical: the rise to look for.
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
