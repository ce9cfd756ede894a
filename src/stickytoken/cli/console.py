"""Print results on stdout and everything else on stderr. Control characters are escaped."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from enum import IntEnum
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

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
from stickytoken.validation import as_json, visible

if TYPE_CHECKING:
    import polars as pl

    from stickytoken.measurement.engine import Progress, ProgressCallback


class Verbosity(IntEnum):
    """How much a command prints on stderr."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


_PACKAGE = "stickytoken"
_LOG_LEVELS = {
    Verbosity.QUIET: logging.ERROR,
    Verbosity.NORMAL: logging.WARNING,
    Verbosity.VERBOSE: logging.DEBUG,
}
# The last item is the current verbosity. All threads share it, because a process runs one command.
_levels = [Verbosity.NORMAL]


def current_verbosity() -> Verbosity:
    """Return the verbosity of the command that is running."""
    return _levels[-1]


@contextmanager
def setting_verbosity(level: Verbosity) -> Iterator[None]:
    """Set the verbosity and the log levels while a block runs."""
    is_verbose = level is Verbosity.VERBOSE
    package = logging.getLogger(_PACKAGE)
    root = logging.getLogger()
    original_package_level = package.level
    original_propagate = package.propagate
    original_root_level = root.level
    # With --verbose, the handler is on the root logger, which also gets the records of libraries. Otherwise,
    # only records of this package are printed, and they are not passed on to the root logger.
    printing_logger = root if is_verbose else package
    handler = _LogLines()
    printing_logger.addHandler(handler)
    package.setLevel(_LOG_LEVELS[level])
    package.propagate = is_verbose
    if is_verbose:
        root.setLevel(logging.INFO)
    _levels.append(level)
    try:
        yield
    finally:
        _levels.pop()
        printing_logger.removeHandler(handler)
        package.setLevel(original_package_level)
        package.propagate = original_propagate
        root.setLevel(original_root_level)


class _LogLines(logging.Handler):
    """Prints log records on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        library = record.name.partition(".")[0]
        is_note = library == _PACKAGE and record.levelno >= logging.WARNING
        inform(f"{'note' if is_note else library}: {record.getMessage()}")


def show_warnings_as_notes() -> None:
    """Print warnings of this package as notes, and warnings of libraries only with --verbose."""

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if issubclass(category, StickyTokenWarning):
            inform(f"note: {message}")
        elif current_verbosity() is Verbosity.VERBOSE:
            inform(f"{category.__name__}: {message}")

    # Python passes on a warning of a library once per line of code, and a warning of this package each time.
    warnings.simplefilter("default")
    warnings.simplefilter("always", StickyTokenWarning)
    warnings.showwarning = show


def print_json(document: Any) -> None:
    """Print a document as JSON."""
    print_document(as_json(document))


def print_document(text: str) -> None:
    """Print text unchanged."""
    sys.stdout.write(text)


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    digits: Sequence[int | None] | None = None,
) -> None:
    """Print a table. ``digits`` is the number of digits after the decimal point in each column."""
    if digits is None:
        digits = [None] * len(columns)
    headings = [Column(name, name, count) for name, count in zip(columns, digits, strict=True)]
    _print_cells(title, headings, [list(row) for row in rows])


def print_columns(title: str, columns: Sequence[Column], rows: pl.DataFrame) -> None:
    """Print columns of a data frame as a table."""
    keys = [column.key for column in columns]
    _print_cells(title, columns, [list(row) for row in rows.select(keys).iter_rows()])


def print_records(title: str, columns: Sequence[Column], records: Iterable[Mapping[str, Any]]) -> None:
    """Print records as a table, with a hyphen for each missing value."""
    keys = [column.key for column in columns]
    _print_cells(title, columns, [list(map(record.get, keys)) for record in records])


# Maximum width of a text column that is never wrapped, in characters.
_SHORT = 8


def _print_cells(title: str, columns: Sequence[Column], rows: list[list[Any]]) -> None:
    """Print a table, with numbers aligned on the right.

    In a table that is too wide for the terminal, long text is wrapped. Numbers stay on one line, and their
    headings are broken after each word.
    """
    headings = [column.title for column in columns]
    rows_of_texts = [list(map(_cell_as_text, row, columns)) for row in rows]
    texts_of_columns = zip(headings, *rows_of_texts, strict=True)
    widths = [max(map(cell_len, texts)) for texts in texts_of_columns]
    console = stdout()
    between_columns = 2 * (len(columns) - 1)
    too_wide = sum(widths) + between_columns > console.width
    padding = (0, 0 if too_wide else 1, 0, 0)  # top, right, bottom, left
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=padding, pad_edge=False, show_edge=False)
    for index, heading in enumerate(headings):
        is_numeric = all(isinstance(row[index], int | float | None) for row in rows)
        table.add_column(
            Text(heading.replace(" ", "\n") if too_wide and is_numeric else heading),
            justify="right" if is_numeric else "left",
            overflow="fold",
            no_wrap=too_wide and (is_numeric or widths[index] <= _SHORT),
        )
    for texts in rows_of_texts:
        table.add_row(*map(Text, texts))  # as `Text`, brackets are not read as markup
    console.print(Text(visible(title), style="italic"), soft_wrap=True)
    console.print(table)
    console.print()


def print_line(message: str) -> None:
    """Print a line of a command's result on stdout."""
    stdout().print(Text(visible(message)), soft_wrap=True)


