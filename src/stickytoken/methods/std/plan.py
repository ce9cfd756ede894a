"""Plan the paper's method: the mean similarity, the pairs, then the two stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stickytoken.corpora import Sentences
from stickytoken.corpora.choice import PairCorpus
from stickytoken.corpora.pairs import SentencePair, sample_pairs, select_pairs
from stickytoken.encoders.protocol import Encoder, require_ids
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Token
from stickytoken.measurement.progress import ProgressCallback
from stickytoken.methods._model_mean import model_mean
from stickytoken.methods.probes import (
    Carrier,
    KeyedPaths,
    PathSource,
    ProbeGrid,
    walk_vocabulary,
    word_count,
)
from stickytoken.methods.std._distances import Metric, distances
from stickytoken.methods.std.record import PairRecord, StdPlanRecord
from stickytoken.methods.std.settings import StdSettings
from stickytoken.methods.std.stages import PLACEMENTS, PairProbes, ScoringStage, ValidationStage

_VALIDATION_KEY = 1
_TOKENS_PER_TEXT_COPY = 8


def make_plan(
    encoder: Encoder, settings: StdSettings, corpus: Sentences | PairCorpus, progress: ProgressCallback
) -> StdPlanRecord:
    """Compute u, sample pairs unless they are given, and choose scoring and validation pairs.

    Raises:
        InputError: too few sentences, or too few pairs below u.
    """
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
    """Leave out texts that the model would truncate with the copies in.

    A suffix that is cut off measures nothing. The count goes into the plan.
    """
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
    """Find the texts that leave room for the copies; a copy joined as text may become several tokens.

    Without settings there are no copies.
    """
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
