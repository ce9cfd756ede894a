"""The method of Chen et al. (ACL 2025): score all tokens, validate the best, and call the outliers sticky."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import polars as pl

from stickytoken.insertion import Token
from stickytoken.measurement import ResultFolder
from stickytoken.measurement.engine import Progress, Stage
from stickytoken.methods import (
    Column,
    Distribution,
    Fact,
    Figure,
    PlanTexts,
    ProbeTable,
    Scatter,
    Verdict,
    base,
    probes,
)
from stickytoken.methods.base import Job
from stickytoken.methods.std import plan as planning, scoring, validation
from stickytoken.methods.std._scores import (
    Metric,
    candidate_threshold,
    distances,
    outlier_threshold,
    sticky_score,
)
from stickytoken.methods.std.placement import validation_order
from stickytoken.methods.std.plan import StdPlanRecord
from stickytoken.methods.std.validation import StdEvidence, probe
from stickytoken.settings.std import PlacementWeights, ScoreConstants, Scores, StdSettings
from stickytoken.unit_vectors import unit_vectors

__all__ = [
    "COLUMNS",
    "GLOSSARY",
    "LISTED",
    "PLAN_RECORD",
    "RANKED_BY",
    "REPORTED",
    "RESULT_RECORD",
    "VERDICTS",
    "Metric",
    "PlacementWeights",
    "ScoreConstants",
    "Scores",
    "StdEvidence",
    "StdPlanRecord",
    "StdSettings",
    "candidate_threshold",
    "compute",
    "describe",
    "describe_coverage",
    "distances",
    "evidence_stage",
    "figures",
    "headline",
    "key_facts",
    "lines",
    "notes",
    "outlier_threshold",
    "plan_facts",
    "plan_texts",
    "prepare",
    "probe",
    "probe_lines",
    "sticky_score",
]


class StdResultRecord(base.ResultRecord):
    """The numbers that summarize the result of a run."""

    scored: int  # number of tokens with an exact score, or an upper bound that rules them out as candidates
    candidates: int
    score_threshold: float  # minimum score of a candidate
    rate_threshold: float  # a candidate is sticky if its validation rate is above this value
    exact_scores: int | None = None  # number of tokens with an exact score; null in older runs


@dataclass
class CountedRunner:
    """Runs stages, and reports the progress of the whole run in texts.

    A stage reports its own progress in tokens, which take different numbers of texts in different stages.
    """

    runner: base.Runner
    folder: ResultFolder  # keeps the shards of the runner, with their cost
    truncate: bool  # whether texts that are too long for the model are truncated
    expected: int = 0  # estimated number of texts to encode in the whole run
    done: int = 0  # number of texts in the finished stages, including texts encoded in earlier sessions
    computed: int = 0  # number of texts encoded in this session

    def __call__(self, stage: Stage, tokens: Sequence[Token], texts: int) -> pl.DataFrame:
        """Run a stage and report its progress. Return one row per token.

        Args:
            stage: the stage.
            tokens: the tokens to measure.
            texts: number of texts that the stage encodes for all tokens together.
        """
        # A stage reports its progress in tokens, which this factor converts to texts.
        texts_per_token = texts / max(1, len(tokens))
        report_of_run = self.runner.progress
        computed_before = self.computed

        def report(of_stage: Progress) -> None:
            """Report the progress of the run in texts, converted from the stage's progress in tokens."""
            self.computed = computed_before + round(of_stage.computed * texts_per_token)
            done = self.done + round(of_stage.done * texts_per_token)
            # The estimate may be too low, so raise the total to at least the number of texts at the end of
            # this stage.
            total = max(self.expected, self.done + texts)
            # Progress is counted in texts here, so ``computed`` equals the number of encoded texts.
            report_of_run(Progress(_TEXTS, done, total, computed=self.computed, sequences=self.computed))

        rows = replace(self.runner, progress=report)(stage, tokens, truncate=self.truncate)
        self.done += texts
        return rows

    def announce(self, scoring_texts: int, validation_texts: int) -> None:
        """Replace the estimate in `expected`, and report the texts that are left to encode.

        The report also says how long these texts will take at the current rate.

        Args:
            scoring_texts: estimated number of texts that are left to encode in order to score tokens.
            validation_texts: estimated number of texts to encode in order to validate candidates.
        """
        remaining_texts = scoring_texts + validation_texts
        self.expected = self.done + remaining_texts
        cost = self.folder.total_cost()
        hours = remaining_texts * cost.seconds / max(1, cost.sequences) / 3600
        how_long = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes"
        rate = cost.sequences / max(cost.seconds, 1e-9)
        note = (
            f"still to encode: about {scoring_texts:,} texts to score tokens and {validation_texts:,} to "
            f"validate candidates, {how_long} at {rate:,.0f} texts a second"
        )
        # Progress is counted in texts here, so ``computed`` equals the number of encoded texts.
        self.runner.progress(
            Progress(
                _TEXTS,
                done=self.done,
                total=self.expected,
                computed=self.computed,
                sequences=self.computed,
                note=note,
            )
        )


