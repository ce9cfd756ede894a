"""Plan a run: choose the texts and the pilots, and measure how similar unrelated texts are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from stickytoken.encoders.mean_similarity import MeanSimilarity
from stickytoken.encoders.protocol import Encoder, capabilities_of, require_ids
from stickytoken.errors import InputError
from stickytoken.measurement.engine import ProgressCallback
from stickytoken.methods import probes
from stickytoken.methods.base import Job, model_mean
from stickytoken.methods.profile import documents, texts
from stickytoken.methods.profile.records import ProfilePlanRecord
from stickytoken.methods.profile.rounds import PILOT_TOKENS, carriers_needed
from stickytoken.settings.profile import ProfileSettings
from stickytoken.unit_vectors import unit_vectors
from stickytoken.vocabulary import special_tokens

# Number of random vocabulary entries used to estimate the mean similarity u, with a standard error of
# about 0.002. The standard deviation of similarities is 0.05 or more, so this error hardly changes which
# pairs are below u.
SAMPLED_ENTRIES = 2**13
# Number of random vocabulary entries used to estimate the mean similarity if the user names at most
# _FEW_TOKENS tokens. This smaller sample saves time; the standard error of the estimate is about 0.006.
_SAMPLED_FOR_FEW = 2**10
_FEW_TOKENS = 64
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
        The plan.

    Raises:
        InputError: the corpus has too few usable texts, or the tokenizer reads the copies of every token in
            the job as other entries.
    """
    encoder = job.encoder
    settings = job.settings
    corpus = job.sentences
    unspelled = job.vocabulary.unspelled
    special = special_tokens(job.vocabulary, encoder.tokenizer)
    named = [token for token in job.tokens if token not in special]
    if named and all(token.id in unspelled for token in named):
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
    groups = texts.group_texts(encoder, corpus)
    if is_allowed is not None:
        groups = texts.keep_allowed(groups, is_allowed)
    source_of_carrier = texts.choose_carriers(encoder, settings, groups, needed, corpus.source)
    carrier_texts = list(source_of_carrier)
    _require_differences(encoder, carrier_texts, corpus.source)
    # A text must not be compared with a carrier that was taken from it.
    anchors = texts.choose_anchors(encoder, settings, groups, taken=set(source_of_carrier.values()))
    if not anchors.texts:
        raise InputError(
            f"{corpus.source} has too few sentences that the model reads in full: none is left besides "
            f"{needed} carriers; use more sentences"
        )
    if similarity is None:
        similarity = model_mean(encoder, progress, _sampled_entries(job))
    return ProfilePlanRecord(
        mean_similarity=similarity.value,
        mean_similarity_entries=similarity.entries,
        mean_similarity_error=similarity.error,
        isoscore=similarity.isoscore,
        left_out=anchors.left_out,
        anchors=anchors.texts,
        carriers=carrier_texts,
        pilots=_draw_pilots(job),
        call_noise=capabilities_of(encoder).noise,
        documents=documents.plan_documents(job, is_allowed),
    )


def _require_differences(encoder: Encoder, carriers: Sequence[str], source: str) -> None:
    vectors = unit_vectors(encoder.encode(carriers))
    similarities = (vectors @ vectors.T)[~np.eye(len(vectors), dtype=np.bool_)]
    if similarities.std() < _NO_VARIATION:
        raise InputError(
            f"{encoder.name} gives all sentences of {source} the same similarity "
            f"({similarities.mean():.4f}), so no token can change it: check that the model is loaded "
            "correctly"
        )


def _sampled_entries(job: Job[ProfileSettings]) -> int:
    """Return how many vocabulary entries to sample to estimate u.

    If the user named only a few tokens, a smaller sample saves time.
    """
    names_few = job.restricted and not job.sampled and len(job.tokens) <= _FEW_TOKENS
    return _SAMPLED_FOR_FEW if names_few else SAMPLED_ENTRIES


def _draw_pilots(job: Job[ProfileSettings]) -> list[int]:
    spelled = [token.id for token in job.vocabulary.available if token.id not in job.vocabulary.unspelled]
    order = np.random.default_rng([job.settings.seed, _PILOTS_KEY]).permutation(spelled)
    return sorted(order[:PILOT_TOKENS].tolist())
