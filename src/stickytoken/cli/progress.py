"""The progress bar of long commands, on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

if TYPE_CHECKING:
    from stickytoken.measurement.progress import Progress, ProgressCallback


@contextmanager
def progress_bar() -> Iterator[ProgressCallback]:
    """Give a callback that draws a bar a stage; without a terminal, a line a stage."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(console)
        return
    columns = (
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("eta"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    with Bars(*columns, console=console, speed_estimate_period=600) as bars:
        yield _Drawn(bars)


@contextmanager
def counted(what: str) -> Iterator[Callable[[int, int], None]]:
    """Give a callback that draws how many of all are done."""
    from stickytoken.measurement.progress import Progress

    with progress_bar() as progress:
        yield lambda done, total: progress(Progress(what, done, total))


class _Drawn:
    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}
        self._started: dict[str, float] = {}

    def __call__(self, step: Progress) -> None:
        if step.stage not in self._tasks:
            self._tasks[step.stage] = self._bars.add_task(step.stage, total=step.total, rate="")
            self._started[step.stage] = time.perf_counter()
        seconds = time.perf_counter() - self._started[step.stage]
        rate = f"{step.sequences / seconds:,.0f} texts/s" if step.sequences and seconds > 0 else ""
        self._bars.update(self._tasks[step.stage], completed=step.done, total=step.total, rate=rate)


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._started: dict[str, float] = {}

    def __call__(self, step: Progress) -> None:
        started = self._started.setdefault(step.stage, time.perf_counter())
        if step.done == step.total:
            seconds = time.perf_counter() - started
            rate = f", {step.sequences / seconds:,.0f} texts/s" if step.sequences and seconds > 0 else ""
            self._console.print(
                f"{step.stage}: {step.done} of {step.total} in {seconds:,.0f} s{rate}", soft_wrap=True
            )
