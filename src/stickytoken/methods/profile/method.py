"""The profile method, put together."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from stickytoken.measurement.progress import ProgressCallback
from stickytoken.methods.descriptions import Fact, Figure, PlanTexts, ProbeTable, Scale
from stickytoken.methods.evidence_panel import EvidencePanel
from stickytoken.methods.job import FolderRunner, Job
from stickytoken.methods.profile import tables, words
from stickytoken.methods.profile.entry import ENTRY
from stickytoken.methods.profile.evidence import profile_panel, profile_texts
from stickytoken.methods.profile.probe import ProfileEvidence, probe_profile
from stickytoken.methods.profile.record import ProfilePlanRecord, ProfileResultRecord
from stickytoken.methods.profile.results import MEASURED_COLUMNS
from stickytoken.methods.profile.run import compute_profile, plan_profile, result_record
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.protocol import Method, Outcome
from stickytoken.methods.stored_settings import StoredSettings
from stickytoken.methods.verdicts import Verdict


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
    glossary = words.GLOSSARY

    def make_plan(self, job: Job[ProfileSettings], progress: ProgressCallback) -> ProfilePlanRecord:
        """Draw anchors, carriers and reference tokens."""
        return plan_profile(job, progress)

    def compute(
        self, job: Job[ProfileSettings], plan: ProfilePlanRecord, vocabulary: pl.DataFrame, run: FolderRunner
    ) -> Outcome[ProfileResultRecord]:
        """Run the rounds, then judge all tokens."""
        findings = compute_profile(job, plan, vocabulary, run)
        return Outcome(findings.tokens, result_record(job, findings, run.cost))

    def probe(self, job: Job[ProfileSettings], progress: ProgressCallback) -> list[ProfileEvidence]:
        """Measure tokens as closely as the last round does."""
        return probe_profile(job, progress)

    def evidence_panel(self, job: Job[ProfileSettings], plan: ProfilePlanRecord) -> EvidencePanel:
        """Take the first carriers of the last round, and all anchors."""
        return profile_panel(job, plan)

    def texts(self, plan: ProfilePlanRecord) -> PlanTexts:
        """Name the carriers and the sentences among the anchors."""
        return profile_texts(plan)

    def headline(self, run: words.ProfileRun) -> str:
        """Say how many tokens are sticky, by grade, and what the worst one does."""
        return words.headline(run)

    def lines(self, run: words.ProfileRun) -> list[str]:
        """Sum up a run."""
        return words.lines(run)

    def notes(self, run: words.ProfileRun) -> list[str]:
        """Name a vocabulary that is too small, and sentences that were left out."""
        return words.notes(run)

    def key_facts(self, run: words.ProfileRun) -> list[Fact]:
        """Give the highest lift, the number of topical tokens and the lift of an ordinary one."""
        return words.key_facts(run)

    def how(self, settings: StoredSettings) -> str:
        """Explain the rounds."""
        return words.how(settings)

    def plan_facts(self, plan: ProfilePlanRecord) -> dict[str, float]:
        """List the numbers of a plan."""
        return words.plan_facts(plan)

    def figures(self, run: words.ProfileRun) -> list[Figure]:
        """Describe the distribution of the lifts, and lift against contraction."""
        return tables.figures(run)

    def probe_lines(self, probed: Sequence[ProfileEvidence]) -> list[ProbeTable | str]:
        """Lay out lifts and symptom curves."""
        return tables.probe_lines(probed)

    def scale(self, run: words.ProfileRun) -> Scale:
        """Measure lifts from an ordinary token's, in standard deviations of the model's similarities."""
        return words.scale(run)