def print_error(message: str) -> None:
    """Print an error on stderr, on one line."""
    _Console(stderr=True).print(Text(visible(" ".join(message.split()))), soft_wrap=True)


def inform(message: str) -> None:
    """Print a message on stderr, unless --quiet was passed."""
    if current_verbosity() is not Verbosity.QUIET:
        _Console(stderr=True).print(Text(visible(message)), soft_wrap=True)


def inform_notes(notes: Iterable[str]) -> None:
    """Print notes on stderr, unless --quiet was passed."""
    for note in notes:
        inform(f"note: {note}")


@contextmanager
def status(message: str) -> Iterator[None]:
    """Show a spinner with a message while a block runs."""
    if current_verbosity() is Verbosity.QUIET:
        yield
        return
    with _Console(stderr=True).status(Text(visible(message))):
        yield


class _Console(Console):
    """A console that re-raises BrokenPipeError, so that the command can handle it."""

    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704 - called while the BrokenPipeError is being handled


def stdout() -> Console:
    """Return a console for results, which is 160 characters wide if stdout is not a terminal."""
    console = _Console()
    return console if console.is_terminal else _Console(width=160)


def _cell_as_text(value: Any, column: Column) -> str:
    if value is None:
        return "-"
    if column.unit:
        return column.text(value)
    if isinstance(value, float):
        if column.digits is not None:
            return f"{value:,.{column.digits}f}"
        return f"{value:.4f}" if abs(value) < 10 else f"{value:,.2f}"
    if isinstance(value, int):
        # Commas from six digits on, so that token ids have none.
        return f"{value:,}" if abs(value) >= 100_000 else str(value)
    return visible(str(value))


def escape_formula(text: str) -> str:
    """Escape text for CSV, so that a spreadsheet does not treat it as a formula."""
    escaped = visible(text)
    return f"'{escaped}" if escaped.startswith(("=", "+", "-", "@")) else escaped


def print_csv(rows: pl.DataFrame) -> None:
    """Print a data frame as CSV. Texts are escaped so that no spreadsheet treats them as formulas."""
    import polars as pl

    texts = pl.col(pl.String).map_elements(escape_formula, return_dtype=pl.String)
    print_document(rows.with_columns(texts).write_csv())


# Exit status after Ctrl-C.
INTERRUPTED = 130
# A second signal within this many seconds is treated as a repeat of the first, and does not interrupt the
# cleanup.
_SAME_PRESS_SECONDS = 1.0
_received: list[float] = []


