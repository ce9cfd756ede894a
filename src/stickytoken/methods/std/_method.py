"""The paper's method: what it decides and tells; see `plan` for its stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from stickytoken.measurement.engine import ProgressCallback
from stickytoken.methods import base
from stickytoken.methods.base import Job, Method, StoredSettings
from stickytoken.methods.entry import Column, Distribution, Fact, Figure, PlanTexts, ProbeTable, Scatter
from stickytoken.methods.probes import SYMPTOM_CARRIERS, AnchorPanel, EvidenceStage
from stickytoken.methods.std import plan as stages
from stickytoken.methods.std.plan import Metric, StdEvidence, StdPlanRecord, StdResultRecord, StdSettings
from stickytoken.unit_vectors import unit_vectors

Run: TypeAlias = base.FinishedRun[StdPlanRecord, StdResultRecord]

# Below this many candidates the quartiles of their rates say little.
_FEW_CANDIDATES = 20
_MUCH_DEVIATION = 0.05
# Enough for a smooth mean.
_ANCHORS = 200
_SCORES, _RATES = (
    {f"{short}_{metric}": long if metric is Metric.COSINE else f"{long}_{metric}" for metric in Metric}
    for short, long in (("score", "sticky_score"), ("rate", "validation_rate"))
)
_SCORE = Column("sticky_score", "sticky score", 2)
_RATE = Column("validation_rate", "validation rate", 3)
_LIFT = Column("lift", "lift", 4)
_GLOSSARY = {
    "sticky score": "The paper's score: how far, and how often, copies reduce the distance of a few sentence "
    "pairs.",
    "candidates": "The tokens with the highest scores. Only these are validated.",
    "verdict": "Sticky: a validation rate beyond an outlier rule over the candidates. Tokens without a "
    "verdict were not validated, which is not the same as benign.",
}


class StdMethod(Method[StdSettings, StdPlanRecord, StdResultRecord]):
    """The method of Chen et al. (2025): score every token, validate the best, find outliers."""

    settings = StdSettings
    plan_record = StdPlanRecord
    result_record = StdResultRecord
    columns = (
        *("token_id", "token", "decoded", "category"),
        *_SCORES.values(),
        *_RATES.values(),
        *("lift", "verdict"),
    )
    listed = (_SCORE, _LIFT, _RATE)
    reported = (_RATE, _LIFT, _SCORE)
    ranked_by = _RATE
    judges_every_token = False
    glossary = _GLOSSARY

    probe = staticmethod(stages.probe_std)

    def make_plan(self, job: Job[StdSettings], progress: ProgressCallback) -> StdPlanRecord:
        return stages.make_plan(job.encoder, job.settings, job.corpus, progress)

    def compute(
        self, job: Job[StdSettings], plan: StdPlanRecord, vocabulary: pl.DataFrame, run: base.FolderRunner
    ) -> tuple[pl.DataFrame, StdResultRecord]:
        available = job.vocabulary.available
        scoring = stages.scoring_stage(job.encoder, job.settings, plan, available, job.tokens)
        scores = run(scoring, job.tokens)
        # The best share of the tokens by cosine score go on to validation.
        least = stages.candidate_threshold(scores["score_cosine"].to_list(), job.settings.candidate_share)
        wanted = set(scores.filter(pl.col("score_cosine") >= least)["token_id"])
        candidates = [token for token in job.tokens if token.id in wanted]
        validations = run(stages.validation_stage(job.encoder, job.settings, plan), candidates)
        # The outliers among them are sticky. The others have null rates and a null verdict.
        most = stages.outlier_threshold(validations["rate_cosine"].to_list(), job.settings.outlier_range)
        rates = validations.select("token_id", "lift", *_RATES).rename(_RATES)
        tokens = (
            scores.select("token_id", *_SCORES)
            .rename(_SCORES)
            .join(vocabulary, on="token_id", how="left", validate="1:1")
            .join(rates, on="token_id", how="left", validate="1:1")
            .with_columns(
                verdict=pl.when(pl.col("validation_rate").is_null())
                .then(None)
                .when(pl.col("validation_rate") > most)
                .then(pl.lit("sticky"))
                .otherwise(pl.lit("benign"))
            )
            .select(*self.columns)
            .sort("token_id")
        )
        cost = run.cost
        return tokens, StdResultRecord(
            scored=len(job.tokens),
            candidates=len(wanted),
            sticky=int((tokens["verdict"] == "sticky").sum()),
            score_threshold=least,
            rate_threshold=most,
            sequences=cost.sequences,
            seconds=round(cost.seconds, 1),
        )

    def evidence_stage(self, job: Job[StdSettings], plan: StdPlanRecord) -> EvidenceStage:
        texts = sorted({pair.sentence2 for pair in plan.validation}, key=lambda text: (len(text), text))
        sentences = list(dict.fromkeys(pair.sentence1 for pair in plan.validation))[:_ANCHORS]
        vectors = unit_vectors(job.encoder.encode(sentences))
        anchors = AnchorPanel(vectors, np.zeros(len(vectors), dtype=np.intp), np.ones(1))
        return base.evidence_stage(job, texts[:SYMPTOM_CARRIERS], sentences, anchors, plan.mean_similarity)

    def texts(self, plan: StdPlanRecord) -> PlanTexts:
        carriers = list(dict.fromkeys(pair.sentence2 for pair in plan.validation))
        known = set(carriers)
        anchors = [pair.sentence1 for pair in plan.validation if pair.sentence1 not in known]
        return PlanTexts(carriers, list(dict.fromkeys(anchors)), by_topic=False)

    def headline(self, run: Run) -> str:
        if run.sticky.is_empty():
            return f"{run.model_name}: {self._finding(run)}"
        row = run.sticky.row(0, named=True)
        return (
            f"{run.model_name}: {self._finding(run)} The worst, {row['token']!r}, draws "
            f"{row['validation_rate']:.0%} of the unrelated pairs together; "
            f"beyond {run.result.rate_threshold:.0%} a candidate is sticky."
        )

    def _finding(self, run: Run) -> str:
        count = run.result.sticky
        found = f"{count or 'No'} sticky {'token' if count == 1 else 'tokens'}"
        among = "candidate" if run.result.candidates == 1 else "candidates"
        return f"{found} among {run.result.candidates} validated {among}."

    def lines(self, run: Run) -> list[str]:
        result = run.result
        scope = "all" if result.scored == run.available else "a selection of"
        return [
            self._finding(run),
            f"method std, {scope} {result.scored:,} of {run.available:,} available tokens; "
            f"mean similarity u = {run.plan.mean_similarity_text}",
            *run.plan.space,
            f"{result.candidates} candidates reach a score of {result.score_threshold:.2f}; "
            f"a rate above {result.rate_threshold:.4f} is sticky: {result.sticky}",
        ]

    def notes(self, run: Run) -> list[str]:
        result, plan = run.result, run.plan
        found = []
        if result.candidates < _FEW_CANDIDATES:
            found.append(
                f"the verdict is an outlier rule, and {result.candidates} candidates are few for it: "
                "look at more tokens before you rely on it"
            )
        rates = run.tokens["validation_rate"].drop_nulls()
        if len(rates) and rates.quantile(0.25, "linear") == rates.quantile(0.75, "linear"):
            found.append(
                "at least half of the candidates have the same validation rate: the outlier rule has no "
                "width, so a rate that is barely higher is enough"
            )
        elif result.rate_threshold >= 1:
            found.append(
                "no rate can exceed the threshold: the candidates' rates are too spread for the outlier rule "
                "to single one out"
            )
        if plan.left_out:
            found.append(
                f"{plan.left_out} sentences or pairs were left out: with the copies inserted, "
                "the model would have truncated them"
            )
        if plan.similarity_deviation > _MUCH_DEVIATION:
            found.append(
                f"similarities in the pair file differ by up to {plan.similarity_deviation:.3f} "
                "from this model's: they may come from another model"
            )
        return found

    def key_facts(self, run: Run) -> list[Fact]:
        return [
            Fact(f"{run.result.candidates:,}", "candidates validated"),
            Fact(f"{run.result.rate_threshold:.3f}", "validation rate that a sticky token exceeds"),
        ]

    def how(self, settings: StoredSettings) -> str:
        return (
            "The method of Chen et al. (ACL 2025): every token was scored on a few sentence pairs, with 1 to "
            f"{settings.text('copies')} copies at the beginning, the end and between the words. The best "
            f"{settings.number('candidate_share'):.2%} were validated on "
            f"{settings.number('validation_pairs'):g} pairs below the mean similarity, and outliers among "
            "these are called sticky."
        )

    def plan_facts(self, plan: StdPlanRecord) -> dict[str, Any]:
        u = ("mean_similarity", "mean_similarity_entries", "mean_similarity_error")
        names = (*u, "isoscore", "left_out")
        counts = {"scoring pairs": len(plan.scoring), "validation pairs": len(plan.validation)}
        return {name: getattr(plan, name) for name in names} | counts

    def figures(self, run: Run) -> list[Figure]:
        return [
            Distribution(
                "score-distribution",
                "Sticky scores over the vocabulary",
                _SCORE,
                {"candidates": run.result.score_threshold},
                "The score of the paper's first stage, on a few sentence pairs. Tokens to the right of the "
                "dotted line were validated; the others have no verdict.",
            ),
            Distribution(
                "rate-distribution",
                "Validation rates of the candidates",
                _RATE,
                {"sticky": run.result.rate_threshold},
                "The share of unrelated pairs that a candidate pulls together. Beyond the dotted line, an "
                "outlier rule over the candidates, a token is called sticky.",
            ),
            Scatter(
                "rate-lift",
                "Validation rate against lift",
                _RATE,
                _LIFT,
                "Candidates only. The validation rate counts how many unrelated pairs come together, the "
                "lift how far. This method does not measure contraction.",
            ),
        ]

    def probe_lines(self, probed: Sequence[StdEvidence]) -> list[ProbeTable | str]:
        return [
            ProbeTable(
                "Validation rate: share of unrelated pairs that the token pulls together",
                ("id", "token", "category", "rate", "prefix", "suffix", "random", "lift"),
                [
                    (
                        each.token_id,
                        each.token,
                        each.category,
                        each.validation_rate["cosine"],
                        *(each.by_placement[place]["cosine"] for place in ("prefix", "suffix", "random")),
                        each.lift,
                    )
                    for each in probed
                ],
            ),
            f"{probed[0].pairs} pairs below the model's mean similarity; lift is the mean rise of the "
            "cosine. Compare with the rates of ordinary tokens: no rate is high or low by itself.",
        ]
