"""Attribute similarities to the copies and the carrier, and compare tokens with benign tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from numpy.typing import NDArray

from stickytoken.explanation._measuring import Checkpoints, Surroundings
from stickytoken.explanation.settings import ExplainSettings, Material, Part, PlacedCarrier
from stickytoken.measurement.engine import Progress, ProgressCallback
from stickytoken.unit_vectors import unit_vectors

if TYPE_CHECKING:
    from stickytoken.inspection.integrated_jacobians import JacobianIntegrator
    from stickytoken.inspection.module_embedding import Inspector

Vector = NDArray[np.float64]

_MEASURES = ("attributed_to_copies", "attributed_to_carrier")


@dataclass(frozen=True, slots=True)
class PairMatrix:
    """The similarity of a carrier with copies and an anchor as a sum over pairs of positions."""

    carrier: str
    anchor: str
    rows: tuple[int, ...]  # content ids of the carrier with copies
    row_labels: tuple[int, ...]  # the `Part` of each row
    columns: tuple[int, ...]  # content ids of the anchor
    values: Vector  # shape (rows + 1, columns + 1), the reference inputs last; sums to `similarity`
    before: float  # similarity without copies
    similarity: float  # with copies, computed by the model itself


@dataclass(frozen=True, slots=True)
class Attributed:
    """Attributions of a token and of some of its benign tokens."""

    values: dict[int, dict[str, Vector]]  # by token id and measure, shape (carriers,)
    error: float  # largest distance between the summed contributions of a text and its unit vector
    pairs: list[PairMatrix]


def attribute(
    inspector: Inspector,
    material: Material,
    surroundings: Surroundings,
    token_id: int,
    benign: Sequence[int],
    settings: ExplainSettings,
    progress: ProgressCallback,
    checkpoints: Checkpoints,
) -> Attributed:
    """Attribute similarities to unrelated anchors to the copies and to the carrier.

    The contribution of the reference is the same for all tokens in the same positions, so it says nothing
    about any one of them.
    """
    from stickytoken.inspection.integrated_jacobians import JacobianIntegrator

    integrator, encoder = JacobianIntegrator(inspector), inspector.encoder
    carriers, anchors = material.carriers, material.anchors
    first = carriers[: max(settings.attribution_carriers, settings.pairs)]
    old = encoder.encode_ids([carrier.before for carrier in first]).astype(np.float64)
    pairs = []
    for carrier, vector in list(zip(first, old, strict=True))[: settings.pairs]:
        before = surroundings.anchors @ unit_vectors(vector)
        unrelated = np.flatnonzero(surroundings.unrelated(vector))
        # The median unrelated anchor, so that the outcome does not choose it.
        place = int(unrelated[np.argsort(before[unrelated], kind="stable")[len(unrelated) // 2]])
        columns = encoder.tokenize([anchors[place]])[0].ids
        pairs.append((carrier, anchors[place], columns, float(before[place])))
    some = carriers[: settings.attribution_carriers]
    tokens = [token_id, *benign[: settings.attribution_benign]]
    parts = [len(set(carrier.labels)) for carrier in some]
    sizes = [len(carrier.labels) + len(columns) for carrier, _, columns, _ in pairs]
    total, done, computed = len(tokens) * sum(parts) + sum(sizes), 0, 0
    progress(Progress("attribution", 0, total))

    def kept(stage: str, index: int, key: int, size: int, compute: Callable[[], dict[str, Any]]) -> Any:
        """Return what was kept of a text, or compute and keep it; ``size`` is its number of parts."""
        nonlocal done, computed
        found = checkpoints.read(stage, index, key)
        if found is None:
            found = compute()
            checkpoints.commit(stage, index, key, found)
            computed += size
        done += size
        progress(Progress("attribution", done, total, computed))
        return found

    values: dict[int, dict[str, Vector]] = {}
    matrices: list[PairMatrix] = []
    errors: list[float] = []
    for place, key in enumerate(tokens):
        rows = []
        for number, (carrier, vector) in enumerate(zip(some, old, strict=False)):
            unrelated_vectors = surroundings.anchors[surroundings.unrelated(vector)]
            compute = partial(_by_part, integrator, carrier, key, unrelated_vectors, settings.steps)
            rows.append(kept("attribution", place * len(some) + number, key, parts[number], compute))
        values[key] = {name: np.array([row[name] for row in rows]) for name in _MEASURES}
        errors += [row["error"] for row in rows]
        if key == token_id:
            for number, pair in enumerate(pairs):
                compute = partial(_pair_matrix, integrator, key, settings.steps, *pair)
                found = kept("pair", number, key, sizes[number], compute)
                ids = {name: tuple(found[name]) for name in ("rows", "row_labels", "columns")}
                matrices.append(PairMatrix(**found | ids | {"values": np.array(found["values"])}))
    return Attributed(values, max(errors), matrices)


def _by_part(
    integrator: JacobianIntegrator, carrier: PlacedCarrier, token_id: int, anchors: Vector, steps: int
) -> dict[str, Any]:
    """Return the mean shares of the copies and of the carrier in the similarities, and the error."""
    # The parts of the attribution are numbered without gaps.
    present = sorted(set(carrier.labels))
    labels = [present.index(label) for label in carrier.labels]
    found = integrator.contributions(carrier.with_copies(token_id), labels, steps)
    by_part = {label: (anchors @ found.parts[place]).mean() for place, label in enumerate(present)}
    shares = (by_part[int(Part.COPIES)], by_part.get(int(Part.CARRIER), 0.0))
    return dict(zip(_MEASURES, map(float, shares), strict=True)) | {"error": found.error}


def _pair_matrix(
    integrator: JacobianIntegrator,
    token_id: int,
    steps: int,
    carrier: PlacedCarrier,
    anchor: str,
    columns: tuple[int, ...],
    before: float,
) -> dict[str, Any]:
    """Attribute the similarity with copies of a token, as the values of a `PairMatrix`."""
    from stickytoken.inspection import similarity_matrix

    rows = carrier.with_copies(token_id)
    left = integrator.contributions(rows, range(len(rows)), steps)
    right = integrator.contributions(columns, range(len(columns)), steps)
    matrix, similarity = similarity_matrix(left, right), float(left.vector @ right.vector)
    return asdict(PairMatrix(carrier.text, anchor, rows, carrier.labels, columns, matrix, before, similarity))


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
    """Values of a token and of its benign tokens; arrays of the same shape, NaN where undefined."""

    value: Vector  # mean over carriers
    low: Vector  # ends of its Student interval; carriers are the sampling unit
    high: Vector
    benign_mean: Vector
    benign_low: Vector  # ends of the prediction interval for one more benign token
    benign_high: Vector
    deviations: Vector  # from the benign mean in standard deviations; between two bounds, of log-odds
    outside: NDArray[np.bool_]


def compare(
    values: Vector, benign: Vector, confidence: float, family: int, bounds: Bounds = UNBOUNDED
) -> Comparison:
    """Compare a token (carriers along the first axis) with k benign tokens, shape (k, carriers, ...).

    The benign interval is Student's prediction interval for one more observation, m -+ t s sqrt(1 + 1/k),
    from the means of the benign tokens. It holds simultaneously for all comparisons of a family
    (Bonferroni): an ordinary token leaves it anywhere with a probability of about 1 - confidence.

    A measure between two bounds is skewed, more so near a bound, so its intervals are computed on the
    log-odds of the means (the delta method for the interval over carriers) and never cross a bound. With one
    bound, they end there: an observation beyond it is impossible, so the coverage is the same.
    """
    k, value, means = len(benign), values.mean(axis=0), benign.mean(axis=1)
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
    mean, own_interval = means.mean(axis=0), _interval_of_mean(values, confidence, bounds)
    # Log-odds make large differences of tiny ones near a bound.
    differs = np.abs(value - mean) > _ROUNDING * (1 + np.abs(mean))
    outside = differs & (np.abs(own - centre) > reach)
    return Comparison(value, *own_interval, mean, low, high, deviations, outside)


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
    """Return the Wasserstein distance and the KL divergence (in nats) of a sample from a reference.

    The divergence compares histograms with ten common bins; half an observation more in each keeps it finite.
    """
    distance = float(scipy.stats.wasserstein_distance(sample, reference))
    low, high = min(sample.min(), reference.min()), max(sample.max(), reference.max())
    if high - low <= _ROUNDING:
        return distance, 0.0
    edges = np.linspace(low, high, 11)
    ours, theirs = (np.histogram(values, edges)[0] + 0.5 for values in (sample, reference))
    return distance, float(scipy.stats.entropy(ours, theirs))
