"""Options of `stickytoken impact`, in groups."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from stickytoken.cli.options.measuring import AnySeed, CopiesInText, IntervalConfidence
from stickytoken.cli.options.panels import method_option, texts_option
from stickytoken.cli.options.texts import ImpactTokens
from stickytoken.insertion import Insertion, Placement, Side


class Preset(StrEnum):
    """Sets of tasks."""

    PAPER = "paper"


@dataclass(frozen=True, slots=True)
class MeasuredOptions:
    """What is measured."""

    task: Annotated[
        list[str] | None, texts_option(help="Task file, BEIR folder, or name of an MTEB task. Repeatable.")
    ] = None
    preset: Annotated[
        Preset | None, texts_option(help="paper: the sixteen MTEB tasks of Chen et al. 2025.")
    ] = None
    intrusion: Annotated[
        str | None,
        texts_option(
            help="Also measure how far copies push random documents into search results: a BEIR folder, a "
            "file of documents, or bundled."
        ),
    ] = None
    tokens: ImpactTokens = None


@dataclass(frozen=True, slots=True)
class MeasuringOptions:
    """How it is measured; the names are those of the settings."""

    copies: CopiesInText = 8
    placement: Annotated[Placement, method_option(help="Where the copies go.")] = Placement.RANDOM
    side: Annotated[
        Side, method_option(help="Which texts get copies; a second sentence counts as a document.")
    ] = Side.DOCUMENT
    insertion: Annotated[
        Insertion,
        method_option(help="ids: the model sees exactly n copies. text: copies are inserted as words."),
    ] = Insertion.IDS
    sticky: Annotated[
        int, method_option(min=1, help="Maximum number of sticky tokens of the run to use.")
    ] = 5
    benign: Annotated[int, method_option(min=1, help="Matched benign tokens per sticky token.")] = 8
    seeds: Annotated[int, method_option("--repetitions", min=1, help="Number of random repetitions.")] = 1
    resamples: Annotated[int, method_option(min=100, help="Number of bootstrap samples.")] = 1000
    confidence: IntervalConfidence = 0.9
    seed: AnySeed = 42