_TEXTS = "texts"

CANDIDATES_FILE = "candidates.csv"


def candidates_table(tokens: pl.DataFrame) -> pl.DataFrame:
    """Return the candidates in tokens.parquet, best score first, with the columns of the published files."""
    validated = tokens.filter(pl.col("validation_rate").is_not_null())
    return validated.sort("sticky_score", "token_id", descending=[True, False]).select(
        "token_id",
        "token",
        "sticky_score",
        pl.col("validation_rate").alias("validation_rate_cosine"),
        "validation_rate_euclidean",
        "validation_rate_manhattan",
        "decoded",
        (pl.col("verdict") == Verdict.STICKY).alias("sticky"),
    )


Run: TypeAlias = base.FinishedRun[StdPlanRecord, StdResultRecord]

# Maximum number of anchors in the evidence for reports. This many are enough for smooth mean curves.
_ANCHORS = 200


def _columns_by_metric(short: str, long: str) -> dict[str, str]:
    names = {f"{short}_{metric}": f"{long}_{metric}" for metric in Metric}
    names[f"{short}_{Metric.COSINE}"] = long
    return names


_SCORES = _columns_by_metric("score", "sticky_score")
_RATES = _columns_by_metric("rate", "validation_rate")
_SCORE = Column("sticky_score", "sticky score", 2)
_SAMPLED_SCORE = Column("sampled_score", "sticky score", 2)
_RATE = Column("validation_rate", "validation rate", 3)
_LIFT = Column("lift", "lift", 4)
PLAN_RECORD: type[base.PlanRecord] = StdPlanRecord
RESULT_RECORD: type[base.ResultRecord] = StdResultRecord
VERDICTS: tuple[Verdict, ...] = (Verdict.STICKY, Verdict.BENIGN)
COLUMNS: tuple[str, ...] = (
    "token_id",
    "token",
    "decoded",
    "category",
    *_SCORES.values(),
    "score_at_most",
    "sampled_score",
    *_RATES.values(),
    "lift",
    "verdict",
)
LISTED: tuple[Column, ...] = (_SCORE, _LIFT, _RATE)
REPORTED: tuple[Column, ...] = (_RATE, _LIFT, _SCORE)
RANKED_BY = _RATE
GLOSSARY: Mapping[str, str] = {
    "sticky score": "The paper's score: how far, and how often, copies reduce the distance of a few sentence "
    "pairs.",
    "candidates": "The tokens with the highest scores. Only these are validated.",
    "verdict": "Sticky, by the paper's definition: the validation rate is an outlier among the candidates. "
    "Benign: validated, but not an outlier. Tokens without a verdict were not validated.",
}


def prepare(
    job: Job[StdSettings], runner: base.Runner, stored: StdPlanRecord | None
) -> base.Preparation[StdPlanRecord]:
    """Choose the pairs on which tokens are scored, and those on which candidates are validated."""
    plan = stored or planning.make_plan(job.encoder, job.settings, job.corpus, runner)
    return base.Preparation(plan)


