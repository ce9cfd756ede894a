"""Plan the paper's method: the mean similarity, the pairs, then the two stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from stickytoken.corpora import Sentences
from stickytoken.corpora.choice import PairCorpus
from stickytoken.corpora.pairs import SentencePair, sample_pairs, select_pairs
from stickytoken.encoders.protocol import Encoder, require_ids
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Token
from stickytoken.measurement.engine import compute_shard
from stickytoken.measurement.resume import Record
from stickytoken.measurement.stage import Progress, ProgressCallback, Shard
from stickytoken.methods.job import Job, model_mean
from stickytoken.methods.probes import Carrier, KeyedPaths, PathSource, ProbeGrid, walk_vocabulary, word_count
from stickytoken.methods.records import PlanRecord, ResultRecord
from stickytoken.methods.std.formulas import (
    PLACEMENTS,
    Metric,
    PairProbes,
    ScoringStage,
    ValidationStage,
    distances,
)
from stickytoken.methods.std.settings import StdSettings


class PairRecord(Record):
    """A sentence pair: the anchor, the carrier and their similarity."""

    sentence1: str
    sentence2: str
    similarity: float


class StdPlanRecord(PlanRecord):
    """plan.json of the paper's method."""

    left_out: int = Field(description="sentences or given pairs too long for the model with the copies in")
    similarity_deviation: float = Field(
        description="largest difference between a pair's recorded similarity and the model's own"
    )
    scoring: list[PairRecord]
    validation: list[PairRecord]


class StdResultRecord(ResultRecord):
    """Result of a finished run of the paper's method."""

    scored: int
    candidates: int
    score_threshold: float = Field(description="score that candidates reach")
    rate_threshold: float = Field(description="validation rate that sticky tokens exceed")


_VALIDATION_KEY = 1
_TOKENS_PER_TEXT_COPY = 8


def make_plan(
    encoder: Encoder, settings: StdSettings, corpus: Sentences | PairCorpus, progress: ProgressCallback
) -> StdPlanRecord:
    """Compute u, sample pairs unless they are given, and choose scoring and validation pairs."""
    if settings.insertion is Insertion.IDS:  # before the long work, as the next line: it may fail
        require_ids(encoder, "insertion 'ids'", "set insertion to 'text'")
    candidates = _candidates(encoder, settings, corpus)
    u = model_mean(encoder, progress)
    pairs = candidates.pairs or sample_pairs(
        candidates.sentences, encoder.encode(candidates.sentences), settings.pairs
    )
    scoring = select_pairs(pairs, u.value, settings.scoring_pairs)
    if len(scoring) < settings.scoring_pairs:
        raise InputError(
            f"only {len(scoring)} sentence pairs have a similarity below the model's mean {u.value:.4f}, "
            f"scoring needs {settings.scoring_pairs}: use more sentences, or fewer scoring pairs"
        )
    validation = select_pairs(pairs, u.value, settings.validation_pairs)
    return StdPlanRecord(
        mean_similarity=u.value,
        mean_similarity_entries=u.entries,
        mean_similarity_error=u.error,
        left_out=candidates.left_out,
        similarity_deviation=_similarity_deviation(encoder, [*scoring, *validation]),
        scoring=_records(scoring),
        validation=_records(validation),
    )


class _Candidates(NamedTuple):
    """Sentences to pair, or pairs to choose from, that fit the model; the number that did not."""

    sentences: list[str]
    pairs: list[SentencePair]
    left_out: int


