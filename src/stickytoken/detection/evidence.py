"""Evidence that a run keeps for its reports: symptom curves, real pairs, a map of the vocabulary.

It is computed while the model is loaded, so that reports need no model. No verdict rests on it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.detection.run_folder import EvidenceRecord, RunFolder, flagged_ids
from stickytoken.encoders.protocol import Encoder, reads_ids
from stickytoken.insertion import Token
from stickytoken.measurement.engine import compute_shard
from stickytoken.measurement.stage import Progress, ProgressCallback, Shard, ignore_progress
from stickytoken.methods.job import Job, MethodSettings
from stickytoken.methods.probes import EvidenceStage
from stickytoken.methods.protocol import EvidencePanel
from stickytoken.unit_vectors import exact_unit_vectors

MAP_SCHEMA = {"token_id": pl.Int64, "to_mean": pl.Float64, "component": pl.Float64, "drawn": pl.Boolean}
# Number of random tokens: enough to show the shape of a vocabulary of any size.
DRAWN_TOKENS = 3000
_LEAST_DRAWN = 3
_DRAW = 11


class EmbeddingMap(NamedTuple):
    """The vocabulary in two dimensions.

    Attributes:
        points: token_id; to_mean, the cosine to the mean of the drawn tokens; component, the first
            principal component of what is orthogonal to that mean; drawn, whether the token is one of
            those that mean and component come from.
        explained: share of the orthogonal part's variance that the component holds; None without points.
    """

    points: pl.DataFrame
    explained: float | None


NO_MAP = EmbeddingMap(pl.DataFrame(schema=MAP_SCHEMA), None)


def embedding_map(
    encoder: Encoder, vocabulary: Sequence[Token], shown: Sequence[Token], seed: int
) -> EmbeddingMap:
    """Encode tokens as inputs of their own, and place them on two axes.

    The first axis is the direction that sticky tokens pull to, the second the direction orthogonal to
    it in which the vocabulary varies most. Both come from random tokens alone, so that the tokens to
    show do not affect them.
    """
    drawn = np.random.default_rng([seed, _DRAW]).permutation(len(vocabulary))[:DRAWN_TOKENS]
    chosen = {vocabulary[k].id for k in drawn}
    ids = np.array(sorted(chosen | {token.id for token in shown}), dtype=np.int64)
    texts = {token.id: token.text for token in (*vocabulary, *shown)}
    ids, vectors = _encoded(encoder, ids, texts)
    own = np.isin(ids, sorted(chosen))
    mean = vectors[own].mean(axis=0) if own.any() else np.zeros(vectors.shape[1])
    length = float(np.linalg.norm(mean))
    if own.sum() < _LEAST_DRAWN or length == 0:
        return NO_MAP
    return _laid_out(ids, vectors, own, mean / length)


def _encoded(
    encoder: Encoder, ids: NDArray[np.int64], texts: Mapping[int, str]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Unit vectors of the ids that have one; an encoder that reads no ids gets their texts."""
    by_id = encoder if reads_ids(encoder) else None
    head = by_id.tokenize(["a"])[0].head if by_id else ()
    usable = np.array([k for k in ids.tolist() if encoder.fits((*head, k))], dtype=np.int64)
    if not len(usable):
        return usable, np.empty((0, encoder.dimension))
    if by_id:
        found = by_id.encode_ids([(*head, k) for k in usable.tolist()], allow_zero=True)
    else:
        found = encoder.encode([texts[k] for k in usable.tolist()], allow_zero=True)
    units = exact_unit_vectors(found)
    known = units.any(axis=1)
    return usable[known], units[known]


def _laid_out(
    ids: NDArray[np.int64],
    vectors: NDArray[np.float64],
    drawn: NDArray[np.bool_],
    direction: NDArray[np.float64],
) -> EmbeddingMap:
    from sklearn.decomposition import PCA

    to_mean = vectors @ direction
    rest = vectors - to_mean[:, None] * direction
    if np.allclose(rest[drawn], rest[drawn].mean(axis=0)):
        return NO_MAP
    components = PCA(1, svd_solver="covariance_eigh").fit(rest[drawn])  # exact: no random start
    points = {
        "token_id": ids,
        "to_mean": to_mean,
        "component": components.transform(rest)[:, 0],
        "drawn": drawn,
    }
    return EmbeddingMap(
        pl.DataFrame(points, schema=MAP_SCHEMA), float(components.explained_variance_ratio_[0])
    )


EVIDENCE_FILE = "evidence.parquet"
MAP_FILE = "map.parquet"
EVIDENCE_RECORD_FILE = "evidence.json"
# Number of tokens with a curve and pairs: the sticky ones, or else those ranked highest.
_MOST_SHOWN = 12
_LEAST_SHOWN = 4
ORDINARY_TOKENS = 8
_ORDINARY = 12
_PAIR = {
    f"{kind}_{part}": dtype
    for kind in ("typical", "largest")
    for part, dtype in (
        ("carrier", pl.String),
        ("anchor", pl.String),
        ("before", pl.Float64),
        ("after", pl.Float64),
    )
}
EVIDENCE_SCHEMA = {
    "token_id": pl.Int64,
    "ordinary": pl.Boolean,
    "copies": pl.List(pl.Int64),
    "below": pl.List(pl.Float64),
    "above": pl.List(pl.Float64),
    **_PAIR,
}


@dataclass(frozen=True)
class RunEvidence:
    """The evidence of a run.

    Attributes:
        record: how it was made.
        tokens: one row per token with a curve; below and above are mean similarities by number of
            copies, empty if no pair lies on that side; pairs are null if none lies below.
        points: the map, one row per token.
    """

    record: EvidenceRecord
    tokens: pl.DataFrame
    points: pl.DataFrame


