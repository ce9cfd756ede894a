"""The paper's method as the rest of the package sees it."""

from __future__ import annotations

import polars as pl

from stickytoken.methods.evidence_panel import std_exhibit
from stickytoken.methods.job import FolderRunner, Job
from stickytoken.methods.protocol import Column, Method, Outcome, PlanTexts
from stickytoken.methods.std.record import StdPlanRecord
from stickytoken.methods.std.results import TOKEN_COLUMNS
from stickytoken.methods.std.run import compute_std, plan_std
from stickytoken.methods.std.settings import StdSettings


def _compute(job: Job, plan: StdPlanRecord, vocabulary: pl.DataFrame, run: FolderRunner) -> Outcome:
    return Outcome(*compute_std(job, plan, vocabulary, run))


def _texts(plan: StdPlanRecord) -> PlanTexts:
    """The texts of the validation pairs."""
    carriers = list(dict.fromkeys(pair.sentence2 for pair in plan.validation))
    anchors = [text for pair in plan.validation if (text := pair.sentence1) not in set(carriers)]
    return PlanTexts(carriers, list(dict.fromkeys(anchors)), by_topic=False)


STD = Method(
    "std",
    StdSettings,
    StdPlanRecord,
    TOKEN_COLUMNS,
    (
        Column("sticky_score", "sticky score", 2),
        Column("lift", "lift", 4),
        Column("validation_rate", "validation rate", 3),
    ),
    ("sticky", "benign"),
    False,
    "validation_rate",
    False,
    plan_std,
    _compute,
    std_exhibit,
    _texts,
)
