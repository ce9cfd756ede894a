"""Plan the profile method: anchors, carriers, reference tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from stickytoken.corpora import Sentences
from stickytoken.encoders.mean_similarity import MeanSimilarity
from stickytoken.encoders.protocol import Encoder, require_ids
from stickytoken.encoders.views import Views, only_own
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Token
from stickytoken.measurement.progress import ProgressCallback
from stickytoken.methods._model_mean import model_means
from stickytoken.methods.panel import AnchorPanel
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
from stickytoken.methods.profile.record import (
    AnchorGroupRecord,
    AnchorRecord,
    ProfilePlanRecord,
)
from stickytoken.methods.profile.rounds import LATE_REFERENCE, Round, carriers_needed, cells
from stickytoken.methods.profile.seen import (
    group_spread,
    seen_anchors,
    spread_of,
    usable_carriers,
    view_record,
)
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.profile.stage import ProfileStage
from stickytoken.unit_vectors import unit_vectors

_LEAST_ANCHORS = 40
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
    views: Views | None = None,
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
        views: to plan for; None is the model as it is.
        unused: whether a text may be used; None allows all.
        similarity: u of the model as it is, if it is known.

    Raises:
        InputError: there are too few sentences, or the model does not tell them apart.
    """
    views = only_own(encoder) if views is None else views
    _require_capable(encoder, settings)  # before the long work, as the next lines: they may fail
    found = sources(encoder, corpus)
    if unused is not None:
        found = found.chosen(unused)
    carriers = short_texts(encoder, settings, found.own, carriers_needed(settings), corpus.source)
    anchors = choose_anchors(encoder, settings, found, set(carriers.values()))
    _require_anchors(anchors, corpus, settings)
    reading, every = views.reading(encoder), [views.own, *views.further]
    if len(anchors.chosen) == 1:  # no kinds that the model reads, and no topics
        anchors = anchors._replace(chosen=clustered(reading, settings, anchors.chosen[0], views.whole))
    words = vocabulary_anchors(encoder, settings, vocabulary)
    groups = [*anchors.chosen, *([WORDS] if words else [])]
    vectors = reading.encode([*anchors.texts, *(word.text for word in words)])
    places = np.concatenate([anchors.places, np.full(len(words), len(groups) - 1, dtype=np.intp)])
    means = (
        model_means(encoder, views, every, progress, _sampled_entries(encoder))
        if similarity is None
        else {views.own: similarity}
    )
    seen = seen_anchors(vectors, places, np.array([group.weight for group in groups]), means)
    chosen, similarities = usable_carriers(
        reading, list(carriers), seen, carriers_needed(settings), corpus.source
    )
    u, before, panel = means[views.own], similarities[0], seen[0].panel
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
        reference=_drawn(settings, vocabulary, settings.reference),
        call_noise=float(getattr(encoder, "noise", 0.0)),
        late_reference=_drawn(settings, vocabulary, min(settings.reference, LATE_REFERENCE)),
        views=[
            view_record(each, means[each.view], of)
            for each, of in list(zip(seen, similarities, strict=True))[1:]
        ],
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


def _drawn(settings: ProfileSettings, vocabulary: Sequence[Token], count: int) -> list[int]:
    """Return the ids of so many random tokens, ascending; fewer are the beginning of more."""
    order = np.random.default_rng([settings.seed, _REFERENCE]).permutation([token.id for token in vocabulary])
    return sorted(order[:count].tolist())


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


def _described(group: TextGroup, before: NDArray[np.float32]) -> AnchorGroupRecord:
    return AnchorGroupRecord(
        name=group.name, weight=group.weight, kind=group.kind, spread=group_spread(before)
    )