def _candidates(encoder: Encoder, settings: StdSettings, corpus: Sentences | PairCorpus) -> _Candidates:
    """Leave out texts that the model would truncate with the copies in."""
    if isinstance(corpus, Sentences):
        sampled = corpus.sample(settings.sentences, settings.seed)
        fitting = _fitting(encoder, settings, sampled)
        sentences = [text for text in sampled if text in fitting]
        found = _Candidates(sentences, [], len(sampled) - len(sentences))
    else:
        carriers = _fitting(encoder, settings, [pair.sentence2 for pair in corpus.pairs])
        anchors = _fitting(encoder, None, [pair.sentence1 for pair in corpus.pairs])
        pairs = [pair for pair in corpus.pairs if pair.sentence2 in carriers and pair.sentence1 in anchors]
        found = _Candidates([], pairs, len(corpus.pairs) - len(pairs))
    if not found.sentences and not found.pairs:
        raise InputError(
            f"every sentence of {corpus.source} is longer than {encoder.name} reads "
            f"({encoder.max_length} tokens): use shorter sentences"
        )
    return found


def _fitting(encoder: Encoder, settings: StdSettings | None, texts: Sequence[str]) -> set[str]:
    """Find the texts that leave room for the copies; a copy joined as text may become several tokens."""
    copies = 0 if settings is None else settings.copies
    room = copies if settings and settings.insertion is Insertion.IDS else copies * _TOKENS_PER_TEXT_COPY
    if encoder.max_length is not None:
        room = min(room, encoder.max_length // 2)
    padding = [0] * room
    distinct = list(dict.fromkeys(texts))
    return {
        text
        for text, ids in zip(distinct, encoder.content_ids(distinct), strict=True)
        if encoder.fits(ids + padding)
    }


def scoring_stage(
    encoder: Encoder,
    settings: StdSettings,
    plan: StdPlanRecord,
    vocabulary: Sequence[Token],
    tokens: Sequence[Token],
) -> ScoringStage:
    """Build the stage that scores tokens; random placement replays the published stream."""
    carriers = _carriers(encoder, settings, plan.scoring)
    words = [word_count(carrier) for carrier in carriers]
    paths = walk_vocabulary(settings.seed, vocabulary, tokens, words, settings.copies, settings.insertion)
    return ScoringStage(_pair_probes(encoder, settings, plan.scoring, carriers, paths), settings)


def validation_stage(encoder: Encoder, settings: StdSettings, plan: StdPlanRecord) -> ValidationStage:
    """Build the stage that validates candidates."""
    carriers = _carriers(encoder, settings, plan.validation)
    words = tuple(word_count(carrier) for carrier in carriers)
    paths = KeyedPaths(settings.seed, _VALIDATION_KEY, words, settings.copies, settings.insertion)
    return ValidationStage(_pair_probes(encoder, settings, plan.validation, carriers, paths), settings)


def _similarity_deviation(encoder: Encoder, pairs: Sequence[SentencePair]) -> float:
    """Find the largest difference between the pairs' similarity and the model's own."""
    first = encoder.encode([pair.sentence1 for pair in pairs])
    second = encoder.encode([pair.sentence2 for pair in pairs])
    given = np.array([pair.similarity for pair in pairs])
    return float(np.abs(1 - distances(first, second)[Metric.COSINE] - given).max())


def _carriers(encoder: Encoder, settings: StdSettings, pairs: Sequence[PairRecord]) -> tuple[Carrier, ...]:
    texts = [pair.sentence2 for pair in pairs]
    if settings.insertion is Insertion.IDS:
        return tuple(require_ids(encoder, "insertion 'ids'", "set insertion to 'text'").tokenize(texts))
    return tuple(texts)


def _pair_probes(
    encoder: Encoder,
    settings: StdSettings,
    pairs: Sequence[PairRecord],
    carriers: tuple[Carrier, ...],
    paths: PathSource,
) -> PairProbes:
    return PairProbes(
        grid=ProbeGrid(carriers, PLACEMENTS, settings.copies, paths),
        anchors=encoder.encode([pair.sentence1 for pair in pairs]),
        carriers=encoder.encode([pair.sentence2 for pair in pairs]),
    )


def _records(pairs: Sequence[SentencePair]) -> list[PairRecord]:
    return [
        PairRecord(sentence1=pair.sentence1, sentence2=pair.sentence2, similarity=pair.similarity)
        for pair in pairs
    ]


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
    """Validate tokens one by one on the validation pairs of a run with these settings."""
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
