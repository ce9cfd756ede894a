"""Detection methods: what is known of one before it is loaded. Nothing heavy is imported here."""

from __future__ import annotations

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


class Scores(StrEnum):
    """Which tokens get an exact score of the paper's method."""

    NEEDED = "needed"  # those that may become candidates; the others get an upper bound
    ALL = "all"


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
    """How a column is shown: its title, its unit and its number of decimals."""

    key: str  # in tokens.parquet
    title: str
    digits: int | None = None  # after the decimal point; None for text and whole numbers
    unit: str = ""  # shown behind the number; a share in % is multiplied by 100

    def text(self, value: object) -> str:
        """Write a value of the column; a missing one is empty."""
        if value is None:
            return ""
        if self.digits is None or not isinstance(value, int | float):
            return str(value)
        number = 100 * value if self.unit == "%" else value
        written = f"{number:,.{self.digits}f}"
        if float(written.replace(",", "")) == 0:
            written = written.lstrip("-")  # no minus zero
        separator = "" if self.unit in ("", "%") else " "
        return f"{written}{separator}{self.unit}".replace("-", "\N{MINUS SIGN}")


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
    """How bad a flagged token is, the mildest first."""

    MILD = "mild"
    """Only the halved thresholds, which apply to unusual vectors, are reached."""
    SERIOUS = "serious"
    """A full threshold is reached."""
    SEVERE = "severe"
    """The token lifts unrelated texts by 0.8 SD or erases 70% of a text."""


def severity_counts(tokens: pl.DataFrame) -> dict[str, int]:
    """Count tokens by severity, the worst first."""
    return {grade.value: int((tokens["severity"] == grade.value).sum()) for grade in reversed(Severity)}
