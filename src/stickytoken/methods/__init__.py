"""Detection methods, as far as they are known before they are loaded. Nothing heavy is imported here."""

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
    """How a column is displayed: its title, its unit and its number of decimals."""

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
    value: str
    meaning: str


class Scale(NamedTuple):
    ordinary: float  # lift of an ordinary token
    spread: float  # standard deviation of the model's own similarities
    confidence: float  # coverage of the intervals `lift_low` to `lift_high`
    serious: float  # lift beyond an ordinary token's, in standard deviations, that is serious


class Moved(NamedTuple):
    """How copies of a token change the rank of an average unrelated document, without them 50%."""

    copies: int
    ahead: float  # share of the other unrelated documents that it outranks with the copies
    ordinary: float | None  # the same share with copies of ordinary tokens, on average; None if not measured


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


Figure: TypeAlias = Distribution | Scatter  # of the tokens: of one column or of two


class ProbeTable(NamedTuple):
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


class Verdict(StrEnum):
    """The verdict of a run on a token. A method need not use all verdicts."""

    STICKY = "sticky"
    TOPICAL = "topical"
    """The token lifts only some texts, because of its meaning. This is not a defect, but not ordinary "
    f"either."""
    BENIGN = "benign"


class Severity(StrEnum):
    """How bad a flagged token is, from mild to severe."""

    MILD = "mild"
    """The token reaches only the halved thresholds, which apply to unusual vectors."""
    SERIOUS = "serious"
    """The token reaches a full threshold."""
    SEVERE = "severe"
    """The token lifts unrelated texts by 0.8 SD or erases 70% of a text."""


def severity_counts(tokens: pl.DataFrame) -> dict[str, int]:
    """Return the number of tokens by severity, the worst first."""
    return {grade.value: int((tokens["severity"] == grade.value).sum()) for grade in reversed(Severity)}
