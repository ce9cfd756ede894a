"""Options of `stickytoken impact`, in groups."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from stickytoken.cli.options.measuring import AnySeed, CopiesInText, IntervalConfidence
from stickytoken.cli.options.panels import METHOD, TEXTS
from stickytoken.cli.options.texts import ImpactTokens
from stickytoken.insertion import Insertion, Placement


class TextSide(StrEnum):
    """Which texts get copies."""

    QUERY = "query"
    DOCUMENT = "document"
    BOTH = "both"


class Preset(StrEnum):
    """Sets of tasks."""

    PAPER = "paper"


@dataclass(frozen=True, slots=True)
class MeasuredOptions:
    """What is measured."""

    task: Annotated[
        list[str] | None,
        typer.Option(
            help="Task file, BEIR folder, or name of an MTEB task. Repeatable.", rich_help_panel=TEXTS
        ),
    ] = None
    preset: Annotated[
        Preset | None,
        typer.Option(help="paper: the sixteen MTEB tasks of Chen et al. 2025.", rich_help_panel=TEXTS),
    ] = None
    intrusion: Annotated[
        str | None,
        typer.Option(
            help="Also push random documents into search results: a BEIR folder, a file of documents, or "
            "bundled.",
            rich_help_panel=TEXTS,
        ),
    ] = None
    tokens: ImpactTokens = None


@dataclass(frozen=True, slots=True)
class MeasuringOptions:
    """How it is measured; the names are those of the settings."""

    copies: CopiesInText = 8
    placement: Annotated[Placement, typer.Option(help="Where the copies go.", rich_help_panel=METHOD)] = (
        Placement.RANDOM
    )
    side: Annotated[
        TextSide,
        typer.Option(
            help="Which texts get copies; a second sentence counts as a document.", rich_help_panel=METHOD
        ),
    ] = TextSide.DOCUMENT
    insertion: Annotated[
        Insertion,
        typer.Option(
            help="ids: the model sees exactly n copies. text: copies are inserted as words.",
            rich_help_panel=METHOD,
        ),
    ] = Insertion.IDS
    sticky: Annotated[
        int, typer.Option(min=1, help="Most sticky tokens of the run to use.", rich_help_panel=METHOD)
    ] = 5
    benign: Annotated[
        int, typer.Option(min=1, help="Matched benign tokens per sticky token.", rich_help_panel=METHOD)
    ] = 8
    seeds: Annotated[
        int,
        typer.Option("--repetitions", min=1, help="Number of random repetitions.", rich_help_panel=METHOD),
    ] = 1
    resamples: Annotated[
        int, typer.Option(min=100, help="Number of bootstrap samples.", rich_help_panel=METHOD)
    ] = 1000
    confidence: IntervalConfidence = 0.9
    seed: AnySeed = 42
