"""Measure named tokens by the profile method, without a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from stickytoken.encoders.protocol import Encoder
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Placement, Token
from stickytoken.measurement.engines.local import compute_shard
from stickytoken.measurement.progress import Progress, ProgressCallback
from stickytoken.measurement.stage import Shard, Stage
from stickytoken.methods.evidence_panel import fitting_copies
from stickytoken.methods.job import Job
from stickytoken.methods.profile._results import Findings
from stickytoken.methods.profile._run import compute_profile, plan_profile
from stickytoken.methods.profile.plan import anchor_panel, round_stage
from stickytoken.methods.profile.record import ProfilePlanRecord
from stickytoken.methods.profile.rounds import Round, cells
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.symptoms import SYMPTOM_CARRIERS, SymptomStage

# Number of ordinary tokens behind the curve that a probed token is compared with.
_ORDINARY_TOKENS = 8


@dataclass(frozen=True, slots=True)
class SymptomCurve:
    """Mean similarity of pairs by number of copies; the curve of a side without pairs is empty.

    Attributes:
        copies: numbers of copies, 0 first.
        below: mean over the pairs below the mean similarity.
        above: mean over the pairs above it.
        ordinary_below: ``below`` of ordinary tokens, as a control.
        ordinary_above: ``above`` of ordinary tokens.
    """

    copies: list[int]
    below: list[float]
    above: list[float]
    ordinary_below: list[float]
    ordinary_above: list[float]


@dataclass(frozen=True, slots=True)
class ProfileEvidence:
    """Result for one token; fields not listed are as in tokens.parquet.

    Attributes:
        validation_rate: by metric, the share of pairs below the mean similarity that rise.
        by_placement: the lift by placement.
        mean_similarity: u of the model.
        curve: the symptom curve.
    """

    token_id: int
    token: str
    category: str
    verdict: str
    severity: str
    lift: float
    lift_low: float
    lift_high: float
    lift_floor: float
    ordinary_lift: float
    universality: float
    validation_rate: dict[str, float]
    by_placement: dict[str, dict[str, float]]
    contraction: float
    fixed_point: float | None
    q_value: float | None
    texts: int
    mean_similarity: float
    curve: SymptomCurve


def probe_profile(job: Job[ProfileSettings], progress: ProgressCallback) -> list[ProfileEvidence]:
    """Measure named tokens as closely as `detect` measures its candidates.

    Random tokens of the vocabulary are measured with them, to show what is ordinary.

    Args:
        job: with the tokens to measure; duplicates are measured once.
        progress: called after every step.

    Raises:
        InputError: settings or sentences that cannot be used.
    """
    if not job.settings.adaptive:
        raise InputError("a probe measures its tokens in all rounds: leave adaptive on")
    distinct = list({token.id: token for token in job.tokens}.values())
    once = replace(job, tokens=distinct)
    plan = plan_profile(once, progress)
    runner = _MemoryRunner(job.encoder, progress)
    findings = compute_profile(once, plan, job.vocabulary.frame(), runner)
    curves = _curves(once, plan, runner)
    rows = {row["token_id"]: row for row in findings.tokens.to_dicts()}
    return [_evidence(rows[token.id], findings, plan, job.settings, curves[token.id]) for token in job.tokens]


class _MemoryRunner:
    """Runs stages in memory, in shards small enough to show progress."""

    def __init__(self, encoder: Encoder, progress: ProgressCallback) -> None:
        self._encoder = encoder
        self._progress = progress

    def __call__(self, stage: Stage, tokens: Sequence[Token]) -> pl.DataFrame:
        size = max(1, 2048 // stage.probes_per_token)
        rows: list[dict[str, Any]] = []
        sequences = 0
        self._progress(Progress(stage.name, 0, len(tokens)))
        for start in range(0, len(tokens), size):
            part = tuple(tokens[start : start + size])
            found, encoded = compute_shard(stage, Shard(start, part), self._encoder)
            rows += found
            sequences += encoded
            self._progress(Progress(stage.name, len(rows), len(tokens), len(rows), sequences))
        return pl.DataFrame(rows, infer_schema_length=None)


def _curves(
    job: Job[ProfileSettings], plan: ProfilePlanRecord, run: _MemoryRunner
) -> dict[int, SymptomCurve]:
    """Compute the curve of each token, with the mean curve of a few ordinary ones."""
    panel = anchor_panel(job.encoder, job.settings, plan, job.vocabulary.available)
    confirming = round_stage(job.encoder, job.settings, plan, panel, Round.CONFIRM)
    count = min(SYMPTOM_CARRIERS, len(confirming.carriers))
    carriers = confirming.carriers[:count]
    longest = max(job.encoder.content_ids(plan.carriers[Round.CONFIRM][:count]), key=len)
    asked = {token.id for token in job.tokens}
    available = {token.id: token for token in job.vocabulary.available}
    ordinary = [available[k] for k in plan.late_reference if k not in asked][:_ORDINARY_TOKENS]
    pieces = 1 if job.settings.insertion is Insertion.IDS else 8
    copies = fitting_copies(job.encoder, longest, pieces)
    stage = SymptomStage(carriers, copies, confirming.panel.first(count))
    rows = {row["token_id"]: row for row in run(stage, [*job.tokens, *ordinary]).to_dicts()}
    controls = {
        side: np.mean([rows[token.id][side] for token in ordinary], axis=0).tolist() if ordinary else []
        for side in ("below", "above")
    }
    return {
        token_id: SymptomCurve(
            [0, *copies],
            rows[token_id]["below"],
            rows[token_id]["above"],
            controls["below"],
            controls["above"],
        )
        for token_id in asked
    }


def _evidence(
    row: dict[str, Any],
    findings: Findings,
    plan: ProfilePlanRecord,
    settings: ProfileSettings,
    curve: SymptomCurve,
) -> ProfileEvidence:
    confirmed = findings.rounds[Round.CONFIRM]
    lifts = confirmed.lifts[confirmed.rows(np.array([row["token_id"]]))[0]]
    places = np.array([cell.placement for cell in cells(settings, len(lifts))])
    shared = {name: row[name] for name in ProfileEvidence.__slots__ if name in row}
    return ProfileEvidence(
        **shared | {"validation_rate": {"cosine": row["validation_rate"]}},
        ordinary_lift=findings.ordinary_lift,
        by_placement={
            placement.value: {"lift": float(lifts[places == placement].mean())}
            for placement in Placement
            if (places == placement).any()
        },
        mean_similarity=plan.mean_similarity,
        curve=curve,
    )
