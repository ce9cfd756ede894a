"""A figure, with the words and numbers that belong to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go


@dataclass(frozen=True)
class DataTable:
    """The numbers of a figure, for readers who cannot see the picture.

    Attributes:
        columns: headings.
        rows: one value per column; None is missing.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class ReportFigure:
    """A figure of a report.

    Attributes:
        name: of its file and its place in the page.
        title: what it is about.
        plot: the picture.
        alt: what it shows, in words and numbers.
        reading: how to read it.
        table: its numbers.
        narrow: changes of the layout on a narrow screen, by path.
        in_markdown: whether its table stands in Markdown too.
    """

    name: str
    title: str
    plot: go.Figure
    alt: str
    reading: str
    table: DataTable = field(default_factory=lambda: DataTable((), ()))
    narrow: dict[str, Any] = field(default_factory=dict)
    in_markdown: bool = False
