"""What a method says about its runs, as data: columns, facts, figures and tables for others to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias


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
