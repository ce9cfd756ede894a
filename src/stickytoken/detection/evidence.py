"""Evidence that a run keeps for its reports: symptom curves, real pairs, a map of the vocabulary.

It is computed while the model is loaded, so that reports need no model. No verdict rests on it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from stickytoken.detection._embedding_map import MAP_SCHEMA, EmbeddingMap, embedding_map
from stickytoken.detection._evidence_record import EvidenceRecord
from stickytoken.detection.flagged import flagged_ids
from stickytoken.detection.run_folder import RunFolder
from stickytoken.insertion import Token
from stickytoken.measurement.engines.local import compute_shard
from stickytoken.measurement.progress import Progress, ProgressCallback, ignore_progress
from stickytoken.measurement.stage import Shard
from stickytoken.methods.evidence_panel import EvidencePanel
from stickytoken.methods.job import Job, MethodSettings
from stickytoken.methods.shown_pairs import EvidenceStage

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
    """Compute the evidence of a finished run and commit it, the record last.

    Args:
        job: job of the run.
        tokens: tokens.parquet.
        ranked_by: column with the largest value for the worst token.
        panel: carriers against anchors.
        folder: run folder; the caller holds its lock.
        progress: called after every step.
    """
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
    """Read the evidence of a run; None if it is missing or incomplete.

    Raises:
        RunError: a file is damaged.
    """
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
