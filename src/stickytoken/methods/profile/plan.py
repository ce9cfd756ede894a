"""Plan a run: choose anchors, carriers and pilots, and measure how similar unrelated texts are."""

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
from stickytoken.methods.profile import texts
from stickytoken.methods.profile.records import AnchorGroupRecord, AnchorRecord, ProfilePlanRecord
from stickytoken.methods.profile.rounds import PILOT_TOKENS, carriers_needed
from stickytoken.methods.profile.texts import TextGroup
from stickytoken.settings.profile import ProfileSettings
from stickytoken.unit_vectors import unit_vectors

# Minimum number of anchors for measuring a lift.
_LEAST_ANCHORS = 40
# Number of random vocabulary entries used to estimate the mean similarity u, with a standard error of
# about 0.002. The standard deviation of similarities is 0.05 or more, so this error hardly changes which
# pairs are below u.
SAMPLED_ENTRIES = 2**13
# Number of random vocabulary entries used to estimate the mean similarity if the user names at most
# _FEW_TOKENS tokens. This smaller sample saves time; the standard error of the estimate is about 0.006.
_SAMPLED_FOR_FEW = 2**10
_FEW_TOKENS = 64
# Minimum share of the anchors, by weight, that must be unrelated to a carrier. An anchor is unrelated to a
# carrier if their similarity is below a limit. With fewer unrelated anchors, the lift in the carrier would be
# mostly noise.
_LEAST_UNRELATED_SHARE = 0.02
# If the standard deviation of similarities is smaller than this, the similarities are treated as equal.
_NO_VARIATION = 1e-5
# Key of the random generator that draws the pilots.
_PILOTS_KEY = 2


def make_profile_plan(
    job: Job[ProfileSettings],
    progress: ProgressCallback,
    *,
    carriers: int | None = None,
    is_allowed: Callable[[str], bool] | None = None,
    similarity: MeanSimilarity | None = None,
) -> ProfilePlanRecord:
    """Choose the texts and the pilots of a run, and return them in the plan record.

    The pilots are the random tokens that define the ordinary token.

    Args:
        job: provides the model, corpus, vocabulary, tokens and settings.
        progress: called with the number of vocabulary entries that have been encoded to estimate the mean
            similarity.
        carriers: number of carriers. If ``carriers`` is None, as many carriers are chosen as the rounds need.
        is_allowed: returns whether a text may be used. If ``is_allowed`` is None, all texts may be used.
        similarity: the model's mean similarity. If ``similarity`` is None, the mean similarity is estimated.

    Returns:
        The plan, with the similarities of the chosen carriers and anchors (see `ProfilePlanRecord`).

    Raises:
        InputError: the corpus has too few usable texts, or the tokenizer reads the copies of every token in
            the job as other entries.
    """
    encoder = job.encoder
    settings = job.settings
    corpus = job.sentences
    unspelled = job.vocabulary.unspelled
    if job.tokens and all(token.id in unspelled for token in job.tokens):
        raise InputError(
            "in a text, the tokenizer reads copies of these tokens as other vocabulary entries: name other "
            "tokens"
        )
    # The encoder may reject the insertion or the precision. The next calls raise an error in this case,
    # before the slow steps begin.
    probes.require_insertion(encoder, settings.insertion)
    if settings.screen_precision is not None:
        purpose = f"screening in {settings.screen_precision}"
        require_ids(encoder, purpose).at(settings.screen_precision)

    needed = carriers_needed(settings) if carriers is None else carriers
    # The lift is measured on the first groups. The separate groups only show whether a token is sticky or
    # topical.
    lift_groups, separate_groups = texts.text_groups(encoder, corpus)
    if is_allowed is not None:
        lift_groups = texts.filtered(lift_groups, is_allowed)
        separate_groups = texts.filtered(separate_groups, is_allowed)
    source_by_short_text = texts.short_texts(encoder, settings, lift_groups, needed, corpus.source)
    carrier_candidates = list(source_by_short_text)
    # A text of the corpus must not become an anchor if a candidate was taken from it.
    taken = set(source_by_short_text.values())
    groups, left_out = texts.choose_anchors(encoder, settings, (lift_groups, separate_groups), taken)
    anchor_count = sum(len(group.texts) for group in groups if group.weight > 0)
    if anchor_count < _LEAST_ANCHORS:
        raise InputError(
            f"{corpus.source} has too few sentences that the model reads in full: besides {needed} carriers, "
            f"at least {_LEAST_ANCHORS} anchors are needed, but only {anchor_count} sentences are left; use "
            "more sentences"
        )
    if len(groups) == 1:
        # All texts are in one group, because the corpus has no topics and the tokenizer cannot read the
        # bundled kinds of text. Sticky tokens can be told from topical tokens only if there are several
        # groups, so the texts are clustered.
        vectors = unit_vectors(encoder.encode(groups[0].texts))
        groups = texts.clustered(groups[0].texts, vectors, settings)

    panel = _panel_of(encoder, groups)
    if similarity is None:
        similarity = model_mean(encoder, progress, _sampled_entries(job))
    usable = usable_carriers(
        encoder,
        carrier_candidates,
        panel,
        similarity.value,
        needed=needed,
        most=needed,
        source=corpus.source,
    )
    unrelated_below = similarity.value if usable.narrow_limit is None else usable.narrow_limit
    share_below = float(_unrelated_shares(usable.similarities, unrelated_below, panel).mean())
    similarity_spread = spread_of(usable.similarities, panel.weights)
    anchors = []
    for group_index, group in enumerate(groups):
        anchors += [AnchorRecord(text=text, group=group_index) for text in group.texts]
    return ProfilePlanRecord(
        mean_similarity=similarity.value,
        mean_similarity_entries=similarity.entries,
        mean_similarity_error=similarity.error,
        isoscore=similarity.isoscore,
        similarity_spread=similarity_spread,
        share_below=share_below,
        narrow_limit=usable.narrow_limit,
        left_out=left_out,
        groups=_group_records(groups, panel, usable.similarities),
        anchors=anchors,
        carriers=usable.texts,
        pilots=_pilots(job),
        call_noise=capabilities_of(encoder).noise,
    )


