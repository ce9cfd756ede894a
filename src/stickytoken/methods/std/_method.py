"""The paper's method, put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from stickytoken.measurement.stage import ProgressCallback
from stickytoken.methods.entry import (
    Column,
    Distribution,
    Fact,
    Figure,
    PlanTexts,
    ProbeTable,
    Scatter,
    Verdict,
)
from stickytoken.methods.job import FolderRunner, Job, StoredSettings
from stickytoken.methods.probes import SYMPTOM_CARRIERS, AnchorPanel
from stickytoken.methods.protocol import EvidencePanel, FinishedRun, Method, Outcome, evidence_panel
from stickytoken.methods.std import ENTRY
from stickytoken.methods.std.formulas import candidate_threshold, outlier_threshold
from stickytoken.methods.std.plan import (
    StdEvidence,
    StdPlanRecord,
    StdResultRecord,
    make_plan,
    probe_std,
    scoring_stage,
    validation_stage,
)
from stickytoken.methods.std.settings import StdSettings
from stickytoken.unit_vectors import unit_vectors

_RATES = {
    "rate_cosine": "validation_rate",
    "rate_euclidean": "validation_rate_euclidean",
    "rate_manhattan": "validation_rate_manhattan",
}
_SCORES = {
    "score_cosine": "sticky_score",
    "score_euclidean": "sticky_score_euclidean",
    "score_manhattan": "sticky_score_manhattan",
}


TOKEN_COLUMNS = (
    "token_id",
    "token",
    "decoded",
    "category",
    *_SCORES.values(),
    *_RATES.values(),
    "lift",
    "verdict",
)


class Candidates(NamedTuple):
    """Tokens that go on to validation.

    Attributes:
        ids: their ids, ascending.
        threshold: the score that they reach.
    """

    ids: list[int]
    threshold: float


class Verdicts(NamedTuple):
    """The finished table.

    Attributes:
        tokens: one row per scored token.
        threshold: the validation rate that sticky tokens exceed.
    """

    tokens: pl.DataFrame
    threshold: float


def choose_candidates(scores: pl.DataFrame, settings: StdSettings) -> Candidates:
    """Choose the best share of the tokens by cosine score."""
    threshold = candidate_threshold(scores["score_cosine"].to_list(), settings.candidate_share)
    chosen = scores.filter(pl.col("score_cosine") >= threshold)["token_id"].sort().to_list()
    return Candidates(chosen, threshold)


def decide(
    vocabulary: pl.DataFrame, scores: pl.DataFrame, validations: pl.DataFrame, settings: StdSettings
) -> Verdicts:
    """Join the stages and mark the outliers among the candidates as sticky.

    Tokens that were not validated have null rates and a null verdict.
    """
    threshold = outlier_threshold(validations["rate_cosine"].to_list(), settings.outlier_range)
    rates = validations.select("token_id", pl.col("lift"), *_RATES).rename(_RATES)
    tokens = (
        scores.select("token_id", *_SCORES)
        .rename(_SCORES)
        .join(vocabulary, on="token_id", how="left", validate="1:1")
        .join(rates, on="token_id", how="left", validate="1:1")
        .with_columns(
            verdict=pl.when(pl.col("validation_rate").is_null())
            .then(None)
            .when(pl.col("validation_rate") > threshold)
            .then(pl.lit("sticky"))
            .otherwise(pl.lit("benign"))
        )
        .select(*TOKEN_COLUMNS)
        .sort("token_id")
    )
    return Verdicts(tokens, threshold)


StdRun = FinishedRun[StdPlanRecord, StdResultRecord]

# Below this many candidates the quartiles of their rates say little.
_FEW_CANDIDATES = 20
_MUCH_DEVIATION = 0.05
GLOSSARY = {
    "sticky score": "The paper's score: how far, and how often, copies reduce the distance of a few sentence "
    "pairs.",
    "candidates": "The tokens with the highest scores. Only these are validated.",
    "verdict": "Sticky: a validation rate beyond an outlier rule over the candidates. Tokens without a "
    "verdict were not validated, which is not the same as benign.",
}


def headline(run: StdRun) -> str:
    """Say how many candidates are sticky, and what the worst one does."""
    if run.sticky.is_empty():
        return f"{run.model_name}: {_finding(run)}"
    row = run.sticky.row(0, named=True)
    return (
        f"{run.model_name}: {_finding(run)} The worst, {row['token']!r}, draws "
        f"{row['validation_rate']:.0%} of the unrelated pairs together; "
        f"beyond {run.result.rate_threshold:.0%} a candidate is sticky."
    )


def lines(run: StdRun) -> list[str]:
    """Summarise a run: the finding first, then its basis."""
    result = run.result
    scope = "all" if result.scored == run.available else "a selection of"
    return [
        _finding(run),
        f"method std, {scope} {result.scored:,} of {run.available:,} available tokens; "
        f"mean similarity u = {run.plan.mean_similarity_text}",
        f"{result.candidates} candidates reach a score of {result.score_threshold:.2f}; "
        f"a rate above {result.rate_threshold:.4f} is sticky: {result.sticky}",
    ]


def notes(run: StdRun) -> list[str]:
    """Say what a reader should know before relying on the run."""
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
            "at least half of the candidates have the same validation rate: the outlier rule has no width, "
            "so a rate that is barely higher is enough"
        )
    elif result.rate_threshold >= 1:
        found.append(
            "no rate can exceed the threshold: the candidates' rates are too spread for the outlier rule to "
            "single one out"
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


def key_facts(run: StdRun) -> list[Fact]:
    """Give the number of candidates and the rate that a sticky token exceeds."""
    return [
        Fact(f"{run.result.candidates:,}", "candidates validated"),
        Fact(f"{run.result.rate_threshold:.3f}", "validation rate that a sticky token exceeds"),
    ]


def how(settings: StoredSettings) -> str:
    """Explain the method in a few sentences."""
    return (
        "The method of Chen et al. (ACL 2025): every token was scored on a few sentence pairs, with 1 to "
        f"{settings.text('copies')} copies at the beginning, the end and between the words. The best "
        f"{settings.number('candidate_share'):.2%} were validated on "
        f"{settings.number('validation_pairs'):g} pairs below the mean similarity, and outliers among these "
        "are called sticky."
    )


def plan_facts(plan: StdPlanRecord) -> dict[str, float]:
    """List the numbers of a plan."""
    return {
        "mean_similarity": plan.mean_similarity,
        "mean_similarity_entries": plan.mean_similarity_entries,
        "mean_similarity_error": plan.mean_similarity_error,
        "left_out": plan.left_out,
        "scoring pairs": len(plan.scoring),
        "validation pairs": len(plan.validation),
    }


def _finding(run: StdRun) -> str:
    found = f"{run.result.sticky} sticky tokens" if run.result.sticky else "No sticky tokens"
    return f"{found} among {run.result.candidates} validated candidates."


_SCORE = Column("sticky_score", "sticky score", 2)
_RATE = Column("validation_rate", "validation rate", 3)
_LIFT = Column("lift", "lift", 4)
LISTED = (_SCORE, _LIFT, _RATE)
REPORTED = (_RATE, _LIFT, _SCORE)
RANKED_BY = _RATE


def figures(run: StdRun) -> list[Figure]:
    """Describe the distributions of scores and rates, and rate against lift."""
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
            "Candidates only. The validation rate counts how many unrelated pairs come together, the lift "
            "how far. This method does not measure contraction.",
        ),
    ]


def probe_lines(probed: Sequence[StdEvidence]) -> list[ProbeTable | str]:
    """Lay out the validation rates."""
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
        f"{probed[0].pairs} pairs below the model's mean similarity; lift is the mean rise of the cosine. "
        "Compare with the rates of ordinary tokens: no rate is high or low by itself.",
    ]


# Enough for a smooth mean.
_ANCHORS = 200


def std_panel(job: Job[StdSettings], plan: StdPlanRecord) -> EvidencePanel:
    """Take the shortest carriers of the validation pairs, and the anchors of all pairs."""
    texts = sorted({pair.sentence2 for pair in plan.validation}, key=lambda text: (len(text), text))
    sentences = list(dict.fromkeys(pair.sentence1 for pair in plan.validation))[:_ANCHORS]
    vectors = unit_vectors(job.encoder.encode(sentences))
    anchors = AnchorPanel(vectors, np.zeros(len(vectors), dtype=np.intp), np.ones(1))
    return evidence_panel(job, texts[:SYMPTOM_CARRIERS], sentences, anchors, plan.mean_similarity)


def std_texts(plan: StdPlanRecord) -> PlanTexts:
    """Name the texts of the validation pairs."""
    carriers = list(dict.fromkeys(pair.sentence2 for pair in plan.validation))
    known = set(carriers)
    anchors = [pair.sentence1 for pair in plan.validation if pair.sentence1 not in known]
    return PlanTexts(carriers, list(dict.fromkeys(anchors)), by_topic=False)


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


class StdMethod(Method[StdSettings, StdPlanRecord, StdResultRecord]):
    """The method of Chen et al. (2025): score every token, validate the best, find outliers."""

    entry = ENTRY
    settings = StdSettings
    plan_record = StdPlanRecord
    result_record = StdResultRecord
    columns = TOKEN_COLUMNS
    listed = LISTED
    reported = REPORTED
    ranked_by = RANKED_BY
    verdicts = (Verdict.STICKY, Verdict.BENIGN)
    judges_every_token = False
    uses_topics = False
    glossary = GLOSSARY

    make_plan = staticmethod(plan_std)
    compute = staticmethod(compute_std)
    probe = staticmethod(probe_std)
    evidence_panel = staticmethod(std_panel)
    texts = staticmethod(std_texts)
    headline = staticmethod(headline)
    lines = staticmethod(lines)
    notes = staticmethod(notes)
    key_facts = staticmethod(key_facts)
    how = staticmethod(how)
    plan_facts = staticmethod(plan_facts)
    figures = staticmethod(figures)
    probe_lines = staticmethod(probe_lines)
