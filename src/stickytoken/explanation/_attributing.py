"""Attribute similarities to the copies and the carrier with integrated Jacobians."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from numpy.typing import NDArray

from stickytoken.explanation._measuring import Checkpoints, Surroundings
from stickytoken.explanation.settings import ExplainSettings, Part, PlacedCarrier
from stickytoken.measurement.stage import Progress, ProgressCallback
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
    """Counts and keeps what is attributed."""

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
        from stickytoken.inspection import similarity_matrix

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


# Smaller differences, relative to 1 plus the value, are rounding errors.
_ROUNDING = 1e-6
# Bounded values are clipped this far from their bounds, where log-odds are infinite.
_LEAST_SHARE = 1e-6


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range of a measure; intervals stay inside it."""

    low: float = -np.inf
    high: float = np.inf

    @property
    def closed(self) -> bool:
        """Whether both ends are finite."""
        return bool(np.isfinite(self.low) and np.isfinite(self.high))

    def log_odds(self, values: Vector) -> Vector:
        """Return where values lie between the bounds, as log-odds; for a cosine twice Fisher's z."""
        shares = (values - self.low) / (self.high - self.low)
        found: Vector = scipy.special.logit(np.clip(shares, _LEAST_SHARE, 1 - _LEAST_SHARE))
        return found

    def value(self, log_odds: Vector) -> Vector:
        """Return the values that have these log-odds."""
        found: Vector = self.low + (self.high - self.low) * scipy.special.expit(log_odds)
        return found


UNBOUNDED = Bounds()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Values of a token and of its benign tokens; arrays of the same shape, NaN where undefined.

    Attributes:
        value: mean over carriers.
        low: lower end of its Student interval; carriers are the sampling unit.
        high: upper end of that interval.
        benign_mean: mean over benign tokens.
        benign_low: lower end of the prediction interval for one more benign token.
        benign_high: upper end of that interval.
        deviations: distance from the benign mean in standard deviations of the benign tokens; between
            two bounds, on the log-odds scale.
        outside: whether the value lies outside the benign interval.
    """

    value: Vector
    low: Vector
    high: Vector
    benign_mean: Vector
    benign_low: Vector
    benign_high: Vector
    deviations: Vector
    outside: NDArray[np.bool_]


def compare(
    values: Vector, benign: Vector, confidence: float, family: int, bounds: Bounds = UNBOUNDED
) -> Comparison:
    """Compare a token with benign tokens.

    The benign interval is Student's prediction interval for one more observation, m -+ t s sqrt(1 + 1/k),
    from the means of the k benign tokens. It holds simultaneously for all comparisons of a family
    (Bonferroni): an ordinary token leaves it anywhere with a probability of about 1 - confidence.

    A measure between two bounds is skewed, more so near a bound, so its intervals are computed on the
    log-odds of the means (the delta method for the interval over carriers) and never cross a bound. With one
    bound, they end there: an observation beyond it is impossible, so the coverage is the same.

    Args:
        values: values of the token, carriers along the first axis, shape (n, ...).
        benign: values of the benign tokens, shape (k, n, ...).
        confidence: coverage of the intervals.
        family: number of comparisons made together.
        bounds: range of the values.
    """
    value = values.mean(axis=0)
    k = len(benign)
    means = benign.mean(axis=1)
    own, others = (bounds.log_odds(value), bounds.log_odds(means)) if bounds.closed else (value, means)
    centre, spread = others.mean(axis=0), others.std(axis=0, ddof=1)
    quantile = scipy.stats.t.ppf(1 - (1 - confidence) / (2 * family), k - 1)
    noise = _ROUNDING * (1 + np.abs(centre))
    reach = np.maximum(quantile * spread * np.sqrt(1 + 1 / k), noise)
    deviations = np.divide(
        own - centre, spread, out=np.full_like(value, np.nan), where=np.asarray(spread > noise)
    )
    low, high = centre - reach, centre + reach
    if bounds.closed:
        low, high = bounds.value(low), bounds.value(high)
    else:
        low, high = np.maximum(low, bounds.low), np.minimum(high, bounds.high)
    mean = means.mean(axis=0)
    # Log-odds make large differences of tiny ones near a bound.
    differs = np.abs(value - mean) > _ROUNDING * (1 + np.abs(mean))
    over_carriers = _interval_of_mean(values, confidence, bounds)
    return Comparison(
        value=value,
        low=over_carriers[0],
        high=over_carriers[1],
        benign_mean=mean,
        benign_low=low,
        benign_high=high,
        deviations=deviations,
        outside=differs & (np.abs(own - centre) > reach),
    )


def _interval_of_mean(values: Vector, confidence: float, bounds: Bounds) -> tuple[Vector, Vector]:
    """Return the ends of Student's interval of the mean over the first axis; NaN for a single value."""
    n, mean = len(values), values.mean(axis=0)
    if n < 2:
        return np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    error = values.std(axis=0, ddof=1) / np.sqrt(n)
    half = scipy.stats.t.ppf((1 + confidence) / 2, n - 1) * error
    if not bounds.closed:
        return np.maximum(mean - half, bounds.low), np.minimum(mean + half, bounds.high)
    centre, width = bounds.log_odds(mean), bounds.high - bounds.low
    share = scipy.special.expit(centre)
    half = half / (width * share * (1 - share))  # the derivative of the log-odds
    low, high = bounds.value(centre - half), bounds.value(centre + half)
    # A mean at a bound is clipped, but lies in its own interval.
    return np.minimum(low, mean), np.maximum(high, mean)


def distribution_distances(sample: Vector, reference: Vector) -> tuple[float, float]:
    """Return the Wasserstein distance and the KL divergence of a sample from a reference.

    The divergence (in nats) compares histograms with ten common bins. Half an observation is added to each
    bin to keep it finite.
    """
    distance = float(scipy.stats.wasserstein_distance(sample, reference))
    low, high = min(sample.min(), reference.min()), max(sample.max(), reference.max())
    if high - low <= _ROUNDING:
        return distance, 0.0
    edges = np.linspace(low, high, 11)
    ours, theirs = (np.histogram(values, edges)[0] + 0.5 for values in (sample, reference))
    return distance, float(scipy.stats.entropy(ours, theirs))