def write_evidence(
    job: Job[MethodSettings],
    tokens: pl.DataFrame,
    ranked_by: str,
    panel: EvidencePanel,
    folder: RunFolder,
    progress: ProgressCallback,
) -> None:
    """Compute the evidence of a finished run and commit it, the record last."""
    started = time.perf_counter()
    available = {token.id: token for token in job.vocabulary.available}
    shown = [available[k] for k in tokens_to_show(tokens, ranked_by)]
    ordinary = ordinary_tokens(job.vocabulary.available, tokens, shown, job.settings.seed)
    frame = measured_evidence(job, shown, ordinary, panel, progress)
    vocabulary_map = embedding_map(
        job.encoder,
        job.vocabulary.available,
        [*shown, *(available[k] for k in flagged_ids(tokens))],
        job.settings.seed,
    )
    found = run_evidence(panel, frame, vocabulary_map, started)
    folder.write_table(EVIDENCE_FILE, found.tokens)
    folder.write_table(MAP_FILE, found.points)
    folder.write_record(EVIDENCE_RECORD_FILE, found.record)


def run_evidence(
    panel: EvidencePanel, tokens: pl.DataFrame, vocabulary_map: EmbeddingMap, started: float
) -> RunEvidence:
    """Join what was computed since ``started``, a time of `time.perf_counter`."""
    record = EvidenceRecord(
        carriers=panel.carriers,
        anchors=len(panel.stage.symptoms.panel.panel.vectors),
        pair_copies=panel.stage.copies,
        map_explained=vocabulary_map.explained,
        sequences=len(tokens) * panel.stage.probes_per_token + len(vocabulary_map.points),
        seconds=round(time.perf_counter() - started, 1),
    )
    return RunEvidence(record, tokens, vocabulary_map.points)


def measured_evidence(
    job: Job[MethodSettings],
    tokens: Sequence[Token],
    ordinary: Sequence[Token],
    panel: EvidencePanel,
    progress: ProgressCallback = ignore_progress,
) -> pl.DataFrame:
    """Compute evidence.parquet for some tokens, followed by ordinary ones."""
    rows = _measured(panel.stage, [*tokens, *ordinary], job, progress)
    return _frame(rows, panel, {token.id for token in ordinary})


def has_evidence(folder: RunFolder) -> bool:
    """Check whether all of the evidence was committed."""
    return all((folder.path / name).is_file() for name in (EVIDENCE_RECORD_FILE, EVIDENCE_FILE, MAP_FILE))


def read_evidence(folder: RunFolder) -> RunEvidence | None:
    """Read the evidence of a run; None if it is missing or incomplete."""
    record = folder.read_record(EVIDENCE_RECORD_FILE, EvidenceRecord) if has_evidence(folder) else None
    if record is None:
        return None
    return RunEvidence(
        record,
        folder.read_table(EVIDENCE_FILE, tuple(EVIDENCE_SCHEMA)),
        folder.read_table(MAP_FILE, tuple(MAP_SCHEMA)),
    )


def tokens_to_show(tokens: pl.DataFrame, ranked_by: str) -> list[int]:
    """Choose the sticky tokens, worst first; if they are few, also those that come next."""
    ranked = tokens.filter(pl.col(ranked_by).is_not_null()).sort(
        pl.col("verdict") == "sticky", ranked_by, "token_id", descending=[True, True, False], nulls_last=True
    )
    sticky = int((ranked["verdict"] == "sticky").sum())
    return ranked["token_id"].head(min(_MOST_SHOWN, max(sticky, _LEAST_SHOWN))).to_list()


def ordinary_tokens(
    vocabulary: Sequence[Token], tokens: pl.DataFrame, shown: Sequence[Token], seed: int
) -> list[Token]:
    """Draw a few random tokens that are not flagged, as a control."""
    excluded = {*flagged_ids(tokens), *(token.id for token in shown)}
    order = np.random.default_rng([seed, _ORDINARY]).permutation(len(vocabulary))
    drawn = (vocabulary[k] for k in order if vocabulary[k].id not in excluded)
    return [token for token, _ in zip(drawn, range(ORDINARY_TOKENS), strict=False)]


def _measured(
    stage: EvidenceStage, tokens: Sequence[Token], job: Job[MethodSettings], progress: ProgressCallback
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    progress(Progress(stage.name, 0, len(tokens)))
    # One shard for all would fill batches best; small ones bound the memory.
    size = ORDINARY_TOKENS
    for start in range(0, len(tokens), size):
        found, _ = compute_shard(stage, Shard(start, tuple(tokens[start : start + size])), job.encoder)
        rows += found
        progress(Progress(stage.name, len(rows), len(tokens), len(rows), len(rows) * stage.probes_per_token))
    return rows


def _frame(rows: Sequence[dict[str, Any]], panel: EvidencePanel, ordinary: set[int]) -> pl.DataFrame:
    return pl.DataFrame(
        [
            {
                "token_id": row["token_id"],
                "ordinary": row["token_id"] in ordinary,
                "copies": [0, *panel.stage.symptoms.copies],
                "below": row["below"],
                "above": row["above"],
                **_pair("typical", row, panel),
                **_pair("largest", row, panel),
            }
            for row in rows
        ],
        schema=EVIDENCE_SCHEMA,
    )


def _pair(kind: str, row: dict[str, Any], panel: EvidencePanel) -> dict[str, Any]:
    if not row[kind]:
        return {}
    carrier, anchor, before, after = row[kind]
    return {
        f"{kind}_carrier": panel.carriers[int(carrier)],
        f"{kind}_anchor": panel.sentences[int(anchor)],
        f"{kind}_before": before,
        f"{kind}_after": after,
    }
