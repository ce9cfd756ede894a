"""Options of a measurement of impact, in groups."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

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
            help="Task file, BEIR folder or name of an MTEB task; may be given again.", show_default=False
        ),
    ] = None
    preset: Annotated[
        Preset | None,
        typer.Option(help="paper: the sixteen MTEB tasks of Chen et al. 2025.", show_default=False),
    ] = None
    intrusion: Annotated[
        str | None,
        typer.Option(
            help="Push random documents into search results: BEIR folder, file of documents, or bundled.",
            show_default=False,
        ),
    ] = None
    tokens: Annotated[
        list[str] | None,
        typer.Option(
            help="Token, by vocabulary string or text, or file as of detect; may be given again. "
            "Default: the run's sticky tokens.",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class MeasuringOptions:
    """How a measurement is made."""

    copies: Annotated[int, typer.Option(min=1, help="Copies of a token in a text.")] = 8
    placement: Annotated[Placement, typer.Option(help="Where copies go.")] = Placement.RANDOM
    side: Annotated[
        TextSide, typer.Option(help="Which texts get copies; document: second sentences, too.")
    ] = TextSide.DOCUMENT
    insertion: Annotated[
        Insertion, typer.Option(help="ids: the model sees exactly n copies. text: copies are words.")
    ] = Insertion.IDS
    sticky: Annotated[int, typer.Option(min=1, help="At most so many of the run's sticky tokens.")] = 10
    benign: Annotated[int, typer.Option(min=1, help="Matched tokens for each sticky one.")] = 1
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions of what is random.")] = 2
    resamples: Annotated[int, typer.Option(min=100, help="Bootstrap samples.")] = 1000
    confidence: Annotated[float, typer.Option(help="Coverage of the intervals.")] = 0.95
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.")] = 42
