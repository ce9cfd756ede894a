"""The paper's method, put together."""

from __future__ import annotations

import numpy as np
import polars as pl

from stickytoken.measurement.progress import ProgressCallback
from stickytoken.methods.descriptions import PlanTexts
from stickytoken.methods.evidence_panel import EvidencePanel, evidence_panel
from stickytoken.methods.job import FolderRunner, Job
from stickytoken.methods.panel import AnchorPanel
from stickytoken.methods.protocol import Method, Outcome
from stickytoken.methods.std import _tables as tables
from stickytoken.methods.std import _words as words
from stickytoken.methods.std._entry import ENTRY
from stickytoken.methods.std._results import TOKEN_COLUMNS, choose_candidates, decide
from stickytoken.methods.std.plan import make_plan, scoring_stage, validation_stage
from stickytoken.methods.std.probe import probe_std
from stickytoken.methods.std.record import StdPlanRecord, StdResultRecord
from stickytoken.methods.std.settings import StdSettings
from stickytoken.methods.symptoms import SYMPTOM_CARRIERS
from stickytoken.methods.verdicts import Verdict
from stickytoken.unit_vectors import unit_vectors

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


def plan_std(job: Job[StdSettings], progress: ProgressCallback) -> StdPlanRecord:
    """Choose the pairs."""
    return make_plan(job.encoder, job.settings, job.corpus, progress)


def compute_std(
    job: Job[StdSettings], plan: StdPlanRecord, vocabulary: pl.DataFrame, run: FolderRunner
) -> Outcome[StdResultRecord]:
    """Run both stages, decide and sum up."""
    scores = run(
        scoring_stage(job.encoder, job.settings, plan, job.vocabulary.available, job.tokens), job.tokens
    )
    candidates = choose_candidates(scores, job.settings)
    wanted = set(candidates.ids)
    validations = run(
        validation_stage(job.encoder, job.settings, plan),
        [token for token in job.tokens if token.id in wanted],
    )
    verdicts = decide(vocabulary, scores, validations, job.settings)
    cost = run.cost
    result = StdResultRecord(
        scored=len(job.tokens),
        candidates=len(candidates.ids),
        sticky=int((verdicts.tokens["verdict"] == "sticky").sum()),
        score_threshold=candidates.threshold,
        rate_threshold=verdicts.threshold,
        sequences=cost.sequences,
        seconds=round(cost.seconds, 1),
    )
    return Outcome(verdicts.tokens, result)


class StdMethod(Method[StdSettings, StdPlanRecord, StdResultRecord]):
    """The method of Chen et al. (2025): score every token, validate the best, find outliers."""

    entry = ENTRY
    settings = StdSettings
    plan_record = StdPlanRecord
    result_record = StdResultRecord
    columns = TOKEN_COLUMNS
    listed = tables.LISTED
    reported = tables.REPORTED
    ranked_by = tables.RANKED_BY
    verdicts = (Verdict.STICKY, Verdict.BENIGN)
    judges_every_token = False
    uses_topics = False
    glossary = words.GLOSSARY

    make_plan = staticmethod(plan_std)
    compute = staticmethod(compute_std)
    probe = staticmethod(probe_std)
    evidence_panel = staticmethod(std_panel)
    texts = staticmethod(std_texts)
    headline = staticmethod(words.headline)
    lines = staticmethod(words.lines)
    notes = staticmethod(words.notes)
    key_facts = staticmethod(words.key_facts)
    how = staticmethod(words.how)
    plan_facts = staticmethod(words.plan_facts)
    figures = staticmethod(tables.figures)
    probe_lines = staticmethod(tables.probe_lines)