def compute(
    job: Job[StdSettings],
    preparation: base.Preparation[StdPlanRecord],
    runner: base.Runner,
    folder: ResultFolder,
) -> tuple[pl.DataFrame, StdResultRecord]:
    """Score the tokens, validate those with the best scores, and mark the outliers among them as sticky.

    Returns:
        The table tokens.parquet, with one row for each token of the job, and the result for run.json.
    """
    settings = job.settings
    plan = preparation.plan
    stage = validation.validation_stage(job.encoder, settings, plan)
    pairs = scoring.scoring_pairs(job.encoder, settings, plan)
    candidate_texts = math.ceil(settings.candidate_share * len(job.tokens)) * stage.probes_per_token
    counted = CountedRunner(
        runner,
        folder,
        truncate=planning.truncates(job.encoder, settings.inserted_as),
        expected=scoring.expected_texts(pairs, len(job.tokens)) + candidate_texts,
    )
    scores = scoring.score_tokens(job, pairs, counted, candidate_texts)

    # Choose the tokens with the best cosine scores as candidates. A token without an exact score is
    # represented by its upper bound, which is below the threshold.
    known_scores = scores["score_cosine"].fill_null(scores["score_at_most"])
    threshold = candidate_threshold(known_scores.to_numpy(), settings.candidate_share)
    best = scores.filter(pl.col("score_cosine") >= threshold)
    candidates = [token for token in job.tokens if token.id in set(best["token_id"])]
    if validation.continues_stream(job):
        # Place the copies at the same random places as the published runs, which drew the places in the
        # order in which they validated the candidates.
        by_id = {token.id: token for token in candidates}
        order = validation_order(dict(best.select("token_id", "score_cosine").iter_rows()))
        candidates_in_order = [by_id[token_id] for token_id in order]
        paths = validation.published_paths(
            job.encoder, settings, plan, job.vocabulary.available, candidates_in_order
        )
        stage = replace(stage, gaps_of=paths)

    # The number of candidates is now known, so the total number of texts is no longer an estimate.
    validation_texts = len(candidates) * stage.probes_per_token
    counted.expected = counted.done + validation_texts
    validations = counted(stage, candidates, validation_texts)
    outlier_bound = outlier_threshold(validations["rate_cosine"].to_list(), settings.outlier_range)
    tokens = _token_table(scores, validations, job.vocabulary.frame(), outlier_bound)
    folder.write_text(CANDIDATES_FILE, candidates_table(tokens).write_csv())
    cost = folder.total_cost()
    return tokens, StdResultRecord(
        scored=len(job.tokens),
        candidates=len(candidates),
        sticky=int((tokens["verdict"] == "sticky").sum()),
        score_threshold=threshold,
        rate_threshold=outlier_bound,
        exact_scores=int(tokens["sticky_score"].count()),
        sequences=cost.sequences,
        seconds=round(folder.seconds, 1),
    )


def _token_table(
    scores: pl.DataFrame, validations: pl.DataFrame, vocabulary: pl.DataFrame, outlier_bound: float
) -> pl.DataFrame:
    """Return the table tokens.parquet.

    Returns:
        One row for each token in ``scores``. For tokens that were not validated, the rates and verdicts
        are null.
    """
    rates = validations.select("token_id", "lift", *_RATES).rename(_RATES)
    return (
        scores.with_columns(sampled_score=pl.when("sampled").then("score_cosine"))
        .rename(_SCORES)
        .join(vocabulary, on="token_id", how="left", validate="1:1")
        .join(rates, on="token_id", how="left", validate="1:1")
        .with_columns(
            verdict=pl.when(pl.col("validation_rate").is_null())
            .then(None)
            .when(pl.col("validation_rate") > outlier_bound)
            .then(pl.lit("sticky"))
            .otherwise(pl.lit("benign"))
        )
        .select(*COLUMNS)
        .sort("token_id")
    )


