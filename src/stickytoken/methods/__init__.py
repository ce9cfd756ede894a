"""Detection methods: what is known of one before it is loaded. Nothing heavy is imported here."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from stickytoken.insertion import Insertion

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class Option:
    """A setting on the command line; methods that share the name of an option share its kind and help."""

    name: str  # with underscores; ``sample_size`` becomes ``--sample-size``
    kind: type[Any]  # bool, int, float, str or an enumeration
    help: str
    default: str  # as text
    field: str = ""  # of the settings; empty where it has the option's name
    least: int | float | None = None
    probe: bool = False  # whether `stickytoken probe` takes it, too
    rare: bool = True  # whether it is a setting (``--set name=value``) and no option of its own

    @property
    def setting(self) -> str:
        return self.field or self.name

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class MethodEntry:
    name: str
    summary: str  # a few words
    options: tuple[Option, ...]  # in the order of the help
    takes_pairs: bool  # whether it can be given sentence pairs in place of sentences
    load: Callable[[], Any]  # imports and makes the method, a `stickytoken.methods.base.Method`


def insertion_option(default: Insertion) -> Option:
    return Option(
        "insertion",
        Insertion,
        "text: join the copies to the string. ids: put exactly n copies among the token ids. words: as text, "
        "written so that the tokenizer sees the copies.",
        default.value,
        probe=True,
        rare=False,
    )


SEED = Option(
    "seed",
    int,
    "Seed of all random sampling; 42 reproduces the published runs of std.",
    "42",
    least=0,
    probe=True,
    rare=False,
)
"""The option ``--seed``, which every method has."""


class Column(NamedTuple):
    key: str  # in tokens.parquet
    title: str
    digits: int | None = None  # after the decimal point; None for text and whole numbers


class Fact(NamedTuple):
    value: str
    meaning: str


class Scale(NamedTuple):
    ordinary: float  # lift of an ordinary token
    spread: float  # standard deviation of the model's own similarities
    confidence: float  # coverage of the intervals `lift_low` to `lift_high`
    serious: float  # from so many standard deviations beyond an ordinary token's, a lift is serious


class Moved(NamedTuple):
    """What copies of a token do to the rank of an average unrelated document, ahead of half without any."""

    copies: int
    ahead: float  # share of the other unrelated documents that it is then ahead of
    ordinary: float | None  # the same with copies of ordinary tokens, on average; None where none is measured

    def sentence(self, token: str = "") -> str:
        """Say it without a full stop; with the name of the token, also compare with ordinary ones."""
        copies, let = ("copy", "lets") if self.copies == 1 else ("copies", "let")
        usual = f", with copies of an ordinary token {self.ordinary:.0%}" if token and self.ordinary else ""
        of = f" of {token}" if token else ""
        return (
            f"{self.copies} {copies}{of} {let} an average unrelated document outrank {self.ahead:.0%} of the "
            f"others in a search; without copies it outranks 50%{usual}"
        )


class PlanTexts(NamedTuple):
    carriers: list[str]  # best first
    anchors: list[str]  # none of them a carrier
    by_topic: bool  # whether the anchors are ordered by topic, so that a few are best taken evenly


class Distribution(NamedTuple):
    name: str
    title: str
    column: Column
    lines: Mapping[str, float]  # values to mark, by label
    reading: str


class Scatter(NamedTuple):
    name: str
    title: str
    x: Column
    y: Column
    reading: str


Figure: TypeAlias = Distribution | Scatter  # of the tokens: of one column, or of two against each other


class ProbeTable(NamedTuple):
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
    # By the lift in standard deviations of the similarities: small, medium and large effects (Cohen 1988).
    NEGLIGIBLE = "negligible"
    MILD = "mild"
    SERIOUS = "serious"
    SEVERE = "severe"


SEVERITY_BOUNDS = {Severity.MILD: 0.2, Severity.SERIOUS: 0.5, Severity.SEVERE: 0.8}


def severity_of(effect: float) -> Severity:
    return tuple(Severity)[bisect_right(tuple(SEVERITY_BOUNDS.values()), effect)]


def severity_counts(tokens: pl.DataFrame) -> dict[str, int]:
    return {grade.value: int((tokens["severity"] == grade.value).sum()) for grade in reversed(Severity)}
