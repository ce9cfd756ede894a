"""The profile method, put together."""

from __future__ import annotations

from stickytoken.methods.descriptions import PlanTexts
from stickytoken.methods.evidence_panel import EvidencePanel, evidence_panel
from stickytoken.methods.job import Job
from stickytoken.methods.profile import _tables as tables
from stickytoken.methods.profile import _words as words
from stickytoken.methods.profile._effects import token_effects
from stickytoken.methods.profile._entry import ENTRY
from stickytoken.methods.profile._judging import judge_corpus, require_judging
from stickytoken.methods.profile._results import MEASURED_COLUMNS
from stickytoken.methods.profile._run import plan_profile, run_profile
from stickytoken.methods.profile.anchors import anchor_panel
from stickytoken.methods.profile.probe import probe_profile
from stickytoken.methods.profile.recheck import recheck
from stickytoken.methods.profile.record import ProfilePlanRecord, ProfileResultRecord
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.protocol import Method
from stickytoken.methods.symptoms import SYMPTOM_CARRIERS
from stickytoken.methods.verdicts import Verdict


def profile_panel(job: Job[ProfileSettings], plan: ProfilePlanRecord) -> EvidencePanel:
    """Take the first carriers, and the texts that the lift is measured on."""
    anchors = anchor_panel(job.encoder, plan, job.vocabulary.available, beside=False)
    texts = profile_texts(plan).anchors
    return evidence_panel(job, plan.carriers[:SYMPTOM_CARRIERS], texts, anchors, plan.mean_similarity)


def profile_texts(plan: ProfilePlanRecord) -> PlanTexts:
    """Name the carriers, and the anchors that the lift is measured on."""
    anchors = [anchor.text for anchor in plan.anchors if plan.groups[anchor.group].weight > 0]
    return PlanTexts(plan.carriers, anchors, by_topic=True)


class ProfileMethod(Method[ProfileSettings, ProfilePlanRecord, ProfileResultRecord]):
    """Every token's lift with an interval, in rounds that narrow the upper tail."""

    entry = ENTRY
    settings = ProfileSettings
    plan_record = ProfilePlanRecord
    result_record = ProfileResultRecord
    columns = MEASURED_COLUMNS
    listed = tables.LISTED
    reported = tables.REPORTED
    ranked_by = tables.RANKED_BY
    verdicts = tuple(Verdict)
    judges_every_token = True
    uses_topics = True
    uses_whole_vectors = True
    effort = frozenset(
        {"adaptive", "anchors", "budget", "confirming_texts", "dimensions", "layers", "reference"}
    )
    glossary = words.GLOSSARY

    make_plan = staticmethod(plan_profile)
    compute = staticmethod(run_profile)
    probe = staticmethod(probe_profile)
    evidence_panel = staticmethod(profile_panel)
    texts = staticmethod(profile_texts)
    headline = staticmethod(words.headline)
    lines = staticmethod(words.lines)
    notes = staticmethod(words.notes)
    key_facts = staticmethod(words.key_facts)
    how = staticmethod(words.how)
    plan_facts = staticmethod(words.plan_facts)
    figures = staticmethod(tables.figures)
    probe_lines = staticmethod(tables.probe_lines)
    scale = staticmethod(words.scale)
    require_judging = staticmethod(require_judging)
    judge = staticmethod(judge_corpus)
    recheck = staticmethod(recheck)
    token_effects = staticmethod(token_effects)
