"""The paper's method, put together."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from stickytoken.measurement.progress import ProgressCallback
from stickytoken.methods.descriptions import Fact, Figure, PlanTexts, ProbeTable
from stickytoken.methods.evidence_panel import EvidencePanel
from stickytoken.methods.job import FolderRunner, Job
from stickytoken.methods.protocol import Method, Outcome
from stickytoken.methods.std import tables, words
from stickytoken.methods.std.entry import ENTRY
from stickytoken.methods.std.evidence import std_panel, std_texts
from stickytoken.methods.std.probe import StdEvidence, probe_std
from stickytoken.methods.std.record import StdPlanRecord, StdResultRecord
from stickytoken.methods.std.results import TOKEN_COLUMNS
from stickytoken.methods.std.run import compute_std, plan_std
from stickytoken.methods.std.settings import StdSettings
from stickytoken.methods.stored_settings import StoredSettings
from stickytoken.methods.verdicts import Verdict


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

    def make_plan(self, job: Job[StdSettings], progress: ProgressCallback) -> StdPlanRecord:
        """Choose the pairs."""
        return plan_std(job, progress)

    def compute(
        self, job: Job[StdSettings], plan: StdPlanRecord, vocabulary: pl.DataFrame, run: FolderRunner
    ) -> Outcome[StdResultRecord]:
        """Score, validate, decide."""
        return compute_std(job, plan, vocabulary, run)

    def probe(self, job: Job[StdSettings], progress: ProgressCallback) -> list[StdEvidence]:
        """Validate tokens whatever their score."""
        return probe_std(job, progress)

    def evidence_panel(self, job: Job[StdSettings], plan: StdPlanRecord) -> EvidencePanel:
        """Take the shortest carriers of the validation pairs, and the anchors of all pairs."""
        return std_panel(job, plan)

    def texts(self, plan: StdPlanRecord) -> PlanTexts:
        """Name the texts of the validation pairs."""
        return std_texts(plan)

    def headline(self, run: words.StdRun) -> str:
        """Say how many candidates are sticky, and what the worst one does."""
        return words.headline(run)

    def lines(self, run: words.StdRun) -> list[str]:
        """Sum up a run."""
        return words.lines(run)

    def notes(self, run: words.StdRun) -> list[str]:
        """Name what the outlier rule suffers from."""
        return words.notes(run)

    def key_facts(self, run: words.StdRun) -> list[Fact]:
        """Give the number of candidates and the rate that a sticky token exceeds."""
        return words.key_facts(run)

    def how(self, settings: StoredSettings) -> str:
        """Explain the two stages."""
        return words.how(settings)

    def plan_facts(self, plan: StdPlanRecord) -> dict[str, float]:
        """List the numbers of a plan."""
        return words.plan_facts(plan)

    def figures(self, run: words.StdRun) -> list[Figure]:
        """Describe the distributions of scores and rates, and rate against lift."""
        return tables.figures(run)

    def probe_lines(self, probed: Sequence[StdEvidence]) -> list[ProbeTable | str]:
        """Lay out the validation rates."""
        return tables.probe_lines(probed)
