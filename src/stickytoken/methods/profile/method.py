"""The profile method as the rest of the package sees it."""

from __future__ import annotations

import polars as pl

from stickytoken.methods.evidence_panel import profile_exhibit
from stickytoken.methods.job import FolderRunner, Job
from stickytoken.methods.profile.record import ProfilePlanRecord
from stickytoken.methods.profile.results import MEASURED_COLUMNS
from stickytoken.methods.profile.run import compute_profile, plan_profile, result_record
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.profile.verdict import Verdict
from stickytoken.methods.protocol import Column, Method, Outcome, PlanTexts


def _compute(job: Job, plan: ProfilePlanRecord, vocabulary: pl.DataFrame, run: FolderRunner) -> Outcome:
    findings = compute_profile(job, plan, vocabulary, run)
    return Outcome(findings.tokens, result_record(job, findings, run.cost))


def _texts(plan: ProfilePlanRecord) -> PlanTexts:
    """Carriers of the last round first."""
    carriers = [text for texts in reversed(list(plan.carriers.values())) for text in texts]
    return PlanTexts(carriers, [anchor.text for anchor in plan.sentence_anchors], by_topic=True)


PROFILE = Method(
    "profile",
    ProfileSettings,
    ProfilePlanRecord,
    MEASURED_COLUMNS,
    (
        Column("lift", "lift", 4),
        Column("lift_low", "low", 4),
        Column("lift_high", "high", 4),
        Column("universality", "universality", 2),
        Column("validation_rate", "validation rate", 2),
        Column("severity", "severity"),
    ),
    tuple(Verdict),
    True,
    "lift",
    True,
    plan_profile,
    _compute,
    profile_exhibit,
    _texts,
)
