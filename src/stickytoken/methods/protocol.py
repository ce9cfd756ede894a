"""What a detection method is: `Method`. To add one, write a folder with a subclass and register its entry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import Field
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import polars as pl

from stickytoken.encoders.views import View
from stickytoken.errors import InputError
from stickytoken.measurement.progress import ProgressCallback
from stickytoken.methods.descriptions import Column, Fact, Figure, PlanTexts, ProbeTable, Scale
from stickytoken.methods.entry import MethodEntry
from stickytoken.methods.evidence_panel import EvidencePanel
from stickytoken.methods.job import FolderRunner, Job, MethodSettings
from stickytoken.methods.judgement import Judgement
from stickytoken.methods.recheck import Recheck, RecheckJob
from stickytoken.methods.records import PlanRecord, ResultRecord
from stickytoken.methods.stored_settings import StoredSettings
from stickytoken.methods.token_effects import TokenEffects
from stickytoken.methods.verdicts import Verdict

Settings = TypeVar("Settings", bound=MethodSettings)
Plan = TypeVar("Plan", bound=PlanRecord)
Result = TypeVar("Result", bound=ResultRecord)
Plan_co = TypeVar("Plan_co", bound=PlanRecord, covariant=True)
Result_co = TypeVar("Result_co", bound=ResultRecord, covariant=True)


class ProbedToken(Protocol):
    """What a method measured of one named token: a dataclass with at least these fields."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def token_id(self) -> int:
        """Its id."""

    @property
    def token(self) -> str:
        """Its vocabulary string."""


class FinishedRun(Protocol[Plan_co, Result_co]):
    """A finished run as its method reads it."""

    @property
    def path(self) -> Path:
        """The run folder."""

    @property
    def model_name(self) -> str:
        """The model as the user named it."""

    @property
    def available(self) -> int:
        """Vocabulary entries that can occur in text."""

    @property
    def settings(self) -> StoredSettings:
        """Settings of the method."""

    @property
    def plan(self) -> Plan_co:
        """The method's plan.json."""

    @property
    def result(self) -> Result_co:
        """The method's result in run.json."""

    @property
    def tokens(self) -> pl.DataFrame:
        """tokens.parquet."""

    @property
    def sticky(self) -> pl.DataFrame:
        """Its sticky tokens, worst first."""


class Outcome(NamedTuple, Generic[Result]):
    """What a method ends with.

    Attributes:
        tokens: tokens.parquet.
        result: the result in run.json.
    """

    tokens: pl.DataFrame
    result: Result


