"""The progress of long commands, on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Bars

from stickytoken.cli.output.console import Verbosity, current_verbosity, was_interrupted

if TYPE_CHECKING:
    from stickytoken.measurement.stage import Progress, ProgressCallback

_SECONDS_BETWEEN_LINES = 30.0
_BARS: list[Bars] = []


@contextmanager
def progress_bar(interval: float = _SECONDS_BETWEEN_LINES) -> Iterator[ProgressCallback]:
    """Yield a callback that shows how far each stage is.

    A terminal gets a bar per stage; a log file gets a line every `interval` seconds and when a stage ends.
    """
    with _shown(interval) as show:

        def report(step: Progress) -> None:
            # A library may have swallowed the exception of a Ctrl-C.
            if was_interrupted():
                raise KeyboardInterrupt
            show(step)

        yield report


@contextmanager
def late_progress(seconds: float) -> Iterator[ProgressCallback]:
    """Yield a callback that shows only stages that are going to take longer than this."""
    started: dict[str, float] = {}
    unseen: dict[str, int] = {}
    last = time.perf_counter()
    with progress_bar() as show:

        def report(step: Progress) -> None:
            nonlocal last
            now = time.perf_counter()
            since = now - started.setdefault(step.stage, last)
            last = now
            if step.stage in unseen or since * step.total > seconds * max(step.done, 1):
                # The clock of the bar starts now, so its pace does not count what was done before.
                before = unseen.setdefault(step.stage, step.done)
                show(replace(step, computed=step.done - before))

        yield report


@contextmanager
def bars_hidden() -> Iterator[None]:
    """Take the bars off the terminal while something else is printed or asked there."""
    hidden = [bars for bars in _BARS if bars.live.is_started]
    for bars in hidden:
        bars.stop()
    try:
        yield
    finally:
        for bars in hidden:
            bars.start()


@contextmanager
def _shown(interval: float) -> Iterator[ProgressCallback]:
    console = Console(stderr=True)
    if current_verbosity() is Verbosity.QUIET:
        yield lambda _: None
        return
    if not console.is_terminal:
        yield _Lines(console, interval)
        return
    columns = (
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("ETA {task.fields[eta]}"),
        TextColumn("{task.fields[rate]}"),
    )
    with Bars(*columns, console=console) as bars:
        _BARS.append(bars)
        try:
            yield _Drawn(bars)
        finally:
            _BARS.remove(bars)


@contextmanager
def counted(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback that takes how many of all are done."""
    from stickytoken.measurement.stage import Progress

    with progress_bar() as progress:
        yield lambda done, total: progress(Progress(what, done, total, computed=done))


class _Clock:
    """The time since a stage began, and the pace of what this session computed of it."""

    def __init__(self) -> None:
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._started

    def rate(self, step: Progress) -> str:
        """Texts per second, or units where a stage counts no texts; empty before anything is computed."""
        if not step.computed or not (seconds := self.seconds):
            return ""
        if step.sequences:
            return f"{step.sequences / seconds:,.0f} texts/s"
        return f"{step.computed / seconds:,.1f}/s"

    def remaining(self, step: Progress) -> str:
        """Time until the stage ends at the present pace; units of an earlier session say nothing about it."""
        if not step.computed:
            return "?"
        return duration(self.seconds * (step.total - step.done) / step.computed)


class _Drawn:
    """A bar per stage, on a terminal."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}
        self._clocks: dict[str, _Clock] = {}

    def __call__(self, step: Progress) -> None:
        if step.stage not in self._tasks:
            self._tasks[step.stage] = self._bars.add_task(step.stage, total=step.total, rate="", eta="?")
            self._clocks[step.stage] = _Clock()
        clock = self._clocks[step.stage]
        self._bars.update(
            self._tasks[step.stage],
            completed=step.done,
            total=step.total,
            rate=clock.rate(step),
            eta=clock.remaining(step),
        )


class _Lines:
    """A line now and then, and one when a stage ends."""

    def __init__(self, console: Console, interval: float) -> None:
        self._console = console
        self._interval = interval
        self._clocks: dict[str, _Clock] = {}
        self._printed: dict[str, float] = {}

    def __call__(self, step: Progress) -> None:
        clock = self._clocks.setdefault(step.stage, _Clock())
        seconds = clock.seconds
        rate = f", {text}" if (text := clock.rate(step)) else ""
        counts = f"{step.stage}: {step.done:,} of {step.total:,}"
        if step.done == step.total:
            self._print(f"{counts} in {seconds:,.0f} s{rate}")
        elif seconds - self._printed.get(step.stage, 0.0) >= self._interval:
            self._printed[step.stage] = seconds
            self._print(f"{counts} after {duration(seconds)}{rate}, ETA {clock.remaining(step)}")

    def _print(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, markup=False, highlight=False)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, as 0:01:30."""
    return str(timedelta(seconds=round(seconds)))
