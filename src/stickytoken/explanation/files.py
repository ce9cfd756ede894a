"""Compare tokens with benign tokens, and write, continue and read explanations. Reading needs no model."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import scipy
from numpy.typing import NDArray
from pydantic import Field

import stickytoken.measurement as store
from stickytoken.errors import RunError
from stickytoken.explanation.measuring import Part
from stickytoken.machine import digest
from stickytoken.measurement import resume

# Version 2 added the identity.
EXPLANATION_SCHEMA_VERSION = 2
EXPLANATION_FILE = "explanation.json"
# Folder inside a run folder; holds one folder per explained token, named by id.
EXPLANATIONS_FOLDER = "explain"

# A value with its interval, and the mean and interval of the benign tokens.
NUMBERS = ("value", "low", "high", "benign_mean", "benign_low", "benign_high", "deviations")
_VALUES = " ".join(NUMBERS)
# Columns of each table by name, which is also the stem of its file.
TABLE_SCHEMAS = resume.table_schemas(
    {
        "measures": f"token_id token area measure layer {_VALUES} outside share_below benign_tokens carriers",
        "heads": f"token_id token layer head {_VALUES} outside wasserstein wasserstein_benign kl kl_benign",
        "pairs": "token_id pair carrier anchor similarity_before similarity sum completeness_error "
        "from_copies from_carrier from_reference",
        "attribution": "token_id pair row row_token row_part column column_token value",
        "benign": "token_id benign_id benign category characters attributed",
        "neighbours": "token_id rank neighbour_id neighbour cosine",
    },
    text="token area measure carrier anchor row_token row_part column_token benign category neighbour",
    whole="token_id layer head pair row column benign_id characters rank neighbour_id benign_tokens carriers",
    switches="outside attributed",
)


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
    schema_version: int = EXPLANATION_SCHEMA_VERSION
    model: str
    pooling: str | None
    carriers: int
    source: str
    settings: dict[str, Any]
    vocabulary: dict[str, float]
    notes: list[str]
    tokens: list[TokenExplanation] = Field(min_length=1)
    versions: dict[str, str]


@dataclass(frozen=True)
class StoredExplanation:
    record: ExplanationRecord
    tables: dict[str, pl.DataFrame]

    @property
    def token(self) -> TokenExplanation:
        return self.record.tokens[0]


def stored_explanation(
    folder: Path, parts: dict[str, Any], compute: Callable[[store.ResultFolder], StoredExplanation]
) -> StoredExplanation:
    files = store.ResultFolder(folder)
    claim = resume.IdentityRecord(kind=_KIND.name, identity=digest(parts), identity_parts=parts)
    with resume.resumed(files, _KIND, claim) as held:
        if held.finished:
            content = read_explanation(folder)
        else:
            held.begin()
            content = compute(files)
            write_tables(files, content.tables)
            held.finish(content.record)
        files.remove_shards()  # of a finished one, too: an earlier call may have been killed before it did
    return content


def kept(
    folder: store.ResultFolder | None,
    stage: str,
    index: int,
    token_id: int,
    compute: Callable[[], dict[str, Any]],
) -> tuple[dict[str, Any], bool]:
    shard = None if folder is None else folder.read_shard(stage, index, [token_id])
    if shard is not None:
        return json.loads(shard["content"][0]), False
    started = time.perf_counter()
    content = json.dumps(compute(), default=np.ndarray.tolist)
    if folder is not None:
        cost = store.ShardCost(time.perf_counter() - started, 1)
        folder.write_shard(stage, index, [{"token_id": token_id, "content": content}], cost)
    return json.loads(content), True


def require_place(folder: Path) -> None:
    store.require_writable(folder)
    if any((folder / name).exists() for name in (store.RUN_FILE, store.IDENTITY_FILE)):
        raise RunError(
            f"{folder} is the folder of a run or another measurement: choose another one, such as "
            f"{folder / EXPLANATIONS_FOLDER}"
        )


def write_tables(files: store.ResultFolder, tables: Mapping[str, pl.DataFrame]) -> None:
    for name, table in tables.items():
        files.write_table(f"{name}.parquet", table)


def explanation_folders(folder: Path) -> list[Path]:
    try:
        found = [path.parent for path in folder.glob(f"*/{EXPLANATION_FILE}")]
    except OSError as error:
        raise RunError(f"{folder} cannot be read: {error.strerror or error}") from error
    return sorted(found, key=lambda path: (len(path.name), path.name))


# A row of zeros, for instance, has no cosine.
_SOMETIMES_EMPTY = {*NUMBERS, "outside", "layer", "head", "share_below", "carriers"}


def read_explanation(folder: Path) -> StoredExplanation:
    record, files, tables = _record(folder / EXPLANATION_FILE), store.ResultFolder(folder), {}
    for name, schema in TABLE_SCHEMAS.items():
        filled = [column for column in schema if column not in _SOMETIMES_EMPTY]
        tables[name] = files.read_table(f"{name}.parquet", schema, filled)
    return StoredExplanation(record, tables)


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
# Values between two bounds are clipped this far from them, where log-odds are infinite.
_LEAST_SHARE = 1e-6


def compare(
    values: Vector, benign: Vector, confidence: float, family: int, bounds: tuple[float, float]
) -> dict[str, NDArray[Any]]:
    """Compare a token (carriers along the first axis) with k benign tokens, shape (k, carriers, ...).

    The benign interval is Student's prediction interval for one more observation, m -+ t s sqrt(1 + 1/k),
    from the means of the benign tokens. It holds simultaneously for all comparisons of a family
    (Bonferroni): an ordinary token leaves it anywhere with a probability of about 1 - confidence. The other
    interval is Student's for the mean over carriers. Deviations are from the benign mean in standard
    deviations. What is undefined is NaN.

    A measure between two bounds is skewed, more so near a bound: it is compared by its log-odds (of a cosine
    twice Fisher's z; the delta method for the interval over carriers). With one bound, intervals end there:
    an observation beyond it is impossible, so the coverage is the same.
    """
    closed, (least, width) = bool(np.isfinite(bounds).all()), (bounds[0], bounds[1] - bounds[0])

    def scaled(numbers: Vector) -> Any:
        shares = np.clip((numbers - least) / width, _LEAST_SHARE, 1 - _LEAST_SHARE) if closed else numbers
        return scipy.special.logit(shares) if closed else numbers

    def unscaled(numbers: Vector) -> Any:
        return least + width * scipy.special.expit(numbers) if closed else np.clip(numbers, *bounds)

    k, n, value, means = len(benign), len(values), values.mean(axis=0), benign.mean(axis=1)
    own, others, mean = scaled(value), scaled(means), means.mean(axis=0)
    centre, spread = others.mean(axis=0), others.std(axis=0, ddof=1)
    quantile = scipy.stats.t.ppf(1 - (1 - confidence) / (2 * family), k - 1)
    noise = _ROUNDING * (1 + np.abs(centre))
    reach = np.maximum(quantile * spread * np.sqrt(1 + 1 / k), noise)
    deviations = np.divide(
        own - centre, spread, out=np.full_like(value, np.nan), where=np.asarray(spread > noise)
    )
    low = high = np.full_like(value, np.nan)
    if n > 1:
        half = scipy.stats.t.ppf((1 + confidence) / 2, n - 1) * (values.std(axis=0, ddof=1) / np.sqrt(n))
        if closed:
            share = scipy.special.expit(own)
            half = half / (width * share * (1 - share))  # the derivative of the log-odds
        # A mean at a bound is clipped, but lies in its own interval.
        low = np.minimum(unscaled(own - half), value)
        high = np.maximum(unscaled(own + half), value)
    # Log-odds make large differences of tiny ones near a bound.
    differs = np.abs(value - mean) > _ROUNDING * (1 + np.abs(mean))
    ends = (unscaled(centre - reach), unscaled(centre + reach))
    numbers = dict(zip(NUMBERS, (value, low, high, mean, *ends, deviations), strict=True))
    return numbers | {"outside": differs & (np.abs(own - centre) > reach)}


def distribution_distances(sample: Vector, reference: Vector) -> tuple[float, float]:
    """Return the Wasserstein distance from a reference, and the KL divergence in nats, of ten common bins."""
    distance = float(scipy.stats.wasserstein_distance(sample, reference))
    low, high = min(sample.min(), reference.min()), max(sample.max(), reference.max())
    if high - low <= _ROUNDING:
        return distance, 0.0
    edges = np.linspace(low, high, 11)
    ours, theirs = (np.histogram(values, edges)[0] + 0.5 for values in (sample, reference))
    return distance, float(scipy.stats.entropy(ours, theirs))


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
UNBOUNDED, _SHARE, _COSINE, _LENGTH = (-np.inf, np.inf), (0.0, 1.0), (-1.0, 1.0), (0.0, np.inf)
# Measures that are not listed have no bounds.
_BOUNDED = {
    _SHARE: "attention_received attention_from_others pooling_norm_share",
    (0.0, 2.0): "copies_cosine_distance carrier_cosine_drift",
    _COSINE: "vector_toward_mean embedding_cosine_to_mean embedding_cosine_to_unused",
    _LENGTH: "copies_euclidean_distance copies_norm carrier_euclidean_drift embedding_norm "
    "embedding_distance_to_mean embedding_distance_to_unused",
}
BOUNDS = {name: bounds for bounds, names in _BOUNDED.items() for name in names.split()}
REFERENCE = "(reference)"


def measure_rows(name: str, values: Vector, benign: Vector, confidence: float) -> list[dict[str, Any]]:
    layered, area = values.ndim > 1, next(area for area, names in AREAS.items() if name in names)
    columns, others = (values, benign) if layered else (values[:, None], benign[:, :, None])
    family = columns.shape[1] if layered else len(AREAS[area])
    found = compare(columns, others, confidence, family, BOUNDS.get(name, UNBOUNDED))
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
        own, values = {"token_id": token_id, "pair": number}, np.array(pair["values"])
        labels = [*(Part(label).name.lower() for label in pair["row_labels"]), "reference"]
        total, parts = float(values.sum()), dict.fromkeys(("carrier", "prompt"), 0.0)
        for part in set(labels):
            parts[part] = float(values.sum(axis=1)[[label == part for label in labels]].sum())
        summaries.append(
            own
            | {name: pair[name] for name in ("carrier", "anchor", "similarity")}
            | {"similarity_before": pair["before"], "sum": total}
            | {"completeness_error": total - pair["similarity"], "from_copies": parts["copies"]}
            | {"from_carrier": parts["carrier"] + parts["prompt"], "from_reference": parts["reference"]}
        )
        rows, columns = ([*(names.get(k, "") for k in pair[ids]), REFERENCE] for ids in ("rows", "columns"))
        cells += [
            own
            | {"row": row, "row_token": row_token, "row_part": labels[row]}
            | {"column": column, "column_token": token, "value": float(values[row, column])}
            for row, row_token in enumerate(rows)
            for column, token in enumerate(columns)
        ]
    return summaries, cells


def furthest(measures: pl.DataFrame) -> list[dict[str, Any]]:
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