def _sampled_entries(job: Job[ProfileSettings]) -> int:
    """Return how many vocabulary entries to sample to estimate u.

    If the user named only a few tokens, a smaller sample saves time.
    """
    names_few = job.restricted and not job.sampled and len(job.tokens) <= _FEW_TOKENS
    return _SAMPLED_FOR_FEW if names_few else SAMPLED_ENTRIES


def _pilots(job: Job[ProfileSettings]) -> list[int]:
    """Draw the pilots at random from the available tokens whose copies the tokenizer recognizes.

    The draw does not depend on the tokens of the run: a run over a few tokens has the same pilots as a run
    over all tokens.

    Returns:
        The ids of the pilots, in ascending order.
    """
    spelled = [token.id for token in job.vocabulary.available if token.id not in job.vocabulary.unspelled]
    order = np.random.default_rng([job.settings.seed, _PILOTS_KEY]).permutation(spelled)
    return sorted(order[:PILOT_TOKENS].tolist())


def _panel_of(encoder: Encoder, groups: Sequence[TextGroup]) -> AnchorPanel:
    """Encode the anchors of all groups, and return their panel."""
    anchors = [text for group in groups for text in group.texts]
    sizes = [len(group.texts) for group in groups]
    group_indices = np.repeat(np.arange(len(groups), dtype=np.intp), sizes)
    weights = np.array([group.weight for group in groups])
    return AnchorPanel(unit_vectors(encoder.encode(anchors)), group_indices, weights)


def _group_records(
    groups: Sequence[TextGroup], panel: AnchorPanel, similarities: NDArray[np.float32]
) -> list[AnchorGroupRecord]:
    """Return one record for each group of anchors.

    Args:
        groups: the G groups.
        panel: the A anchors of all groups.
        similarities: cosines between K carriers and the anchors, shape (K, A).
    """
    records = []
    for group_index, group in enumerate(groups):
        to_group = similarities[:, panel.groups == group_index]
        size = to_group.shape[1]
        spread = spread_of(to_group, np.full(size, 1 / size))
        records.append(
            AnchorGroupRecord(name=group.name, weight=group.weight, kind=group.kind, spread=spread)
        )
    return records


