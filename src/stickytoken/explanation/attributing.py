"""Integrated Jacobians of carriers with copies: what the copies add to similarities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stickytoken.explanation.observing import Surroundings
from stickytoken.explanation.placing import Part, PlacedCarrier
from stickytoken.explanation.settings import ExplainSettings
from stickytoken.measurement.progress import Progress, ProgressCallback

if TYPE_CHECKING:
    from stickytoken.inspection.integrated_jacobians import Contributions, JacobianIntegrator
    from stickytoken.inspection.protocol import Inspector

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PairMatrix:
    """One pair's similarity as a sum over pairs of positions.

    Attributes:
        carrier: the text that the copies are in.
        anchor: the text that it is compared with.
        rows: content ids of the carrier with the copies in.
        row_labels: part of each.
        columns: content ids of the anchor.
        values: shape (rows + 1, columns + 1), the reference inputs last; sums to ``similarity``.
        before: similarity without copies.
        similarity: with copies, as the model gives it.
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
        """What the sum misses of the similarity."""
        return float(self.values.sum()) - self.similarity


@dataclass(frozen=True, slots=True)
class Attributed:
    """Attributions of tokens.

    Attributes:
        values: by token id and measure, shape (carriers,).
        error: largest length of what the sum of a text's contributions misses of its unit vector.
        pairs: by explained token.
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

    What the reference adds is the same for all tokens at the same places, and so is no measure of one.

    Args:
        inspector: of the model.
        carriers: with places for the copies.
        anchors: texts of ``surroundings.anchors``.
        benign: by explained token, the benign ones.
        surroundings: what texts are compared with.
        settings: how many carriers, benign tokens, pairs and steps.
        progress: told after every token.

    Raises:
        ModelError: the model's operations cannot be differentiated so.
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
    """Contributions of the carrier, the copies and the prompt, in the order of `Part`."""
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
    """The matrix against the middle one of the unrelated anchors: no choice by the outcome."""
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
