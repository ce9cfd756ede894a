"""Run the profile method: three rounds, each planned from the results of the earlier ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from stickytoken.insertion import Token
from stickytoken.measurement.progress import ProgressCallback
from stickytoken.measurement.store import ShardCost
from stickytoken.methods.job import FolderRunner, Job, StageRunner
from stickytoken.methods.profile._results import (
    Findings,
    decide,
    estimate_lifts,
    estimate_pulls,
    measurements,
)
from stickytoken.methods.profile.estimates import Measurements
from stickytoken.methods.profile.plan import anchor_panel, make_profile_plan, round_stage
from stickytoken.methods.profile.record import ProfilePlanRecord, ProfileResultRecord
from stickytoken.methods.profile.rounds import Round, advancing, tokens_in
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.protocol import Outcome


def plan_profile(job: Job[ProfileSettings], progress: ProgressCallback) -> ProfilePlanRecord:
    """Draw anchors, carriers and reference tokens.

    Raises:
        InputError: sentences that cannot be used.
    """
    return make_profile_plan(job.encoder, job.settings, job.sentences, job.vocabulary.available, progress)


def run_profile(
    job: Job[ProfileSettings], plan: ProfilePlanRecord, vocabulary: pl.DataFrame, run: FolderRunner
) -> Outcome[ProfileResultRecord]:
    """Run the rounds into a run folder, and sum up what they found."""
    findings = compute_profile(job, plan, vocabulary, run)
    return Outcome(findings.tokens, _result(job, findings, run.cost))


def compute_profile(
    job: Job[ProfileSettings], plan: ProfilePlanRecord, vocabulary: pl.DataFrame, run: StageRunner
) -> Findings:
    """Run the rounds and judge the tokens that were asked for."""
    # A probe may name tokens that cannot occur in text.
    tokens = {token.id: token for token in (*job.vocabulary.available, *job.tokens)}
    wanted = np.array([token.id for token in job.tokens])
    unselected = _unselected(job, plan, wanted)
    panel = anchor_panel(job.encoder, job.settings, plan, job.vocabulary.available)
    rounds: dict[Round, Measurements] = {}

    def measure(step: Round, ids: np.ndarray) -> None:
        stage = round_stage(job.encoder, job.settings, plan, panel, step)
        rounds[step] = measurements(run(stage, _tokens(tokens, ids)))

    measure(Round.SCREEN, np.union1d(wanted, unselected))
    for step, count in tokens_in(job.settings, len(wanted)).items():
        if step is Round.SCREEN:
            continue
        found = estimate_lifts(rounds, plan, unselected, job.settings)
        pull = estimate_pulls(rounds, plan, unselected, job.settings, found)
        # Only from the round before: a token that went no further is known from few texts.
        before = list(rounds.values())[-1].ids
        asked = np.isin(found.ids, wanted) & np.isin(found.ids, before)
        # Not by posterior means: the prior draws down a sticky token that looks ordinary when alone.
        chosen = advancing(found.ids[asked], found.tested.value[asked], pull.tested.value[asked], count)
        measure(step, np.union1d(chosen, plan.late_reference))
    findings = decide(vocabulary, rounds, plan, unselected, job.settings)
    precision = _precision(job, rounds)
    return findings._replace(
        tokens=findings.tokens.filter(pl.col("token_id").is_in(wanted.tolist())).with_columns(precision),
        candidates=int(np.isin(list(rounds.values())[-1].ids, wanted).sum()),
    )


def _precision(job: Job[ProfileSettings], rounds: Mapping[Round, Measurements]) -> pl.Expr:
    """Name the precision behind each token's numbers: the last round has the model's own."""
    own = job.encoder.identity.dtype
    early = job.settings.screen_precision or own
    last = rounds[Round.CONFIRM].ids if Round.CONFIRM in rounds else np.empty(0, np.int64)
    return (
        pl.when(pl.col("token_id").is_in(last.tolist())).then(pl.lit(own)).otherwise(pl.lit(str(early)))
    ).alias("precision")


def _unselected(job: Job[ProfileSettings], plan: ProfilePlanRecord, wanted: np.ndarray) -> np.ndarray:
    """Ids of tokens that were not chosen by a user: all, or a random sample."""
    if not job.restricted:
        return wanted
    return np.union1d(wanted, plan.reference) if job.sampled else np.array(plan.reference)


def _tokens(tokens: dict[int, Token], ids: np.ndarray) -> list[Token]:
    return [tokens[token_id] for token_id in ids.tolist()]


def _result(job: Job[ProfileSettings], findings: Findings, cost: ShardCost) -> ProfileResultRecord:
    verdicts = findings.tokens["verdict"]
    return ProfileResultRecord(
        looked_at=len(job.tokens),
        candidates=findings.candidates,
        sticky=int((verdicts == "sticky").sum()),
        topical=int((verdicts == "topical").sum()),
        ordinary_lift=findings.ordinary_lift,
        ordinary_spread=findings.ordinary_spread,
        empirical_null=findings.empirical_null,
        texts_per_token=round(cost.sequences / len(job.tokens), 2),
        sequences=cost.sequences,
        seconds=round(cost.seconds, 1),
    )
