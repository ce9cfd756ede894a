"""The plan of a run: the pairs for scoring and validation, and how their texts are encoded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stickytoken.data import PairCorpus, SentencePair, Sentences, sample_pairs, select_pairs
from stickytoken.encoders.protocol import Encoder, content_limit, reads_ids, refused_texts
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion
from stickytoken.methods import base, probes
from stickytoken.methods.std._scores import Metric, distances
from stickytoken.settings.std import StdSettings


class StdPlanRecord(base.PlanRecord):
    """The plan of a run: the pairs for scoring tokens and for validating candidates."""

    left_out: int  # Number of sentences or pairs that are too long once the copies are inserted.
    # Largest absolute difference between the similarity of a pair in the corpus file and in this model.
    similarity_deviation: float
    scoring: list[SentencePair]
    validation: list[SentencePair]
    # Texts of the scoring and validation pairs that the model truncates once the copies are inserted.
    truncated: tuple[str, ...] = ()


def truncates(encoder: Encoder, insertion: Insertion) -> bool:
    """Return whether texts that are too long are truncated, as in the published runs, rather than left out.

    If copies are inserted as token ids, long texts are left out, because the model must read all copies. Long
    texts are also left out if a server or a user's function encodes the texts, because only token ids can be
    truncated here.
    """
    return insertion is not Insertion.IDS and reads_ids(encoder)


def encode_texts(encoder: Encoder, texts: Sequence[str], insertion: Insertion) -> NDArray[np.float32]:
    """Encode texts. If `truncates` returns true, the texts are first truncated to the model's limit."""
    if not truncates(encoder, insertion) or not reads_ids(encoder):
        return encoder.encode(texts)
    limit = content_limit(encoder)
    return encoder.encode_ids([ids[:limit] for ids in encoder.content_ids(texts)])


def make_plan(
    encoder: Encoder, settings: StdSettings, corpus: Sentences | PairCorpus, runner: base.Runner
) -> StdPlanRecord:
    """Choose pairs for scoring and validation (step 1 of Chen and others, 2025), and return the plan."""
    # Before the slow steps, run the checks that may fail.
    probes.require_insertion(encoder, settings.inserted_as)
    room = probes.room_for(encoder, settings.inserted_as, settings.copies)
    sentences, pairs, left_out = _usable_texts(encoder, settings, corpus, room)
    mean = base.model_mean(encoder, runner)
    if not pairs:
        # The corpus consists of single sentences: combine them into random pairs.
        vectors = encode_texts(encoder, sentences, settings.inserted_as)
        pairs = sample_pairs(sentences, vectors, settings.pair_count)
    scoring = select_pairs(pairs, mean.value, settings.scoring_pairs)
    if len(scoring) < settings.scoring_pairs:
        raise InputError(
            f"only {len(scoring)} sentence pairs have a similarity below the model's mean {mean.value:.4f}, "
            f"but scoring needs {settings.scoring_pairs}: use more sentences, or fewer scoring pairs"
        )
    validation = select_pairs(pairs, mean.value, settings.validation_pairs)
    used = [*scoring, *validation]
    # A file of pairs also contains similarities, which may differ slightly from the similarities in this
    # model.
    given_similarities = np.array([pair.similarity for pair in used])
    anchor_vectors, carrier_vectors = pair_vectors(encoder, used, settings.inserted_as)
    measured_similarities = 1 - distances(anchor_vectors, carrier_vectors)[Metric.COSINE]
    carriers = [pair.sentence2 for pair in used]
    anchors = [pair.sentence1 for pair in used]
    # Copies are inserted only into the carriers, so the anchors need no room.
    all_fitting = fitting(encoder, carriers, room) | fitting(encoder, anchors, 0)
    return StdPlanRecord(
        mean_similarity=mean.value,
        mean_similarity_entries=mean.entries,
        mean_similarity_error=mean.error,
        left_out=left_out,
        similarity_deviation=float(np.abs(measured_similarities - given_similarities).max()),
        scoring=scoring,
        validation=validation,
        truncated=tuple(sorted({*carriers, *anchors} - all_fitting)),
    )


def _usable_texts(
    encoder: Encoder, settings: StdSettings, corpus: Sentences | PairCorpus, room: int
) -> tuple[list[str], list[SentencePair], int]:
    """Return the usable sentences, the usable pairs, and how many sentences or pairs were left out.

    A text is usable if the model reads it in full. If long texts are truncated (see `truncates`), all texts
    are usable. A corpus has either sentences or pairs, so one of the lists is empty. ``room`` is the number
    of tokens to reserve for copies.
    """
    all_are_usable = truncates(encoder, settings.inserted_as)
    sentences: list[str] = []
    pairs: list[SentencePair] = []
    if isinstance(corpus, Sentences):
        sampled = corpus.sample(settings.sentence_count, settings.seed)
        usable = set(sampled) if all_are_usable else fitting(encoder, sampled, room)
        sentences = [text for text in sampled if text in usable]
        left_out = len(sampled) - len(sentences)
    elif all_are_usable:
        pairs = list(corpus.pairs)
        left_out = 0
    else:
        # Copies are inserted only into sentence2, so sentence1 needs no room.
        carriers = fitting(encoder, [pair.sentence2 for pair in corpus.pairs], room)
        anchors = fitting(encoder, [pair.sentence1 for pair in corpus.pairs], 0)
        pairs = [pair for pair in corpus.pairs if pair.sentence2 in carriers and pair.sentence1 in anchors]
        left_out = len(corpus.pairs) - len(pairs)
    if not sentences and not pairs:
        raise InputError(
            f"every sentence of {corpus.source} is too long for {encoder.name}, which reads at "
            f"most {encoder.max_length} tokens: use shorter sentences"
        )
    return sentences, pairs, left_out


def fitting(encoder: Encoder, texts: Sequence[str], room: int) -> set[str]:
    """Return the texts that the model still reads in full if ``room`` tokens are added to them.

    Texts that a server refused to embed are left out.
    """
    distinct = list(dict.fromkeys(texts))
    tokenized = zip(distinct, encoder.content_ids(distinct), strict=True)
    refused = refused_texts(encoder)
    return {text for text, ids in tokenized if probes.has_room(encoder, ids, room) and text not in refused}


def pair_vectors(
    encoder: Encoder, pairs: Sequence[SentencePair], insertion: Insertion
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the vectors of the anchors (sentence1) and of the carriers without copies (sentence2)."""
    first = [pair.sentence1 for pair in pairs]
    second = [pair.sentence2 for pair in pairs]
    return encode_texts(encoder, first, insertion), encode_texts(encoder, second, insertion)
