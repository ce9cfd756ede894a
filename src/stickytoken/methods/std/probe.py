"""Validate named tokens by the paper's method, without a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stickytoken.measurement.engines.local import compute_shard
from stickytoken.measurement.progress import Progress, ProgressCallback
from stickytoken.measurement.stage import Shard
from stickytoken.methods.job import Job
from stickytoken.methods.std._distances import Metric
from stickytoken.methods.std.plan import make_plan, validation_stage
from stickytoken.methods.std.settings import StdSettings
from stickytoken.methods.std.stages import PLACEMENTS


@dataclass(frozen=True, slots=True)
class StdEvidence:
    """Result for one token on the validation pairs.

    Attributes:
        token_id: id of the token.
        token: its vocabulary string.
        category: its category.
        validation_rate: by metric, the weighted share of pairs whose distance falls.
        by_placement: the unweighted shares by placement and metric.
        lift: mean rise of the cosine over pairs, placements and copies.
        lift_by_copies: the lift for 1, 2, ... copies.
        pairs: number of pairs behind the numbers.
    """

    token_id: int
    token: str
    category: str
    validation_rate: dict[str, float]
    by_placement: dict[str, dict[str, float]]
    lift: float
    lift_by_copies: list[float]
    pairs: int


def probe_std(job: Job[StdSettings], progress: ProgressCallback) -> list[StdEvidence]:
    """Validate tokens one by one on the validation pairs of a run with these settings.

    Raises:
        InputError: settings, sentences or pairs that cannot be used.
    """
    plan = make_plan(job.encoder, job.settings, job.corpus, progress)
    stage = validation_stage(job.encoder, job.settings, plan)
    vocabulary = job.vocabulary
    names = dict(zip(vocabulary.ids, zip(vocabulary.tokens, vocabulary.categories, strict=True), strict=True))
    found = []
    progress(Progress(stage.name, 0, len(job.tokens)))
    for place, token in enumerate(job.tokens, start=1):
        (row,), sequences = compute_shard(stage, Shard(place, (token,)), job.encoder)
        name, category = names[token.id]
        found.append(_evidence(row, name, category.value, len(plan.validation)))
        progress(Progress(stage.name, place, len(job.tokens), place, sequences * place))
    return found


def _evidence(row: dict[str, Any], name: str, category: str, pairs: int) -> StdEvidence:
    return StdEvidence(
        token_id=row["token_id"],
        token=name,
        category=category,
        validation_rate={metric.value: row[f"rate_{metric}"] for metric in Metric},
        by_placement={
            placement.value: {metric.value: row[f"rate_{metric}_{placement}"] for metric in Metric}
            for placement in PLACEMENTS
        },
        lift=row["lift"],
        lift_by_copies=row["lift_by_copies"],
        pairs=pairs,
    )
