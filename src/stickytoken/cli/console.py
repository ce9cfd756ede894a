"""Print results on stdout, everything else on stderr, token text made harmless."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from enum import IntEnum
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress as Bars,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from stickytoken.errors import StickyTokenWarning
from stickytoken.methods import Column
from stickytoken.validation import visible

if TYPE_CHECKING:
    import polars as pl

    from stickytoken.measurement.engine import Progress, ProgressCallback


class Verbosity(IntEnum):
    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


_PACKAGE = "stickytoken"
_LOG_LEVELS = (logging.ERROR, logging.WARNING, logging.DEBUG)  # by verbosity
# A process runs one command, and what its threads print is under the same level.
_levels = [Verbosity.NORMAL]


def current_verbosity() -> Verbosity:
    return _levels[-1]


@contextmanager
def verbosity(level: Verbosity) -> Iterator[None]:
    verbose = level is Verbosity.VERBOSE
    package, root = logging.getLogger(_PACKAGE), logging.getLogger()
    before = package.level, package.propagate, root.level
    logger, handler = root if verbose else package, _LogLines()
    logger.addHandler(handler)
    package.setLevel(_LOG_LEVELS[level])
    package.propagate = verbose
    root.setLevel(logging.INFO if verbose else root.level)
    _levels.append(level)
    try:
        yield
    finally:
        _levels.pop()
        logger.removeHandler(handler)
        package_level, package.propagate, root_level = before
        package.setLevel(package_level)
        root.setLevel(root_level)


class _LogLines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        library = record.name.partition(".")[0]
        note = library == _PACKAGE and record.levelno >= logging.WARNING
        inform(f"{'note' if note else library}: {record.getMessage()}")


def show_warnings_as_notes() -> None:
    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if issubclass(category, StickyTokenWarning):
            inform(f"note: {message}")
        elif current_verbosity() is Verbosity.VERBOSE:
            inform(f"{category.__name__}: {message}")

    warnings.simplefilter("default")
    warnings.simplefilter("always", StickyTokenWarning)
    warnings.showwarning = show


_SHORT = 8  # columns of text up to this width are not broken over lines


def as_json(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def print_json(document: Any) -> None:
    print_document(as_json(document))


def print_document(text: str) -> None:
    sys.stdout.write(text)


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    digits: Sequence[int | None] | None = None,
) -> None:
    """Print a table; ``digits`` are those behind the decimal point, by column."""
    all_digits = [None] * len(columns) if digits is None else digits
    described = [Column(title, title, digit) for title, digit in zip(columns, all_digits, strict=True)]
    _print_cells(title, described, [list(row) for row in rows])


def print_columns(title: str, columns: Sequence[Column], rows: pl.DataFrame) -> None:
    """Print some columns of a data frame as a table."""
    keys = [column.key for column in columns]
    _print_cells(title, columns, [list(row) for row in rows.select(keys).iter_rows()])


def print_records(title: str, columns: Sequence[Column], records: Iterable[Mapping[str, Any]]) -> None:
    """Print records as a table; what a record lacks is shown as missing."""
    _print_cells(title, columns, [[record.get(column.key) for column in columns] for record in records])


def _print_cells(title: str, columns: Sequence[Column], rows: list[list[Any]]) -> None:
    """Print a table; numbers stand on the right.

    Where a table is too wide for the terminal, numbers stay on one line, the words of their headings stand
    below each other, and only text is broken.
    """
    cells = [[_cell(value, column) for value, column in zip(row, columns, strict=True)] for row in rows]
    titles = [column.title for column in columns]
    widths = [max(map(cell_len, texts)) for texts in zip(titles, *cells, strict=True)]
    console = stdout()
    wide = sum(widths) + 2 * (len(columns) - 1) > console.width
    padding = (0, 0 if wide else 1, 0, 0)
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=padding, pad_edge=False, show_edge=False)
    for place, heading in enumerate(titles):
        numeric = all(isinstance(row[place], (int, float)) or row[place] is None for row in rows)
        table.add_column(
            Text(heading.replace(" ", "\n") if wide and numeric else heading),
            justify="right" if numeric else "left",
            overflow="fold",
            no_wrap=wide and (numeric or widths[place] <= _SHORT),
        )
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(Text(visible(title), style="italic"), soft_wrap=True)
    console.print(table)
    console.print()


def print_line(message: str) -> None:
    stdout().print(Text(visible(message)), soft_wrap=True)


def print_error(message: str) -> None:
    _Console(stderr=True).print(Text(visible(" ".join(message.split()))), soft_wrap=True)


def inform(message: str) -> None:
    if current_verbosity() is not Verbosity.QUIET:
        _Console(stderr=True).print(Text(visible(message)), soft_wrap=True)


def inform_notes(notes: Iterable[str]) -> None:
    for note in notes:
        inform(f"note: {note}")


@contextmanager
def status(message: str) -> Iterator[None]:
    if current_verbosity() is Verbosity.QUIET:
        yield
        return
    with _Console(stderr=True).status(Text(visible(message))):
        yield


class _Console(Console):
    """A console that leaves a closed pipe to the command's own handling."""

    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704 - called while the BrokenPipeError is being handled


