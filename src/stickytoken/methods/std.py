"""The paper's method: score every token on a few pairs, validate the best, find outliers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

import stickytoken.methods as terms
from stickytoken.data import PairCorpus, SentencePair, Sentences, sample_pairs, select_pairs
from stickytoken.encoders.protocol import Encoder
from stickytoken.errors import EncodingError, InputError
from stickytoken.insertion import Insertion, Placement, Probe, Token, insert_as_ids, insert_as_text
from stickytoken.machine import Precision
from stickytoken.measurement.engine import ProgressCallback
from stickytoken.methods import base, probes
from stickytoken.methods.base import Job
from stickytoken.unit_vectors import unit_vectors
from stickytoken.validation import real_number, set_choices, set_whole_numbers


@dataclass(frozen=True, slots=True)
class PlacementWeights:
    prefix: float
    suffix: float
    random: float

    def __post_init__(self) -> None:
        values = (self.prefix, self.suffix, self.random)
        if not (min(values) >= 0 and abs(sum(values) - 1) <= 1e-9):
            raise InputError(f"placement weights {values} must not be negative and must sum to 1")


@dataclass(frozen=True, slots=True)
class ScoreConstants:
    """Constants of the sticky score (Chen et al. 2025, step 3 of the Sticky Token Detector)."""

    alpha: float  # weight of one fall
    beta: float  # weight of one rise
    gamma: float  # keeps the denominator positive

    def __post_init__(self) -> None:
        values = (self.alpha, self.beta, self.gamma)
        if not all(map(math.isfinite, values)) or min(values) < 0 or self.gamma == 0:
            raise InputError(f"score constants need alpha, beta >= 0 and gamma > 0, got {self}")


@dataclass(frozen=True, slots=True)
class StdSettings:
    """Settings of the paper's method.

    Attributes:
        sentences: number of sentences sampled from the corpus.
        pairs: number of pairs sampled from them, evenly over similarity.
        scoring_pairs: number of pairs below the mean similarity that score a token.
        validation_pairs: number of pairs below the mean similarity that validate a candidate.
        copies: largest number of copies; probes hold 1 to this many.
        insertion: copies as text or as token ids.
        candidate_share: share of the tokens to validate, best scores first.
        outlier_range: a candidate is sticky above Q3 + this x IQR of all rates.
        seed: seed of the sentence sample and of random placement; 42 replays the published
            stream of random placement.
        scoring_weights: weights of the placements in the score.
        validation_weights: weights of the placements in the validation rate.
        angular: score constants for cosine and Euclidean distance.
        manhattan: score constants for Manhattan distance.

    Raises:
        InputError: a value is out of range.
    """

    sentences: int = 1000
    pairs: int = 1000
    scoring_pairs: int = 5
    validation_pairs: int = 250
    copies: int = 8
    insertion: Insertion = Insertion.TEXT
    candidate_share: float = 0.02
    outlier_range: float = 0.7
    seed: int = 42
    scoring_weights: PlacementWeights = field(default=PlacementWeights(0.35, 0.35, 0.30))
    validation_weights: PlacementWeights = field(default=PlacementWeights(4 / 11, 4 / 11, 3 / 11))
    angular: ScoreConstants = field(default=ScoreConstants(0.1, 0.05, 0.01))
    manhattan: ScoreConstants = field(default=ScoreConstants(1.0, 0.5, 0.1))

    def __post_init__(self) -> None:
        least = {"sentences": 2, "pairs": 1, "scoring_pairs": 1, "validation_pairs": 1, "copies": 1}
        set_whole_numbers(self, least | {"seed": 0})
        for name in ("candidate_share", "outlier_range"):
            object.__setattr__(self, name, real_number(name, getattr(self, name)))
        if not 0 < self.candidate_share <= 1:
            raise InputError(f"candidate_share is {self.candidate_share}: it must be above 0 and at most 1")
        if not 0 <= self.outlier_range < math.inf:
            raise InputError(f"outlier_range is {self.outlier_range}: it must be a number from 0")
        set_choices(self, {"insertion": Insertion})


def sticky_score(
    distances: NDArray[np.float64], alone: NDArray[np.float64], constants: ScoreConstants
) -> NDArray[np.float64]:
    """Reward falls of the distance as copies are added, and penalise rises (Chen et al. 2025, step 3)."""
    # score = (sum of falls + alpha * number of falls + 0.1 t) / (sum of rises + beta * rises + gamma)
    changes = np.diff(distances, axis=-1)
    falls, rises = np.clip(-changes, 0, None), np.clip(changes, 0, None)
    reward = falls.sum(-1) + constants.alpha * (changes < 0).sum(-1) + 0.1 * alone
    penalty = rises.sum(-1) + constants.beta * (changes > 0).sum(-1) + constants.gamma
    scores: NDArray[np.float64] = reward / penalty
    return scores


def candidate_threshold(scores: Sequence[float], share: float) -> float:
    return float(np.quantile(np.asarray(scores, dtype=np.float64), 1 - share))


def outlier_threshold(rates: Sequence[float], outlier_range: float) -> float:
    """Compute Q3 + outlier_range x IQR of the rates: beyond it, a candidate is sticky (ibid., step 4)."""
    first, third = np.quantile(np.asarray(rates, dtype=np.float64), [0.25, 0.75])
    return float(third + outlier_range * (third - first))


class Metric(StrEnum):
    COSINE = "cosine"
    EUCLIDEAN = "euclidean"
    MANHATTAN = "manhattan"


def distances(
    vectors: NDArray[np.floating], others: NDArray[np.floating]
) -> dict[Metric, NDArray[np.float64]]:
    left = np.asarray(vectors, dtype=np.float64)
    right = np.asarray(others, dtype=np.float64)
    norms = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    if not norms.all():
        raise EncodingError("a zero vector has no cosine distance to anything")
    difference = left - right
    return {
        Metric.COSINE: 1.0 - np.einsum("...d,...d->...", left, right) / norms,
        Metric.EUCLIDEAN: np.linalg.norm(difference, axis=-1),
        Metric.MANHATTAN: np.abs(difference).sum(axis=-1),
    }


PLACEMENTS = tuple(Placement)


def walk_vocabulary(
    seed: int,
    vocabulary: Sequence[Token],
    wanted: Sequence[Token],
    words: Sequence[int],
    counts: int,
    insertion: Insertion = Insertion.TEXT,
) -> dict[int, tuple[probes.Path, ...]]:
    """Replay the random stream of the published runs; return one path per carrier by token id."""
    # The published code drew all gaps from one ``random.Random(42)``, token by token in order of id. Walking
    # the stream up front makes them a function of seed, vocabulary and carriers, whatever is computed when.
    stream = random.Random(seed)
    keep = {token.id for token in wanted}
    last = max(keep, default=-1)
    found: dict[int, tuple[probes.Path, ...]] = {}
    for token in vocabulary:
        if token.id > last:
            break
        added = probes.words_added(token, insertion)
        paths = tuple(
            tuple(stream.randint(0, start + step * added) for step in range(counts)) for start in words
        )
        if token.id in keep:
            found[token.id] = paths
    return found


@dataclass(frozen=True)
class ValidationStage:
    """Put 1, 2, ... copies into every carrier in every placement, and compare it with its anchor."""

    settings: StdSettings
    carriers: tuple[probes.Carrier, ...]
    anchors: NDArray[np.float32]  # vectors of sentence1, shape (pairs, d)
    clean: NDArray[np.float32]  # vectors of sentence2 without copies, shape (pairs, d)
    paths: Callable[[Token], Sequence[probes.Path]]  # of random placement, one per carrier
    name: str = "validate"
    precision: Precision | None = None

    @property
    def probes_per_token(self) -> int:
        return len(self.carriers) * len(PLACEMENTS) * self.settings.copies

    def probes(self, token: Token) -> list[Probe]:
        found: list[Probe] = []
        for carrier, path in zip(self.carriers, self.paths(token), strict=True):
            for placement in PLACEMENTS:
                if isinstance(carrier, str):
                    found += insert_as_text(token, carrier, placement, self.settings.copies, path)
                else:
                    found += insert_as_ids(token, carrier, placement, self.settings.copies, path)
        return found

    def distances(self, vectors: NDArray[np.float32]) -> dict[Metric, NDArray[np.float64]]:
        shape = len(self.carriers), len(PLACEMENTS)  # then by number of copies, 0 first
        probed = distances(vectors.reshape(*shape, self.settings.copies, -1), self.anchors[:, None, None, :])
        return {
            metric: np.concatenate(
                [np.broadcast_to(clean[:, None, None], (*shape, 1)), probed[metric]], axis=-1
            )
            for metric, clean in distances(self.clean, self.anchors).items()
        }

    def measure(self, token: Token, vectors: NDArray[np.float32]) -> Mapping[str, float | list[float]]:
        found = self.distances(vectors)
        row: dict[str, float | list[float]] = {}
        for metric, series in found.items():
            # Whether the mean distance over 1, ..., n copies is below the distance without copies.
            falls = (series[..., 1:].mean(-1) < series[..., 0]).astype(np.float64)
            row[f"rate_{metric}"] = weighted(falls, self.settings.validation_weights)
            for place, placement in enumerate(PLACEMENTS):
                row[f"rate_{metric}_{placement}"] = float(falls[:, place].mean())
        cosine = found[Metric.COSINE]
        change = cosine[..., :1] - cosine[..., 1:]
        row["lift"] = float(change.mean())
        row["lift_by_copies"] = change.mean(axis=(0, 1)).tolist()
        return row


@dataclass(frozen=True)
class ScoringStage(ValidationStage):
    name: str = "score"

    @property
    def probes_per_token(self) -> int:
        return super().probes_per_token + 1

    def probes(self, token: Token) -> list[Probe]:
        carrier = self.carriers[0]
        alone = token.text if isinstance(carrier, str) else (*carrier.head, token.id, *carrier.tail)
        return [alone, *super().probes(token)]

    def measure(self, token: Token, vectors: NDArray[np.float32]) -> Mapping[str, float]:
        alone = distances(vectors[:1], self.anchors)
        row = {}
        for metric, series in self.distances(vectors[1:]).items():
            constants = self.settings.manhattan if metric is Metric.MANHATTAN else self.settings.angular
            scores = sticky_score(series, alone[metric][:, None], constants)
            row[f"score_{metric}"] = weighted(scores, self.settings.scoring_weights)
        return row


def weighted(values: NDArray[np.float64], weights: PlacementWeights) -> float:
    by_placement = zip(PLACEMENTS, values.mean(axis=0), strict=True)
    return float(sum(getattr(weights, placement.value) * value for placement, value in by_placement))


class StdPlanRecord(base.PlanRecord):
    left_out: int  # sentences or given pairs too long for the model with the copies in
    similarity_deviation: float  # largest difference between a pair's recorded similarity and the model's own
    scoring: list[SentencePair]
    validation: list[SentencePair]


class StdResultRecord(base.ResultRecord):
    scored: int
    candidates: int
    score_threshold: float  # score that candidates reach
    rate_threshold: float  # validation rate that sticky tokens exceed


def make_plan(
    encoder: Encoder, settings: StdSettings, corpus: Sentences | PairCorpus, progress: ProgressCallback
) -> StdPlanRecord:
    # What may fail comes before the long work. Texts that the model would truncate with the copies in are
    # left out.
    probes.require_insertion(encoder, settings.insertion)
    sentences: list[str] = []
    pairs: list[SentencePair] = []
    room = probes.room_for(encoder, settings.insertion, settings.copies)
    if isinstance(corpus, Sentences):
        sampled = corpus.sample(settings.sentences, settings.seed)
        fitting = _fitting(encoder, sampled, room)
        sentences = [text for text in sampled if text in fitting]
        left_out = len(sampled) - len(sentences)
    else:
        carriers = _fitting(encoder, [pair.sentence2 for pair in corpus.pairs], room)
        anchors = _fitting(encoder, [pair.sentence1 for pair in corpus.pairs], 0)
        pairs = [pair for pair in corpus.pairs if pair.sentence2 in carriers and pair.sentence1 in anchors]
        left_out = len(corpus.pairs) - len(pairs)
    if not sentences and not pairs:
        raise InputError(
            f"every sentence of {corpus.source} is longer than {encoder.name} reads "
            f"({encoder.max_length} tokens): use shorter sentences"
        )
    u = base.model_mean(encoder, progress)
    pairs = pairs or sample_pairs(sentences, encoder.encode(sentences), settings.pairs)
    scoring = select_pairs(pairs, u.value, settings.scoring_pairs)
    if len(scoring) < settings.scoring_pairs:
        raise InputError(
            f"only {len(scoring)} sentence pairs have a similarity below the model's mean {u.value:.4f}, "
            f"scoring needs {settings.scoring_pairs}: use more sentences, or fewer scoring pairs"
        )
    validation = select_pairs(pairs, u.value, settings.validation_pairs)
    used = [*scoring, *validation]
    own = 1 - distances(*_pair_vectors(encoder, used))[Metric.COSINE]
    return StdPlanRecord(
        mean_similarity=u.value,
        mean_similarity_entries=u.entries,
        mean_similarity_error=u.error,
        isoscore=u.isoscore,
        left_out=left_out,
        similarity_deviation=float(np.abs(own - np.array([pair.similarity for pair in used])).max()),
        scoring=scoring,
        validation=validation,
    )


def _fitting(encoder: Encoder, texts: Sequence[str], room: int) -> set[str]:
    distinct = list(dict.fromkeys(texts))
    tokenized = zip(distinct, encoder.content_ids(distinct), strict=True)
    return {text for text, ids in tokenized if encoder.fits(ids + [0] * room)}


def _pair_vectors(
    encoder: Encoder, pairs: Sequence[SentencePair]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    first, second = [pair.sentence1 for pair in pairs], [pair.sentence2 for pair in pairs]
    return encoder.encode(first), encoder.encode(second)


def scoring_stage(
    encoder: Encoder,
    settings: StdSettings,
    plan: StdPlanRecord,
    vocabulary: Sequence[Token],
    tokens: Sequence[Token],
) -> ScoringStage:
    carriers = probes.as_carriers(encoder, settings.insertion, [pair.sentence2 for pair in plan.scoring])
    words = [*map(probes.word_count, carriers)]
    paths = walk_vocabulary(settings.seed, vocabulary, tokens, words, settings.copies, settings.insertion)
    vectors = _pair_vectors(encoder, plan.scoring)
    return ScoringStage(settings, carriers, *vectors, lambda token: paths[token.id])


def validation_stage(encoder: Encoder, settings: StdSettings, plan: StdPlanRecord) -> ValidationStage:
    carriers = probes.as_carriers(encoder, settings.insertion, [pair.sentence2 for pair in plan.validation])
    words = tuple(map(probes.word_count, carriers))
    paths = probes.KeyedPaths(settings.seed, 1, words, settings.copies, settings.insertion)
    return ValidationStage(settings, carriers, *_pair_vectors(encoder, plan.validation), paths.of)


@dataclass(frozen=True, slots=True)
class StdEvidence:
    token_id: int
    token: str
    category: str
    validation_rate: dict[str, float]  # by metric, the weighted share of pairs whose distance falls
    by_placement: dict[str, dict[str, float]]  # the unweighted shares by placement and metric
    lift: float  # mean rise of the cosine over pairs, placements and copies
    lift_by_copies: list[float]  # for 1, 2, ... copies
    pairs: int  # behind the numbers


def probe_std(job: Job[StdSettings], progress: ProgressCallback) -> list[StdEvidence]:
    plan = make_plan(job.encoder, job.settings, job.corpus, progress)
    stage = validation_stage(job.encoder, job.settings, plan)
    rows = base.MemoryRunner(job.encoder, progress, shard_probes=1)(stage, job.tokens).to_dicts()
    places = [job.vocabulary.place(token.id) for token in job.tokens]
    return [
        StdEvidence(
            token_id=row["token_id"],
            token=job.vocabulary.tokens[place],
            category=job.vocabulary.categories[place].value,
            validation_rate={metric.value: row[f"rate_{metric}"] for metric in Metric},
            by_placement={
                placement.value: {metric.value: row[f"rate_{metric}_{placement}"] for metric in Metric}
                for placement in PLACEMENTS
            },
            lift=row["lift"],
            lift_by_copies=row["lift_by_copies"],
            pairs=len(plan.validation),
        )
        for row, place in zip(rows, places, strict=True)
    ]


Run: TypeAlias = base.FinishedRun[StdPlanRecord, StdResultRecord]

# Enough for a smooth mean.
_ANCHORS = 200
_SCORES, _RATES = (
    {f"{short}_{metric}": long if metric is Metric.COSINE else f"{long}_{metric}" for metric in Metric}
    for short, long in (("score", "sticky_score"), ("rate", "validation_rate"))
)
_SCORE = terms.Column("sticky_score", "sticky score", 2)
_RATE = terms.Column("validation_rate", "validation rate", 3)
_LIFT = terms.Column("lift", "lift", 4)
_GLOSSARY = {
    "sticky score": "The paper's score: how far, and how often, copies reduce the distance of a few sentence "
    "pairs.",
    "candidates": "The tokens with the highest scores. Only these are validated.",
    "verdict": "Sticky: a validation rate beyond an outlier rule over the candidates. Tokens without a "
    "verdict were not validated, which is not the same as benign.",
}


class StdMethod(base.Method[StdSettings, StdPlanRecord, StdResultRecord]):
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

    probe = staticmethod(probe_std)

    def make_plan(self, job: Job[StdSettings], progress: ProgressCallback) -> StdPlanRecord:
        return make_plan(job.encoder, job.settings, job.corpus, progress)

    def compute(
        self, job: Job[StdSettings], plan: StdPlanRecord, vocabulary: pl.DataFrame, run: base.FolderRunner
    ) -> tuple[pl.DataFrame, StdResultRecord]:
        available = job.vocabulary.available
        scoring = scoring_stage(job.encoder, job.settings, plan, available, job.tokens)
        scores = run(scoring, job.tokens)
        # The best share of the tokens by cosine score go on to validation.
        least = candidate_threshold(scores["score_cosine"].to_list(), job.settings.candidate_share)
        wanted = set(scores.filter(pl.col("score_cosine") >= least)["token_id"])
        candidates = [token for token in job.tokens if token.id in wanted]
        validations = run(validation_stage(job.encoder, job.settings, plan), candidates)
        # The outliers among them are sticky. The others have null rates and a null verdict.
        most = outlier_threshold(validations["rate_cosine"].to_list(), job.settings.outlier_range)
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

    def evidence_stage(self, job: Job[StdSettings], plan: StdPlanRecord) -> probes.EvidenceStage:
        texts = sorted({pair.sentence2 for pair in plan.validation}, key=lambda text: (len(text), text))
        sentences = list(dict.fromkeys(pair.sentence1 for pair in plan.validation))[:_ANCHORS]
        vectors = unit_vectors(job.encoder.encode(sentences))
        anchors = probes.AnchorPanel(vectors, np.zeros(len(vectors), dtype=np.intp), np.ones(1))
        return base.evidence_stage(
            job, texts[: probes.SYMPTOM_CARRIERS], sentences, anchors, plan.mean_similarity
        )

    def texts(self, plan: StdPlanRecord) -> terms.PlanTexts:
        carriers = list(dict.fromkeys(pair.sentence2 for pair in plan.validation))
        known = set(carriers)
        anchors = [pair.sentence1 for pair in plan.validation if pair.sentence1 not in known]
        return terms.PlanTexts(carriers, list(dict.fromkeys(anchors)), by_topic=False)

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
        if result.candidates < 20:  # the quartiles of so few rates say little
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
        if plan.similarity_deviation > 0.05:
            found.append(
                f"similarities in the pair file differ by up to {plan.similarity_deviation:.3f} "
                "from this model's: they may come from another model"
            )
        return found

    def key_facts(self, run: Run) -> list[terms.Fact]:
        return [
            terms.Fact(f"{run.result.candidates:,}", "candidates validated"),
            terms.Fact(f"{run.result.rate_threshold:.3f}", "validation rate that a sticky token exceeds"),
        ]

    def how(self, settings: base.StoredSettings) -> str:
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

    def figures(self, run: Run) -> list[terms.Figure]:
        return [
            terms.Distribution(
                "score-distribution",
                "Sticky scores over the vocabulary",
                _SCORE,
                {"candidates": run.result.score_threshold},
                "The score of the paper's first stage, on a few sentence pairs. Tokens to the right of the "
                "dotted line were validated; the others have no verdict.",
            ),
            terms.Distribution(
                "rate-distribution",
                "Validation rates of the candidates",
                _RATE,
                {"sticky": run.result.rate_threshold},
                "The share of unrelated pairs that a candidate pulls together. Beyond the dotted line, an "
                "outlier rule over the candidates, a token is called sticky.",
            ),
            terms.Scatter(
                "rate-lift",
                "Validation rate against lift",
                _RATE,
                _LIFT,
                "Candidates only. The validation rate counts how many unrelated pairs come together, the "
                "lift how far. This method does not measure contraction.",
            ),
        ]

    def probe_lines(self, probed: Sequence[StdEvidence]) -> list[terms.ProbeTable | str]:
        return [
            terms.ProbeTable(
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
