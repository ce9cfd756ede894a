"""What a detection method is (`Method`), and what it is given and returns."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, cast

import polars as pl

import stickytoken.methods as terms
from stickytoken.data import PairCorpus, Sentences
from stickytoken.encoders.protocol import Encoder
from stickytoken.insertion import Token
from stickytoken.measurement.engine import ProgressCallback
from stickytoken.measurement.resume import Record
from stickytoken.measurement.store import ResultFolder
from stickytoken.settings import InsertingSettings
from stickytoken.unit_vectors import Similarity
from stickytoken.vocabulary import Vocabulary

if TYPE_CHECKING:
    from stickytoken.methods.runner import Runner


class PlanRecord(Record, ABC):
    """plan.json: what a method chooses before it measures tokens."""

    @property
    @abstractmethod
    def texts(self) -> list[str]:
        """The carriers: the texts that receive copies. If fewer are needed, the first are used."""


class ResultRecord(Record):
    """The result of a finished run: the numbers that every method provides."""

    sticky: int  # number of sticky tokens
    sequences: int  # number of texts encoded in all stages
    seconds: float  # wall time of all sessions in seconds


class MethodSettings(InsertingSettings, Protocol):
    """Settings of a method. All of their fields have defaults."""

    @property
    def seed(self) -> int: ...  # seed of all random sampling


class Scope(Enum):
    """Which of the available tokens are measured."""

    WHOLE = auto()
    """All of them."""
    SAMPLE = auto()
    """A random sample of all of them; with profile, also the special tokens."""
    NAMED = auto()
    """Those that a user named, or a random sample of these."""


Settings_co = TypeVar("Settings_co", bound=MethodSettings, covariant=True)


@dataclass(frozen=True)
class Job(Generic[Settings_co]):
    """Everything that a detection needs: the model, the settings, the corpus and the tokens to measure.

    Attributes:
        encoder: the model.
        settings: settings of the method.
        corpus: the texts that the tokens are measured in.
        vocabulary: vocabulary of the model.
        tokens: the tokens to measure; in a run, they are in ascending order of id.
        scope: how these tokens were chosen.
    """

    encoder: Encoder
    settings: Settings_co
    corpus: Sentences | PairCorpus
    vocabulary: Vocabulary
    tokens: list[Token]
    _: KW_ONLY
    scope: Scope

    @property
    def sentences(self) -> Sentences:
        """The corpus of a job of profile, which takes no pairs."""
        return cast(Sentences, self.corpus)


Plan_co = TypeVar("Plan_co", bound=PlanRecord, covariant=True)
Result_co = TypeVar("Result_co", bound=ResultRecord, covariant=True)


class ProbedToken(Protocol):  # the results of probing a token: a dataclass with at least these fields
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def token_id(self) -> int: ...
    @property
    def token(self) -> str: ...  # the string of the token in the vocabulary


class FinishedRun(Protocol[Plan_co, Result_co]):  # the part of `stickytoken.detection.Run` that a method uses
    @property
    def path(self) -> Path: ...
    @property
    def available(self) -> int: ...  # number of vocabulary entries that can occur in text
    @property
    def has_named_tokens(self) -> bool: ...  # rather than all available tokens or a random sample
    @property
    def settings(self) -> Any: ...  # an instance of the method's settings class
    @property
    def plan(self) -> Plan_co: ...
    @property
    def result(self) -> Result_co: ...
    @property
    def tokens(self) -> pl.DataFrame: ...
    @property
    def sticky(self) -> pl.DataFrame: ...  # The sticky tokens, worst first.


class Method(Protocol):
    """What a detection method is: a package of this folder with these constants and functions.

    The functions are in the order in which a run calls them.
    """

    PLAN_RECORD: type[PlanRecord]  # class of the plan in plan.json
    RESULT_RECORD: type[ResultRecord]  # class of the result in run.json
    TABLE: terms.TokenTable  # what tokens.parquet has, and how it is shown

    def describe_similarity(self, similarity: Similarity) -> str:
        """Say what the method measures by the cosine, for a model that compares vectors by ``similarity``."""

    def make_plan(self, job: Job[Any], runner: Runner) -> Any:
        """Choose what tokens are measured in.

        Returns:
            A `PLAN_RECORD`.
        """

    def compute(
        self, job: Job[Any], plan: Any, runner: Runner, folder: ResultFolder
    ) -> tuple[pl.DataFrame, Any]:
        """Run all stages and judge the tokens.

        Tokens for which a server gave no vector have no measurements and no verdict, and don't count as
        sticky.

        Args:
            job: the model, its vocabulary, the tokens to measure and the settings.
            plan: what `make_plan` returned, a `PLAN_RECORD`.
            runner: encodes the texts of a stage, and returns a table with one row per token.
            folder: the run folder, which keeps what the runner computed. The method may write further files
                into it.

        Returns:
            The table tokens.parquet, and the result for run.json, a `RESULT_RECORD`.
        """

    def describe_run(self, run: FinishedRun[Any, Any]) -> terms.RunDescription:
        """Return what is said about a run in the terminal and in reports."""

    def probe(self, job: Job[Any], progress: ProgressCallback) -> Sequence[ProbedToken]:
        """Measure the job's tokens without a run folder. Return one result per token, in the same order."""

    def describe_probe(self, probed: Sequence[Any]) -> list[terms.ProbeTable | str]:
        """Return the results of `probe` as tables and sentences."""
