"""Progress reports of a measurement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of a run.

    Attributes:
        stage: name of the current stage.
        done: number of units done, including those of earlier sessions.
        total: total number of units.
        computed: number of units that this session computed.
        sequences: number of texts that this session encoded in this stage.
    """

    stage: str
    done: int
    total: int
    computed: int = 0
    sequences: int = 0


ProgressCallback: TypeAlias = Callable[[Progress], None]


def ignore_progress(_: Progress) -> None:
    """Do nothing with a progress report."""