def remember_interrupts() -> None:
    """Record when Ctrl-C is pressed, because libraries may turn KeyboardInterrupt into another error."""
    # A process that already ignores the signal, such as a background job of a shell, must go on ignoring it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def was_interrupted() -> bool:
    """Return whether Ctrl-C was pressed."""
    return bool(_received)


def ignore_interrupts() -> None:
    """Ignore Ctrl-C from now on, unless a library has installed its own handler for the signal."""
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C: record it and raise KeyboardInterrupt.

    A repeat within `_SAME_PRESS_SECONDS` is ignored, because keys bounce, and some tools signal both a
    process and its group.
    """
    pressed = time.monotonic()
    if not _received or pressed - _received[-1] >= _SAME_PRESS_SECONDS:
        _received.append(pressed)
        signal.default_int_handler(number, frame)


# Exit status if stdout was closed. A shell reports this status for a process that SIGPIPE ended.
CLOSED_PIPE = 141
# Error numbers that mean that a disk is full or fails. Windows has no EDQUOT.
_FULL_DISK = {getattr(errno, name, None) for name in ("ENOSPC", "EDQUOT", "EIO", "EFBIG")} - {None}


def means_full_disk(error: OSError) -> bool:
    """Return whether an error means that output cannot be written, because a disk is full or fails."""
    return error.errno in _FULL_DISK


def silence_stdout() -> None:
    """Discard all further output on stdout, including output that is still buffered."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# The progress bars on the terminal. `bars_hidden` removes them while a block runs.
_BARS: list[Bars] = []


@contextmanager
def progress_bar(interval: float = 30) -> Iterator[ProgressCallback]:
    """Yield a callback that shows progress, as bars on a terminal and as lines elsewhere.

    Args:
        interval: Minimum number of seconds between two lines about the same stage.
    """
    console = Console(stderr=True)
    if current_verbosity() is Verbosity.QUIET:
        yield raise_if_interrupted
        return
    if not console.is_terminal:
        yield _ProgressLines(console, interval).report
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
            yield _ProgressBars(bars).report
        finally:
            _BARS.remove(bars)


def raise_if_interrupted(step: Progress | None = None) -> None:
    """Raise KeyboardInterrupt if Ctrl-C was pressed and a library caught it.

    The function can be passed as a progress callback, which ignores the step.
    """
    del step
    if was_interrupted():
        raise KeyboardInterrupt


class _Pace(NamedTuple):
    """How long a stage has taken, how fast it is, and how long it will still take.

    Attributes:
        seconds: Time since the first report of the stage, in seconds.
        rate: Rate as text, such as ``12 texts/s``; empty if the rate is unknown.
        eta: Time until the end of the stage as text; ``?`` if unknown.
    """

    seconds: float
    rate: str
    eta: str


class _Start(NamedTuple):
    """The first report of a stage."""

    time: float  # in seconds, as `time.perf_counter` returned it
    step: Progress


# Minimum duration of a stage, in seconds, before its rate is shown. Over less time, a rate mostly measures
# how long the work takes to get going.
_SHORTEST_RATED = 1.0


class _Clock:
    """Measures the duration and the speed of each stage of a command."""

    def __init__(self) -> None:
        self._starts: dict[str, _Start] = {}

    def pace(self, step: Progress) -> _Pace:
        """Return the time since the first report of a stage, and the rate and ETA of the work since then.

        The rate counts neither the work before the first report, because the duration of that work is
        unknown, nor results that were read from an interrupted run.
        """
        now = time.perf_counter()
        start = self._starts.setdefault(step.stage, _Start(now, step))
        if step.done == step.total:
            # A later stage may have the same name, such as the next try of a repair.
            del self._starts[step.stage]
        seconds = now - start.time
        computed = step.computed - start.step.computed
        sequences = step.sequences - start.step.sequences
        if computed <= 0:
            return _Pace(seconds, "", "?")
        # The rate counts what ``done`` and ``total`` count, each of which may stand for several texts.
        unit = "texts" if sequences == computed else step.unit
        rate = ""
        if seconds >= _SHORTEST_RATED and unit:
            per_second = computed / seconds
            rate = f"{per_second:,.{0 if per_second >= 10 else 1}f} {unit}/s"
        return _Pace(seconds, rate, duration(seconds * (step.total - step.done) / computed))


