"""Settings that several measurements share."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from stickytoken.cli.options.panels import METHOD

CopiesInText: TypeAlias = Annotated[
    int, typer.Option("--copies", min=1, help="Copies of a token in a text.", rich_help_panel=METHOD)
]
IntervalConfidence: TypeAlias = Annotated[
    float, typer.Option("--confidence", help="Coverage of the intervals.", rich_help_panel=METHOD)
]
AnySeed: TypeAlias = Annotated[
    int, typer.Option("--seed", min=0, help="Seed of everything random.", rich_help_panel=METHOD)
]