class UsableCarriers(NamedTuple):
    """K carriers, each with enough unrelated anchors.

    Attributes:
        texts: the carriers.
        similarities: cosines between the carriers and the A anchors, shape (K, A).
        narrow_limit: for a narrow corpus, the median similarity between the candidates for carriers and the
            anchors, below which a pair counts as unrelated. If the corpus is not narrow, ``narrow_limit`` is
            None, and a pair counts as unrelated if its similarity is below the mean similarity.
    """

    texts: list[str]
    similarities: NDArray[np.float32]
    narrow_limit: float | None


def usable_carriers(
    encoder: Encoder,
    candidates: Sequence[str],
    panel: AnchorPanel,
    mean_similarity: float,
    needed: int,
    most: int,
    source: str,
) -> UsableCarriers:
    """Return the first ``most`` candidates that have enough unrelated anchors, or all if there are fewer.

    A candidate and an anchor are unrelated if their similarity is below the mean similarity. If fewer than
    ``needed`` candidates have enough unrelated anchors, the corpus is narrow: the texts of the corpus are
    more similar to each other than random words are. For a narrow corpus, a candidate and an anchor are
    unrelated if their similarity is below the median similarity between candidates and anchors. Only the
    anchors from which the lift is computed are included in the median.

    Args:
        encoder: the model.
        candidates: texts that may become carriers.
        panel: the anchors.
        mean_similarity: the model's mean similarity u.
        needed: minimum number of carriers.
        most: maximum number of carriers.
        source: name of the corpus, for error messages.

    Raises:
        InputError: The model gives all texts the same similarity, or too few candidates have enough unrelated
            anchors even if every anchor with a similarity below the median counts as unrelated.
    """
    similarities = unit_vectors(encoder.encode(candidates)) @ panel.vectors.T
    lift_similarities = similarities[:, panel.weights > 0]
    if lift_similarities.std() < _NO_VARIATION:
        raise InputError(
            f"{encoder.name} gives all sentences of {source} the same similarity "
            f"({lift_similarities.mean():.4f}), so no token can change it: check that the model is loaded "
            "correctly"
        )
    narrow_limit = None
    is_usable = _unrelated_shares(similarities, mean_similarity, panel) >= _LEAST_UNRELATED_SHARE
    if is_usable.sum() < needed:
        narrow_limit = float(np.median(lift_similarities))
        is_usable = _unrelated_shares(similarities, narrow_limit, panel) >= _LEAST_UNRELATED_SHARE
        if is_usable.sum() < needed:
            raise InputError(
                f"only {is_usable.sum()} of {len(candidates)} carriers from {source} have enough anchors "
                f"with a similarity below the median {narrow_limit:.4f}, but {needed} such carriers are "
                "needed: use more sentences, or sentences on more varied subjects"
            )
    first = np.flatnonzero(is_usable)[:most]
    return UsableCarriers([candidates[index] for index in first], similarities[first], narrow_limit)


def _unrelated_shares(
    similarities: NDArray[np.float32], unrelated_below: float, panel: AnchorPanel
) -> NDArray[np.float64]:
    """Return the weighted share of the anchors that are unrelated to each of K carriers, shape (K,).

    Args:
        similarities: cosines between the carriers and the A anchors, shape (K, A).
        unrelated_below: similarity below which a carrier and an anchor are unrelated.
        panel: provides the weight of each anchor in the lift. The weights sum to 1.
    """
    shares: NDArray[np.float64] = (similarities < unrelated_below) @ panel.weights
    return shares


def spread_of(similarities: NDArray[np.float32], weights: NDArray[np.float64]) -> float:
    """Return the weighted standard deviation of similarities, shape (K, A); ``weights`` has shape (A,)."""
    mean = float((similarities @ weights).mean())
    return float(np.sqrt((((similarities - mean) ** 2) @ weights).mean()))
