"""Types that describe detection methods and their results. This module has no heavy imports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class MethodEntry:
    """A registered detection method, whose code is imported only when it is needed.

    Attributes:
        name: name of the method, as passed to ``--method``.
        summary: short description of the method.
        settings: dataclass of the method's settings. The command-line options are derived from its fields.
        takes_pairs: whether the method accepts sentence pairs instead of sentences.
        load: function that imports the method's code and returns the method, a
            `stickytoken.methods.base.Method`.
    """

    name: str
    summary: str
    settings: type[Any]
    takes_pairs: bool
    load: Callable[[], Any]


class Column(NamedTuple):
    """A column of tokens.parquet, and how it is displayed.

    Attributes:
        key: name of the column in tokens.parquet.
        title: displayed name of the column.
        digits: number of decimal places; if None, the value is displayed unchanged.
        unit: text that is displayed after the number; for the unit "%", the number is multiplied by 100.
    """

    key: str
    title: str
    digits: int | None = None
    unit: str = ""

    def text(self, value: object) -> str:
        """Format a value of the column for display. Return an empty string if the value is missing."""
        if value is None:
            return ""
        if self.digits is None or not isinstance(value, int | float):
            return str(value)
        number = 100 * value if self.unit == "%" else value
        written = f"{number:,.{self.digits}f}"
        if float(written.replace(",", "")) == 0:
            written = written.lstrip("-")  # show -0 as 0
        separator = "" if self.unit in ("", "%") else " "
        return f"{written}{separator}{self.unit}".replace("-", "\N{MINUS SIGN}")


class Fact(NamedTuple):
    """A number at the top of a report, with an explanation."""

    value: str
    meaning: str


class Scale(NamedTuple):
    """The numbers that convert the lifts of different models to a common scale.

    Attributes:
        ordinary: lift of the ordinary token, as a difference of cosines.
        spread: standard deviation of the model's own similarities.
        confidence: coverage of the lift's intervals, between 0 and 1.
        serious: smallest lift of a serious token, relative to the ordinary token, in standard deviations.
    """

    ordinary: float
    spread: float
    confidence: float
    serious: float


class Moved(NamedTuple):
    """How copies of a token change the rank of an average unrelated document in a search.

    Without copies, the average unrelated document outranks half of the other unrelated documents.

    Attributes:
        copies: number of copies in the document.
        ahead: share of the other unrelated documents that the document with copies outranks.
        ordinary: mean of ``ahead`` over ordinary tokens; None if no ordinary tokens were measured.
    """

    copies: int
    ahead: float
    ordinary: float | None


class PlanTexts(NamedTuple):
    """The carriers and anchors of a run's plan.

    Attributes:
        carriers: the carriers; if fewer carriers are needed, the first carriers are used.
        anchors: the anchors, none of which is a carrier.
        by_topic: whether the anchors are sorted by topic, so that evenly spaced anchors cover all topics.
    """

    carriers: list[str]
    anchors: list[str]
    by_topic: bool


class Distribution(NamedTuple):
    """A histogram of a column over all tokens.

    Attributes:
        name: identifier of the figure.
        title: title of the figure.
        column: the column.
        lines: values at which lines are drawn, keyed by the label of the line.
        reading: explanation of how to read the figure.
    """

    name: str
    title: str
    column: Column
    lines: Mapping[str, float]
    reading: str


class Scatter(NamedTuple):
    """A scatter plot of two columns, with a point for each token."""

    name: str
    title: str
    x: Column
    y: Column
    reading: str  # explanation of how to read the figure


Figure: TypeAlias = Distribution | Scatter


class ProbeTable(NamedTuple):
    """A table in the output of `stickytoken probe`."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


class Verdict(StrEnum):
    """What a run concludes about a token. Some methods use only some of these verdicts."""

    STICKY = "sticky"
    TOPICAL = "topical"
    """The token lifts only some texts, because of its meaning. That is unusual, but not a defect."""
    BENIGN = "benign"


class Severity(StrEnum):
    """How bad a flagged token is, from mild to severe. `meaning` defines each severity."""

    MILD = "mild"
    SERIOUS = "serious"
    SEVERE = "severe"

    @property
    def meaning(self) -> str:
        """What a token of this severity does, such as ``reaches a full threshold``."""
        return _SEVERITY_MEANINGS[self]


# Minimum lift and minimum erased share of a severe token; either is enough. A lift of 0.8 SD is a large
# effect (Cohen 1988): an average unrelated text overtakes about four in five of the others. With 70% erased,
# a search finds hardly any of the documents with copies.
SEVERE_LIFT = 0.8
SEVERE_ERASED = 0.7
# Share of each threshold that is enough for a token with an unusual vector. Tokens whose vectors were altered
# to point toward kinds of text that no run measures reach these halved thresholds: they lift texts by at
# least 0.25 SD or erase at least 20% of a text. Natural tokens with unusual vectors hardly ever reach them.
UNUSUAL_SHARE = 0.5

_SEVERITY_MEANINGS = {
    Severity.MILD: "is flagged only because its unusual vector halves the thresholds (by default, an erased "
    "share of 20% or a lift of 0.25 SD is then enough)",
    Severity.SERIOUS: "reaches a full threshold (by default, an erased share of 40% or a lift of 0.5 SD)",
    Severity.SEVERE: f"reaches an erased share of {SEVERE_ERASED:.0%} or a lift of {SEVERE_LIFT} SD",
}


def severities_in_words() -> str:
    """Return a sentence that defines every severity, the mildest first."""
    definitions = [f"a {severity.value} token {severity.meaning}" for severity in Severity]
    sentence = "; ".join(definitions)
    return f"{sentence[0].upper()}{sentence[1:]}."


def severity_counts(tokens: pl.DataFrame) -> dict[str, int]:
    """Count the tokens of each severity. Return the counts keyed by severity, from severe to mild."""
    return {grade.value: int((tokens["severity"] == grade.value).sum()) for grade in reversed(Severity)}
