"""Attribute similarities to the copies and the carrier with integrated Jacobians."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.explanation._checkpoints import Checkpoints
from stickytoken.explanation._observing import Surroundings
from stickytoken.explanation._placing import Part, PlacedCarrier
from stickytoken.explanation.settings import ExplainSettings
from stickytoken.measurement.progress import Progress, ProgressCallback
from stickytoken.unit_vectors import unit_vectors

if TYPE_CHECKING:
    from stickytoken.encoders.protocol import IdEncoder
    from stickytoken.inspection.integrated_jacobians import JacobianIntegrator
    from stickytoken.inspection.protocol import Inspector

Vector = NDArray[np.float64]

_MEASURES = ("attributed_to_copies", "attributed_to_carrier")


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

    def document(self) -> dict[str, Any]:
        """Return JSON values, from which `of` makes the same matrix."""
        return asdict(self) | {"values": self.values.tolist()}

    @classmethod
    def of(cls, document: dict[str, Any]) -> PairMatrix:
        """Read what `document` returned."""
        ids = {name: tuple(document[name]) for name in ("rows", "row_labels", "columns")}
        return cls(**document | ids | {"values": np.array(document["values"], dtype=np.float64)})


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


@dataclass(frozen=True, slots=True)
class AttributedTexts:
    """Texts whose similarities are attributed.

    Attributes:
        carriers: carriers with places for the copies.
        anchors: texts of ``surroundings.anchors``.
        surroundings: what the carriers are compared with.
    """

    carriers: Sequence[PlacedCarrier]
    anchors: Sequence[str]
    surroundings: Surroundings


def attribute(
    inspector: Inspector,
    texts: AttributedTexts,
    benign: Mapping[int, Sequence[int]],
    settings: ExplainSettings,
    progress: ProgressCallback,
    checkpoints: Checkpoints,
) -> Attributed:
    """Attribute similarities to unrelated anchors to the copies and to the carrier.

    The contribution of the reference is the same for all tokens in the same positions, so it says nothing
    about any one of them.

    Args:
        inspector: shows what happens inside the model.
        texts: carriers and anchors.
        benign: ids of the benign tokens by explained token.
        settings: numbers of carriers, benign tokens, pairs and steps.
        progress: called after every text; it counts parts of texts.
        checkpoints: keeps what is attributed of every text, and has what an interrupted call kept.
    """
    from stickytoken.inspection.integrated_jacobians import JacobianIntegrator

    integrator = JacobianIntegrator(inspector)
    some = texts.carriers[: settings.attribution_carriers]
    tokens = dict.fromkeys(benign)
    for others in benign.values():
        tokens |= dict.fromkeys(others[: settings.attribution_benign])
    first = texts.carriers[: max(settings.attribution_carriers, settings.pairs)]
    old = inspector.encoder.encode_ids([carrier.before for carrier in first]).astype(np.float64)
    paired = [
        _Pair(carrier, texts, vector, inspector.encoder)
        for carrier, vector in list(zip(first, old, strict=True))[: settings.pairs]
    ]
    sizes = len(tokens) * sum(map(_parts, some)) + len(benign) * sum(pair.parts for pair in paired)
    kept = _Kept(checkpoints, progress, sizes)
    values: dict[int, dict[str, Vector]] = {}
    pairs: dict[int, list[PairMatrix]] = {}
    errors: list[float] = []
    for place, token_id in enumerate(tokens):
        rows = []
        for number, (carrier, vector) in enumerate(zip(some, old, strict=False), start=place * len(some)):
            anchors = texts.surroundings.anchors[texts.surroundings.unrelated(vector)]
            compute = partial(_by_part, integrator, carrier, token_id, anchors, settings.steps)
            rows.append(kept.part("attribution", number, token_id, _parts(carrier), compute))
        values[token_id] = {name: np.array([row[name] for row in rows]) for name in _MEASURES}
        errors += [row["error"] for row in rows]
        if token_id in benign:
            pairs[token_id] = []
            for number, pair in enumerate(paired):
                compute_pair = partial(pair.matrix, integrator, token_id, settings.steps)
                found = kept.part("pair", number, token_id, pair.parts, compute_pair)
                pairs[token_id].append(PairMatrix.of(found))
    return Attributed(values, max(errors), pairs)


class _Kept:
    """Counts and keeps what is attributed.

    Args:
        checkpoints: where it is kept.
        progress: called at the start and after every text.
        total: parts of all texts.
    """

    def __init__(self, checkpoints: Checkpoints, progress: ProgressCallback, total: int) -> None:
        self._checkpoints = checkpoints
        self._progress = progress
        self._total = total
        self._done = self._computed = 0
        progress(Progress("attribution", 0, total))

    def part(self, stage: str, index: int, token_id: int, size: int, compute: Callable[[], Any]) -> Any:
        """Return what was kept of a text, or compute and keep it; ``size`` is its number of parts."""
        found = self._checkpoints.read(stage, index, token_id)
        if found is None:
            found = compute()
            self._checkpoints.commit(stage, index, token_id, found)
            self._computed += size
        self._done += size
        self._progress(Progress("attribution", self._done, self._total, self._computed))
        return found


def _parts(carrier: PlacedCarrier) -> int:
    return len(set(carrier.labels))


def _by_part(
    integrator: JacobianIntegrator, carrier: PlacedCarrier, token_id: int, anchors: Vector, steps: int
) -> dict[str, float]:
    """Return the mean shares of the copies and of the carrier in the similarities, and the error."""
    present = sorted(set(carrier.labels))
    labels = [present.index(label) for label in carrier.labels]
    found = integrator.contributions(carrier.with_copies(token_id), labels, steps)
    by_part = {label: (anchors @ found.parts[place]).mean() for place, label in enumerate(present)}
    copies, own = _MEASURES
    return {
        copies: float(by_part[int(Part.COPIES)]),
        own: float(by_part.get(int(Part.CARRIER), 0.0)),
        "error": found.error,
    }


class _Pair:
    """A carrier and an anchor: the median unrelated one, so that the outcome does not choose it."""

    def __init__(
        self, carrier: PlacedCarrier, texts: AttributedTexts, vector: Vector, encoder: IdEncoder
    ) -> None:
        before = texts.surroundings.anchors @ unit_vectors(vector)
        unrelated = np.flatnonzero(texts.surroundings.unrelated(vector))
        place = int(unrelated[np.argsort(before[unrelated], kind="stable")[len(unrelated) // 2]])
        self._carrier = carrier
        self._anchor = texts.anchors[place]
        self._before = float(before[place])
        self._columns = encoder.tokenize([self._anchor])[0].ids

    @property
    def parts(self) -> int:
        """Number of tokens of both texts."""
        return len(self._carrier.labels) + len(self._columns)

    def matrix(self, integrator: JacobianIntegrator, token_id: int, steps: int) -> dict[str, Any]:
        """Attribute the similarity with copies of a token, as the JSON values of a `PairMatrix`."""
        from stickytoken.inspection.similarity_matrix import similarity_matrix

        rows = self._carrier.with_copies(token_id)
        left = integrator.contributions(rows, range(len(rows)), steps)
        right = integrator.contributions(self._columns, range(len(self._columns)), steps)
        return PairMatrix(
            carrier=self._carrier.text,
            anchor=self._anchor,
            rows=rows,
            row_labels=self._carrier.labels,
            columns=self._columns,
            values=similarity_matrix(left, right),
            before=self._before,
            similarity=float(left.vector @ right.vector),
        ).document()
