"""What is known about detection methods before they are loaded. This module imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class MethodEntry:
    """What is known of a method before it is loaded.

    Attributes:
        name: Its name, for ``--method``.
        summary: A few words on what it does.
        settings: The dataclass of its settings. The command line makes its options from the fields.
        takes_pairs: Whether it can use sentence pairs in place of sentences.
        load: Imports and returns the method, a `stickytoken.methods.base.Method`.
    """

    name: str
    summary: str
    settings: type[Any]
    takes_pairs: bool
    load: Callable[[], Any]


class Column(NamedTuple):
    """A column of tokens.parquet, and how it is displayed."""

    key: str  # in tokens.parquet
    title: str
    digits: int | None = None  # decimals; None for text and whole numbers
    unit: str = ""  # shown after the number; a share in % is multiplied by 100

    def text(self, value: object) -> str:
        """Return a value of the column as text; empty if the value is missing."""
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
    """A number at the head of a report."""

    value: str
    meaning: str


class Scale(NamedTuple):
    """A scale on which the lifts of different models can be compared."""

    ordinary: float  # lift of the ordinary token, as a difference of cosines
    spread: float  # standard deviation of the model's own similarities
    confidence: float  # coverage of the intervals of the lift
    serious: float  # smallest serious lift beyond the ordinary token's, in standard deviations


class Moved(NamedTuple):
    """How copies of a token change the rank of an average unrelated document in a search.

    Without copies, such a document outranks half of the other unrelated documents.
    """

    copies: int
    ahead: float  # share of the other unrelated documents that the document outranks with the copies
    ordinary: float | None  # the same share, averaged over ordinary tokens; None if not measured


class PlanTexts(NamedTuple):
    """The texts of a plan."""

    carriers: list[str]  # best first
    anchors: list[str]  # none of them a carrier
    by_topic: bool  # whether the anchors are grouped by topic; a small selection is then best spread evenly


class Distribution(NamedTuple):
    """A histogram of a column over all tokens."""

    name: str
    title: str
    column: Column
    lines: Mapping[str, float]  # values to mark, by label
    reading: str  # how to read the figure


class Scatter(NamedTuple):
    """A scatter plot of two columns, with a point for each token."""

    name: str
    title: str
    x: Column
    y: Column
    reading: str  # how to read the figure


Figure: TypeAlias = Distribution | Scatter


class ProbeTable(NamedTuple):
    """A table in the answer of `stickytoken probe`."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


class Verdict(StrEnum):
    """The verdict of a run on a token. A method need not use all verdicts."""

    STICKY = "sticky"
    TOPICAL = "topical"
    """The token lifts only some texts, because of its meaning. That is unusual, but not a defect."""
    BENIGN = "benign"


class Severity(StrEnum):
    """How bad a flagged token is, from mild to severe."""

    MILD = "mild"
    """The token reaches only the halved thresholds, which apply to unusual vectors."""
    SERIOUS = "serious"
    """The token reaches a full threshold."""
    SEVERE = "severe"
    """The token lifts unrelated texts by at least 0.8 SD, or erases at least 70% of a text."""


def severity_counts(tokens: pl.DataFrame) -> dict[str, int]:
    """Return the number of tokens by severity, worst severity first."""
    return {grade.value: int((tokens["severity"] == grade.value).sum()) for grade in reversed(Severity)}
