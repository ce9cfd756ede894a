"""The detection methods, and types that describe their results. This module has no heavy imports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from stickytoken import words
from stickytoken.errors import InputError
from stickytoken.settings.profile import ProfileSettings
from stickytoken.settings.std import StdSettings
from stickytoken.validation import shown

if TYPE_CHECKING:
    from stickytoken.methods.base import Method, MethodSettings


SETTINGS_OF_METHOD: dict[str, type[Any]] = {"profile": ProfileSettings, "std": StdSettings}
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

    If ``name`` is None, the method to use is the one that the settings belong to. If ``settings`` is None as
    well, the method is ``std`` for pairs and ``profile`` for sentences.

    Raises:
        InputError: The method is unknown, or does not accept the settings or the pairs.
    """
    if name is None and settings is not None:
        matching = [method for method, kind in SETTINGS_OF_METHOD.items() if isinstance(settings, kind)]
        name = matching[0] if matching else "profile"  # settings of no method are refused below
    elif name is None:
        name = "std" if pairs_given else "profile"
    if not isinstance(name, str) or name not in SETTINGS_OF_METHOD:
        raise InputError(f"method {shown(name)} is unknown: use {' or '.join(SETTINGS_OF_METHOD)}")
    settings_class = SETTINGS_OF_METHOD[name]
    if settings is not None and not isinstance(settings, settings_class):
        raise InputError(
            f"the settings are of type {type(settings).__name__}, which the method {name!r} does not take: "
            f"pass a {settings_class.__name__}"
        )
    if pairs_given and name == "profile":
        raise InputError("the method profile takes no pairs: pass sentences, or use the method std")
    return name


@dataclass(frozen=True)
class Column:
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
        return words.number(value, self.digits, self.unit)


class Verdict(StrEnum):
    """What a run concludes about a token. Some methods use only some of these verdicts."""

    STICKY = "sticky"
    BENIGN = "benign"


@dataclass(frozen=True, kw_only=True)
class TokenTable:
    """The table tokens.parquet of a method, and how it is shown.

    Attributes:
        columns: columns that the table must have: at least token_id, token, decoded, category and verdict.
        verdicts: the verdicts that may occur in the table.
        judges_every_token: whether the method gives every token a verdict, with few exceptions.
        listed: columns that `stickytoken show` prints between the category and the verdict. A text column is
            omitted if it has no values.
        reported: columns that a report shows after the verdict.
        ranked_by: the column that tokens are ranked by; the worst token has the highest value.
        glossary: explanations of the terms in reports, keyed by term.
    """

    columns: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    judges_every_token: bool
    listed: tuple[Column, ...]
    reported: tuple[Column, ...]
    ranked_by: Column
    glossary: Mapping[str, str]


class Fact(NamedTuple):
    """A number at the top of a report, with an explanation."""

    value: str
    meaning: str


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


@dataclass(frozen=True, kw_only=True)
class RunDescription:
    """What a method says about one of its runs, in the terminal and in reports.

    Attributes:
        headline: one or two sentences that say whether the model has sticky tokens, and how bad they are,
            without the name of the model.
        lines: the lines that follow in the terminal, first the result and then its basis.
        coverage: which tokens were measured in part only, and what is known of them; empty if there are none.
        notes: caveats that a reader should know before relying on the run.
        method: explanation of the method in a few sentences.
        strongest_title: title of the table of the strongest tokens that are not sticky.
        key_facts: the method's own numbers for the top of a report.
        plan_facts: the plan's numbers for the JSON report, keyed by name.
        figures: the figures that a report draws from tokens.parquet.
    """

    headline: str
    lines: list[str]
    coverage: list[str]
    notes: list[str]
    method: str
    strongest_title: str
    key_facts: list[Fact]
    plan_facts: dict[str, Any]
    figures: list[Figure]