def evidence_stage(job: Job[StdSettings], plan: StdPlanRecord) -> probes.EvidenceStage:
    """Return the stage that measures the curves and pairs that reports show."""
    truncated = set(plan.truncated)
    texts = {pair.sentence2 for pair in plan.validation if pair.sentence2 not in truncated}
    shortest = sorted(texts, key=lambda text: (len(text), text))[: probes.SYMPTOM_CARRIERS]
    anchors = [pair.sentence1 for pair in plan.validation if pair.sentence1 not in truncated]
    sentences = list(dict.fromkeys(anchors))[:_ANCHORS]
    vectors = unit_vectors(job.encoder.encode(sentences))
    panel = probes.AnchorPanel(vectors)
    return base.evidence_stage(job, shortest, sentences, panel, plan.mean_similarity)


def plan_texts(plan: StdPlanRecord) -> PlanTexts:
    """Return the texts that receive copies in validation, and those that they are compared with."""
    carriers = list(dict.fromkeys(pair.sentence2 for pair in plan.validation))
    known_carriers = set(carriers)
    anchors = [pair.sentence1 for pair in plan.validation if pair.sentence1 not in known_carriers]
    return PlanTexts(carriers, list(dict.fromkeys(anchors)), by_topic=False)


def headline(run: Run) -> str:
    """Return how many tokens are sticky, and the worst one with its validation rate."""
    if run.sticky.is_empty():
        return f"{run.model_title}: {_finding(run)}"
    row = run.sticky.row(0, named=True)
    return (
        f"{run.model_title}: {_finding(run)} The worst, {row['token']!r}, draws "
        f"{row['validation_rate']:.0%} of the unrelated pairs together; "
        f"beyond {run.result.rate_threshold:.0%} a candidate is sticky."
    )


def _finding(run: Run) -> str:
    count = run.result.sticky
    count_in_words = f"{count or 'No'} sticky {'token' if count == 1 else 'tokens'}"
    among = "candidate" if run.result.candidates == 1 else "candidates"
    return f"{count_in_words} by the paper's definition among {run.result.candidates} validated {among}."


def lines(run: Run) -> list[str]:
    """Return the result, the scope of the run, and the thresholds for candidates and sticky tokens."""
    result = run.result
    plan = run.plan
    scope = "all" if result.scored == run.available else "a selection of"
    sentences = [
        _finding(run),
        f"method std, {scope} {result.scored:,} of {run.available:,} available tokens; "
        f"mean similarity u = {plan.mean_similarity_text}",
    ]
    sentences.append(
        f"available tokens: {run.available:,}; candidates, with a score of {result.score_threshold:.2f} "
        f"or more: {result.candidates}; sticky, with a validation rate above "
        f"{result.rate_threshold:.4f}: {result.sticky}. All other tokens were not validated."
    )
    sentences.append(f"the candidates with their scores and rates: {run.path / CANDIDATES_FILE}")
    return sentences


def describe_coverage(run: Run) -> list[str]:
    """Return nothing: `lines` say how many tokens were validated."""
    return []


def notes(run: Run) -> list[str]:
    """Return caveats on the verdicts of a run, such as few candidates or truncated texts."""
    result = run.result
    plan = run.plan
    caveats = []
    if result.candidates < 20:  # with fewer rates, the quartiles are unreliable
        caveats.append(
            f"the verdict is an outlier rule, and {result.candidates} candidates are few for it: "
            "look at more tokens before you rely on it"
        )
    rates = run.tokens["validation_rate"].drop_nulls()
    if len(rates) and rates.quantile(0.25, "linear") == rates.quantile(0.75, "linear"):
        caveats.append(
            "at least half of the candidates have the same validation rate: the outlier rule has no "
            "width, so a candidate with a barely higher rate is called sticky"
        )
    elif result.rate_threshold >= 1:
        caveats.append(
            "no rate can exceed the threshold: the candidates' rates vary so much that none is an outlier"
        )
    if plan.left_out:
        caveats.append(
            f"{plan.left_out} sentences or pairs were left out: with the copies inserted, "
            "the model would have truncated them"
        )
    if plan.truncated:
        caveats.append(
            f"{len(plan.truncated)} texts were truncated to what the model reads, as in the published "
            "runs: copies that were cut off have no effect"
        )
    if plan.similarity_deviation > 0.05:
        caveats.append(
            f"similarities in the pair file differ by up to {plan.similarity_deviation:.3f} "
            "from this model's: they may come from another model"
        )
    return caveats


