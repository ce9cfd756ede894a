"""Compare tokens with benign tokens, and write, continue and read explanations. Reading needs no model."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import scipy
from numpy.typing import NDArray
from pydantic import Field

from stickytoken.errors import RunError
from stickytoken.explanation.measuring import Checkpoints, Part
from stickytoken.machine import digest
from stickytoken.measurement import resume, store

# Version 2 added the identity.
EXPLANATION_SCHEMA_VERSION = 2
EXPLANATION_FILE = "explanation.json"
# Folder inside a run folder; holds one folder per explained token, named by id.
EXPLANATIONS_FOLDER = "explain"

# A value with its interval, and the mean and interval of the benign tokens.
NUMBERS = ("value", "low", "high", "benign_mean", "benign_low", "benign_high", "deviations")
_TEXT, _WHOLE, _NUMBER = pl.String, pl.Int64, pl.Float64
# Columns of each table by name, which is also the stem of its file.
TABLE_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "measures": {
        "token_id": _WHOLE,
        **dict.fromkeys(("token", "area", "measure"), _TEXT),
        "layer": _WHOLE,
        **dict.fromkeys(NUMBERS, _NUMBER),
        "outside": pl.Boolean,
        "share_below": _NUMBER,
        **dict.fromkeys(("benign_tokens", "carriers"), _WHOLE),
    },
    "heads": {
        "token_id": _WHOLE,
        "token": _TEXT,
        **dict.fromkeys(("layer", "head"), _WHOLE),
        **dict.fromkeys(NUMBERS, _NUMBER),
        "outside": pl.Boolean,
        **dict.fromkeys(("wasserstein", "wasserstein_benign", "kl", "kl_benign"), _NUMBER),
    },
    "pairs": {
        **dict.fromkeys(("token_id", "pair"), _WHOLE),
        **dict.fromkeys(("carrier", "anchor"), _TEXT),
        **dict.fromkeys(("similarity_before", "similarity", "sum", "completeness_error"), _NUMBER),
        **dict.fromkeys(("from_copies", "from_carrier", "from_reference"), _NUMBER),
    },
    "attribution": {
        **dict.fromkeys(("token_id", "pair", "row"), _WHOLE),
        **dict.fromkeys(("row_token", "row_part"), _TEXT),
        "column": _WHOLE,
        "column_token": _TEXT,
        "value": _NUMBER,
    },
    "benign": {
        **dict.fromkeys(("token_id", "benign_id"), _WHOLE),
        **dict.fromkeys(("benign", "category"), _TEXT),
        "characters": _WHOLE,
        "attributed": pl.Boolean,
    },
    "neighbours": {
        **dict.fromkeys(("token_id", "rank", "neighbour_id"), _WHOLE),
        "neighbour": _TEXT,
        "cosine": _NUMBER,
    },
}


class Finding(resume.Record):
    """A measure in which a token differs from benign tokens."""

    area: str
    measure: str
    begins: int | None  # first layer outside the benign interval; null if the measure has no layers
    layer: int | None  # layer where the token is furthest from the benign tokens
    value: float
    benign_mean: float
    deviations: float | None
    called: str  # the measure in words


class TokenExplanation(resume.Record):
    """What was found about one token; readers take its tables from the Parquet files."""

    token_id: int
    token: str
    category: str
    run_verdict: str | None
    verdict: str  # one sentence
    findings: tuple[Finding, ...]
    same_category: bool  # whether the benign tokens have the token's category
    measures: list[dict[str, Any]] = Field(repr=False)
    heads: list[dict[str, Any]] = Field(repr=False)
    pairs: list[dict[str, Any]] = Field(repr=False)
    benign: list[dict[str, Any]] = Field(repr=False)
    neighbours: list[dict[str, Any]] = Field(repr=False)


class ExplanationRecord(resume.MeasurementRecord):
    model: str
    pooling: str | None
    carriers: int
    source: str
    settings: dict[str, Any]
    vocabulary: dict[str, float]
    notes: list[str]
    tokens: list[TokenExplanation]
    versions: dict[str, str]


@dataclass(frozen=True)
class StoredExplanation:
    record: ExplanationRecord
    tables: dict[str, pl.DataFrame]
    path: Path | None = None

    @property
    def token(self) -> TokenExplanation:
        return self.record.tokens[0]


def stored_explanation(
    folder: Path,
    parts: dict[str, Any],
    result: StoredExplanation | Callable[[Checkpoints], StoredExplanation],
) -> StoredExplanation:
    """Return the explanation that a folder holds, or commit a result, which may still be computed."""
    files = store.ResultFolder(folder)
    claim = resume.IdentityRecord(kind=_KIND.name, identity=digest(parts), identity_parts=parts)
    with resume.resumed(files, _KIND, claim) as held:
        if held.finished:
            files.remove_shards()  # an earlier call may have been killed before it came to that
            return read_explanation(folder)
        held.begin()
        content = result if isinstance(result, StoredExplanation) else result(Checkpoints(files))
        write_tables(files, content)
        held.finish(content.record)
        files.remove_shards()
    return content


def require_place(folder: Path) -> None:
    store.require_writable(folder)
    if any((folder / name).exists() for name in (store.RUN_FILE, store.IDENTITY_FILE)):
        raise RunError(
            f"{folder} is the folder of a run or another measurement: choose another one, such as "
            f"{folder / EXPLANATIONS_FOLDER}"
        )


def write_tables(files: store.ResultFolder, content: StoredExplanation) -> None:
    for name, table in content.tables.items():
        files.write_table(f"{name}.parquet", table)


def explanation_folders(folder: Path) -> list[Path]:
    try:
        found = [path.parent for path in folder.glob(f"*/{EXPLANATION_FILE}")]
    except OSError as error:
        raise RunError(f"{folder} cannot be read: {error.strerror or error}") from error
    return sorted(found, key=lambda path: (len(path.name), path.name))


_SOMETIMES_EMPTY = {"layer", "head", "low", "high", "deviations", "share_below", "carriers"}


def read_explanation(folder: Path) -> StoredExplanation:
    record, files, tables = _record(folder / EXPLANATION_FILE), store.ResultFolder(folder), {}
    for name, schema in TABLE_SCHEMAS.items():
        filled = [column for column in schema if column not in _SOMETIMES_EMPTY]
        tables[name] = files.read_table(f"{name}.parquet", schema, filled)
    return StoredExplanation(record, tables, folder)


def _record(path: Path) -> ExplanationRecord:
    raw = store.read_json(path)
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != EXPLANATION_SCHEMA_VERSION:
        raise RunError(
            f"{path} has schema version {json.dumps(version)[:40]}, but this stickytoken reads version "
            f"{EXPLANATION_SCHEMA_VERSION}: run explain again in another folder"
        )
    return store.validated(ExplanationRecord, raw, path)


_KIND: resume.MeasurementKind[resume.MeasurementRecord] = resume.MeasurementKind(
    "explanation",
    EXPLANATION_FILE,
    lambda folder: _record(folder.path / EXPLANATION_FILE),
    lambda record, folder: all((folder.path / f"{name}.parquet").is_file() for name in TABLE_SCHEMAS),
)

Vector = NDArray[np.float64]

# Smaller differences, relative to 1 plus the value, are rounding errors.
_ROUNDING = 1e-6
# Bounded values are clipped this far from their bounds, where log-odds are infinite.
_LEAST_SHARE = 1e-6


@dataclass(frozen=True, slots=True)
class Bounds:
    low: float = -np.inf
    high: float = np.inf

    @property
    def closed(self) -> bool:
        return bool(np.isfinite(self.low) and np.isfinite(self.high))

    def log_odds(self, values: Vector) -> Vector:
        """Return where values lie between the bounds, as log-odds; for a cosine twice Fisher's z."""
        shares = (values - self.low) / (self.high - self.low)
        found: Vector = scipy.special.logit(np.clip(shares, _LEAST_SHARE, 1 - _LEAST_SHARE))
        return found

    def value(self, log_odds: Vector) -> Vector:
        found: Vector = self.low + (self.high - self.low) * scipy.special.expit(log_odds)
        return found