def stdout() -> Console:
    console = _Console()
    return console if console.is_terminal else _Console(width=160)


def _cell(value: Any, column: Column) -> str:
    """Write a value as its column says; a missing one is a hyphen."""
    if value is None:
        return "-"
    if column.unit:
        return column.text(value)
    if isinstance(value, float):
        if column.digits is not None:
            return f"{value:,.{column.digits}f}"
        return f"{value:.4f}" if abs(value) < 10 else f"{value:,.2f}"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 100_000 else str(value)
    return visible(str(value))


def harmless(text: str) -> str:
    shown = visible(text)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) else shown


def print_csv(rows: pl.DataFrame) -> None:
    import polars as pl

    texts = pl.col(pl.String).map_elements(harmless, return_dtype=pl.String)
    print_document(rows.with_columns(texts).write_csv())


INTERRUPTED = 130
# A key that bounces, an impatient second press, or a tool that signals both a process and its group: they
# count as one press, and do not interrupt the tidying up that it began.
_SAME_PRESS_SECONDS = 1.0
_received: list[float] = []


def remember_interrupts() -> None:
    """Record Ctrl-C, too: interrupted libraries may raise another error than KeyboardInterrupt."""
    # A process that ignores the signal, such as a shell's background job, keeps ignoring it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def was_interrupted() -> bool:
    return bool(_received)


def ignore_interrupts() -> None:
    """Ignore Ctrl-C from now on: Python and libraries with a handler of their own may raise it again."""
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> None:
    pressed = time.monotonic()
    if not _received or pressed - _received[-1] >= _SAME_PRESS_SECONDS:
        _received.append(pressed)
        signal.default_int_handler(number, frame)


CLOSED_PIPE = 141  # as a shell reports a program that SIGPIPE ended


def is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG}


def silence_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_BARS: list[Bars] = []


@contextmanager
def progress_bar(interval: float = 30) -> Iterator[ProgressCallback]:
    console, quiet = Console(stderr=True), current_verbosity() is Verbosity.QUIET
    on_terminal = console.is_terminal
    counts = (TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    pace = (TextColumn("ETA {task.fields[eta]}"), TextColumn("{task.fields[rate]}"))
    bars = Bars(*counts, *pace, console=console)
    started: dict[str, float] = {}
    printed: dict[str, float] = {}
    tasks: dict[str, TaskID] = {}

    def report(step: Progress) -> None:
        # A library may have swallowed the exception of a Ctrl-C.
        if was_interrupted():
            raise KeyboardInterrupt
        if quiet:
            return
        if step.note:
            inform(step.note)
        now, stage = time.perf_counter(), step.stage
        seconds = now - started.setdefault(stage, now)
        # Only what this session computed has a pace.
        rate, eta = "", "?"
        if step.computed:
            eta = duration(seconds * (step.total - step.done) / step.computed)
            if seconds and step.sequences:
                rate = f"{step.sequences / seconds:,.0f} texts/s"
            elif seconds:
                rate = f"{step.computed / seconds:,.1f}/s"
        if on_terminal:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=step.total, rate="", eta="?")
            bars.update(tasks[stage], completed=step.done, total=step.total, rate=rate, eta=eta)
            return
        line, rate = f"{stage}: {step.done:,} of {step.total:,}", rate and f", {rate}"
        if step.done == step.total:
            line += f" in {seconds:,.0f} s{rate}"
        elif seconds - printed.get(stage, 0.0) >= interval:
            printed[stage] = seconds
            line += f" after {duration(seconds)}{rate}, ETA {eta}"
        else:
            return
        console.print(line, soft_wrap=True, markup=False, highlight=False)

    if quiet or not on_terminal:
        yield report
        return
    with bars:
        _BARS.append(bars)
        try:
            yield report
        finally:
            _BARS.remove(bars)


@contextmanager
def late_progress(seconds: float) -> Iterator[ProgressCallback]:
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
    hidden = [bars for bars in _BARS if bars.live.is_started]
    for bars in hidden:
        bars.stop()
    try:
        yield
    finally:
        for bars in hidden:
            bars.start()


def duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))  # as 0:01:30
