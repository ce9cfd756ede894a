"""Measure named tokens by the profile method, without a run folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Placement
from stickytoken.measurement.progress import ProgressCallback
from stickytoken.methods.evidence_panel import fitting_copies
from stickytoken.methods.job import Job
from stickytoken.methods.memory_runner import MemoryRunner
from stickytoken.methods.profile._results import Findings
from stickytoken.methods.profile._run import Measured, measure_rounds, plan_profile
from stickytoken.methods.profile.anchors import anchor_panel
from stickytoken.methods.profile.plan import round_stage
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
    severity: str | None
    lift: float
    lift_low: float
    lift_high: float
    lift_words: float | None
    ordinary_lift: float
    universality: float | None
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
    runner = MemoryRunner(job.encoder, progress)
    measured = measure_rounds(once, plan, runner)
    findings = measured.findings(once, plan, job.vocabulary.frame())
    curves = _curves(once, plan, runner)
    rows = {row["token_id"]: row for row in findings.tokens.to_dicts()}
    return [
        _evidence(rows[token.id], measured, findings, plan, job.settings, curves[token.id])
        for token in job.tokens
    ]


def _curves(job: Job[ProfileSettings], plan: ProfilePlanRecord, run: MemoryRunner) -> dict[int, SymptomCurve]:
    """Compute the curve of each token, with the mean curve of a few ordinary ones."""
    places = range(min(SYMPTOM_CARRIERS, len(plan.carriers)))
    anchors = anchor_panel(job.encoder, plan, job.vocabulary.available, beside=False)
    confirming = round_stage(job.encoder, job.settings, plan, anchors, Round.CONFIRM, places)
    longest = max(job.encoder.content_ids([plan.carriers[place] for place in places]), key=len)
    asked = {token.id for token in job.tokens}
    available = {token.id: token for token in job.vocabulary.available}
    ordinary = [available[k] for k in plan.late_reference if k not in asked][:_ORDINARY_TOKENS]
    pieces = 1 if job.settings.insertion is Insertion.IDS else 8
    copies = fitting_copies(job.encoder, longest, pieces)
    stage = SymptomStage(confirming.carriers, copies, confirming.panel)
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
    measured: Measured,
    findings: Findings,
    plan: ProfilePlanRecord,
    settings: ProfileSettings,
    curve: SymptomCurve,
) -> ProfileEvidence:
    confirmed = measured.rounds[Round.CONFIRM]
    lifts = confirmed.lifts[confirmed.rows(np.array([row["token_id"]]))[0]]
    every = cells(settings, len(plan.carriers))
    places = np.array([cell.placement for place, cell in enumerate(every) if place not in measured.carriers])
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
