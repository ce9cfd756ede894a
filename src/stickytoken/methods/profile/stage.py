"""One round of the profile method, as engines execute it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stickytoken.insertion import (
    Placement,
    Probe,
    Token,
    copies_as_ids,
    copies_as_text,
)
from stickytoken.methods.panel import CarrierPanel
from stickytoken.methods.probes import Carrier, word_count
from stickytoken.methods.profile.rounds import Cell
from stickytoken.methods.statistics import present_mean
from stickytoken.precision import Precision


@dataclass(frozen=True)
class ProfileStage:
    """Put a token into every carrier once, and compare the result with all anchors.

    Attributes:
        name: name of the round.
        carriers: texts, or tokenized texts for ids insertion.
        cells: placement and number of copies in each carrier.
        panel: the carriers without copies against the anchors.
        seed: seed of random placement.
        alone: also encode the token without a carrier.
        precision: precision of the model; None is its own.
    """

    name: str
    carriers: tuple[Carrier, ...]
    cells: tuple[Cell, ...]
    panel: CarrierPanel
    seed: int
    alone: bool = False
    precision: Precision | None = None

    @property
    def probes_per_token(self) -> int:
        """One per carrier, and one for the token alone."""
        return len(self.carriers) + self.alone

    def probes(self, token: Token) -> Sequence[Probe]:
        """Return the carriers with copies in them, then the copies alone."""
        found = [self._probe(token, place) for place in range(len(self.carriers))]
        return [*found, self._copies_alone(token)] if self.alone else found

    def measure(self, token: Token, vectors: NDArray[np.float32]) -> Mapping[str, float | list[float]]:
        """Measure lift and slope of every probe, and means over probes of the rest; NaN if undefined."""
        units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        probes = len(self.carriers)
        response = self.panel.response(units[:probes])
        row: dict[str, float | list[float]] = {
            "lifts": response.lifts.tolist(),
            "sentence_lifts": response.sentence_lifts.tolist(),
            "groups": present_mean(response.groups).tolist(),
            "rising": float(response.rising.mean()),
            "slopes": response.slope.tolist(),
            "intercept": float(present_mean(response.intercept)),
        }
        if self.alone:
            row["alone"] = float(units[probes] @ self.panel.panel.center)
        return row

    def _probe(self, token: Token, place: int) -> Probe:
        carrier, cell = self.carriers[place], self.cells[place]
        path: tuple[int, ...] = ()
        if cell.placement is Placement.RANDOM:
            generator = np.random.default_rng([self.seed, token.id, place])
            # The gap of copy k lies among the words of the carrier and of the k copies before it.
            added = len(token.text.split()) if isinstance(carrier, str) else 1
            words = word_count(carrier) + added * np.arange(cell.copies)
            path = tuple(generator.integers(0, words + 1).tolist())
        if isinstance(carrier, str):
            return copies_as_text(token, carrier, cell.placement, cell.copies, path)
        return copies_as_ids(token, carrier, cell.placement, cell.copies, path)

    def _copies_alone(self, token: Token) -> Probe:
        carrier, copies = self.carriers[0], max(cell.copies for cell in self.cells)
        if isinstance(carrier, str):
            return token.text * copies
        return (*carrier.head, *(token.id,) * copies, *carrier.tail)
