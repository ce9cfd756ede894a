"""Texts of a profile run: for its evidence, for explanations and for the web app."""

from __future__ import annotations

from stickytoken.methods.descriptions import PlanTexts
from stickytoken.methods.evidence_panel import EvidencePanel, evidence_panel
from stickytoken.methods.job import Job
from stickytoken.methods.profile.anchors import anchor_panel
from stickytoken.methods.profile.record import ProfilePlanRecord
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.symptoms import SYMPTOM_CARRIERS


def profile_panel(job: Job[ProfileSettings], plan: ProfilePlanRecord) -> EvidencePanel:
    """Take the first carriers, and the texts that the lift is measured on."""
    anchors = anchor_panel(job.encoder, plan, job.vocabulary.available, beside=False)
    texts = profile_texts(plan).anchors
    return evidence_panel(job, plan.carriers[:SYMPTOM_CARRIERS], texts, anchors, plan.mean_similarity)


def profile_texts(plan: ProfilePlanRecord) -> PlanTexts:
    """Name the carriers, and the anchors that the lift is measured on."""
    anchors = [anchor.text for anchor in plan.anchors if plan.groups[anchor.group].weight > 0]
    return PlanTexts(plan.carriers, anchors, by_topic=True)
