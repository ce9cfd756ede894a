"""One round of the profile method, as engines execute it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stickytoken.insertion import Placement, Probe, Token, copies_as_ids, copies_as_text
from stickytoken.measurement.stage import Measured
from stickytoken.methods.panel import CarrierPanel, unit_vectors
from stickytoken.methods.probes import Carrier, word_count
from stickytoken.methods.profile.rounds import Cell
from stickytoken.methods.pull import fit_pull
from stickytoken.precision import Precision


@dataclass(frozen=True)
class ProfileStage:
    """Put a token into every carrier once, and compare the result with all anchors.

    Attributes:
        name: name of the round.
        carriers: texts, or tokenized texts for ids insertion.
        places: place of each carrier among all of the plan; it keys the random placement.
        cells: placement and number of copies in each carrier.
        panel: the carriers without copies against the anchors.
        seed: seed of random placement.
        precision: precision of the model; None is its own.
        counting: whether the copies that the tokenizer sees are counted.
    """

    name: str
    carriers: tuple[Carrier, ...]
    places: tuple[int, ...]
    cells: tuple[Cell, ...]
    panel: CarrierPanel
    seed: int
    precision: Precision | None = None
    counting: bool = False

    @property
    def carrier_texts(self) -> Sequence[str]:
        """The carriers, where the copies in them are counted."""
        return [carrier for carrier in self.carriers if isinstance(carrier, str)] if self.counting else ()

    @property
    def probes_per_token(self) -> int:
        """One per carrier."""
        return len(self.carriers)

    def probes(self, token: Token) -> Sequence[Probe]:
        """Return the carriers with copies in them."""
        return [self._probe(token, index) for index in range(len(self.carriers))]

    def measure(self, token: Token, vectors: NDArray[np.float32]) -> Mapping[str, Measured]:
        """Measure every carrier's lift, in all and by group, and fit the token's pull and contraction.

        Returns:
            lifts and rising, shape (K,); groups, shape (K x G,), NaN where a carrier has no pair with a
            group; contraction; pull, float16, shape (d,).
        """
        units = unit_vectors(vectors)
        response = self.panel.response(units)
        contraction, pull = fit_pull(self.panel.vectors, units)
        return {
            "lifts": response.lifts.tolist(),
            "rising": response.rising.astype(np.float32),
            "groups": response.groups.astype(np.float32).ravel(),
            "contraction": contraction,
            "pull": pull.astype(np.float16),
        }

    def _probe(self, token: Token, index: int) -> Probe:
        carrier, cell = self.carriers[index], self.cells[index]
        path: tuple[int, ...] = ()
        if cell.placement is Placement.RANDOM:
            generator = np.random.default_rng([self.seed, token.id, self.places[index]])
            # The gap of copy k lies among the words of the carrier and of the k copies before it.
            added = len(token.text.split()) if isinstance(carrier, str) else 1
            words = word_count(carrier) + added * np.arange(cell.copies)
            path = tuple(generator.integers(0, words + 1).tolist())
        if isinstance(carrier, str):
            return copies_as_text(token, carrier, cell.placement, cell.copies, path)
        return copies_as_ids(token, carrier, cell.placement, cell.copies, path)
