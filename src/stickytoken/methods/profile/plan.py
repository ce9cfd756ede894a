"""Plan the profile method: anchors, carriers of each round, reference tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.corpora import Sentences
from stickytoken.corpora.corpus import open_ended
from stickytoken.encoders.mean_similarity import mean_similarity
from stickytoken.encoders.protocol import Encoder, require_ids
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Token
from stickytoken.measurement.progress import Progress, ProgressCallback
from stickytoken.methods.panel import AnchorPanel, balanced, group_weights, unit_vectors
from stickytoken.methods.profile.clusters import cluster
from stickytoken.methods.profile.record import (
    ProfilePlanRecord,
    SentenceAnchorRecord,
    VocabularyAnchorRecord,
)
from stickytoken.methods.profile.rounds import LATE_REFERENCE, Round, cells, probes_in
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.profile.stage import ProfileStage

_LEAST_ANCHORS = 40
# Number of carriers in the first round at the smallest budget.
_LEAST_SCREENING = 2
# From a large corpus, draw this many times as many sentences as are needed.
_SENTENCE_POOL = 20
# Carriers come from this many times as many of the shortest sentences.
_CARRIER_POOL = 1.5
_TOKENS_PER_TEXT_COPY = 8
# Smallest share of the anchors that must lie below the mean similarity for each carrier.
_LEAST_BELOW = 0.02
_NO_SPREAD = 1e-5
# Keys of the generators, which make the draws independent.
_CARRIERS, _VOCABULARY, _REFERENCE = range(3)


def make_profile_plan(
    encoder: Encoder,
    settings: ProfileSettings,
    corpus: Sentences,
    vocabulary: Sequence[Token],
    progress: ProgressCallback,
) -> ProfilePlanRecord:
    """Compute u; draw reference tokens, and anchors and carriers that share no sentence.

    Raises:
        InputError: there are too few sentences, or the model does not tell them apart.
    """
    _require_capable(encoder, settings)  # before the long work, as the next line: it may fail
    split = _split(encoder, settings, corpus)
    vectors = unit_vectors(encoder.encode([corpus.texts[k] for k in split.anchors]))
    sentence_groups, names = _sentence_groups(settings, corpus, split.anchors, vectors)
    entries = _vocabulary_anchors(encoder, settings, vocabulary)
    u = mean_similarity(
        encoder, lambda done, total: progress(Progress("mean similarity", done, total, done, done))
    )
    vocabulary_groups = cluster(entries.vectors, settings.topics, settings.seed)
    panel = _panel(
        np.vstack([vectors, entries.vectors]), sentence_groups, vocabulary_groups, settings.vocabulary_share
    )
    carriers = _carriers(encoder, settings, corpus, split.carriers, panel, u.value)
    before = carriers.vectors @ panel.vectors.T
    drawn = np.random.default_rng([settings.seed, _REFERENCE]).permutation([token.id for token in vocabulary])
    return ProfilePlanRecord(
        mean_similarity=u.value,
        mean_similarity_entries=u.entries,
        similarity_spread=_spread(before, panel),
        share_below=float(((before < u.value) @ panel.weights).mean()),
        left_out=split.left_out,
        groups=[*names, *(f"vocabulary {group}" for group in range(max(vocabulary_groups, default=-1) + 1))],
        sentence_anchors=[
            SentenceAnchorRecord(text=corpus.texts[k], group=int(group))
            for k, group in zip(split.anchors, sentence_groups, strict=True)
        ],
        vocabulary_anchors=[
            VocabularyAnchorRecord(token_id=token.id, group=int(group))
            for token, group in zip(entries.tokens, vocabulary_groups, strict=True)
        ],
        carriers=_by_round(settings, carriers.texts),
        reference=sorted(int(token_id) for token_id in drawn[: settings.reference]),
        late_reference=sorted(int(token_id) for token_id in drawn[: min(settings.reference, LATE_REFERENCE)]),
    )


def anchor_panel(
    encoder: Encoder, settings: ProfileSettings, plan: ProfilePlanRecord, vocabulary: Sequence[Token]
) -> AnchorPanel:
    """Encode the anchors of a plan."""
    texts = {token.id: token.text for token in vocabulary}
    anchors = [
        *(anchor.text for anchor in plan.sentence_anchors),
        *(texts[anchor.token_id] for anchor in plan.vocabulary_anchors),
    ]
    return _panel(
        unit_vectors(encoder.encode(anchors)),
        np.array([anchor.group for anchor in plan.sentence_anchors], dtype=np.intp),
        np.array([anchor.group for anchor in plan.vocabulary_anchors], dtype=np.intp),
        settings.vocabulary_share,
    )


def round_stage(
    encoder: Encoder, settings: ProfileSettings, plan: ProfilePlanRecord, panel: AnchorPanel, step: Round
) -> ProfileStage:
    """Build the stage of one round."""
    texts = plan.carriers[step]
    precision = None if step is Round.CONFIRM else settings.screen_precision
    by_ids = settings.insertion is Insertion.IDS
    lower = encoder if precision is None else require_ids(encoder, f"screening in {precision}").at(precision)
    return ProfileStage(
        name=step.value,
        carriers=tuple(
            require_ids(encoder, "insertion 'ids'", "set insertion to 'text'").tokenize(texts)
            if by_ids
            else texts
        ),
        cells=tuple(cells(settings, len(texts))),
        panel=panel.against(unit_vectors(lower.encode(texts)), plan.mean_similarity),
        seed=settings.seed,
        alone=step is Round.SCREEN,
        precision=precision,
    )


def _require_capable(encoder: Encoder, settings: ProfileSettings) -> None:
    if settings.insertion is Insertion.IDS:
        require_ids(encoder, "insertion 'ids'", "set insertion to 'text'")
    if settings.screen_precision is not None:
        # Built here: it takes seconds, and may be refused.
        require_ids(encoder, f"screening in {settings.screen_precision}").at(settings.screen_precision)


class _Split(NamedTuple):
    """Indices of the sentences that may be carriers and of the anchors; the number that were too long."""

    carriers: list[int]
    anchors: list[int]
    left_out: int


def _split(encoder: Encoder, settings: ProfileSettings, corpus: Sentences) -> _Split:
    probes = probes_in(settings)
    needed = sum(probes.values())
    order = np.random.default_rng([settings.seed, _CARRIERS]).permutation(len(corpus))
    drawn = order[: _SENTENCE_POOL * (needed + settings.anchors)].tolist()
    tokenized = encoder.content_ids([corpus.texts[k] for k in drawn])
    lengths = {k: len(ids) for k, ids in zip(drawn, tokenized, strict=True) if encoder.fits(ids)}
    if len(lengths) < needed + _LEAST_ANCHORS:
        least = needed - probes[Round.SCREEN] + _LEAST_SCREENING + _LEAST_ANCHORS
        raise InputError(
            f"{corpus.source} has {len(lengths)} sentences that {encoder.name} reads whole; "
            f"{needed} carriers and at least {_LEAST_ANCHORS} anchors are needed: use more sentences"
            + (", or a smaller budget" if len(lengths) >= least else "")
        )
    carriers = _short_sentences(encoder, settings, corpus, lengths, needed)
    rest = [k for k in lengths if k not in carriers]
    topics = corpus.topics or ("",) * len(corpus)
    anchors = [rest[k] for k in balanced([topics[k] for k in rest], settings.anchors, settings.seed)]
    return _Split([k for k in lengths if k in carriers], sorted(anchors), len(drawn) - len(lengths))


def _short_sentences(
    encoder: Encoder, settings: ProfileSettings, corpus: Sentences, lengths: dict[int, int], needed: int
) -> set[int]:
    """Choose the shortest sentences that leave room for the copies, more than are needed."""
    copies = max(settings.copies) * (1 if settings.insertion is Insertion.IDS else _TOKENS_PER_TEXT_COPY)
    limit = encoder.max_length
    room = copies if limit is None else min(copies, limit // 2)
    unlike = {open_ended(corpus.texts[k]): k for k in reversed(lengths)}
    shortest = sorted(unlike.values(), key=lambda k: lengths[k])
    size = max(needed, min(int(_CARRIER_POOL * needed), len(shortest) - _LEAST_ANCHORS))
    found = {k for k in shortest[:size] if encoder.fits((0,) * (lengths[k] + room))}
    if len(found) < needed:
        room_in = "" if limit is None else f" in the {limit} tokens that {encoder.name} reads"
        raise InputError(
            f"only {len(found)} sentences of {corpus.source} differ in more than their punctuation and leave "
            f"room for the copies{room_in}, {needed} are needed: use more or shorter sentences"
        )
    return found


def _sentence_groups(
    settings: ProfileSettings, corpus: Sentences, anchors: Sequence[int], vectors: NDArray[np.float32]
) -> tuple[NDArray[np.intp], list[str]]:
    """Group anchors by the topics of the corpus, or else by clusters; also name the groups."""
    if corpus.topics is not None:
        names, groups = np.unique([corpus.topics[k] for k in anchors], return_inverse=True)
        return groups, [str(name) for name in names]
    groups = cluster(vectors, settings.topics, settings.seed)
    return groups, [f"cluster {group}" for group in range(int(groups.max()) + 1)]


class _Entries(NamedTuple):
    tokens: list[Token]
    vectors: NDArray[np.float32]


def _vocabulary_anchors(encoder: Encoder, settings: ProfileSettings, vocabulary: Sequence[Token]) -> _Entries:
    """Draw available tokens that have a vector as texts of their own."""
    count = settings.vocabulary_anchors if settings.vocabulary_share > 0 else 0
    order = np.random.default_rng([settings.seed, _VOCABULARY]).permutation(len(vocabulary))
    drawn = [vocabulary[k] for k in order[: 2 * count]]
    nothing, *tokenized = encoder.content_ids(["", *(token.text for token in drawn)])
    usable = [
        token for token, ids in zip(drawn, tokenized, strict=True) if ids != nothing and encoder.fits(ids)
    ][:count]
    usable = sorted(usable, key=lambda token: token.id)
    if not usable:
        return _Entries([], np.empty((0, encoder.dimension), np.float32))
    return _Entries(usable, unit_vectors(encoder.encode([token.text for token in usable])))


def _panel(
    vectors: NDArray[np.float32],
    sentence_groups: NDArray[np.intp],
    vocabulary_groups: NDArray[np.intp],
    vocabulary_share: float,
) -> AnchorPanel:
    sentences = int(sentence_groups.max()) + 1
    entries = int(vocabulary_groups.max(initial=-1)) + 1
    groups = np.concatenate([sentence_groups, vocabulary_groups + sentences])
    return AnchorPanel(vectors, groups, group_weights(sentences, entries, vocabulary_share), sentences)


class _Carriers(NamedTuple):
    texts: list[str]
    vectors: NDArray[np.float32]


def _carriers(
    encoder: Encoder,
    settings: ProfileSettings,
    corpus: Sentences,
    pool: Sequence[int],
    panel: AnchorPanel,
    mean_similarity_value: float,
) -> _Carriers:
    """Choose the first carriers of the pool that have enough unrelated anchors."""
    needed = sum(probes_in(settings).values())
    texts = [open_ended(corpus.texts[k]) for k in pool]
    vectors = unit_vectors(encoder.encode(texts))
    before = vectors @ panel.vectors.T
    if before.std() < _NO_SPREAD:
        raise InputError(
            f"{encoder.name} gives all sentences of {corpus.source} the same similarity "
            f"({before.mean():.4f}): there is nothing that a token could move"
        )
    usable = np.flatnonzero((before < mean_similarity_value) @ panel.weights >= _LEAST_BELOW)[:needed]
    if len(usable) < needed:
        raise InputError(
            f"only {len(usable)} of {len(pool)} carriers from {corpus.source} have a similarity below the "
            f"model's mean {mean_similarity_value:.4f} to some anchors, {needed} are needed: "
            "use sentences on more varied subjects"
        )
    return _Carriers([texts[k] for k in usable], vectors[usable])


def _by_round(settings: ProfileSettings, texts: Sequence[str]) -> dict[str, list[str]]:
    found, start = {}, 0
    for step, count in probes_in(settings).items():
        found[step.value] = list(texts[start : start + count])
        start += count
    return found


def _spread(before: NDArray[np.float32], panel: AnchorPanel) -> float:
    mean = float((before @ panel.weights).mean())
    return float(np.sqrt((((before - mean) ** 2) @ panel.weights).mean()))
