"""One round of the profile method, as engines execute it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.views import View
from stickytoken.insertion import Placement, Probe, Token, copies_as_ids, copies_as_text
from stickytoken.measurement.stage import Measured
from stickytoken.methods.panel import CarrierPanel, Response
from stickytoken.methods.probes import Carrier, word_count
from stickytoken.methods.profile.rounds import Cell, view_columns
from stickytoken.methods.pull import Pull, fit_pull
from stickytoken.precision import Precision


class ViewPanel(NamedTuple):
    """The carriers without copies against the anchors, in one view."""

    view: View
    panel: CarrierPanel


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
        layers: layers whose vectors are read; None reads the encoder's own vectors.
        further: further views of the vectors to measure in.
    """

    name: str
    carriers: tuple[Carrier, ...]
    places: tuple[int, ...]
    cells: tuple[Cell, ...]
    panel: CarrierPanel
    seed: int
    precision: Precision | None = None
    counting: bool = False
    layers: tuple[int, ...] | None = None
    further: tuple[ViewPanel, ...] = ()

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
        """Measure one token; see `measure_all`."""
        return self.measure_all([token], vectors)[0]

    def measure_all(
        self, tokens: Sequence[Token], vectors: NDArray[np.float32]
    ) -> Sequence[Mapping[str, Measured]]:
        """Measure every carrier's lift, in all and by group, and fit the tokens' pulls and contractions.

        Returns:
            For every token: lifts and rising, shape (K,); groups, shape (K x G,), NaN where a carrier has no
            pair with a group; contraction; pull, float16, shape (d,). For every further view, under the keys
            of `view_columns`: the first four in one, and the pull.
        """
        own = _measured(View(self.panel.vectors.shape[1]), self.panel, vectors)
        rows: list[dict[str, Measured]] = [
            {
                "lifts": own.response.lifts[row].tolist(),
                "rising": own.response.rising[row].astype(np.float32),
                "groups": own.response.groups[row].astype(np.float32).ravel(),
                "contraction": float(own.effects.contraction[row]),
                "pull": own.effects.pull[row],
            }
            for row in range(len(tokens))
        ]
        for view, panel in self.further:
            found = _measured(view, panel, vectors)
            numbers, pull = view_columns(view)
            together = found.numbers()
            for row, into in enumerate(rows):
                into[numbers], into[pull] = together[row], found.effects.pull[row]
        return rows

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


class _ViewMeasured(NamedTuple):
    """What copies of T tokens do in one view."""

    response: Response
    effects: Pull

    def numbers(self) -> NDArray[np.float64]:
        """Lay out lifts, rising, groups and contraction in one row per token."""
        lifts, groups, rising = self.response
        flat = groups.reshape(len(groups), -1)
        return np.concatenate([lifts, rising, flat, self.effects.contraction[:, None]], axis=1)


def _measured(view: View, panel: CarrierPanel, vectors: NDArray[np.float32]) -> _ViewMeasured:
    units = view.units(vectors).reshape(-1, len(panel.vectors), view.dimension)
    contraction, pull = fit_pull(panel.vectors, units)
    return _ViewMeasured(panel.response(units), Pull(contraction, pull.astype(np.float16)))
