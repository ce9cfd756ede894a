"""Run the paper's method: score all tokens, validate the best, decide."""

from __future__ import annotations

import polars as pl

from stickytoken.measurement.progress import ProgressCallback
from stickytoken.methods.job import FolderRunner, Job
from stickytoken.methods.protocol import Outcome
from stickytoken.methods.std._results import choose_candidates, decide
from stickytoken.methods.std.plan import make_plan, scoring_stage, validation_stage
from stickytoken.methods.std.record import StdPlanRecord, StdResultRecord
from stickytoken.methods.std.settings import StdSettings


def plan_std(job: Job[StdSettings], progress: ProgressCallback) -> StdPlanRecord:
    """Choose the pairs."""
    return make_plan(job.encoder, job.settings, job.corpus, progress)


def compute_std(
    job: Job[StdSettings], plan: StdPlanRecord, vocabulary: pl.DataFrame, run: FolderRunner
) -> Outcome[StdResultRecord]:
    """Run both stages, decide and sum up."""
    scores = run(
        scoring_stage(job.encoder, job.settings, plan, job.vocabulary.available, job.tokens), job.tokens
    )
    candidates = choose_candidates(scores, job.settings)
    wanted = set(candidates.ids)
    validations = run(
        validation_stage(job.encoder, job.settings, plan),
        [token for token in job.tokens if token.id in wanted],
    )
    verdicts = decide(vocabulary, scores, validations, job.settings)
    cost = run.cost
    result = StdResultRecord(
        scored=len(job.tokens),
        candidates=len(candidates.ids),
        sticky=int((verdicts.tokens["verdict"] == "sticky").sum()),
        score_threshold=candidates.threshold,
        rate_threshold=verdicts.threshold,
        sequences=cost.sequences,
        seconds=round(cost.seconds, 1),
    )
    return Outcome(verdicts.tokens, result)
