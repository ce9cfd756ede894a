"""What is known of a method before it is loaded: its name and its options. Nothing heavy is imported."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from stickytoken.insertion import Insertion

if TYPE_CHECKING:
    import polars as pl

    from stickytoken.methods.protocol import AnyMethod


@dataclass(frozen=True, slots=True)
class Option:
    """A setting of a method that users may change on the command line.

    Attributes:
        name: of the option, with underscores; ``scoring_pairs`` becomes ``--scoring-pairs``.
        kind: of its value: bool, int, float, str or an enumeration.
        help: what it does, as a sentence. Methods that share a name share kind and help.
        default: the default as text.
        field: of the settings; empty where it has the option's name.
        least: smallest value, if any.
        probe: whether `stickytoken probe` takes it, too.
    """

    name: str
    kind: type[Any]
    help: str
    default: str
    field: str = ""
    least: int | float | None = None
    probe: bool = False

    @property
    def setting(self) -> str:
        """The field of the settings."""
        return self.field or self.name

    @property
    def flag(self) -> str:
        """The option as a user types it."""
        flag = self.name.replace("_", "-")
        return f"--{flag}/--no-{flag}" if self.kind is bool else f"--{flag}"


@dataclass(frozen=True, slots=True)
class MethodEntry:
    """A method in the registry.

    Attributes:
        name: as users type it.
        summary: the method in a few words.
        options: its options on the command line, in the order of the help.
        takes_pairs: whether it can be given sentence pairs in place of sentences.
        load: imports the method; called when it is first needed.
    """

    name: str
    summary: str
    options: tuple[Option, ...]
    takes_pairs: bool
    load: Callable[[], AnyMethod]


def insertion_option(default: Insertion) -> Option:
    """The option ``--insertion``, which every method has."""
    return Option(
        "insertion",
        Insertion,
        "text: join the copies to the string. ids: put exactly n copies among the token ids. words: as text, "
        "written so that the tokenizer sees the copies.",
        default.value,
        probe=True,
    )


SEED = Option(
    "seed",
    int,
    "Seed of all random sampling; 42 reproduces the published runs of std.",
    "42",
    least=0,
    probe=True,
)
"""The option ``--seed``, which every method has."""


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


class Fact(NamedTuple):
    """A number that a reader looks for first."""

    value: str
    meaning: str


class Scale(NamedTuple):
    """What makes the lifts of different models comparable.

    Attributes:
        ordinary: lift of an ordinary token.
        spread: standard deviation of the model's own similarities.
        confidence: coverage of the intervals `lift_low` to `lift_high`.
        serious: from how many standard deviations beyond an ordinary token's a lift is serious.
    """

    ordinary: float
    spread: float
    confidence: float
    serious: float


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


class Distribution(NamedTuple):
    """A figure: how one column is distributed over the tokens.

    Attributes:
        name: of the figure.
        title: of the figure.
        column: the column.
        lines: values to mark, by label.
        reading: how to read the figure.
    """

    name: str
    title: str
    column: Column
    lines: Mapping[str, float]
    reading: str


class Scatter(NamedTuple):
    """A figure: two columns of every token against each other.

    Attributes:
        name: of the figure.
        title: of the figure.
        x: the column on the horizontal axis.
        y: the column on the vertical axis.
        reading: how to read the figure.
    """

    name: str
    title: str
    x: Column
    y: Column
    reading: str


Figure: TypeAlias = Distribution | Scatter


class ProbeTable(NamedTuple):
    """A table of what a probe measured.

    Attributes:
        title: above the table.
        columns: headings.
        rows: cells.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


class Verdict(StrEnum):
    """The verdict of a run on a token; a method need not use all of them."""

    STICKY = "sticky"
    TOPICAL = "topical"
    """Lifts only part of the texts, by its meaning: no defect, and no ordinary token either."""
    BENIGN = "benign"


class Severity(StrEnum):
    """Size of a lift in standard deviations of the model's own similarities.

    The bounds are the conventional small, medium and large effects (Cohen 1988).
    """

    NEGLIGIBLE = "negligible"
    MILD = "mild"
    SERIOUS = "serious"
    SEVERE = "severe"


SEVERITY_BOUNDS = {Severity.MILD: 0.2, Severity.SERIOUS: 0.5, Severity.SEVERE: 0.8}


def severity_of(effect: float) -> Severity:
    """Grade an effect in standard deviations of the model's own similarities."""
    return tuple(Severity)[bisect_right(tuple(SEVERITY_BOUNDS.values()), effect)]


def severity_counts(tokens: pl.DataFrame) -> dict[str, int]:
    """Count the flagged tokens of every severity, the worst severity first."""
    return {grade.value: int((tokens["severity"] == grade.value).sum()) for grade in reversed(Severity)}
