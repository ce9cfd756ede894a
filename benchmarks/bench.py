"""Helpers that all benchmark scripts share.

They compare measured values with bars, write result files, start the command line of a script, load published
tables and text collections, measure seconds and memory, and take pictures in Chromium.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
import polars as pl
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.stats import spearmanr

import stickytoken
from stickytoken.cli.console import progress_bar
from stickytoken.measurement.resume import hardware, now, package_versions

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"
# Data that is too large for the repository lies in a folder beside it.
SHARED = ROOT.parent / "shared"
# Tables that the authors of the paper published.
PUBLISHED = SHARED / "paper"
# Embedding rows that make some tokens of MINILM sticky.
PLANTED = SHARED / "planted" / "minilm_planted.npz"
MINILM = "all-MiniLM-L6-v2"
# Published mean cosine similarity of the sentence pairs, computed with MINILM.
MINILM_U = 0.1998460739850998

RecordKind = TypeVar("RecordKind")

# Seconds between two readings of the memory of a process.
MEMORY_INTERVAL = 0.2
# 64 colours make a picture less than a quarter as large, and a page needs no more.
PICTURE_COLOURS = 64


class Results:
    """The checks of a benchmark, which are stored in results/NAME.json.

    The file is written after every check, so that the checks of a benchmark that is stopped are not lost.
    `fill_tables.py` makes a table of them.

    Args:
        name: Name of the result file, without its suffix.
        device: Device on which the benchmark runs, whose hardware the file records.
        about: Further facts about the benchmark, which the file records.
    """

    def __init__(self, name: str, device: str = "cpu", **about: Any) -> None:
        self.name = name
        self.device = device
        self.about = about
        self.checks: list[dict[str, Any]] = []

    def check(self, name: str, bar: str, ours: str, passed: object = True, /, **detail: Any) -> None:
        """Add a check and write the file.

        Args:
            name: What is measured.
            bar: The value to reach, as readers see it.
            ours: The measured value, as readers see it.
            passed: Whether the measured value reaches the bar.
            detail: The numbers behind the measured value.
        """
        self.checks.append({"name": name, "bar": bar, "ours": ours, "passed": bool(passed), "detail": detail})
        self._write()

    def finish(self, *, strict: bool = True) -> None:
        """Write the file and print the checks; if ``strict``, exit with status 1 if a check did not pass."""
        self._write()
        table = Table(title=self.name, title_justify="left")
        for column in ("check", "bar", "ours", ""):
            table.add_column(column, overflow="fold")
        for check in self.checks:
            verdict = "ok" if check["passed"] else "MISSED"
            table.add_row(check["name"], check["bar"], check["ours"], verdict)
        Console(width=140).print(table)
        if strict and not all(check["passed"] for check in self.checks):
            sys.exit(1)

    def _write(self) -> None:
        """Write the result file with the checks so far."""
        write_json(self.name, self.device, **self.about, checks=self.checks)


def write_json(name: str, device: str = "cpu", **content: Any) -> None:
    """Write the content to results/NAME.json, after the date, the hardware, the versions and the command."""
    script = Path(sys.argv[0]).name
    origin = {
        "date": now(),
        "hardware": hardware(device),
        "versions": package_versions(),
        "command": " ".join(["python", f"benchmarks/{script}", *sys.argv[1:]]),
    }
    text = json.dumps(origin | content, indent=1, default=str)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def commands(
    description: str | None, *functions: Callable[..., object], **named: Callable[..., object]
) -> None:
    """Run the command line of a script, in which each function is a command.

    If there is only one function, the script has no commands, and the function is the whole script.

    Args:
        description: Help of the script, and of functions without a docstring.
        functions: Commands that have the names of their functions.
        named: Other commands, keyed by their names.
    """
    app = typer.Typer(
        help=description,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"max_content_width": 110},
    )
    for function in functions:
        app.command(help=function.__doc__ or description)(function)
    for name, function in named.items():
        app.command(name, help=function.__doc__ or description)(function)
    app()


def refuse(message: str) -> NoReturn:
    """Exit with status 1 and print a message to standard error."""
    raise SystemExit(message)


def record_as(record: object, kind: type[RecordKind]) -> RecordKind:
    """Return the plan or result of a run, or exit if it is that of another method."""
    if not isinstance(record, kind):
        refuse(
            f"the run has a {type(record).__name__}, not a {kind.__name__}: name a run of the other method"
        )
    return record


def detected(encoder: Any, **options: Any) -> stickytoken.Run:
    """Detect sticky tokens while a progress bar is shown, and return the run.

    Args:
        encoder: Model name or encoder.
        options: Further arguments of `stickytoken.detect`.
    """
    with progress_bar() as progress:
        return stickytoken.detect(encoder, progress=progress, **options)


def published_table(folder: Path, name: str) -> pl.DataFrame:
    """Return a table that the authors of the paper published."""
    path = folder / f"{name}.csv"
    if not path.is_file():
        refuse(f"no published table {path}: pass its folder with --published")
    return pl.read_csv(path, infer_schema_length=None)


def json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file that holds one JSON object on each line."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def retrieval_set(folder: Path) -> tuple[list[str], list[str]]:
    """Return the documents and the queries of a folder in the layout of BEIR.

    Documents without text are left out; the title of a document stands before its text.
    """
    rows = json_lines(folder / "corpus.jsonl")
    documents = [f"{row['title']} {row['text']}".strip() for row in rows if row["text"].strip()]
    queries = [row["text"] for row in json_lines(folder / "queries.jsonl")]
    return documents, queries


def units(vectors: NDArray[Any]) -> NDArray[np.float64]:
    """Return vectors of shape (N, D), divided by their norms in double precision."""
    precise = vectors.astype(np.float64)
    norms = np.linalg.norm(precise, axis=1, keepdims=True)
    return np.asarray(precise / norms)


def spearman(first: Any, second: Any) -> float:
    """Return Spearman's rank correlation of two sequences of numbers."""
    return float(spearmanr(first, second).statistic)


