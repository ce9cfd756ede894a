"""Compare a token's measures with the measures of its benign tokens, and return the rows of the tables.

Nothing here reads files or runs a model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import scipy
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Bounds: TypeAlias = tuple[float, float]

# Differences below this fraction of (1 + value) are treated as rounding errors.
_ROUNDING = 1e-6
# Minimum distance of a value from its bounds, as a fraction of the range. Values are clipped to it, because
# log-odds are infinite at a bound.
_CLIPPED_SHARE = 1e-6
# Number of bins in the histograms that the KL divergence is computed from.
_BINS = 10

# Columns of a comparison: the value with its interval, the mean and interval of the benign tokens, and the
# distance from that mean in standard deviations.
NUMBERS = ("value", "low", "high", "benign_mean", "benign_low", "benign_high", "deviations")
# The measures in each area of an explanation, and the phrase that names each measure in a sentence.
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
    """Maps a measure with two finite bounds to log-odds, and leaves any other measure unchanged.

    Attributes:
        low: Smallest possible value of the measure; negative infinity if there is none.
        high: Largest possible value of the measure; infinity if there is none.
    """

    low: float
    high: float

    @property
    def has_two_bounds(self) -> bool:
        return bool(np.isfinite(self.low) and np.isfinite(self.high))

    def scaled(self, values: Any) -> Any:
        if not self.has_two_bounds:
            return values
        shares = (values - self.low) / (self.high - self.low)
        return scipy.special.logit(np.clip(shares, _CLIPPED_SHARE, 1 - _CLIPPED_SHARE))

    def unscaled(self, values: Any) -> Any:
        if not self.has_two_bounds:
            return np.clip(values, self.low, self.high)
        return self.low + (self.high - self.low) * scipy.special.expit(values)

    def slope(self, values: Any) -> Any:
        """The derivative of the measure with respect to its scaled value, at these scaled values."""
        if not self.has_two_bounds:
            return 1.0
        share = scipy.special.expit(values)
        return (self.high - self.low) * share * (1 - share)


@dataclass(frozen=True, eq=False)
class Compared:
    """The values of a measure for a token, compared with the values for its benign tokens.

    The values are compared at each site: a site is a layer, or an attention head of a layer. A measure
    without layers has only one value per token, and so a single site. All arrays have shape (sites,), and all
    values are means over carriers.

    Attributes:
        value: Mean for the token.
        low: Lower end of the confidence interval of ``value``; NaN with a single carrier.
        high: Upper end of the confidence interval of ``value``; NaN with a single carrier.
        benign_mean: Mean for the benign tokens.
        benign_low: Lower end of the prediction interval for one more benign token.
        benign_high: Upper end of the prediction interval for one more benign token.
        deviations: Distance of the token from the benign mean, in standard deviations of the benign tokens;
            NaN if the benign tokens do not differ from each other.
        outside: Whether the token lies outside the prediction interval.
    """

    value: Floats
    low: Floats
    high: Floats
    benign_mean: Floats
    benign_low: Floats
    benign_high: Floats
    deviations: Floats
    outside: NDArray[np.bool_]

    def row(self, site: int) -> dict[str, Any]:
        """Return the numbers for one layer or head, keyed by column; None for a number that is not finite."""
        row: dict[str, Any] = {}
        for column in NUMBERS:  # the columns have the names of attributes
            number = float(getattr(self, column)[site])
            row[column] = number if math.isfinite(number) else None
        is_comparable = row["value"] is not None and row["benign_mean"] is not None
        row["outside"] = bool(self.outside[site]) if is_comparable else None
        return row


def compare(values: Floats, benign: Floats, confidence: float, family: int, bounds: Bounds) -> Compared:
    """Compare a token with k benign tokens.

    The benign interval is Student's prediction interval for one more observation, m -+ t s sqrt(1 + 1/k),
    computed from the means of the benign tokens. The intervals hold simultaneously for all comparisons of a
    family (Bonferroni): the probability that an ordinary token lies outside at least one of the intervals is
    about 1 - confidence. The interval around the token's own mean is Student's confidence interval over
    carriers.

    The distribution of a measure with two bounds is skewed, especially near a bound, so such a measure is
    compared by its log-odds (for a cosine, this is twice Fisher's z), and its confidence interval comes from
    the delta method. If a measure has exactly one bound, intervals are truncated at the bound, which
    does not change their coverage, because no observation lies beyond the bound.

    Args:
        values: Values of the token, shape (carriers, sites). The sites are the layers, or the attention
            heads of all layers; a measure without layers has a single site.
        benign: Values of the benign tokens, shape (k, carriers, sites).
        confidence: Coverage of the intervals, such as 0.95.
        family: Number of comparisons for which the benign intervals hold simultaneously.
        bounds: Smallest and largest possible value of the measure.

    Returns:
        The means, intervals and deviations, each of shape (sites,).
    """
    # `scaled` converts values to log-odds if both bounds are finite, and `unscaled` converts them back. With
    # at most one finite bound, `scaled` changes nothing, and `unscaled` only truncates values at the bound.
    scale = _Scale(*bounds)
    benign_count = len(benign)
    value = values.mean(axis=0)
    benign_means = benign.mean(axis=1)  # each benign token's mean over the carriers, shape (k, sites)
    mean = benign_means.mean(axis=0)
    scaled_value = scale.scaled(value)
    scaled_benign = scale.scaled(benign_means)
    centre = scaled_benign.mean(axis=0)
    spread = scaled_benign.std(axis=0, ddof=1)
    # If all benign tokens have the same value, the interval would have no width, and a rounding error would
    # put the token's value outside the interval.
    rounding = _ROUNDING * (1 + np.abs(centre))
    # The error probability, 1 - confidence, is divided among both sides and all comparisons of the family.
    quantile = scipy.stats.t.ppf(1 - (1 - confidence) / (2 * family), benign_count - 1)
    half_width = np.maximum(quantile * spread * np.sqrt(1 + 1 / benign_count), rounding)
    deviations = np.divide(
        scaled_value - centre,
        spread,
        out=np.full_like(value, np.nan),
        where=np.asarray(spread > rounding),
    )
    low, high = _compute_interval(values, scale, confidence)
    # Near a bound, log-odds turn a rounding error into a large difference, so the unscaled values must differ
    # too.
    differs = np.abs(value - mean) > _ROUNDING * (1 + np.abs(mean))
    return Compared(
        value=value,
        low=low,
        high=high,
        benign_mean=mean,
        benign_low=scale.unscaled(centre - half_width),
        benign_high=scale.unscaled(centre + half_width),
        deviations=deviations,
        outside=differs & (np.abs(scaled_value - centre) > half_width),
    )


def _compute_interval(values: Floats, scale: _Scale, confidence: float) -> tuple[Floats, Floats]:
    """Return both ends of Student's interval of the mean over carriers, each of shape (sites,).

    ``values`` has shape (carriers, sites).
    """
    carrier_count = len(values)
    value = values.mean(axis=0)
    if carrier_count == 1:  # one text says nothing about how texts vary
        undefined = np.full_like(value, np.nan)
        return undefined, undefined
    scaled_value = scale.scaled(value)
    quantile = scipy.stats.t.ppf((1 + confidence) / 2, carrier_count - 1)
    standard_error = values.std(axis=0, ddof=1) / np.sqrt(carrier_count)
    # Delta method: the error of the scaled value is the error of the value, divided by the derivative of the
    # value with respect to the scaled value.
    scaled_error = standard_error / scale.slope(scaled_value)
    half_width = quantile * scaled_error
    # The log-odds of a mean at a bound are clipped, so the interval may have to be extended to contain the
    # mean.
    low = np.minimum(scale.unscaled(scaled_value - half_width), value)
    high = np.maximum(scale.unscaled(scaled_value + half_width), value)
    return low, high


def compute_distances(sample: Floats, reference: Floats) -> tuple[float, float]:
    """Return two distances of a sample from a reference: Wasserstein distance, and KL divergence in nats.

    The KL divergence is computed from two histograms with the same ten bins.
    """
    distance = float(scipy.stats.wasserstein_distance(sample, reference))
    low = min(sample.min(), reference.min())
    high = max(sample.max(), reference.max())
    if high - low <= _ROUNDING:  # all values are equal, so both histograms would be the same
        return distance, 0.0
    edges = np.linspace(low, high, _BINS + 1)
    # Adding half a count to every bin keeps all bins from being empty.
    sample_counts = np.histogram(sample, edges)[0] + 0.5
    reference_counts = np.histogram(reference, edges)[0] + 0.5
    return distance, float(scipy.stats.entropy(sample_counts, reference_counts))


def make_measure_rows(name: str, values: Floats, benign: Floats, confidence: float) -> list[dict[str, Any]]:
    """Return the rows of one measure: one for each layer, or one for a measure without layers.

    A row has the area, the name and the layer (None for a measure without layers) of the measure, the numbers
    of `Compared.row`, and the numbers of benign tokens and carriers. The benign intervals hold simultaneously
    for all layers of the measure, or for all measures of the area if the measure has no layers.

    Args:
        name: Name of the measure.
        values: Values of the token, shape (carriers, layers) or (carriers,).
        benign: Values of the k benign tokens, shape (k, carriers, layers) or (k, carriers).
        confidence: Coverage of the intervals.
    """
    area = _AREA_OF[name]
    has_layers = values.ndim > 1
    if has_layers:
        family = values.shape[1]
    else:
        family = len(AREAS[area])
        # A measure without layers has a single site, the last axis.
        values = values[:, None]
        benign = benign[:, :, None]
    compared = compare(values, benign, confidence, family, BOUNDS.get(name, UNBOUNDED))
    first_layer = 1 if area == "attention" else 0  # layer 0 is the embedding layer, which has no attention
    rows = []
    for site in range(values.shape[1]):
        layer = site + first_layer if has_layers else None
        row: dict[str, Any] = {"area": area, "measure": name, "layer": layer}
        row |= compared.row(site)
        row["benign_tokens"] = len(benign)
        # An embedding is measured once, without carriers.
        row["carriers"] = len(values) if area != "embedding" else None
        rows.append(row)
    return rows


def make_head_rows(heads: Floats, benign: Floats, confidence: float) -> list[dict[str, Any]]:
    """Return, for each layer, one row for the mean over its heads, and then one row per head.

    A row has the 1-based layer, the 0-based head (None for the mean over heads), the numbers of
    `Compared.row`, and the distances of `_compare_distributions`.

    Args:
        heads: Share of attention that the token's copies receive, shape (carriers, layers, heads).
        benign: Share of attention that the copies of each of the k benign tokens receive, shape (k, carriers,
            layers, heads).
        confidence: Coverage of the intervals.
    """
    _, layer_count, head_count = heads.shape
    flat = heads.reshape(len(heads), -1)  # shape (carriers, layers * heads)
    flat_benign = benign.reshape(*benign.shape[:2], -1)  # shape (k, carriers, layers * heads)
    by_head = compare(flat, flat_benign, confidence, layer_count * head_count, _SHARE)
    by_layer = compare(heads.mean(axis=2), benign.mean(axis=3), confidence, layer_count, _SHARE)
    rows = []
    for layer in range(layer_count):
        row = {"layer": layer + 1, "head": None, **by_layer.row(layer)}
        layer_means = heads[:, layer].mean(axis=1)  # shape (carriers,)
        benign_layer_means = benign[:, :, layer].mean(axis=2)  # shape (k, carriers)
        rows.append(row | _compare_distributions(layer_means, benign_layer_means))
        for head in range(head_count):
            row = {"layer": layer + 1, "head": head, **by_head.row(layer * head_count + head)}
            rows.append(row | _compare_distributions(heads[:, layer, head], benign[:, :, layer, head]))
    return rows


def _compare_distributions(values: Floats, benign: Floats) -> dict[str, float]:
    """Return the distances of a token's distribution of values from that of k benign tokens, keyed by
    column.

    The columns with the ending "_benign" have, for comparison, the largest distance of a benign token from
    the remaining benign tokens. ``values`` has shape (carriers,), and ``benign`` has shape (k, carriers).
    """
    wasserstein, divergence = compute_distances(values, benign.ravel())
    benign_wasserstein = []
    benign_divergence = []
    for index, benign_values in enumerate(benign):
        rest = np.delete(benign, index, axis=0).ravel()
        distance_to_rest, divergence_from_rest = compute_distances(benign_values, rest)
        benign_wasserstein.append(distance_to_rest)
        benign_divergence.append(divergence_from_rest)
    return {
        "wasserstein": wasserstein,
        "wasserstein_benign": max(benign_wasserstein),
        "kl": divergence,
        "kl_benign": max(benign_divergence),
    }


def furthest(measures: pl.DataFrame) -> list[dict[str, Any]]:
    """Return one row per measure: the row of the layer where the token is furthest from the benign tokens.

    The order of the measures is kept.
    """
    # The furthest layer of a measure comes first; of equally far layers, the lowest.
    ranked = measures.sort(
        pl.col("deviations").abs(), "layer", descending=[True, False], nulls_last=True, maintain_order=True
    )
    names = measures["measure"].unique(maintain_order=True).to_list()
    rows = ranked.unique("measure", keep="first", maintain_order=True).to_dicts()
    return sorted(rows, key=lambda row: names.index(row["measure"]))
