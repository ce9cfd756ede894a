"""The texts that show what a token does: carriers and anchors of a plan, with their vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stickytoken.encoders.protocol import Encoder, require_ids
from stickytoken.insertion import Insertion
from stickytoken.methods.job import Job, MethodSettings
from stickytoken.methods.panel import AnchorPanel
from stickytoken.methods.shown_pairs import EvidenceStage
from stickytoken.methods.symptoms import SYMPTOM_COPIES, SymptomStage
from stickytoken.unit_vectors import unit_vectors

_PAIR_COPIES = 8
# Of the numbers of copies that a probe tries: enough for the shape of a curve.
_CURVE_COPIES = (1, 2, 4, 8, 16, 32)
_TOKENS_PER_TEXT_COPY = 8


@dataclass(frozen=True)
class EvidencePanel:
    """Carriers against anchors."""

    carriers: list[str]
    sentences: list[str]
    stage: EvidenceStage


def evidence_panel(
    job: Job[MethodSettings], texts: list[str], sentences: list[str], anchors: AnchorPanel, u: float
) -> EvidencePanel:
    """Compare carriers with anchors, before copies go into them."""
    panel = anchors.against(unit_vectors(job.encoder.encode(texts)), u)
    ids = job.settings.insertion is Insertion.IDS
    longest = max(job.encoder.content_ids(texts), key=len)
    copies = fitting_copies(job.encoder, longest, 1 if ids else _TOKENS_PER_TEXT_COPY, _CURVE_COPIES)
    carriers = (
        require_ids(job.encoder, "insertion 'ids'", "set insertion to 'text'").tokenize(texts)
        if ids
        else texts
    )
    symptoms = SymptomStage(tuple(carriers), copies, panel)
    shown = max(count for count in copies if count <= _PAIR_COPIES)
    return EvidencePanel(texts, sentences, EvidenceStage(symptoms, shown))


def fitting_copies(
    encoder: Encoder, carrier: Sequence[int], pieces: int, counts: Sequence[int] = SYMPTOM_COPIES
) -> tuple[int, ...]:
    """Choose numbers of copies that still fit into the model with the carrier.

    Args:
        encoder: the model.
        carrier: content ids of the carrier.
        pieces: upper bound on the tokens that a copy takes.
        counts: numbers to choose from. 1 is chosen if none fits.
    """
    return tuple(n for n in counts if encoder.fits((*carrier, *(0,) * (n * pieces)))) or (1,)
