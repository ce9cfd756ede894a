"""Turn measurements into rows of tables. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.explanation._attributing import (
    UNBOUNDED,
    Bounds,
    Comparison,
    PairMatrix,
    compare,
    distribution_distances,
)
from stickytoken.explanation.files import NUMBERS
from stickytoken.explanation.settings import Part

Vector = NDArray[np.float64]

# Measures by the part of the model that they describe.
AREAS = {
    "attention": ("attention_received", "attention_from_others"),
    "hidden states": (
        "copies_cosine_distance",
        "copies_euclidean_distance",
        "copies_norm",
        "carrier_cosine_drift",
        "carrier_euclidean_drift",
    ),
    "pooling": ("pooling_share", "pooling_norm_share", "pooling_toward_mean", "vector_toward_mean"),
    "attribution": ("attributed_to_copies", "attributed_to_carrier"),
    "embedding": (
        "embedding_norm",
        "embedding_distance_to_mean",
        "embedding_cosine_to_mean",
        "embedding_distance_to_unused",
        "embedding_cosine_to_unused",
    ),
    "similarity": ("lift_sentences",),
}
AREA_OF = {measure: area for area, measures in AREAS.items() for measure in measures}
_SHARE, _COSINE, _COSINE_DISTANCE, _LENGTH = Bounds(0, 1), Bounds(-1, 1), Bounds(0, 2), Bounds(0)
# Measures that are not listed have no bounds.
BOUNDS = {
    "attention_received": _SHARE,
    "attention_from_others": _SHARE,
    "pooling_norm_share": _SHARE,
    "vector_toward_mean": _COSINE,
    "embedding_cosine_to_mean": _COSINE,
    "embedding_cosine_to_unused": _COSINE,
    "copies_cosine_distance": _COSINE_DISTANCE,
    "carrier_cosine_drift": _COSINE_DISTANCE,
    "copies_euclidean_distance": _LENGTH,
    "copies_norm": _LENGTH,
    "carrier_euclidean_drift": _LENGTH,
    "embedding_norm": _LENGTH,
    "embedding_distance_to_mean": _LENGTH,
    "embedding_distance_to_unused": _LENGTH,
}
# Layer 0 is the embedding layer, which has no attention.
_FIRST_LAYER = {"attention_received": 1, "attention_from_others": 1}

REFERENCE = "(reference)"


def measure_rows(
    name: str,
    values: Vector,
    benign: Vector,
    confidence: float,
    share_below: float | None = None,
) -> list[dict[str, Any]]:
    """Return the rows of one measure, one per layer."""
    layered = values.ndim > 1
    columns = values if layered else values[:, None]
    others = benign if layered else benign[:, :, None]
    area = AREA_OF[name]
    family = columns.shape[1] if layered else len(AREAS[area])
    found = compare(columns, others, confidence, family, BOUNDS.get(name, UNBOUNDED))
    first = _FIRST_LAYER.get(name, 0)
    return [
        {
            "area": area,
            "measure": name,
            "layer": place + first if layered else None,
            **_row(found, place),
            "share_below": share_below,
            "benign_tokens": len(benign),
            "carriers": len(values) if area != "embedding" else None,
        }
        for place in range(columns.shape[1])
    ]


def head_rows(heads: Vector, benign: Vector, confidence: float) -> list[dict[str, Any]]:
    """Return rows of the attention that the copies receive: one per head, and one per layer for the mean."""
    _, layers, count = heads.shape
    flat = heads.reshape(len(heads), -1)
    by_head = compare(flat, _flat(benign), confidence, layers * count, _SHARE)
    by_layer = compare(heads.mean(axis=2), benign.mean(axis=3), confidence, layers, _SHARE)
    rows = []
    for layer in range(layers):
        whole = _distances(heads[:, layer].mean(axis=1), benign[:, :, layer].mean(axis=2))
        rows.append({"layer": layer + 1, "head": None, **_row(by_layer, layer), **whole})
        for head in range(count):
            own = _distances(heads[:, layer, head], benign[:, :, layer, head])
            place = layer * count + head
            rows.append({"layer": layer + 1, "head": head, **_row(by_head, place), **own})
    return rows


def pair_tables(
    token_id: int, pairs: Sequence[PairMatrix], names: Mapping[int, str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return rows of attributed pairs, and of the cells of their matrices."""
    summaries, cells = [], []
    for number, pair in enumerate(pairs):
        labels = [*(Part(label).name.lower() for label in pair.row_labels), "reference"]
        by_row = pair.values.sum(axis=1)
        parts = {part: by_row[[label == part for label in labels]].sum() for part in set(labels)}
        summaries.append(
            {
                "token_id": token_id,
                "pair": number,
                "carrier": pair.carrier,
                "anchor": pair.anchor,
                "similarity_before": pair.before,
                "similarity": pair.similarity,
                "sum": float(pair.values.sum()),
                "completeness_error": pair.completeness_error,
                "from_copies": float(parts["copies"]),
                "from_carrier": float(parts.get("carrier", 0.0) + parts.get("prompt", 0.0)),
                "from_reference": float(parts["reference"]),
            }
        )
        rows = [*(names.get(k, "") for k in pair.rows), REFERENCE]
        columns = [*(names.get(k, "") for k in pair.columns), REFERENCE]
        cells += [
            {
                "token_id": token_id,
                "pair": number,
                "row": row,
                "row_token": rows[row],
                "row_part": labels[row],
                "column": column,
                "column_token": columns[column],
                "value": float(pair.values[row, column]),
            }
            for row in range(len(rows))
            for column in range(len(columns))
        ]
    return summaries, cells


def furthest(measures: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the row with the largest deviation of each measure of one token; ties go to the first layer."""
    ranked = measures.sort(
        pl.col("deviations").abs(), "layer", descending=[True, False], nulls_last=True, maintain_order=True
    )
    order = {name: place for place, name in enumerate(measures["measure"].unique(maintain_order=True))}
    rows = ranked.unique("measure", keep="first", maintain_order=True).to_dicts()
    return sorted(rows, key=lambda row: order[row["measure"]])


def frame(rows: Sequence[Mapping[str, Any]], schema: Mapping[str, Any]) -> pl.DataFrame:
    """Build a table with the columns of a schema, even if there are no rows."""
    return pl.DataFrame(list(rows), schema=dict(schema))


def _flat(benign: Vector) -> Vector:
    flat: Vector = benign.reshape(*benign.shape[:2], -1)
    return flat


def _row(found: Comparison, place: int) -> dict[str, Any]:
    numbers = {name: _number(getattr(found, name)[place]) for name in NUMBERS}
    known = numbers["value"] is not None and numbers["benign_mean"] is not None
    return {**numbers, "outside": bool(found.outside[place]) if known else None}


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _distances(own: Vector, benign: Vector) -> dict[str, float]:
    """Return distances between a token and the benign tokens, and between each of these and the others."""
    wasserstein, kl = distribution_distances(own, benign.ravel())
    others = [
        distribution_distances(benign[k], np.delete(benign, k, axis=0).ravel()) for k in range(len(benign))
    ]
    return {
        "wasserstein": wasserstein,
        "wasserstein_benign": float(np.mean([each[0] for each in others])),
        "kl": kl,
        "kl_benign": float(np.mean([each[1] for each in others])),
    }