def compare(
    values: Vector, benign: Vector, confidence: float, family: int, bounds: Bounds
) -> dict[str, NDArray[Any]]:
    """Compare a token (carriers along the first axis) with k benign tokens, shape (k, carriers, ...).

    The benign interval is Student's prediction interval for one more observation, m -+ t s sqrt(1 + 1/k),
    from the means of the benign tokens. It holds simultaneously for all comparisons of a family
    (Bonferroni): an ordinary token leaves it anywhere with a probability of about 1 - confidence. The other
    interval is Student's for the mean over carriers. Deviations are from the benign mean in standard
    deviations; between two bounds, of log-odds. What is undefined is NaN.

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
    mean, interval = means.mean(axis=0), _interval_of_mean(values, confidence, bounds)
    # Log-odds make large differences of tiny ones near a bound.
    differs = np.abs(value - mean) > _ROUNDING * (1 + np.abs(mean))
    outside = differs & (np.abs(own - centre) > reach)
    numbers = (value, *interval, mean, low, high, deviations)
    return {**dict(zip(NUMBERS, numbers, strict=True)), "outside": outside}


def _interval_of_mean(values: Vector, confidence: float, bounds: Bounds) -> tuple[Vector, Vector]:
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
    """Return the Wasserstein distance and the KL divergence (in nats) of ten common bins from a reference."""
    distance = float(scipy.stats.wasserstein_distance(sample, reference))
    low, high = min(sample.min(), reference.min()), max(sample.max(), reference.max())
    if high - low <= _ROUNDING:
        return distance, 0.0
    edges = np.linspace(low, high, 11)
    ours, theirs = (np.histogram(values, edges)[0] + 0.5 for values in (sample, reference))
    return distance, float(scipy.stats.entropy(ours, theirs))


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
_SHARE = Bounds(0, 1)
# Measures that are not listed have no bounds.
BOUNDS = {
    **dict.fromkeys(("attention_received", "attention_from_others", "pooling_norm_share"), _SHARE),
    **dict.fromkeys(
        ("vector_toward_mean", "embedding_cosine_to_mean", "embedding_cosine_to_unused"), Bounds(-1, 1)
    ),
    **dict.fromkeys(("copies_cosine_distance", "carrier_cosine_drift"), Bounds(0, 2)),
    **dict.fromkeys(("copies_euclidean_distance", "copies_norm", "carrier_euclidean_drift"), Bounds(0)),
    **dict.fromkeys(("embedding_norm", "embedding_distance_to_mean"), Bounds(0)),
    "embedding_distance_to_unused": Bounds(0),
}
REFERENCE = "(reference)"


def measure_rows(name: str, values: Vector, benign: Vector, confidence: float) -> list[dict[str, Any]]:
    layered, area = values.ndim > 1, AREA_OF[name]
    columns, others = (values, benign) if layered else (values[:, None], benign[:, :, None])
    family = columns.shape[1] if layered else len(AREAS[area])
    found = compare(columns, others, confidence, family, BOUNDS.get(name, Bounds()))
    # Layer 0 is the embedding layer, which has no attention.
    first = 1 if area == "attention" else 0
    return [
        {
            "area": area,
            "measure": name,
            "layer": place + first if layered else None,
            **_row(found, place),
            "benign_tokens": len(benign),
            "carriers": len(values) if area != "embedding" else None,
        }
        for place in range(columns.shape[1])
    ]


def head_rows(heads: Vector, benign: Vector, confidence: float) -> list[dict[str, Any]]:
    """Return rows of the attention that the copies receive: one per head, and one per layer for the mean."""
    _, layers, count = heads.shape
    flat, others = heads.reshape(len(heads), -1), benign.reshape(*benign.shape[:2], -1)
    by_head = compare(flat, others, confidence, layers * count, _SHARE)
    by_layer = compare(heads.mean(axis=2), benign.mean(axis=3), confidence, layers, _SHARE)
    rows = []
    for layer in range(layers):
        whole = _distances(heads[:, layer].mean(axis=1), benign[:, :, layer].mean(axis=2))
        rows.append({"layer": layer + 1, "head": None, **_row(by_layer, layer), **whole})
        for head in range(count):
            own = _distances(heads[:, layer, head], benign[:, :, layer, head])
            rows.append({"layer": layer + 1, "head": head, **_row(by_head, layer * count + head), **own})
    return rows


def pair_tables(
    token_id: int, pairs: Sequence[Mapping[str, Any]], names: Mapping[int, str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    summaries, cells = [], []
    for number, pair in enumerate(pairs):
        own, values = {"token_id": token_id, "pair": number}, pair["values"]
        labels = [*(Part(label).name.lower() for label in pair["row_labels"]), "reference"]
        by_row, total = values.sum(axis=1), float(values.sum())
        parts = {part: float(by_row[[label == part for label in labels]].sum()) for part in set(labels)}
        summary = own | {name: pair[name] for name in ("carrier", "anchor", "similarity")}
        summary |= {"similarity_before": pair["before"], "sum": total}
        summary |= {"completeness_error": total - pair["similarity"], "from_copies": parts["copies"]}
        summary["from_carrier"] = parts.get("carrier", 0.0) + parts.get("prompt", 0.0)
        summaries.append(summary | {"from_reference": parts["reference"]})
        rows, columns = ([*(names.get(k, "") for k in pair[ids]), REFERENCE] for ids in ("rows", "columns"))
        for row, row_token in enumerate(rows):
            its = own | {"row": row, "row_token": row_token, "row_part": labels[row]}
            cells += [
                its | {"column": column, "column_token": token, "value": float(values[row, column])}
                for column, token in enumerate(columns)
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


def _row(found: Mapping[str, NDArray[Any]], place: int) -> dict[str, Any]:
    values = {name: float(found[name][place]) for name in NUMBERS}
    numbers = {name: value if math.isfinite(value) else None for name, value in values.items()}
    known = numbers["value"] is not None and numbers["benign_mean"] is not None
    return {**numbers, "outside": bool(found["outside"][place]) if known else None}


def _distances(own: Vector, benign: Vector) -> dict[str, float]:
    others = [
        distribution_distances(each, np.delete(benign, k, axis=0).ravel()) for k, each in enumerate(benign)
    ]
    wasserstein, kl = distribution_distances(own, benign.ravel())
    wasserstein_benign, kl_benign = (float(np.mean(each)) for each in zip(*others, strict=True))
    found = {"wasserstein": wasserstein, "wasserstein_benign": wasserstein_benign}
    return found | {"kl": kl, "kl_benign": kl_benign}
