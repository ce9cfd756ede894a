"""The detection methods, and types that describe their results. This module has no heavy imports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from stickytoken.errors import InputError
from stickytoken.settings.profile import ProfileSettings
from stickytoken.settings.std import StdSettings
from stickytoken.validation import shown

if TYPE_CHECKING:
    import polars as pl

    from stickytoken.methods.base import Method, MethodSettings


METHODS: dict[str, type[Any]] = {"profile": ProfileSettings, "std": StdSettings}
"""The detection methods and the classes of their settings. Each method is a package of this folder."""


def method_named(name: str) -> Method:
    """Return the package of a method. Its code is imported on the first call."""
    if name == "std":
        from stickytoken.methods import std

        return std
    from stickytoken.methods import profile

    return profile


def choose_method(name: object, settings: MethodSettings | None, pairs_given: bool) -> str:
    """Return the name of the method to use.

    If ``name`` is None, it is the method that the settings belong to. If ``settings`` is None as well, it is
    ``std`` for pairs and ``profile`` for sentences.

    Raises:
        InputError: The method is unknown, or does not accept the settings or the pairs.
    """
    if name is None and settings is not None:
        matching = [method for method, kind in METHODS.items() if isinstance(settings, kind)]
        name = matching[0] if matching else "profile"
    elif name is None:
        name = "std" if pairs_given else "profile"
    if not isinstance(name, str) or name not in METHODS:
        raise InputError(f"method {shown(name)} is unknown: use {' or '.join(METHODS)}")
    settings_class = METHODS[name]
    if settings is not None and not isinstance(settings, settings_class):
        raise InputError(
            f"the settings are of type {type(settings).__name__}, which the method {name!r} does not take: "
            f"pass a {settings_class.__name__}"
        )
    if pairs_given and name == "profile":
        raise InputError("the method profile takes no pairs: pass sentences, or use the method std")
    return name


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
