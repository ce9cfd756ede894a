"""What a detection method is: `Method`. To add one, write a folder with a subclass and register its entry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import polars as pl

from stickytoken.encoders.views import View
from stickytoken.errors import InputError
from stickytoken.measurement.engine import ProgressCallback
from stickytoken.methods.entry import (
    Column,
    Distribution,
    Fact,
    Figure,
    MethodEntry,
    PlanTexts,
    ProbeTable,
    Scale,
    Verdict,
    severity_counts,
)
from stickytoken.methods.job import (
    FolderRunner,
    Job,
    MethodSettings,
    PlanRecord,
    Recheck,
    RecheckJob,
    ResultRecord,
    StoredSettings,
)
from stickytoken.methods.probes import AnchorPanel, EvidenceStage, as_carriers, fitting_copies
from stickytoken.methods.statistics import TokenEffects
from stickytoken.unit_vectors import unit_vectors

MEASURING = "measure"
"""Name of the stage of a judgement whose tokens are chosen by results."""

# Of the numbers of copies that a probe tries: enough for the shape of a curve.
_CURVE_COPIES = (1, 2, 4, 8, 16, 32)
_PAIR_COPIES = 8


@dataclass(frozen=True)
class EvidencePanel:
    """Carriers against anchors, to show on them what a token does."""

    carriers: list[str]
    sentences: list[str]
    stage: EvidenceStage


def evidence_panel(
    job: Job[MethodSettings], texts: list[str], sentences: list[str], anchors: AnchorPanel, u: float
) -> EvidencePanel:
    """Compare carriers with anchors, before copies go into them."""
    encoder, insertion = job.encoder, job.settings.insertion
    panel = anchors.against(unit_vectors(encoder.encode(texts)), u)
    copies = fitting_copies(encoder, insertion, texts, _CURVE_COPIES)
    carriers = as_carriers(encoder, insertion, texts)
    shown = max(count for count in copies if count <= _PAIR_COPIES)
    return EvidencePanel(texts, sentences, EvidenceStage(carriers, copies, panel, pair_copies=shown))


@dataclass(frozen=True)
class Judgement:
    """Verdicts of a run for a corpus.

    Attributes:
        tokens: one row per token of the run: token_id, token, decoded, category, texts (carriers of this
            corpus that the token was put into; 0 if its lift is computed from the run alone), lift,
            lift_low, lift_high, universality, moves_up, contraction, fixed_point, q_value, severity and
            verdict. moves_up is the share of random queries and documents of the corpus for which the copies
            move the document up by at least a tenth of the corpus; only flagged tokens have it.
        source: where the corpus came from.
        texts: distinct texts of the corpus.
        anchors: number of them that carriers were compared with.
        left_out: texts that the model does not read whole.
        ordinary_lift: lift of the typical token on the corpus.
        similarity_spread: standard deviation of the similarities within the corpus.
        error: standard error of the lifts that are computed from the run.
        measured: number of tokens that were put into texts of the corpus.
        undecided: tokens that may be flagged but were not among those.
        narrow_limit: median similarity within a narrow corpus, which has too few pairs below the model's mean
            similarity: its pairs below this median count as unrelated. None for any other corpus.
        others: judgements in the other views that were asked for.
    """

    tokens: pl.DataFrame
    source: str
    texts: int
    anchors: int
    left_out: int
    ordinary_lift: float
    similarity_spread: float
    error: float
    measured: int
    undecided: int
    narrow_limit: float | None = None
    others: Mapping[View, Judgement] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(self.having(verdict)):,} {verdict}" for verdict in Verdict)
        return f"<Judgement: {counts} on {self.texts:,} texts from {self.source}>"

    @property
    def sticky(self) -> pl.DataFrame:
        """The sticky tokens, worst first."""
        return self.having(Verdict.STICKY)

    @property
    def flagged(self) -> pl.DataFrame:
        """The sticky and the topical tokens, worst first."""
        return self.having(Verdict.STICKY, Verdict.TOPICAL)

    def having(self, *verdicts: Verdict) -> pl.DataFrame:
        """The tokens with one of these verdicts, worst first."""
        return self.tokens.filter(pl.col("verdict").is_in(list(verdicts))).sort(
            "lift", "token_id", descending=[True, False]
        )

    def at(self, dimension: int, layer: int | None = None) -> Judgement:
        """The judgement in another view that was asked for.

        Raises:
            InputError: it was not.
        """
        found = next((each for view, each in self.others.items() if view.is_at(dimension, layer)), None)
        if found is None:
            known = "; ".join(map(str, self.others)) or "no other view"
            raise InputError(f"the judgement has no {View(dimension, layer)}: it has {known}")
        return found

    def by_dimension(self) -> pl.DataFrame:
        """One row per view that was asked for: counts, largest lift, spread of the similarities."""
        rows = [
            {
                "layer": view.layer,
                "dimension": view.dimension,
                "sticky": len(found.sticky),
                "topical": len(found.flagged) - len(found.sticky),
                **found.severities(),
                "similarity_spread": found.similarity_spread,
                "ordinary_lift": found.ordinary_lift,
                "largest_sd": (float(found.tokens["lift"].to_numpy().max()) - found.ordinary_lift)
                / found.similarity_spread,
            }
            for view, found in self.others.items()
        ]
        return pl.DataFrame(rows, schema_overrides={"layer": pl.Int64})

    def severities(self) -> dict[str, int]:
        """Count the flagged tokens of every severity."""
        return severity_counts(self.tokens)

    def summary(self) -> dict[str, Any]:
        """The judgement in JSON values, with the flagged tokens."""
        numbers = {name: value for name, value in vars(self).items() if name not in ("tokens", "others")}
        found = numbers | {"flagged": self.flagged.to_dicts()}
        if not self.others:
            return found
        by_view = [
            row | {"flagged": each.flagged.to_dicts()}
            for row, each in zip(self.by_dimension().to_dicts(), self.others.values(), strict=True)
        ]
        return found | {"dimensions": by_view}


Settings = TypeVar("Settings", bound=MethodSettings)
Plan = TypeVar("Plan", bound=PlanRecord)
Result = TypeVar("Result", bound=ResultRecord)
Plan_co = TypeVar("Plan_co", bound=PlanRecord, covariant=True)
Result_co = TypeVar("Result_co", bound=ResultRecord, covariant=True)


class ProbedToken(Protocol):
    """What a method measured of one named token: a dataclass with at least these fields."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def token_id(self) -> int: ...
    @property
    def token(self) -> str: ...  # its vocabulary string


