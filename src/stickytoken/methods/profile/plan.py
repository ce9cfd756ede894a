"""Plan the profile method: anchors, carriers, reference tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from stickytoken.corpora import Sentences
from stickytoken.encoders.mean_similarity import MeanSimilarity
from stickytoken.encoders.protocol import Encoder, require_ids
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Token
from stickytoken.measurement.progress import ProgressCallback
from stickytoken.methods._model_mean import model_mean
from stickytoken.methods.panel import AnchorPanel, unit_vectors
from stickytoken.methods.profile.anchors import (
    WORDS,
    Anchors,
    TextGroup,
    choose_anchors,
    clustered,
    sources,
    vocabulary_anchors,
)
from stickytoken.methods.profile.carriers import short_texts
from stickytoken.methods.profile.record import AnchorGroupRecord, AnchorRecord, ProfilePlanRecord
from stickytoken.methods.profile.rounds import LATE_REFERENCE, Round, carriers_needed, cells
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.profile.stage import ProfileStage

_LEAST_ANCHORS = 40
# Smallest share of the anchors that must lie below the mean similarity for each carrier.
_LEAST_BELOW = 0.02
_NO_SPREAD = 1e-5
_REFERENCE = 2  # key of the generator
# A vocabulary above the first size has u estimated from as many entries as the second: with an error of
# some 0.002 it shifts the limit below which pairs count, where similarities spread by 0.05 and more.
_ALL_ENTRIES, _SAMPLED_ENTRIES = 2**16, 2**13


def make_profile_plan(
    encoder: Encoder,
    settings: ProfileSettings,
    corpus: Sentences,
    vocabulary: Sequence[Token],
    progress: ProgressCallback,
    *,
    unused: Callable[[str], bool] | None = None,
    similarity: MeanSimilarity | None = None,
) -> ProfilePlanRecord:
    """Compute u; draw reference tokens, and anchors and carriers that share no sentence.

    Args:
        encoder: the model.
        settings: settings of the method.
        corpus: sentences.
        vocabulary: available tokens.
        progress: called after every step.
        unused: whether a text may be used; None allows all.
        similarity: u, if it is known.

    Raises:
        InputError: there are too few sentences, or the model does not tell them apart.
    """
    _require_capable(encoder, settings)  # before the long work, as the next lines: they may fail
    found = sources(encoder, corpus)
    if unused is not None:
        found = found.chosen(unused)
    carriers = short_texts(encoder, settings, found.own, carriers_needed(settings), corpus.source)
    anchors = choose_anchors(encoder, settings, found, set(carriers.values()))
    _require_anchors(anchors, corpus, settings)
    if len(anchors.chosen) == 1:  # no kinds that the model reads, and no topics
        anchors = anchors._replace(chosen=clustered(encoder, settings, anchors.chosen[0]))
    words = vocabulary_anchors(encoder, settings, vocabulary)
    groups = [*anchors.chosen, *([WORDS] if words else [])]
    vectors = unit_vectors(encoder.encode([*anchors.texts, *(word.text for word in words)]))
    places = np.concatenate([anchors.places, np.full(len(words), len(groups) - 1, dtype=np.intp)])
    panel = AnchorPanel(vectors, places, np.array([group.weight for group in groups]))
    u = similarity or model_mean(encoder, progress, _sampled_entries(encoder))
    chosen, before = usable_carriers(
        encoder, list(carriers), panel, u.value, carriers_needed(settings), corpus.source
    )
    drawn = np.random.default_rng([settings.seed, _REFERENCE]).permutation([token.id for token in vocabulary])
    return ProfilePlanRecord(
        mean_similarity=u.value,
        mean_similarity_entries=u.entries,
        mean_similarity_error=u.error,
        similarity_spread=spread_of(before, panel.weights),
        share_below=float(((before < u.value) @ panel.weights).mean()),
        left_out=anchors.left_out,
        groups=[_described(group, before[:, places == k]) for k, group in enumerate(groups)],
        anchors=[
            AnchorRecord(text=text, group=int(group))
            for text, group in zip(anchors.texts, anchors.places, strict=True)
        ],
        vocabulary_anchors=[word.id for word in words],
        carriers=chosen,
        reference=sorted(int(token_id) for token_id in drawn[: settings.reference]),
        call_noise=float(getattr(encoder, "noise", 0.0)),
        late_reference=sorted(int(token_id) for token_id in drawn[: min(settings.reference, LATE_REFERENCE)]),
    )


def round_stage(
    encoder: Encoder,
    settings: ProfileSettings,
    plan: ProfilePlanRecord,
    panel: AnchorPanel,
    step: Round,
    places: Sequence[int],
    name: str = "",
) -> ProfileStage:
    """Build the stage of one round.

    Args:
        encoder: the model.
        settings: settings of the method.
        plan: plan of the run.
        panel: the anchors.
        step: the round.
        places: places of its carriers in the plan.
        name: of the stage, if not that of the round.
    """
    texts = [plan.carriers[place] for place in places]
    precision = settings.screen_precision if step is Round.SCREEN else None
    by_ids = settings.insertion is Insertion.IDS
    lower = encoder if precision is None else require_ids(encoder, f"screening in {precision}").at(precision)
    every = cells(settings, len(plan.carriers))
    return ProfileStage(
        name=name or step.value,
        carriers=tuple(
            require_ids(encoder, "insertion 'ids'", "set insertion to 'text'").tokenize(texts)
            if by_ids
            else texts
        ),
        places=tuple(places),
        cells=tuple(every[place] for place in places),
        panel=panel.against(unit_vectors(lower.encode(texts)), plan.mean_similarity),
        seed=settings.seed,
        precision=precision,
        counting=settings.insertion is Insertion.WORDS and not getattr(encoder.tokenizer, "estimates", False),
    )


def _sampled_entries(encoder: Encoder) -> int | None:
    """Size of the sample that u is estimated from; the same for a run over all tokens and over a few."""
    return _SAMPLED_ENTRIES if len(encoder.tokenizer.entries) > _ALL_ENTRIES else None


def _require_capable(encoder: Encoder, settings: ProfileSettings) -> None:
    if settings.insertion is Insertion.IDS:
        require_ids(encoder, "insertion 'ids'", "set insertion to 'text'")
    if settings.screen_precision is not None:
        # Built here: it takes seconds, and may be refused.
        require_ids(encoder, f"screening in {settings.screen_precision}").at(settings.screen_precision)


def _require_anchors(anchors: Anchors, corpus: Sentences, settings: ProfileSettings) -> None:
    count = sum(len(group.texts) for group in anchors.chosen if group.weight > 0)
    if count < _LEAST_ANCHORS:
        raise InputError(
            f"{corpus.source} leaves {count} sentences to compare with: {carriers_needed(settings)} carriers "
            f"and at least {_LEAST_ANCHORS} other sentences that the model reads fully are needed; use more "
            "sentences, or a smaller budget"
        )


def usable_carriers(
    encoder: Encoder,
    texts: Sequence[str],
    panel: AnchorPanel,
    mean_similarity_value: float,
    needed: int,
    source: str,
) -> tuple[list[str], NDArray[np.float32]]:
    """Choose the first carriers that have enough unrelated anchors; also return their similarities.

    Raises:
        InputError: there are too few, or the model does not tell the sentences apart.
    """
    before = unit_vectors(encoder.encode(texts)) @ panel.vectors.T
    if before[:, panel.weights > 0].std() < _NO_SPREAD:
        raise InputError(
            f"{encoder.name} gives all sentences of {source} the same similarity "
            f"({before.mean():.4f}): there is nothing that a token could move"
        )
    usable = np.flatnonzero((before < mean_similarity_value) @ panel.weights >= _LEAST_BELOW)[:needed]
    if len(usable) < needed:
        raise InputError(
            f"only {len(usable)} of {len(texts)} carriers from {source} have a similarity below the "
            f"model's mean {mean_similarity_value:.4f} to some anchors, {needed} are needed: "
            "use sentences on more varied subjects or, if the model finds all texts more similar than single "
            "words, load it with the prompt and pooling that it was trained with"
        )
    return [texts[k] for k in usable], before[usable]


def _described(group: TextGroup, before: NDArray[np.float32]) -> AnchorGroupRecord:
    weights = np.full(before.shape[1], 1 / before.shape[1])
    return AnchorGroupRecord(
        name=group.name, weight=group.weight, kind=group.kind, spread=spread_of(before, weights)
    )


def spread_of(before: NDArray[np.float32], weights: NDArray[np.float64]) -> float:
    """Standard deviation of similarities, weighted by anchor."""
    mean = float((before @ weights).mean())
    return float(np.sqrt((((before - mean) ** 2) @ weights).mean()))
