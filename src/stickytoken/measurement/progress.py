"""What an engine tells about its work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of a run.

    Attributes:
        stage: what is being done.
        done: units done, those of an earlier session included.
        total: units in all.
        computed: units that this session computed itself.
        sequences: texts that this session encoded in this stage.
    """

    stage: str
    done: int
    total: int
    computed: int = 0
    sequences: int = 0


ProgressCallback: TypeAlias = Callable[[Progress], None]


def ignore_progress(_: Progress) -> None:
    """Tell nobody."""