def by_turns(
    ways: Mapping[str, Callable[[], object]],
    turns: int,
    clock: Callable[[], float] = time.perf_counter,
    *,
    warm: bool = False,
) -> dict[str, list[float]]:
    """Measure several functions, which take turns so that a change of the machine's load affects all of them.

    Args:
        ways: Functions to measure, keyed by name.
        turns: Number of measurements of each function.
        clock: Returns the current time in seconds; by default wall-clock time.
        warm: Whether to call each function once before the first measurement.

    Returns:
        The seconds of each call, keyed by the name of the function.
    """
    if warm:
        for way in ways.values():
            way()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, way in ways.items():
            started = clock()
            way()
            seconds[name].append(clock() - started)
    return seconds


class FinishedProcess(NamedTuple):
    """What `watched` measured of a command.

    Attributes:
        status: Exit status.
        output: Standard output.
        seconds: Wall-clock time.
        peak_bytes: Most memory that the process and its descendants used together; 0 if it was not measured.
    """

    status: int
    output: str
    seconds: float
    peak_bytes: int


def watched(command: Sequence[str], *, memory: bool = True) -> FinishedProcess:
    """Run a command and measure its time and memory.

    Args:
        command: Program and arguments.
        memory: Whether to read the memory of the process, five times a second (Linux only).
    """
    with tempfile.TemporaryFile("w+") as output:
        peak_bytes = 0
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=output)
        while process.poll() is None:
            if memory:
                peak_bytes = max(peak_bytes, resident(process.pid))
            time.sleep(MEMORY_INTERVAL)
        seconds = time.perf_counter() - started
        output.seek(0)
        return FinishedProcess(process.returncode, output.read(), seconds, peak_bytes)


def resident(root: int) -> int:
    """Return the number of bytes in memory of a process and its descendants (Linux only).

    Memory that processes share counts once.

    Args:
        root: Id of the process.
    """
    children = _child_processes()
    total_bytes = 0
    waiting = [root]
    while waiting:
        process = waiting.pop()
        waiting += children[process]
        # The process may have ended since its id was read.
        with suppress(OSError):
            memory_map = Path(f"/proc/{process}/smaps_rollup").read_text()
            # The proportional set size (Pss) divides a shared page among the processes that share it.
            kilobytes = re.findall(r"^Pss:\s+(\d+)", memory_map, re.MULTILINE)
            total_bytes += 1024 * sum(map(int, kilobytes))
    return total_bytes


def _child_processes() -> defaultdict[int, list[int]]:
    """Return the ids of the children of each process on the machine, keyed by the id of the parent."""
    children = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        # The process may have ended since the folder was listed.
        with suppress(OSError):
            # The name of the program stands in parentheses and may contain spaces. The state and the id of
            # the parent follow it.
            fields = path.read_text().rpartition(")")[2].split()
            parent = int(fields[1])
            children[parent].append(int(path.parent.name))
    return children


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield a headless browser, as Playwright provides it, with the Chromium or Chrome of this machine."""
    from playwright.sync_api import sync_playwright

    executable = _chromium_executable()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


def _chromium_executable() -> str:
    """Return the path of Chromium or Chrome; exit with an error if neither is installed."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        executable = shutil.which(name)
        if executable is not None:
            return executable
    refuse("no Chromium on this machine: install it first")


def save_picture(picture: bytes, path: Path) -> None:
    """Write a picture as a PNG file with few colours.

    Args:
        picture: Content of an image file.
        path: Path of the new file, whose folder is created.
    """
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    # This method keeps rare colours too, such as those of markers.
    quantized = image.quantize(PICTURE_COLOURS, method=Image.Quantize.MAXCOVERAGE)
    quantized.save(path, optimize=True)
