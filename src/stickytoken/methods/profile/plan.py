"""Plan a run: anchors, carriers and pilots, and how similar the model finds its texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.mean_similarity import MeanSimilarity
from stickytoken.encoders.protocol import Encoder, capabilities_of, require_ids
from stickytoken.errors import InputError
from stickytoken.measurement.engine import ProgressCallback
from stickytoken.methods import probes
from stickytoken.methods.base import Job, model_mean
from stickytoken.methods.probes import AnchorPanel
from stickytoken.methods.profile import texts as sources
from stickytoken.methods.profile.rounds import PILOT_TOKENS, carriers_needed
from stickytoken.methods.profile.settings import (
    AnchorGroupRecord,
    AnchorRecord,
    ProfilePlanRecord,
    ProfileSettings,
)
from stickytoken.methods.profile.texts import TextGroup
from stickytoken.unit_vectors import unit_vectors

# Anchors that the lift is measured on, at least.
_LEAST_ANCHORS = 40
# Random vocabulary entries that estimate u. The error is about 0.002, where similarities spread by 0.05 and
# more: it shifts the limit below which pairs count by little.
SAMPLED_ENTRIES = 2**13
# For a run over a few named tokens, fewer entries do, with an error of about 0.006.
_SAMPLED_FOR_FEW = 2**10
_FEW_TOKENS = 64
# Smallest share of the anchors that must lie below the limit for each carrier.
_LEAST_BELOW = 0.02
# Standard deviation of similarities below which the model gives all texts the same.
_NO_VARIATION = 1e-5
# Key of the generator that draws the pilots.
_PILOTS_KEY = 2


def make_profile_plan(
    job: Job[ProfileSettings],
    progress: ProgressCallback,
    *,
    carriers: int | None = None,
    unused: Callable[[str], bool] | None = None,
    similarity: MeanSimilarity | None = None,
) -> ProfilePlanRecord:
    """Choose the texts and the pilots of a run.

    Args:
        job: the model, the corpus and the settings.
        progress: told of the entries that are encoded for the mean similarity.
        carriers: number of carriers; None is what the rounds need.
        unused: whether a text may be used; None allows all.
        similarity: the model's mean similarity, if it is known.

    Raises:
        InputError: the corpus has too few usable texts, or no named token occurs in texts.
    """
    encoder = job.encoder
    settings = job.settings
    corpus = job.sentences
    unspelled = job.vocabulary.unspelled
    if job.tokens and all(token.id in unspelled for token in job.tokens):
        raise InputError(
            "in texts, copies of the tokens are read as other entries: name tokens that texts spell"
        )
    # What may fail comes before the long work. A lower precision takes seconds to build, and may be refused.
    probes.require_insertion(encoder, settings.insertion)
    if settings.screen_precision is not None:
        purpose = f"screening in {settings.screen_precision}"
        require_ids(encoder, purpose).at(settings.screen_precision)

    needed = carriers_needed(settings) if carriers is None else carriers
    lift_groups, groups_beside = sources.sources(encoder, corpus)
    if unused is not None:
        lift_groups = sources.filtered(lift_groups, unused)
        groups_beside = sources.filtered(groups_beside, unused)
    candidates = sources.short_texts(encoder, settings, lift_groups, needed, corpus.source)
    taken = set(candidates.values())
    groups, left_out = sources.choose_anchors(encoder, settings, (lift_groups, groups_beside), taken)
    anchor_count = sum(len(group.texts) for group in groups if group.weight > 0)
    if anchor_count < _LEAST_ANCHORS:
        raise InputError(
            f"{corpus.source} leaves {anchor_count} sentences to compare with: {needed} carriers and at "
            f"least {_LEAST_ANCHORS} other sentences that the model reads fully are needed; use more "
            "sentences"
        )
    if len(groups) == 1:  # no kinds that the model reads, and no topics
        vectors = unit_vectors(encoder.encode(groups[0].texts))
        groups = sources.clustered(groups[0].texts, vectors, settings)

    panel = _panel_of(encoder, groups)
    if similarity is None:
        similarity = model_mean(encoder, progress, _sampled_entries(job))
    usable = usable_carriers(encoder, list(candidates), panel, similarity.value, needed, corpus.source)
    limit = similarity.value if usable.narrow_limit is None else usable.narrow_limit
    share_below = float(((usable.similarities < limit) @ panel.weights).mean())
    return ProfilePlanRecord(
        mean_similarity=similarity.value,
        mean_similarity_entries=similarity.entries,
        mean_similarity_error=similarity.error,
        isoscore=similarity.isoscore,
        similarity_spread=spread_of(usable.similarities, panel.weights),
        share_below=share_below,
        narrow_limit=usable.narrow_limit,
        left_out=left_out,
        groups=_group_records(groups, panel, usable.similarities),
        anchors=[
            AnchorRecord(text=text, group=group_index)
            for group_index, group in enumerate(groups)
            for text in group.texts
        ],
        carriers=usable.texts,
        pilots=_pilots(job),
        call_noise=capabilities_of(encoder).noise,
    )


def _sampled_entries(job: Job[ProfileSettings]) -> int:
    names_few = job.restricted and not job.sampled and len(job.tokens) <= _FEW_TOKENS
    return _SAMPLED_FOR_FEW if names_few else SAMPLED_ENTRIES


def _pilots(job: Job[ProfileSettings]) -> list[int]:
    """Draw random tokens that texts spell, the same for a run over all tokens and over a few."""
    spelled = [token.id for token in job.vocabulary.available if token.id not in job.vocabulary.unspelled]
    order = np.random.default_rng([job.settings.seed, _PILOTS_KEY]).permutation(spelled)
    return sorted(order[:PILOT_TOKENS].tolist())


def _panel_of(encoder: Encoder, groups: Sequence[TextGroup]) -> AnchorPanel:
    anchors = [text for group in groups for text in group.texts]
    sizes = [len(group.texts) for group in groups]
    group_indices = np.repeat(np.arange(len(groups), dtype=np.intp), sizes)
    weights = np.array([group.weight for group in groups])
    return AnchorPanel(unit_vectors(encoder.encode(anchors)), group_indices, weights)


def _group_records(
    groups: Sequence[TextGroup], panel: AnchorPanel, similarities: NDArray[np.float32]
) -> list[AnchorGroupRecord]:
    records = []
    for group_index, group in enumerate(groups):
        of_group = similarities[:, panel.groups == group_index]
        even = np.full(of_group.shape[1], 1 / of_group.shape[1])
        record = AnchorGroupRecord(
            name=group.name, weight=group.weight, kind=group.kind, spread=spread_of(of_group, even)
        )
        records.append(record)
    return records


class UsableCarriers(NamedTuple):
    """Carriers that have unrelated anchors."""

    texts: list[str]
    similarities: NDArray[np.float32]  # to the anchors, shape (carriers, anchors)
    narrow_limit: float | None  # the median that replaces u as limit in a narrow corpus


def usable_carriers(
    encoder: Encoder,
    candidates: Sequence[str],
    panel: AnchorPanel,
    mean_similarity: float,
    needed: int,
    source: str,
) -> UsableCarriers:
    """Take the first candidates that have enough anchors below the mean similarity.

    If too few have, the corpus is narrow: its texts are more alike than random words. The median similarity
    then takes the place of the mean similarity.

    Raises:
        InputError: the model finds all texts equally similar, or too few candidates have unrelated anchors.
    """
    similarities = unit_vectors(encoder.encode(candidates)) @ panel.vectors.T
    of_lift = similarities[:, panel.weights > 0]
    if of_lift.std() < _NO_VARIATION:
        raise InputError(
            f"{encoder.name} gives all sentences of {source} the same similarity ({of_lift.mean():.4f}): "
            "there is nothing that a token could move"
        )
    narrow_limit = None
    has_unrelated = (similarities < mean_similarity) @ panel.weights >= _LEAST_BELOW
    if has_unrelated.sum() < needed:
        narrow_limit = float(np.median(of_lift))
        has_unrelated = (similarities < narrow_limit) @ panel.weights >= _LEAST_BELOW
        if has_unrelated.sum() < needed:
            raise InputError(
                f"only {has_unrelated.sum()} of {len(candidates)} carriers from {source} have a similarity "
                f"below its median {narrow_limit:.4f} to some anchors, {needed} are needed: use more "
                "sentences, or sentences on more varied subjects"
            )
    first = np.flatnonzero(has_unrelated)[:needed]
    return UsableCarriers([candidates[index] for index in first], similarities[first], narrow_limit)


def spread_of(similarities: NDArray[np.float32], weights: NDArray[np.float64]) -> float:
    """Compute the standard deviation of similarities of carriers to weighted anchors."""
    mean = float((similarities @ weights).mean())
    return float(np.sqrt((((similarities - mean) ** 2) @ weights).mean()))