class _ProgressBars:
    """Shows one progress bar for each stage on a terminal."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._clock = _Clock()
        self._tasks: dict[str, TaskID] = {}

    def report(self, step: Progress) -> None:
        raise_if_interrupted()
        if step.note:
            inform(step.note)
            if step.done == step.total and step.stage not in self._tasks:
                return  # the step only carries its note: its stage has ended and keeps its bar
        pace = self._clock.pace(step)
        if step.stage not in self._tasks:
            self._tasks[step.stage] = self._bars.add_task(step.stage, total=step.total, rate="", eta="?")
        task = self._tasks[step.stage]
        self._bars.update(task, completed=step.done, total=step.total, rate=pace.rate, eta=pace.eta)
        if step.done == step.total:
            # A later stage of the same name gets a bar of its own.
            del self._tasks[step.stage]


class _ProgressLines:
    """Prints a line on the progress of a stage from time to time, for output that is not a terminal."""

    def __init__(self, console: Console, interval: float) -> None:
        self._console = console
        self._interval = interval
        self._clock = _Clock()
        self._printed: dict[str, float] = {}  # seconds from the start of each stage to its last printed line

    def report(self, step: Progress) -> None:
        """Print a line if the stage has ended, or if the last line of the stage is long enough ago.

        If the step has a note, the note is printed in place of the line.
        """
        raise_if_interrupted()
        pace = self._clock.pace(step)
        if step.note:
            inform(step.note)
            return
        line = f"{step.stage}: {step.done:,} of {step.total:,}"
        rate = f", {pace.rate}" if pace.rate else ""
        if step.done == step.total:
            self._printed.pop(step.stage, None)
            line += f" in {pace.seconds:,.0f} s{rate}"
        elif pace.seconds - self._printed.get(step.stage, 0.0) >= self._interval:
            self._printed[step.stage] = pace.seconds
            line += f" after {duration(pace.seconds)}{rate}, ETA {pace.eta}"
        else:
            return
        self._console.print(line, soft_wrap=True, markup=False, highlight=False)


@contextmanager
def late_progress(seconds: float) -> Iterator[ProgressCallback]:
    """Yield a callback that shows the progress of stages that are expected to take more than ``seconds``."""
    started: dict[str, float] = {}  # start of each stage, as `time.perf_counter` returned it
    shown_stages: set[str] = set()
    previous_report = time.perf_counter()
    with progress_bar() as show:

        def report(step: Progress) -> None:
            nonlocal previous_report
            now = time.perf_counter()
            # A stage may first report when it has done some work. So it is taken to have started at the
            # previous report, which ended the stage before it.
            elapsed = now - started.setdefault(step.stage, previous_report)
            previous_report = now
            expected_seconds = elapsed * step.total / max(step.done, 1)
            if step.stage in shown_stages or expected_seconds > seconds:
                shown_stages.add(step.stage)
                show(step)

        yield report


@contextmanager
def bars_hidden() -> Iterator[None]:
    """Remove the progress bars from the terminal while a block runs."""
    hidden = [bars for bars in _BARS if bars.live.is_started]
    for bars in hidden:
        bars.stop()
    try:
        yield
    finally:
        for bars in hidden:
            bars.start()


def minutes(seconds: float) -> str:
    """Return a duration as text such as 1 min 30 s."""
    whole_minutes, rest = divmod(round(seconds), 60)
    return f"{whole_minutes} min {rest} s" if whole_minutes else f"{rest} s"


def duration(seconds: float) -> str:
    """Return a duration as text such as 0:01:30."""
    return str(timedelta(seconds=round(seconds)))
