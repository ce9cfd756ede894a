"""What all benchmarks need: checks against bars, result files, command lines, timing by turns, Chromium."""

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
from typing import Any, NoReturn

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
RESULTS, IMAGES = ROOT / "benchmarks" / "results", ROOT / "docs" / "images"
SHARED = ROOT.parent / "shared"
PUBLISHED, PLANTED = SHARED / "paper", SHARED / "planted" / "minilm_planted.npz"
MINILM, MINILM_U = "all-MiniLM-L6-v2", 0.1998460739850998


class Results:
    """Checks beside their bars, written to results/NAME.json; `fill_tables.py` makes a table of them.

    The file is written after every check, so that a benchmark that is stopped leaves what it has found.
    """

    def __init__(self, name: str, device: str = "cpu", **about: Any) -> None:
        self.name, self.device, self.about = name, device, about
        self.checks: list[dict[str, Any]] = []

    def check(self, name: str, bar: str, ours: str, passed: object = True, /, **detail: Any) -> None:
        found = {"name": name, "bar": bar, "ours": ours, "passed": bool(passed), "detail": detail}
        self.checks.append(found)
        write_json(self.name, self.device, **self.about, checks=self.checks)

    def finish(self, *, strict: bool = True) -> None:
        """Print the checks; if strict, end with exit status 1 if a bar was missed."""
        write_json(self.name, self.device, **self.about, checks=self.checks)
        shown = Table(title=self.name, title_justify="left")
        for column in ("check", "bar", "ours", ""):
            shown.add_column(column, overflow="fold")
        for each in self.checks:
            shown.add_row(each["name"], each["bar"], each["ours"], "ok" if each["passed"] else "MISSED")
        Console(width=140).print(shown)
        if strict and not all(each["passed"] for each in self.checks):
            sys.exit(1)


def write_json(name: str, device: str = "cpu", **found: Any) -> None:
    """Write results/NAME.json, with the date, the hardware and the command."""
    about = {"date": now(), "hardware": hardware(device), "versions": package_versions()}
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    text = json.dumps(about | {"command": command} | found, indent=1, default=str)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def commands(
    description: str | None, *functions: Callable[..., object], **named: Callable[..., object]
) -> None:
    """Run the command line of a script: its functions are commands, or the whole script if it has one."""
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
    raise SystemExit(message)


def detected(encoder: Any, **options: Any) -> stickytoken.Run:
    with progress_bar() as progress:
        return stickytoken.detect(encoder, progress=progress, **options)


def published_table(folder: Path, name: str) -> pl.DataFrame:
    """One of the paper's published tables."""
    path = folder / f"{name}.csv"
    if not path.is_file():
        refuse(f"no published table {path}: pass its folder with --published")
    return pl.read_csv(path, infer_schema_length=None)


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def retrieval_set(folder: Path) -> tuple[list[str], list[str]]:
    """Documents that are not empty, with their titles, and queries of a folder in the layout of BEIR."""
    rows = json_lines(folder / "corpus.jsonl")
    documents = [f"{row['title']} {row['text']}".strip() for row in rows if row["text"].strip()]
    return documents, [row["text"] for row in json_lines(folder / "queries.jsonl")]


def units(vectors: NDArray[Any]) -> NDArray[np.float64]:
    doubled = vectors.astype(np.float64)
    return np.asarray(doubled / np.linalg.norm(doubled, axis=1, keepdims=True))


def spearman(first: Any, second: Any) -> float:
    return float(spearmanr(first, second).statistic)


def by_turns(
    ways: Mapping[str, Callable[[], object]],
    turns: int,
    clock: Callable[[], float] = time.perf_counter,
    *,
    warm: bool = False,
) -> dict[str, list[float]]:
    """Seconds of each way, which take turns; with ``warm``, after a turn that counts for nothing."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + warm):
        for name, way in ways.items():
            started = clock()
            way()
            if turn or not warm:
                found[name].append(clock() - started)
    return found


def watched(command: Sequence[str], *, memory: bool = True) -> tuple[int, str, float, int]:
    """Run a command; its status, what it printed, its seconds, and the most bytes that it and its children
    had together, read five times a second (Linux)."""
    with tempfile.TemporaryFile("w+") as printed:
        started, peak = time.perf_counter(), 0
        process = subprocess.Popen(command, stdout=printed)
        while process.poll() is None:
            if memory:
                peak = max(peak, resident(process.pid))
            time.sleep(0.2)
        seconds = time.perf_counter() - started
        printed.seek(0)
        return process.returncode, printed.read(), seconds, peak


def resident(root: int) -> int:
    """Bytes of a process and its descendants; memory that they share, as Ray's object store, counts once."""
    children = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = stat.read_text().rpartition(")")[2].split()[1]
            children[int(parent)].append(int(stat.parent.name))
    total, waiting = 0, [root]
    while waiting:
        process = waiting.pop()
        waiting += children[process]
        with suppress(OSError):
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
            total += 1024 * sum(map(int, re.findall(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)))
    return total


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless browser."""
    from playwright.sync_api import sync_playwright

    programs = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    program = next(filter(None, programs), None) or refuse("no Chromium on this machine: install it first")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


def save_picture(picture: bytes, path: Path) -> None:
    """Write a picture with 96 colours, a quarter of the size and enough for a page."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(96).save(path, optimize=True)
