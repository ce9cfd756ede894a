"""The texts that the evidence of a run is shown on: carriers and anchors of its plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, require_ids
from stickytoken.insertion import Insertion
from stickytoken.methods.job import Job
from stickytoken.methods.panel import AnchorPanel, CarrierPanel
from stickytoken.methods.profile.plan import anchor_panel
from stickytoken.methods.profile.record import ProfilePlanRecord
from stickytoken.methods.profile.rounds import Round
from stickytoken.methods.shown_pairs import EvidenceStage
from stickytoken.methods.std.record import StdPlanRecord
from stickytoken.methods.symptoms import SYMPTOM_CARRIERS, SYMPTOM_COPIES, SymptomStage

_PAIR_COPIES = 8
# Of the numbers of copies that a probe tries: enough for the shape of a curve.
_CURVE_COPIES = (1, 2, 4, 8, 16, 32)
# Anchors of the method std: enough for a smooth mean.
_ANCHORS = 200
_TOKENS_PER_TEXT_COPY = 8


@dataclass(frozen=True)
class Exhibit:
    """Carriers against anchors.

    Attributes:
        carriers: their texts.
        sentences: texts of the anchors that can be shown, the first ones of the panel.
        stage: measures a token on them.
    """

    carriers: list[str]
    sentences: list[str]
    stage: EvidenceStage


def profile_exhibit(job: Job, plan: ProfilePlanRecord) -> Exhibit:
    """The first carriers of the last round, and all anchors."""
    last = list(plan.carriers.values())[-1]
    texts = plan.carriers.get(Round.CONFIRM.value, last)[:SYMPTOM_CARRIERS]
    anchors = anchor_panel(job.encoder, job.settings, plan, job.vocabulary.available)
    panel = anchors.against(_unit(job.encoder.encode(texts)), plan.mean_similarity)
    return _exhibit(job, texts, [anchor.text for anchor in plan.sentence_anchors], panel)


def std_exhibit(job: Job, plan: StdPlanRecord) -> Exhibit:
    """The shortest carriers of the validation pairs, and the anchors of all pairs."""
    texts = sorted({pair.sentence2 for pair in plan.validation}, key=lambda text: (len(text), text))
    texts = texts[:SYMPTOM_CARRIERS]
    sentences = list(dict.fromkeys(pair.sentence1 for pair in plan.validation))[:_ANCHORS]
    vectors = _unit(job.encoder.encode(sentences))
    anchors = AnchorPanel(vectors, np.zeros(len(vectors), dtype=np.intp), np.ones(1), 1)
    panel = anchors.against(_unit(job.encoder.encode(texts)), plan.mean_similarity)
    return _exhibit(job, texts, sentences, panel)


def _exhibit(job: Job, texts: list[str], sentences: list[str], panel: CarrierPanel) -> Exhibit:
    ids = job.settings.insertion is Insertion.IDS
    longest = max(job.encoder.content_ids(texts), key=len)
    copies = fitting_copies(job.encoder, longest, 1 if ids else _TOKENS_PER_TEXT_COPY, _CURVE_COPIES)
    carriers = require_ids(job.encoder, "insertion 'ids'").tokenize(texts) if ids else texts
    symptoms = SymptomStage(tuple(carriers), copies, panel)
    shown = max(count for count in copies if count <= _PAIR_COPIES)
    return Exhibit(texts, sentences, EvidenceStage(symptoms, shown, len(sentences)))


def fitting_copies(
    encoder: Encoder, carrier: Sequence[int], pieces: int, counts: Sequence[int] = SYMPTOM_COPIES
) -> tuple[int, ...]:
    """Numbers of copies that leave the carrier whole.

    Args:
        encoder: the model.
        carrier: content ids.
        pieces: tokens that a copy may take, a guess from above; one copy is always tried.
        counts: to choose from.
    """
    return tuple(n for n in counts if encoder.fits((*carrier, *(0,) * (n * pieces)))) or (1,)


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    units: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return units
