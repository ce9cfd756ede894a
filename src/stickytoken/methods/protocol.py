"""What a detection method is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import polars as pl

from stickytoken.insertion import Insertion
from stickytoken.measurement.progress import ProgressCallback
from stickytoken.methods.evidence_panel import Exhibit
from stickytoken.methods.job import FolderRunner, Job
from stickytoken.methods.records import PlanRecord, ResultRecord


class MethodSettings(Protocol):
    """Settings of a method: a frozen dataclass with at least these fields."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def seed(self) -> int:
        """Of all random sampling."""
        ...

    @property
    def insertion(self) -> Insertion:
        """How copies go into a text."""
        ...


class Column(NamedTuple):
    """A column of a table of tokens.

    Attributes:
        key: its name in tokens.parquet.
        title: its heading.
        digits: after the decimal point; None for text and whole numbers.
    """

    key: str
    title: str
    digits: int | None = None


class PlanTexts(NamedTuple):
    """Texts of a plan, for an explanation or the web app.

    Attributes:
        carriers: texts that copies went into, best first.
        anchors: texts that they were compared with, none of them a carrier.
        by_topic: whether the anchors are ordered by topic, so that a few of them are best taken evenly.
    """

    carriers: list[str]
    anchors: list[str]
    by_topic: bool


class Outcome(NamedTuple):
    """What a method ends with.

    Attributes:
        tokens: tokens.parquet.
        result: the result in run.json.
    """

    tokens: pl.DataFrame
    result: ResultRecord


@dataclass(frozen=True)
class Method:
    """A detection method.

    Attributes:
        name: as the user types it.
        settings: the class of its settings.
        plan_record: the class of its plan.json.
        columns: that its tokens.parquet must have.
        listed: the columns of its own that `stickytoken show` prints between category and verdict.
        verdicts: that it gives; "sticky" first, "benign" last.
        judges_every_token: whether no token is left without a verdict.
        ranked_by: column that its tokens are sorted by, largest first.
        topics_count: whether the topics of sentences change its numbers.
        make_plan: what it derives from the model and the corpus before any token.
        compute: all its stages.
        exhibit: the texts of its plan that tokens are shown on.
        texts: carriers and anchors of its plan.
    """

    name: str
    settings: type[Any]
    plan_record: type[PlanRecord]
    columns: tuple[str, ...]
    listed: tuple[Column, ...]
    verdicts: tuple[str, ...]
    judges_every_token: bool
    ranked_by: str
    topics_count: bool
    make_plan: Callable[[Job, ProgressCallback], Any]
    compute: Callable[[Job, Any, pl.DataFrame, FolderRunner], Outcome]
    exhibit: Callable[[Job, Any], Exhibit]
    texts: Callable[[Any], PlanTexts]
