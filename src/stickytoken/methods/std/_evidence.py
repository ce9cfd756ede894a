"""Texts of a run of the paper's method: for its evidence, for explanations and for the web app."""

from __future__ import annotations

import numpy as np

from stickytoken.methods.descriptions import PlanTexts
from stickytoken.methods.evidence_panel import EvidencePanel, evidence_panel
from stickytoken.methods.job import Job
from stickytoken.methods.panel import AnchorPanel, unit_vectors
from stickytoken.methods.std.record import StdPlanRecord
from stickytoken.methods.std.settings import StdSettings
from stickytoken.methods.symptoms import SYMPTOM_CARRIERS

# Enough for a smooth mean.
_ANCHORS = 200


def std_panel(job: Job[StdSettings], plan: StdPlanRecord) -> EvidencePanel:
    """Take the shortest carriers of the validation pairs, and the anchors of all pairs."""
    texts = sorted({pair.sentence2 for pair in plan.validation}, key=lambda text: (len(text), text))
    sentences = list(dict.fromkeys(pair.sentence1 for pair in plan.validation))[:_ANCHORS]
    vectors = unit_vectors(job.encoder.encode(sentences))
    anchors = AnchorPanel(vectors, np.zeros(len(vectors), dtype=np.intp), np.ones(1))
    return evidence_panel(job, texts[:SYMPTOM_CARRIERS], sentences, anchors, plan.mean_similarity)


def std_texts(plan: StdPlanRecord) -> PlanTexts:
    """Name the texts of the validation pairs."""
    carriers = list(dict.fromkeys(pair.sentence2 for pair in plan.validation))
    known = set(carriers)
    anchors = [pair.sentence1 for pair in plan.validation if pair.sentence1 not in known]
    return PlanTexts(carriers, list(dict.fromkeys(anchors)), by_topic=False)