def key_facts(run: Run) -> list[Fact]:
    """Return the number of candidates, and the validation rate that a sticky token exceeds."""
    return [
        Fact(f"{run.result.candidates:,}", "candidates validated"),
        Fact(f"{run.result.rate_threshold:.3f}", "validation rate that a sticky token exceeds"),
    ]


def describe(settings: base.StoredSettings) -> str:
    """Return an explanation of the method in a few sentences."""
    return (
        "The method of Chen et al. (ACL 2025): every token was scored on a few sentence pairs, with 1 to "
        f"{settings.text('copies')} copies at the beginning, at the end or between words. The "
        f"{settings.number('candidate_share'):.2%} of the tokens with the best scores were validated on "
        f"{settings.number('validation_pairs'):g} pairs below the mean similarity. Outliers among these "
        "candidates are called sticky."
    )


def plan_facts(plan: StdPlanRecord) -> dict[str, Any]:
    """Return the numeric fields of a plan, and its numbers of pairs."""
    u = ("mean_similarity", "mean_similarity_entries", "mean_similarity_error")
    names = (*u, "left_out")
    counts = {"scoring pairs": len(plan.scoring), "validation pairs": len(plan.validation)}
    return {name: getattr(plan, name) for name in names} | counts


def figures(run: Run) -> list[Figure]:
    """Describe three figures: scores of tokens, rates of candidates, and rates against lifts."""
    # Every token has an exact score in runs with few tokens or with `scores=all`, and in runs by older
    # versions, which stored no sampled scores. In other runs, exact scores are known mainly for the
    # random sample and for the best tokens. The figure shows only the sample, because with the best
    # tokens it would no longer show the distribution over the vocabulary.
    has_all_scores = run.tokens["sticky_score"].null_count() == 0
    shown_tokens = "all examined tokens" if has_all_scores else "random tokens"
    return [
        Distribution(
            "score-distribution",
            "Sticky scores over the vocabulary",
            _SCORE if has_all_scores else _SAMPLED_SCORE,
            {"candidates": run.result.score_threshold},
            f"Scores of {shown_tokens} in the paper's first stage, on a few sentence pairs. Tokens to "
            "the right of the dotted line were validated; all other tokens have no verdict.",
        ),
        Distribution(
            "rate-distribution",
            "Validation rates of the candidates",
            _RATE,
            {"sticky": run.result.rate_threshold},
            "The share of unrelated pairs that a candidate pulls together. A candidate to the right of "
            "the dotted line is an outlier among the candidates, and is called sticky.",
        ),
        Scatter(
            "rate-lift",
            "Validation rate against lift",
            _RATE,
            _LIFT,
            "Candidates only. The validation rate is the share of unrelated pairs that come closer; the "
            "lift says how much closer. This method does not measure contraction.",
        ),
    ]


def probe_lines(probed: Sequence[StdEvidence]) -> list[ProbeTable | str]:
    """Return a table of each token's validation rate and lift, and a sentence that explains the numbers.

    The table has one row for each element of ``probed``, of which there must be at least one.
    """
    return [
        ProbeTable(
            "Validation rate: share of unrelated pairs that the token pulls together",
            ("id", "token", "category", "rate", "prefix", "suffix", "random", "lift"),
            [_probe_row(evidence) for evidence in probed],
        ),
        # All tokens are measured on the same number of pairs.
        f"{probed[0].pairs} pairs below the model's mean similarity; lift is the mean rise of the "
        "cosine. Compare the rates with ordinary tokens' rates: no rate is high or low by itself.",
    ]


def _probe_row(evidence: StdEvidence) -> list[object]:
    by_placement = [
        evidence.by_placement[placement]["cosine"] for placement in ("prefix", "suffix", "random")
    ]
    rate = evidence.validation_rate["cosine"]
    return [evidence.token_id, evidence.token, evidence.category, rate, *by_placement, evidence.lift]
