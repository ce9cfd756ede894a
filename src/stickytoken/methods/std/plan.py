"""Plan a run: which pairs to score and to validate on, and how their texts are encoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.data import PairCorpus, SentencePair, Sentences, sample_pairs, select_pairs
from stickytoken.encoders.protocol import Encoder, content_limit, reads_ids, refused_texts
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion
from stickytoken.methods import probes
from stickytoken.methods.base import Job
from stickytoken.methods.runner import Runner
from stickytoken.methods.std._scores import Metric, distances
from stickytoken.methods.std.mean_similarity import measure_mean_similarity
from stickytoken.methods.std.records import StdPlanRecord
from stickytoken.settings.std import StdSettings


def truncates(encoder: Encoder, insertion: Insertion) -> bool:
    """Return whether texts that are too long are truncated, as in the published runs, rather than left out.

    They are left out in two cases. Copies that are inserted as token ids must all be read, so no text may
    lose its end. And for a server or a user's function, texts can't be truncated: that takes token ids.
    """
    return insertion is not Insertion.IDS and reads_ids(encoder)


def encode_texts(encoder: Encoder, texts: Sequence[str], insertion: Insertion) -> NDArray[np.float32]:
    """Return the vectors of texts, shape (texts, d).

    Too long texts are truncated if texts with copies are truncated too (see `truncates`).
    """
    # `truncates` calls `reads_ids`; the second call tells the type checker that the encoder reads ids.
    if not truncates(encoder, insertion) or not reads_ids(encoder):
        return encoder.encode(texts)
    limit = content_limit(encoder)
    return encoder.encode_ids([ids[:limit] for ids in encoder.content_ids(texts)])


def make_plan(job: Job[StdSettings], runner: Runner) -> StdPlanRecord:
    """Choose pairs for scoring and validation (step 1 of Chen et al. 2025), and return the plan.

    Copies go into the second sentence of a pair, the carrier; the first is the anchor.
    """
    encoder = job.encoder
    settings = job.settings
    # The checks that may fail come before the slow steps.
    probes.require_insertion(encoder, settings.inserted_as)
    room = probes.room_for(encoder, settings.inserted_as, settings.copies)  # tokens kept free for copies
    usable = _find_usable_texts(encoder, settings, job.corpus, room)
    mean = measure_mean_similarity(encoder, runner)  # over pairs of vocabulary entries
    pairs = usable.pairs
    if not pairs:
        # The corpus consists of single sentences: combine them into random pairs.
        vectors = encode_texts(encoder, usable.sentences, settings.inserted_as)
        pairs = sample_pairs(usable.sentences, vectors, settings.pair_count)
    # Both selections are spread over the pairs below the mean similarity, which count as unrelated, and may
    # share pairs. Scoring needs all of its pairs; validation takes as many as there are.
    scoring = select_pairs(pairs, mean.value, settings.scoring_pairs)
    validation = select_pairs(pairs, mean.value, settings.validation_pairs)
    if len(scoring) < settings.scoring_pairs:
        raise InputError(
            f"only {len(scoring)} sentence pairs have a similarity below the model's mean {mean.value:.4f}, "
            f"but scoring needs {settings.scoring_pairs}: use more sentences, or fewer scoring pairs"
        )
    used = [*scoring, *validation]
    anchors = [pair.sentence1 for pair in used]
    carriers = [pair.sentence2 for pair in used]
    fitting = find_fitting(encoder, carriers, room) | find_fitting(encoder, anchors, room=0)
    return StdPlanRecord(
        mean_similarity=mean.value,
        mean_similarity_entries=mean.entry_count,
        left_out=usable.left_out,
        similarity_deviation=_compare_similarities(encoder, used, settings.inserted_as),
        scoring=scoring,
        validation=validation,
        truncated=tuple(sorted({*carriers, *anchors} - fitting)),
    )


def _compare_similarities(encoder: Encoder, pairs: Sequence[SentencePair], insertion: Insertion) -> float:
    """Return the largest absolute difference between the similarity that a pair has and that in this model.

    The similarities in a file of pairs may have been computed with another model.
    """
    anchor_vectors, carrier_vectors = encode_pairs(encoder, pairs, insertion)
    measured_similarities = 1 - distances(anchor_vectors, carrier_vectors)[Metric.COSINE]
    given_similarities = np.array([pair.similarity for pair in pairs])
    return float(np.abs(measured_similarities - given_similarities).max())


class _UsableTexts(NamedTuple):
    """The usable texts of a corpus. A corpus has either sentences or pairs, so one of the lists is empty."""

    sentences: list[str]
    pairs: list[SentencePair]
    left_out: int  # number of sentences or pairs that cannot be used


def _find_usable_texts(
    encoder: Encoder, settings: StdSettings, corpus: Sentences | PairCorpus, room: int
) -> _UsableTexts:
    """Return the texts of a corpus that the model reads in full with ``room`` more tokens, for copies.

    If long texts are truncated (see `truncates`), all texts are usable. Of a corpus of sentences, only a
    sample is considered.
    """
    all_are_usable = truncates(encoder, settings.inserted_as)
    sentences: list[str] = []
    pairs: list[SentencePair] = []
    if isinstance(corpus, Sentences):
        sampled = corpus.sample(settings.sentence_count, settings.seed)
        usable = set(sampled) if all_are_usable else find_fitting(encoder, sampled, room)
        sentences = [text for text in sampled if text in usable]
        left_out = len(sampled) - len(sentences)
    elif all_are_usable:
        pairs = list(corpus.pairs)
        left_out = 0
    else:
        # Copies are inserted only into sentence2, so sentence1 needs no room.
        carriers = find_fitting(encoder, [pair.sentence2 for pair in corpus.pairs], room)
        anchors = find_fitting(encoder, [pair.sentence1 for pair in corpus.pairs], room=0)
        pairs = [pair for pair in corpus.pairs if pair.sentence2 in carriers and pair.sentence1 in anchors]
        left_out = len(corpus.pairs) - len(pairs)
    if not sentences and not pairs:
        raise InputError(
            f"every sentence of {corpus.source} is too long for {encoder.name}, which reads at "
            f"most {encoder.max_length} tokens: use shorter sentences"
        )
    return _UsableTexts(sentences, pairs, left_out)


def find_fitting(encoder: Encoder, texts: Sequence[str], room: int) -> set[str]:
    """Return the texts that the model still reads in full if ``room`` tokens are added to them.

    Texts that a server refused to embed are left out.
    """
    distinct = list(dict.fromkeys(texts))
    ids_of_texts = encoder.content_ids(distinct)
    refused = refused_texts(encoder)
    fitting = set()
    for text, ids in zip(distinct, ids_of_texts, strict=True):
        if probes.has_room(encoder, ids, room) and text not in refused:
            fitting.add(text)
    return fitting


def encode_pairs(
    encoder: Encoder, pairs: Sequence[SentencePair], insertion: Insertion
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the vectors of the anchors and of the carriers without copies, each of shape (pairs, d).

    The anchor of a pair is sentence1, and the carrier is sentence2.
    """
    anchors = [pair.sentence1 for pair in pairs]
    carriers = [pair.sentence2 for pair in pairs]
    return encode_texts(encoder, anchors, insertion), encode_texts(encoder, carriers, insertion)