class Method(ABC, Generic[Settings, Plan, Result]):
    """A detection method.

    tokens.parquet has at least token_id, token, decoded, category, lift and verdict. A method that grades
    flagged tokens has a column severity (severe, serious, mild or negligible, null for benign tokens); one
    that says what a topical token is about has a column kind; one with intervals has lift_low and lift_high.
    Reports use them where they are.

    Attributes:
        entry: in the registry: name and options.
        settings: the class of its settings.
        plan_record: the class of its plan.json.
        result_record: the class of its result in run.json.
        columns: that tokens.parquet must have.
        listed: columns that `stickytoken show` prints between category and verdict; one of text is left out
            where no token has a value.
        reported: columns that a report shows behind the verdict; ``sd`` is the lift on the method's scale.
        ranked_by: the column that says how bad a token is, the worst highest.
        verdicts: that it gives.
        judges_every_token: whether no token is left without a verdict.
        uses_topics: whether the topics of the sentences, and the bundled kinds of text, change its numbers.
        glossary: words of its reports and what they mean.
        uses_whole_vectors: whether it reads the whole vectors of a model that truncates them.
        effort: settings that change how closely tokens are measured, but not what is measured.
    """

    entry: MethodEntry
    settings: type[Settings]
    plan_record: type[Plan]
    result_record: type[Result]
    columns: tuple[str, ...]
    listed: tuple[Column, ...]
    reported: tuple[Column, ...]
    ranked_by: Column
    verdicts: tuple[Verdict, ...]
    judges_every_token: bool
    uses_topics: bool
    glossary: Mapping[str, str]
    uses_whole_vectors: bool = False
    effort: frozenset[str] = frozenset()

    # To compute.

    @abstractmethod
    def make_plan(self, job: Job[Settings], progress: ProgressCallback) -> Plan:
        """Derive from the model and the corpus what is needed before any token is measured."""

    @abstractmethod
    def compute(
        self, job: Job[Settings], plan: Plan, vocabulary: pl.DataFrame, run: FolderRunner
    ) -> Outcome[Result]:
        """Run all stages and judge the tokens. What is committed is not computed again."""

    @abstractmethod
    def probe(self, job: Job[Settings], progress: ProgressCallback) -> Sequence[ProbedToken]:
        """Measure the job's tokens without a run folder, in the job's order."""

    @abstractmethod
    def evidence_panel(self, job: Job[Settings], plan: Plan) -> EvidencePanel:
        """Encode carriers and anchors of the plan, to show on them what a token does."""

    @abstractmethod
    def texts(self, plan: Plan) -> PlanTexts:
        """Name the carriers and anchors of the plan."""

    # To tell.

    @abstractmethod
    def headline(self, run: FinishedRun[Plan, Result]) -> str:
        """Say in a sentence or two whether the model has a problem, and how bad it is."""

    @abstractmethod
    def lines(self, run: FinishedRun[Plan, Result]) -> list[str]:
        """Summarise a run for a terminal: the finding first, then its basis."""

    @abstractmethod
    def notes(self, run: FinishedRun[Plan, Result]) -> list[str]:
        """Say what a reader should know before relying on the run."""

    @abstractmethod
    def key_facts(self, run: FinishedRun[Plan, Result]) -> list[Fact]:
        """Give the numbers to read first, besides those that every run has."""

    @abstractmethod
    def how(self, settings: StoredSettings) -> str:
        """Explain the method in a few sentences."""

    @abstractmethod
    def plan_facts(self, plan: Plan) -> dict[str, float]:
        """List the numbers of a plan."""

    @abstractmethod
    def figures(self, run: FinishedRun[Plan, Result]) -> list[Figure]:
        """Describe the figures that a report draws from tokens.parquet."""

    @abstractmethod
    def probe_lines(self, probed: Sequence[Any]) -> list[ProbeTable | str]:
        """Lay out what `probe` returned as tables and sentences."""

    def require_judging(self, run: FinishedRun[Plan, Result]) -> None:
        """Refuse a run that cannot judge another corpus.

        Raises:
            InputError: the method measures nothing that says what a token does elsewhere.
            RunError: the run lacks what is needed.
        """
        raise self._cannot_judge(run)

    def judge(
        self,
        job: Job[Settings],
        run: FinishedRun[Plan, Result],
        anchors: int,
        progress: ProgressCallback,
        view: View | None = None,
    ) -> Judgement:
        """Judge the job's tokens on its corpus by a finished run.

        Args:
            job: model, settings, corpus, and the tokens of the run.
            run: the run.
            anchors: texts of the corpus to compare with, at most.
            progress: called after every step.
            view: of the vectors, which the run must have measured; the job's encoder gives them in it. None
                is the model as it is.

        Raises:
            InputError: the method cannot judge, or not this corpus.
        """
        raise self._cannot_judge(run)

    def recheck(self, job: RecheckJob, name: str) -> Recheck:
        """Put a model on texts that a run has not used, to measure tokens again.

        Raises:
            InputError: the method cannot do that, or too few texts are left.
        """
        del job, name
        raise InputError(f"the method {self.entry.name} does not measure tokens again on other texts")

    def _cannot_judge(self, run: FinishedRun[Plan, Result]) -> InputError:
        return InputError(
            f"{run.path} is a run of the method {self.entry.name}, which cannot judge another corpus: detect "
            "with --method profile"
        )

    def token_effects(self, run: FinishedRun[Plan, Result]) -> TokenEffects | None:
        """Return contraction and pull of the tokens; None where the method does not measure them.

        Raises:
            RunError: the run lacks them.
        """
        return None

    def scale(self, run: FinishedRun[Plan, Result]) -> Scale | None:
        """Say what makes lifts comparable between models; None where the method does not measure it."""
        return None


AnyMethod: TypeAlias = Method[Any, Any, Any]