class FinishedRun(Protocol[Plan_co, Result_co]):
    """A finished run as its method reads it; see `stickytoken.detection.Run`."""

    @property
    def path(self) -> Path: ...
    @property
    def model_name(self) -> str: ...  # as the user named it
    @property
    def available(self) -> int: ...  # vocabulary entries that can occur in text
    @property
    def settings(self) -> StoredSettings: ...
    @property
    def plan(self) -> Plan_co: ...
    @property
    def result(self) -> Result_co: ...
    @property
    def tokens(self) -> pl.DataFrame: ...
    @property
    def sticky(self) -> pl.DataFrame: ...  # worst first


class Outcome(NamedTuple, Generic[Result]):
    """What a method ends with: tokens.parquet, and the result in run.json."""

    tokens: pl.DataFrame
    result: Result


class Method(ABC, Generic[Settings, Plan, Result]):
    """A detection method.

    tokens.parquet has at least token_id, token, decoded, category, lift and verdict. A method that grades
    flagged tokens has a column severity (severe, serious, mild or negligible, null for benign tokens); one
    that says what a topical token is about has a column kind; one with intervals has lift_low and lift_high.
    Reports use them where they are.
    """

    entry: MethodEntry  # set by the registry
    settings: type[Settings]
    plan_record: type[Plan]  # plan.json
    result_record: type[Result]  # the result in run.json
    columns: tuple[str, ...]  # that tokens.parquet must have
    # Columns that `stickytoken show` prints between category and verdict; one of text is left out where no
    # token has a value.
    listed: tuple[Column, ...]
    # Columns that a report shows behind the verdict; ``sd`` is the lift on the method's scale.
    reported: tuple[Column, ...]
    ranked_by: Column  # how bad a token is, the worst highest
    verdicts: tuple[Verdict, ...] = (Verdict.STICKY, Verdict.BENIGN)
    judges_every_token: bool = True  # whether no token is left without a verdict
    judges_corpora: bool = False  # whether a finished run can judge the texts of another corpus, by `judge`
    measures_lift: bool = True  # whether it puts tokens into texts; else the column lift is null
    uses_topics: bool = False  # whether topics of the sentences, and bundled kinds of text, change numbers
    glossary: Mapping[str, str] = MappingProxyType({})  # words of its reports and what they mean
    uses_whole_vectors: bool = False  # whether it reads the whole vectors of a model that truncates them
    effort: frozenset[str] = frozenset()  # settings of how closely tokens are measured, not of what is

    # To compute.

    @abstractmethod
    def make_plan(self, job: Job[Settings], progress: ProgressCallback) -> Plan:
        """Derive from the model and the corpus what is needed before any token is measured."""

    @abstractmethod
    def compute(
        self, job: Job[Settings], plan: Plan, vocabulary: pl.DataFrame, run: FolderRunner
    ) -> Outcome[Result]:
        """Run all stages and judge the tokens. What is committed is not computed again."""

    def probe(self, job: Job[Settings], progress: ProgressCallback) -> Sequence[ProbedToken]:
        """Measure the job's tokens without a run folder, in the job's order.

        Raises:
            InputError: the method cannot do that.
        """
        raise InputError(
            f"the method {self.entry.name} does not measure single tokens: use detect, or another method"
        )

    def evidence_panel(self, job: Job[Settings], plan: Plan) -> EvidencePanel | None:
        """Encode carriers and anchors of the plan, to show on them what a token does; None without any."""
        return None

    def texts(self, plan: Plan) -> PlanTexts:
        """Name the carriers and anchors of the plan."""
        return PlanTexts([], [], by_topic=False)

    # To tell.

    @abstractmethod
    def headline(self, run: FinishedRun[Plan, Result]) -> str:
        """Say in a sentence or two whether the model has a problem, and how bad it is."""

    def lines(self, run: FinishedRun[Plan, Result]) -> list[str]:
        """Summarise a run for a terminal: the finding first, then its basis."""
        return [self.headline(run)]

    def notes(self, run: FinishedRun[Plan, Result]) -> list[str]:
        """Say what a reader should know before relying on the run."""
        return []

    def key_facts(self, run: FinishedRun[Plan, Result]) -> list[Fact]:
        """Give the numbers to read first, besides those that every run has."""
        return []

    @abstractmethod
    def how(self, settings: StoredSettings) -> str:
        """Explain the method in a few sentences."""

    def plan_facts(self, plan: Plan) -> dict[str, float]:
        """List the numbers of a plan."""
        return {name: value for name, value in plan if isinstance(value, int | float)}

    def figures(self, run: FinishedRun[Plan, Result]) -> list[Figure]:
        """Describe the figures that a report draws from tokens.parquet."""
        title = self.ranked_by.title
        return [Distribution("distribution", f"{title.capitalize()} of all tokens", self.ranked_by, {}, "")]

    def probe_lines(self, probed: Sequence[Any]) -> list[ProbeTable | str]:
        """Lay out what `probe` returned as tables and sentences."""
        names = [each.name for each in fields(probed[0])]
        rows = [[getattr(each, name) for name in names] for each in probed]
        return [ProbeTable(f"Tokens by the method {self.entry.name}", names, rows)]

    def scale(self, run: FinishedRun[Plan, Result]) -> Scale | None:
        """Say what makes lifts comparable between models; None where the method does not measure it."""
        return None

    # What only some methods can do.

    def require_judging(self, run: FinishedRun[Plan, Result]) -> None:
        """Refuse a run that cannot judge another corpus.

        Raises:
            InputError: the method measures nothing that says what a token does elsewhere.
            RunError: the run lacks what is needed.
        """
        raise InputError(
            f"{run.path} is a run of the method {self.entry.name}, which cannot judge another corpus: detect "
            "with --method profile"
        )

    def judge(
        self,
        job: Job[Settings],
        run: FinishedRun[Plan, Result],
        anchors: int,
        progress: ProgressCallback,
        view: View | None = None,
    ) -> Judgement:
        """Judge the job's tokens on its corpus by a run that `require_judging` accepts.

        Args:
            job: model, settings, corpus, and the tokens of the run.
            run: the run.
            anchors: texts of the corpus to compare with, at most.
            progress: called after every step.
            view: of the vectors, which the run must have measured; the job's encoder gives them in it. None
                is the model as it is.

        Raises:
            InputError: the corpus cannot be used.
        """
        raise NotImplementedError

    def recheck(self, job: RecheckJob, name: str) -> Recheck:
        """Put a model on texts that a run has not used, to measure tokens again.

        Raises:
            InputError: the method cannot do that, or too few texts are left.
        """
        raise InputError(f"the method {self.entry.name} does not measure tokens again on other texts")

    def token_effects(self, run: FinishedRun[Plan, Result]) -> TokenEffects | None:
        """Return contraction and pull of the tokens; None where the method does not measure them.

        Raises:
            RunError: the run lacks them.
        """
        return None


AnyMethod: TypeAlias = Method[Any, Any, Any]
