"""Compare the measures of a token with those of its benign tokens, in rows of tables. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import scipy
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.float64]
Bounds: TypeAlias = tuple[float, float]

# Smaller differences, relative to 1 plus the value, are rounding errors.
_ROUNDING = 1e-6
# Values between two bounds are clipped this far from them, as a share of the range: log-odds are infinite at
# a bound.
_CLIPPED_SHARE = 1e-6
# Bins of the histograms whose KL divergence is computed.
_BINS = 10

# A value with its interval, and the mean and interval of the benign tokens.
NUMBERS = ("value", "low", "high", "benign_mean", "benign_low", "benign_high", "deviations")
# Measures by the part of the model that they describe, with their names in a sentence.
AREAS: Mapping[str, Mapping[str, str]] = {
    "attention": {
        "attention_received": "share of all attention that the copies receive",
        "attention_from_others": "share of the other positions' attention that the copies receive",
    },
    "hidden states": {
        "copies_cosine_distance": "cosine distance of the copies' hidden states from those of benign tokens",
        "copies_euclidean_distance": "distance of the copies' hidden states from those of benign tokens",
        "copies_norm": "length of the copies' hidden states",
        "carrier_cosine_drift": "cosine drift of the carrier's own tokens",
        "carrier_euclidean_drift": "Euclidean drift of the carrier's own tokens",
    },
    "pooling": {
        "pooling_share": "share of the sentence vector that the copies contribute",
        "pooling_norm_share": "copies' share of the summed lengths of the sentence vector's parts",
        "pooling_toward_mean": "contribution of the copies along the vocabulary's mean direction",
        "vector_toward_mean": "cosine of the sentence vector with the vocabulary's mean direction",
    },
    "attribution": {
        "attributed_to_copies": "contribution of the copies to similarities with unrelated texts",
        "attributed_to_carrier": "contribution of the carrier to similarities with unrelated texts",
    },
    "embedding": {
        "embedding_norm": "length of its embedding",
        "embedding_distance_to_mean": "distance of its embedding from the vocabulary's mean",
        "embedding_cosine_to_mean": "cosine of its embedding with the vocabulary's mean",
        "embedding_distance_to_unused": "distance of its embedding from the mean of unused entries",
        "embedding_cosine_to_unused": "cosine of its embedding with the mean of unused entries",
    },
    "similarity": {"lift_sentences": "rise of similarities with unrelated texts"},
}
_AREA_OF = {name: area for area, names in AREAS.items() for name in names}

UNBOUNDED: Bounds = (-np.inf, np.inf)
_SHARE: Bounds = (0.0, 1.0)
_COSINE: Bounds = (-1.0, 1.0)
_COSINE_DISTANCE: Bounds = (0.0, 2.0)
_LENGTH: Bounds = (0.0, np.inf)
# Measures that are not listed have no bounds.
BOUNDS: Mapping[str, Bounds] = {
    "attention_received": _SHARE,
    "attention_from_others": _SHARE,
    "pooling_norm_share": _SHARE,
    "copies_cosine_distance": _COSINE_DISTANCE,
    "carrier_cosine_drift": _COSINE_DISTANCE,
    "vector_toward_mean": _COSINE,
    "embedding_cosine_to_mean": _COSINE,
    "embedding_cosine_to_unused": _COSINE,
    "copies_euclidean_distance": _LENGTH,
    "copies_norm": _LENGTH,
    "carrier_euclidean_drift": _LENGTH,
    "embedding_norm": _LENGTH,
    "embedding_distance_to_mean": _LENGTH,
    "embedding_distance_to_unused": _LENGTH,
}


@dataclass(frozen=True)
class _Scale:
    """Maps measures between two bounds to log-odds; others stay as they are."""

    low: float
    high: float

    @property
    def is_closed(self) -> bool:
        return bool(np.isfinite(self.low) and np.isfinite(self.high))

    def scaled(self, numbers: Any) -> Any:
        if not self.is_closed:
            return numbers
        shares = (numbers - self.low) / (self.high - self.low)
        return scipy.special.logit(np.clip(shares, _CLIPPED_SHARE, 1 - _CLIPPED_SHARE))

    def unscaled(self, numbers: Any) -> Any:
        if not self.is_closed:
            return np.clip(numbers, self.low, self.high)
        return self.low + (self.high - self.low) * scipy.special.expit(numbers)

    def slope(self, numbers: Any) -> Any:
        """Return how fast a measure changes with its scaled value, at scaled numbers."""
        if not self.is_closed:
            return 1.0
        share = scipy.special.expit(numbers)
        return (self.high - self.low) * share * (1 - share)


@dataclass(frozen=True, eq=False)
class Compared:
    """A token's mean over carriers beside those of its benign tokens, for every place of a measure.

    Attributes:
        value: mean of the token.
        low: low end of the interval of that mean over carriers; NaN with a single carrier.
        high: its high end.
        benign_mean: mean of the benign tokens.
        benign_low: low end of the interval in which one more benign token would lie.
        benign_high: its high end.
        deviations: distance from the benign mean in standard deviations; NaN without a spread.
        outside: whether the token lies outside the benign interval.
    """

    value: Vector
    low: Vector
    high: Vector
    benign_mean: Vector
    benign_low: Vector
    benign_high: Vector
    deviations: Vector
    outside: NDArray[np.bool_]

    def row(self, place: int) -> dict[str, Any]:
        """Return the numbers of one place by column; what is undefined is None."""
        row: dict[str, Any] = {}
        for column in NUMBERS:
            number = float(getattr(self, column)[place])
            row[column] = number if math.isfinite(number) else None
        is_comparable = row["value"] is not None and row["benign_mean"] is not None
        row["outside"] = bool(self.outside[place]) if is_comparable else None
        return row


def compare(values: Vector, benign: Vector, confidence: float, family: int, bounds: Bounds) -> Compared:
    """Compare a token with k benign tokens.

    The benign interval is Student's prediction interval for one more observation, m -+ t s sqrt(1 + 1/k),
    from the means of the benign tokens. It holds simultaneously for all comparisons of a family
    (Bonferroni): an ordinary token leaves it anywhere with a probability of about 1 - confidence. The other
    interval is Student's for the mean over carriers.

    A measure between two bounds is skewed, more so near a bound. It is compared by its log-odds (of a cosine
    twice Fisher's z), with the delta method for the interval over carriers. With one bound, intervals end
    there: an observation beyond it is impossible, so the coverage is the same.

    Args:
        values: of the token, carriers along the first axis, shape (carriers, places).
        benign: of the benign tokens, shape (k, carriers, places).
        confidence: coverage of the intervals.
        family: number of comparisons among which the token may leave the interval.
        bounds: least and largest possible value of the measure.
    """
    scale = _Scale(*bounds)
    benign_count = len(benign)
    value = values.mean(axis=0)
    benign_means = benign.mean(axis=1)
    mean = benign_means.mean(axis=0)
    scaled_value = scale.scaled(value)
    scaled_benign = scale.scaled(benign_means)
    centre = scaled_benign.mean(axis=0)
    spread = scaled_benign.std(axis=0, ddof=1)
    rounding = _ROUNDING * (1 + np.abs(centre))
    quantile = scipy.stats.t.ppf(1 - (1 - confidence) / (2 * family), benign_count - 1)
    reach = np.maximum(quantile * spread * np.sqrt(1 + 1 / benign_count), rounding)
    deviations = np.divide(
        scaled_value - centre,
        spread,
        out=np.full_like(value, np.nan),
        where=np.asarray(spread > rounding),
    )
    low, high = _interval_over_carriers(values, scale, confidence)
    # Log-odds make large differences of tiny ones near a bound.
    differs = np.abs(value - mean) > _ROUNDING * (1 + np.abs(mean))
    return Compared(
        value=value,
        low=low,
        high=high,
        benign_mean=mean,
        benign_low=scale.unscaled(centre - reach),
        benign_high=scale.unscaled(centre + reach),
        deviations=deviations,
        outside=differs & (np.abs(scaled_value - centre) > reach),
    )


def _interval_over_carriers(values: Vector, scale: _Scale, confidence: float) -> tuple[Vector, Vector]:
    """Return Student's interval for the mean over carriers; NaN with a single carrier."""
    count = len(values)
    value = values.mean(axis=0)
    if count == 1:
        undefined = np.full_like(value, np.nan)
        return undefined, undefined
    scaled_value = scale.scaled(value)
    quantile = scipy.stats.t.ppf((1 + confidence) / 2, count - 1)
    standard_error = values.std(axis=0, ddof=1) / np.sqrt(count)
    half_width = quantile * standard_error / scale.slope(scaled_value)
    # A mean at a bound is clipped, but lies in its own interval.
    low = np.minimum(scale.unscaled(scaled_value - half_width), value)
    high = np.maximum(scale.unscaled(scaled_value + half_width), value)
    return low, high


def distribution_distances(sample: Vector, reference: Vector) -> tuple[float, float]:
    """Return the Wasserstein distance from a reference, and the KL divergence in nats, of ten common bins."""
    distance = float(scipy.stats.wasserstein_distance(sample, reference))
    low = min(sample.min(), reference.min())
    high = max(sample.max(), reference.max())
    if high - low <= _ROUNDING:
        return distance, 0.0
    edges = np.linspace(low, high, _BINS + 1)
    # Half a count more in every bin, so that no bin is empty.
    sample_counts = np.histogram(sample, edges)[0] + 0.5
    reference_counts = np.histogram(reference, edges)[0] + 0.5
    return distance, float(scipy.stats.entropy(sample_counts, reference_counts))


def measure_rows(name: str, values: Vector, benign: Vector, confidence: float) -> list[dict[str, Any]]:
    """Return the rows of one measure: one for each layer, or one for a measure without layers.

    Args:
        name: name of the measure.
        values: of the token, shape (carriers, layers) or (carriers,).
        benign: of the benign tokens, shape (k, carriers, layers) or (k, carriers).
        confidence: coverage of the intervals.
    """
    area = _AREA_OF[name]
    has_layers = values.ndim > 1
    if has_layers:
        family = values.shape[1]
    else:
        family = len(AREAS[area])
        values = values[:, None]
        benign = benign[:, :, None]
    compared = compare(values, benign, confidence, family, BOUNDS.get(name, UNBOUNDED))
    first_layer = 1 if area == "attention" else 0  # layer 0 is the embedding layer, which has no attention
    rows = []
    for place in range(values.shape[1]):
        row = {"area": area, "measure": name, "layer": place + first_layer if has_layers else None}
        row |= compared.row(place)
        row["benign_tokens"] = len(benign)
        row["carriers"] = len(values) if area != "embedding" else None
        rows.append(row)
    return rows


def head_rows(heads: Vector, benign: Vector, confidence: float) -> list[dict[str, Any]]:
    """Return a row for the mean over the heads of each layer, followed by one for each of its heads.

    Args:
        heads: attention to the token's copies, shape (carriers, layers, heads).
        benign: the same of the benign tokens, shape (k, carriers, layers, heads).
        confidence: coverage of the intervals.
    """
    _, layer_count, head_count = heads.shape
    flat = heads.reshape(len(heads), -1)
    flat_benign = benign.reshape(*benign.shape[:2], -1)
    by_head = compare(flat, flat_benign, confidence, layer_count * head_count, _SHARE)
    by_layer = compare(heads.mean(axis=2), benign.mean(axis=3), confidence, layer_count, _SHARE)
    rows = []
    for layer in range(layer_count):
        row = {"layer": layer + 1, "head": None, **by_layer.row(layer)}
        rows.append(row | _distances(heads[:, layer].mean(axis=1), benign[:, :, layer].mean(axis=2)))
        for head in range(head_count):
            row = {"layer": layer + 1, "head": head, **by_head.row(layer * head_count + head)}
            rows.append(row | _distances(heads[:, layer, head], benign[:, :, layer, head]))
    return rows


def _distances(values: Vector, benign: Vector) -> dict[str, float]:
    """Compare the distribution over carriers with that of all benign tokens.

    Each benign token is also compared with the others, and the distances are averaged.
    """
    wasserstein, divergence = distribution_distances(values, benign.ravel())
    benign_wasserstein = []
    benign_divergence = []
    for place, benign_values in enumerate(benign):
        rest = np.delete(benign, place, axis=0).ravel()
        distance_to_rest, divergence_from_rest = distribution_distances(benign_values, rest)
        benign_wasserstein.append(distance_to_rest)
        benign_divergence.append(divergence_from_rest)
    return {
        "wasserstein": wasserstein,
        "wasserstein_benign": float(np.mean(benign_wasserstein)),
        "kl": divergence,
        "kl_benign": float(np.mean(benign_divergence)),
    }


def furthest(measures: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the row of each measure that is furthest from the benign tokens, by order of measure."""
    ranked = measures.sort(
        pl.col("deviations").abs(), "layer", descending=[True, False], nulls_last=True, maintain_order=True
    )
    names = measures["measure"].unique(maintain_order=True).to_list()
    rows = ranked.unique("measure", keep="first", maintain_order=True).to_dicts()
    return sorted(rows, key=lambda row: names.index(row["measure"]))
