"""Plan a run: choose the texts and the pilots, and measure how similar unrelated texts are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stickytoken.encoders.mean_similarity import MeanSimilarity
from stickytoken.encoders.protocol import Encoder, capabilities_of, require_ids
from stickytoken.errors import InputError
from stickytoken.methods import probes
from stickytoken.methods.base import Job, Runner, model_mean
from stickytoken.methods.profile import documents, texts
from stickytoken.methods.profile.records import DocumentsRecord, ProfilePlanRecord
from stickytoken.methods.profile.rounds import (
    ProfilePreparation,
    carriers_needed,
    measure_special_tokens,
    pilots_needed,
)
from stickytoken.settings.profile import ProfileSettings
from stickytoken.unit_vectors import unit_vectors
from stickytoken.vocabulary import special_tokens

# Largest standard error of the mean similarity u, as a share of the standard deviation of the similarities
# between texts. u decides which pairs count as unrelated; an error this small changes one pair in fifty.
_ERROR_SHARE = 0.05
# If the standard deviation of similarities is smaller than this, the similarities are treated as equal.
_NO_VARIATION = 1e-5
# Key of the random generator that draws the pilots.
_PILOTS_KEY = 2


@dataclass(frozen=True)
class ChosenTexts:
    """The texts and the pilots of a run, before anything is measured.

    Attributes:
        anchors: the texts to compare with, and how many were left out.
        carriers: the texts that receive copies.
        pilots: ids of the random tokens that define the ordinary token.
        documents: the documents; None if there are none.
        tolerance: largest standard error of the mean similarity u that is accurate enough for these texts.
    """

    anchors: texts.Anchors
    carriers: list[str]
    pilots: list[int]
    documents: DocumentsRecord | None
    tolerance: float

    def plan(self, encoder: Encoder, similarity: MeanSimilarity) -> ProfilePlanRecord:
        """Return the plan record, with the model's mean similarity."""
        return ProfilePlanRecord(
            mean_similarity=similarity.value,
            mean_similarity_entries=similarity.entries,
            mean_similarity_error=similarity.error,
            left_out=self.anchors.left_out,
            anchors=self.anchors.texts,
            carriers=self.carriers,
            pilots=self.pilots,
            call_noise=capabilities_of(encoder).noise,
            documents=self.documents,
        )


def prepare(
    job: Job[ProfileSettings], runner: Runner, stored: ProfilePlanRecord | None = None
) -> ProfilePreparation:
    """Make the plan, and measure special tokens in its documents: they are few, and the first anyone tries.

    They are measured before the mean similarity, and announced as soon as it is known what they do.

    Args:
        job: provides the model, corpus, vocabulary, tokens and settings.
        runner: measures special tokens and the mean similarity, and keeps what it has measured.
        stored: the plan of an interrupted session, whose special tokens have been announced; None if there is
            none.

    Raises:
        InputError: see `choose_texts`.
    """
    if stored is not None:
        return ProfilePreparation(stored, *measure_special_tokens(job, stored.documents, runner))
    chosen = choose_texts(job)
    panel, special = measure_special_tokens(job, chosen.documents, runner, announce=True)
    similarity = model_mean(job.encoder, runner, chosen.tolerance)
    return ProfilePreparation(chosen.plan(job.encoder, similarity), panel, special)


def choose_texts(
    job: Job[ProfileSettings],
    *,
    carriers: int | None = None,
    is_allowed: Callable[[str], bool] | None = None,
) -> ChosenTexts:
    """Choose the texts and the pilots of a run.

    Args:
        job: provides the model, corpus, vocabulary, tokens and settings.
        carriers: number of carriers. If ``carriers`` is None, as many carriers are chosen as the rounds need.
        is_allowed: returns whether a text may be used. If ``is_allowed`` is None, all texts may be used.

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
    probes.require_insertion(encoder, settings.inserted_as)
    if settings.screen_precision is not None:
        purpose = f"screening in {settings.screen_precision}"
        require_ids(encoder, purpose).at(settings.screen_precision)

    needed = carriers_needed(settings) if carriers is None else carriers
    groups = texts.group_texts(encoder, corpus)
    if is_allowed is not None:
        groups = texts.keep_allowed(groups, is_allowed)
    length = None if corpus.bundled else texts.length_of_bundled_carriers(encoder, settings, needed)
    source_of_carrier = texts.choose_carriers(encoder, settings, groups, needed, corpus.source, length)
    carrier_texts = list(source_of_carrier)
    spread = _spread_of_similarities(encoder, carrier_texts, corpus.source)
    # A text must not be compared with a carrier that was taken from it.
    of_anchors = settings
    if documents.measures_few(job):
        of_anchors = replace(settings, anchors=max(2, settings.anchors // 2))
    anchors = texts.choose_anchors(encoder, of_anchors, groups, taken=set(source_of_carrier.values()))
    if not anchors.texts:
        raise InputError(
            f"{corpus.source} has too few sentences that the model reads in full: none is left besides "
            f"{needed} carriers; use more sentences"
        )
    return ChosenTexts(
        anchors=anchors,
        carriers=carrier_texts,
        pilots=_draw_pilots(job),
        documents=documents.plan_documents(job, is_allowed),
        tolerance=_ERROR_SHARE * spread,
    )


def _spread_of_similarities(encoder: Encoder, carriers: Sequence[str], source: str) -> float:
    vectors = unit_vectors(encoder.encode(carriers))
    similarities = (vectors @ vectors.T)[~np.eye(len(vectors), dtype=np.bool_)]
    if similarities.std() < _NO_VARIATION:
        raise InputError(
            f"{encoder.name} gives all sentences of {source} the same similarity "
            f"({similarities.mean():.4f}), so no token can change it: check that the model is loaded "
            "correctly"
        )
    return float(similarities.std())


def _draw_pilots(job: Job[ProfileSettings]) -> list[int]:
    spelled = [token.id for token in job.vocabulary.available if token.id not in job.vocabulary.unspelled]
    order = np.random.default_rng([job.settings.seed, _PILOTS_KEY]).permutation(spelled)
    return sorted(order[: pilots_needed(job)].tolist())
