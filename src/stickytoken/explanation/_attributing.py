"""Attribute similarities to the copies and the carrier with integrated Jacobians."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stickytoken.explanation._observing import Surroundings
from stickytoken.explanation._placing import Part, PlacedCarrier
from stickytoken.explanation.settings import ExplainSettings
from stickytoken.measurement.progress import Progress, ProgressCallback

if TYPE_CHECKING:
    from stickytoken.inspection.integrated_jacobians import Contributions, JacobianIntegrator
    from stickytoken.inspection.protocol import Inspector

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PairMatrix:
    """The similarity of one pair as a sum over pairs of positions.

    Attributes:
        carrier: text without the copies.
        anchor: text that the carrier is compared with.
        rows: content ids of the carrier with copies.
        row_labels: the `Part` that each row belongs to.
        columns: content ids of the anchor.
        values: shape (rows + 1, columns + 1), the reference inputs last; sums to ``similarity``.
        before: similarity without copies.
        similarity: similarity with copies, computed by the model itself.
    """

    carrier: str
    anchor: str
    rows: tuple[int, ...]
    row_labels: tuple[int, ...]
    columns: tuple[int, ...]
    values: Vector
    before: float
    similarity: float

    @property
    def completeness_error(self) -> float:
        """Sum of the cells minus the similarity."""
        return float(self.values.sum()) - self.similarity


@dataclass(frozen=True, slots=True)
class Attributed:
    """Attributions of tokens.

    Attributes:
        values: measures by token id and name, shape (carriers,).
        error: largest distance between the summed contributions of a text and its unit vector.
        pairs: attributed pairs by explained token.
    """

    values: dict[int, dict[str, Vector]]
    error: float
    pairs: dict[int, list[PairMatrix]]


def attribute(
    inspector: Inspector,
    carriers: Sequence[PlacedCarrier],
    anchors: Sequence[str],
    benign: Mapping[int, Sequence[int]],
    surroundings: Surroundings,
    settings: ExplainSettings,
    progress: ProgressCallback,
) -> Attributed:
    """Attribute similarities to unrelated anchors to the copies and to the carrier.

    The contribution of the reference is the same for all tokens in the same positions, so it says nothing
    about any one of them.

    Args:
        inspector: shows what happens inside the model.
        carriers: carriers with places for the copies.
        anchors: texts of ``surroundings.anchors``.
        benign: ids of the benign tokens by explained token.
        surroundings: what the texts are compared with.
        settings: numbers of carriers, benign tokens, pairs and steps.
        progress: called after every token.

    Raises:
        ModelError: the model cannot be differentiated this way.
    """
    from stickytoken.inspection.integrated_jacobians import JacobianIntegrator

    integrator = JacobianIntegrator(inspector)
    some = carriers[: settings.attribution_carriers]
    tokens = dict.fromkeys(benign)
    for others in benign.values():
        tokens |= dict.fromkeys(others[: settings.attribution_benign])
    first = carriers[: max(settings.attribution_carriers, settings.pairs)]
    old = inspector.encoder.encode_ids([carrier.before for carrier in first]).astype(np.float64)
    values: dict[int, dict[str, Vector]] = {}
    pairs: dict[int, list[PairMatrix]] = {}
    errors: list[float] = []
    progress(Progress("attribution", 0, len(tokens)))
    for done, token_id in enumerate(tokens, start=1):
        rows = []
        for carrier, vector in zip(some, old, strict=False):
            found = _by_part(integrator, carrier, token_id, settings.steps)
            errors.append(found.error)
            rows.append(_toward(found, carrier, surroundings.anchors[surroundings.unrelated(vector)]))
        values[token_id] = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        if token_id in benign:
            pairs[token_id] = [
                _pair(integrator, carrier, vector, token_id, anchors, surroundings, settings.steps)
                for carrier, vector in list(zip(first, old, strict=True))[: settings.pairs]
            ]
        progress(Progress("attribution", done, len(tokens), done, done * len(some)))
    return Attributed(values, max(errors), pairs)


def _by_part(
    integrator: JacobianIntegrator, carrier: PlacedCarrier, token_id: int, steps: int
) -> Contributions:
    """Return the contributions of the carrier, the copies and the prompt, in the order of `Part`."""
    present = sorted(set(carrier.labels))
    labels = [present.index(label) for label in carrier.labels]
    return integrator.contributions(carrier.with_copies(token_id), labels, steps)


def _toward(found: Contributions, carrier: PlacedCarrier, anchors: Vector) -> dict[str, float]:
    present = sorted(set(carrier.labels))
    by_part = {label: (anchors @ found.parts[place]).mean() for place, label in enumerate(present)}
    return {
        "attributed_to_copies": float(by_part[int(Part.COPIES)]),
        "attributed_to_carrier": float(by_part.get(int(Part.CARRIER), 0.0)),
    }


def _pair(
    integrator: JacobianIntegrator,
    carrier: PlacedCarrier,
    vector: Vector,
    token_id: int,
    anchors: Sequence[str],
    surroundings: Surroundings,
    steps: int,
) -> PairMatrix:
    """Attribute one pair: the anchor is the median unrelated one, so the outcome does not choose it."""
    before = surroundings.anchors @ (vector / np.linalg.norm(vector))
    unrelated = np.flatnonzero(surroundings.unrelated(vector))
    place = int(unrelated[np.argsort(before[unrelated], kind="stable")[len(unrelated) // 2]])
    columns = integrator.encoder.tokenize([anchors[place]])[0].ids
    rows = carrier.with_copies(token_id)
    left = integrator.contributions(rows, range(len(rows)), steps)
    right = integrator.contributions(columns, range(len(columns)), steps)
    values = np.vstack([left.parts, left.reference]) @ np.vstack([right.parts, right.reference]).T
    return PairMatrix(
        carrier=carrier.text,
        anchor=anchors[place],
        rows=rows,
        row_labels=carrier.labels,
        columns=columns,
        values=values,
        before=float(before[place]),
        similarity=float(left.vector @ right.vector),
    )
