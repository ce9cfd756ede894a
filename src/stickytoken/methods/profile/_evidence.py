"""Texts of a profile run: for its evidence, for explanations and for the web app."""

from __future__ import annotations

from stickytoken.methods.descriptions import PlanTexts
from stickytoken.methods.evidence_panel import EvidencePanel, evidence_panel
from stickytoken.methods.job import Job
from stickytoken.methods.profile.plan import anchor_panel
from stickytoken.methods.profile.record import ProfilePlanRecord
from stickytoken.methods.profile.rounds import Round
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.symptoms import SYMPTOM_CARRIERS


def profile_panel(job: Job[ProfileSettings], plan: ProfilePlanRecord) -> EvidencePanel:
    """Take the first carriers of the last round, and all anchors."""
    last = list(plan.carriers.values())[-1]
    texts = plan.carriers.get(Round.CONFIRM.value, last)[:SYMPTOM_CARRIERS]
    anchors = anchor_panel(job.encoder, job.settings, plan, job.vocabulary.available)
    return evidence_panel(job, texts, _sentences(plan), anchors, plan.mean_similarity)


def profile_texts(plan: ProfilePlanRecord) -> PlanTexts:
    """Name the carriers, those of the last round first, and the sentences among the anchors."""
    carriers = [text for texts in reversed(list(plan.carriers.values())) for text in texts]
    return PlanTexts(carriers, _sentences(plan), by_topic=True)


def _sentences(plan: ProfilePlanRecord) -> list[str]:
    return [anchor.text for anchor in plan.sentence_anchors]
