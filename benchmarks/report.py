"""Measure reports, take pictures of them, and record what the README and the tutorial show.

`run`, `large` and `gallery` open reports in a headless Chromium, which must be installed.
`prepare` and `outputs` need a run of all-MiniLM-L6-v2, and `prepare` needs the shared data sets beside this
repository. `large` takes two minutes; `outputs` and `tutorial` take as long as the commands of their pages.
Run a command with, for example, `python benchmarks/report.py run RUN`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

import stickytoken
from bench import (
    IMAGES,
    MINILM,
    RESULTS,
    ROOT,
    SHARED,
    Results,
    chromium,
    commands,
    json_lines,
    refuse,
    save_picture,
    write_json,
)
from models import large_vocabulary

# JavaScript: milliseconds from the start of the navigation to the end of the load event.
LOAD_END = "performance.getEntriesByType('navigation')[0].loadEventEnd"
# JavaScript: milliseconds from the start of the navigation to now.
NOW = "performance.now()"
# JavaScript: whether all figures are drawn. Figures in closed <details> are drawn when these are opened.
ALL_FIGURES_DRAWN = """[...document.querySelectorAll('[data-figure]')].every(
    plot => plot.querySelector('.main-svg') || plot.closest('details:not([open])'))"""
# JavaScript: width of the page in pixels, which is more than that of the screen if readers have to scroll.
PAGE_WIDTH = "document.documentElement.scrollWidth"
REPAIR_SECTION = "section[aria-labelledby=repair]"
# Time between two looks at a page whose figures are not drawn, and number of looks: a minute in total.
LOOK_MILLISECONDS = 20
LOOKS = 3000

EXAMPLES = ROOT / "src" / "stickytoken" / "demo" / "example"
# Finished reports of real models, which include a repair.
REPAIR_EXAMPLES = ROOT / "docs" / "examples"


def open_report(page: Any, path: Path) -> None:
    """Open a report in a page of the browser, and wait until its figures are drawn.

    Playwright's own waiting is not used because it evaluates strings in the page, which the report's content
    security policy forbids.
    """
    page.goto(path.as_uri(), wait_until="load")
    for _ in range(LOOKS):
        if page.evaluate(ALL_FIGURES_DRAWN):
            return
        page.wait_for_timeout(LOOK_MILLISECONDS)
    refuse("the figures of the report were not drawn within a minute")


def check_report_file(results: Results, run: Path, path: Path, name: str = "report") -> None:
    """Write the report of a run, and check how long this takes and how large the file is.

    Args:
        results: Results that the checks are added to.
        run: Folder of the run.
        path: Path of the new report.
        name: Start of the names of the checks.
    """
    started = time.perf_counter()
    stickytoken.report(run, out=path)
    seconds = time.perf_counter() - started
    megabytes = path.stat().st_size / 1e6
    results.check(f"{name}: written", "under 20 s", f"{seconds:.1f} s", seconds < 20, seconds=seconds)
    results.check(
        f"{name}: size of the file",
        "under 5 MB",
        f"{megabytes:.2f} MB",
        megabytes < 5,
        megabytes=megabytes,
    )


def recorded_events(page: Any) -> list[str]:
    """Return a list to which all later console messages, errors and requests of a page are added."""
    events: list[str] = []

    def record_message(message: Any) -> None:
        events.append(f"console: {message.text}")

    def record_error(error: Any) -> None:
        events.append(f"error: {error}")

    def record_request(request: Any) -> None:
        events.append(f"request: {request.url}")

    page.on("console", record_message)
    page.on("pageerror", record_error)
    page.on("request", record_request)
    return events


def check_report(run: Path) -> None:
    """Check the report of a run: its size, the time to write it, and how it behaves in a browser.

    RUN is the folder of the run. On a phone and on a wide screen, the page must fit into the width, log no
    messages, and send no requests. The results are in benchmarks/results/report.json. The exit status is 1 if
    a check fails.
    """
    results = Results("report", run=run.name)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        path = Path(folder).resolve() / "report.html"
        check_report_file(results, run, path)
        for width in (390, 1400):
            page = browser.new_page(viewport={"width": width, "height": 900})
            events = recorded_events(page)
            open_report(page, path)
            page_width = page.evaluate(PAGE_WIDTH)
            # The first event is the request for the report itself.
            unwanted_events = events[1:]
            results.check(
                f"at {width} px: requests and messages, width",
                f"0 and {width} px",
                f"{len(events) - 1} and {page_width} px",
                len(events) == 1 and page_width == width,
                heard=unwanted_events,
            )
    results.finish()


def large(entries: int = 250_000, times: int = 20) -> None:
    """Measure how long the report of a large vocabulary takes to load.

    The vocabulary of a tiny BERT has --entries entries. 2,000 tokens are measured, and every other token gets
    the values of a random one of these. The report is loaded --times times, and then once more as often with
    every hundredth token sticky, as if the model were ruined. This takes two minutes. The results are in
    benchmarks/results/report_large.json.
    """
    results = Results("report_large", load=os.getloadavg())
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        folder = Path(name).resolve()
        run = stickytoken.detect(large_vocabulary(folder, entries), sample=2000, out=folder / "run")
        tokens = tokens_of_whole_vocabulary(run)
        tables = {
            f"{entries:,} entries": tokens,
            f"{entries:,} entries, every hundredth sticky": with_every_hundredth_sticky(tokens),
        }
        for title, table in tables.items():
            table.write_parquet(folder / "run" / "tokens.parquet")
            path = folder / "report.html"
            check_report_file(results, folder / "run", path, title)
            check_loading(results, browser, path, title, times)
    results.finish(strict=False)


def tokens_of_whole_vocabulary(run: stickytoken.Run) -> pl.DataFrame:
    """Return the tokens of a run, with made-up values for the tokens that the run did not examine.

    Each of these tokens gets all values of a random token that the run did examine.
    """
    names = ["token_id", "token", "decoded", "category"]
    vocabulary = pl.read_parquet(run.path / "vocabulary.parquet").select(names)
    available = vocabulary.filter(pl.col("category").is_in(["OK", "OK_SPECIAL"]))
    unexamined = available.join(run.tokens, on="token_id", how="anti")
    values = run.tokens.drop(names).sample(len(unexamined), with_replacement=True, seed=0)
    made_up_tokens = pl.concat([unexamined, values], how="horizontal").select(run.tokens.columns)
    return pl.concat([run.tokens, made_up_tokens])


def with_every_hundredth_sticky(tokens: pl.DataFrame) -> pl.DataFrame:
    """Return the tokens with every hundredth of them severely sticky."""
    is_hundredth = pl.int_range(pl.len()) % 100 == 0
    return tokens.with_columns(
        verdict=pl.when(is_hundredth).then(pl.lit("sticky")).otherwise("verdict"),
        severity=pl.when(is_hundredth).then(pl.lit("severe")).otherwise("severity"),
    )


class LoadTime(NamedTuple):
    """How long a report took to load, in seconds.

    Attributes:
        load_event: Time until the end of the load event, when the text of the report is there.
        last_figure: Time until the last figure was drawn.
    """

    load_event: float
    last_figure: float


def load_time(browser: Any, path: Path) -> LoadTime:
    """Load a report in a new context of the browser, without a cache, and return how long this takes."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    open_report(page, path)
    last_figure = page.evaluate(NOW) / 1000
    load_event = page.evaluate(LOAD_END) / 1000
    context.close()
    return LoadTime(load_event, last_figure)


def check_loading(results: Results, browser: Any, path: Path, title: str, times: int) -> None:
    """Load a report several times, and check the 95th percentile of the time until the load event."""
    load_times = [load_time(browser, path) for _ in range(times)]
    load_seconds = [load.load_event for load in load_times]
    figure_seconds = [load.last_figure for load in load_times]
    load_percentile = float(np.quantile(load_seconds, 0.95))
    figure_percentile = float(np.quantile(figure_seconds, 0.95))
    results.check(
        f"{title}, {times} loads: 95th percentile",
        "under 3 s",
        f"{load_percentile:.2f} s; {figure_percentile:.2f} s until the last figure is drawn",
        load_percentile < 3,
        loads=load_seconds,
    )


# The three versions of a picture: the end of the file name, and the options of the page. Pages of the
# documentation show each reader the version that suits the reader's screen and colour scheme.
SCREENS: dict[str, dict[str, Any]] = {
    "": {"viewport": {"width": 1100, "height": 800}},
    "-dark": {"viewport": {"width": 1100, "height": 800}, "color_scheme": "dark"},
    "-phone": {"viewport": {"width": 390, "height": 844}},
}


def gallery(only: str = "") -> None:
    """Take pictures of the reports of the examples, and of the repairs in these reports.

    Each picture has three versions: for a wide screen, for dark colours, and for a phone. The pictures are in
    docs/images. --only takes the pictures of a single example, whose name it gives.
    """
    with chromium() as browser, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if REPAIR_EXAMPLES.is_dir():  # no model of the documentation may have an example
            shutil.copytree(REPAIR_EXAMPLES, folder, dirs_exist_ok=True)
        # A report shows the path of its run as it is passed, so the path must be relative.
        with contextlib.chdir(EXAMPLES):
            for run in EXAMPLES.iterdir():
                stickytoken.report(run.name, out=folder / f"{run.name}.html")
        for path in sorted(folder.resolve().glob(f"{only or '*'}.html")):
            for version, screen in SCREENS.items():
                page = browser.new_page(**screen)
                open_report(page, path)
                save_picture(page.screenshot(), IMAGES / f"gallery-{path.stem}{version}.png")
                # Only these reports show a repair.
                if (REPAIR_EXAMPLES / path.name).exists():
                    picture = page.locator(REPAIR_SECTION).screenshot()
                    save_picture(picture, IMAGES / f"gallery-{path.stem}-repaired{version}.png")
                page.close()


# The documents that show commands with their output, and the file that records what the commands print.
DOCUMENTS = (
    ROOT / "README.md",
    ROOT / "docs" / "explain.md",
    ROOT / "docs" / "publish.md",
)
RECORD = RESULTS / "readme.json"
# In documents.jsonl, every 117th document contains copies of the worst token, beginning with the sixth.
DOCUMENT_INTERVAL = 117
FIRST_DOCUMENT = 5
COPIES = 8


def shown(text: str) -> list[tuple[str, list[str]]]:
    """Return every command in the console blocks of a document, with the lines of output below it."""
    commands_with_output: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            if line.startswith("$ "):
                command = line.removeprefix("$ ")
                commands_with_output.append((command, []))
            else:
                _, output = commands_with_output[-1]
                output.append(line)
    return commands_with_output


def prepare(folder: Path) -> None:
    """Write the files that the commands of the README read into FOLDER.

    FOLDER holds the run of all-MiniLM-L6-v2 as runs/all-MiniLM-L6-v2. The new files are:

    documents.jsonl, the documents of Cranfield, every 117th with eight copies of the token that erases most;

    queries.jsonl, the queries of Cranfield;

    words.txt, two sticky tokens and three words.
    """
    run = stickytoken.open_run(folder / "runs" / MINILM)
    erases_most = run.sticky.sort("erased", descending=True)["decoded"][0]
    last_token = run.sticky["decoded"][-1]
    write_documents(folder / "documents.jsonl", erases_most)
    shutil.copyfile(SHARED / "data" / "cranfield" / "queries.jsonl", folder / "queries.jsonl")
    words = [erases_most, last_token, "river", "stone", "harbor"]
    (folder / "words.txt").write_text("".join(f"{word}\n" for word in words), "utf-8")


def write_documents(path: Path, token: str) -> None:
    """Write the documents of Cranfield as JSON lines, some of them with copies of a token at the end."""
    rows = json_lines(SHARED / "data" / "cranfield" / "corpus.jsonl")
    with path.open("w", encoding="utf-8") as file:
        for index, row in enumerate(rows):
            text = f"{row['title']} {row['text']}".strip()
            if index % DOCUMENT_INTERVAL == FIRST_DOCUMENT:
                text = " ".join([text, *([token] * COPIES)])
            # Two documents of Cranfield are empty.
            if text:
                document = {"id": row["_id"], "text": text}
                file.write(json.dumps(document, ensure_ascii=False) + "\n")


def output_of(command: str, folder: Path) -> dict[str, Any]:
    """Run a command of a document in a folder.

    Returns:
        The lines of ``stdout`` and ``stderr``, the exit ``status`` and the ``processor_seconds``.
    """
    # The width, the lack of colours and the lack of a network make the output the same on all machines.
    environment = {**os.environ, "COLUMNS": "150", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
    before = os.times()
    process = subprocess.run(
        shlex.split(command), cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return {
        "stdout": process.stdout.splitlines(),
        "stderr": process.stderr.splitlines(),
        "status": process.returncode,
        "processor_seconds": round(used, 1),
    }


def outputs(folder: Path, only: str = "") -> None:
    """Run the commands whose output the README and the pages in `DOCUMENTS` show, and record it.

    The commands run in FOLDER. FOLDER holds the run of the first command as runs/all-MiniLM-L6-v2, the files
    that `prepare` writes, and gemma-3-270m as `models.py assemble` makes it. With --only, commands that do
    not contain this text keep their records. A test compares the documents with the record, which is
    benchmarks/results/readme.json.
    """
    earlier_records: dict[str, Any] = {}
    if RECORD.exists():
        earlier_records = json.loads(RECORD.read_text("utf-8"))["commands"]
    commands_shown = []
    for path in DOCUMENTS:
        commands_shown += [command for command, _ in shown(path.read_text("utf-8"))]
    records = {command: earlier_records[command] for command in commands_shown if command in earlier_records}
    for command in commands_shown:
        if command not in records or only in command:
            records[command] = output_of(command, folder)
            # The file is written after every command, so that an interrupted recording leaves a whole file.
            write_json("readme", commands=records)


TUTORIAL = ROOT / "docs" / "tutorial.md"
TUTORIAL_RESULT = "tutorial"


def tutorial(folder: Path) -> None:
    """Execute the tutorial in FOLDER, which is made, and record what it prints.

    Blocks of Python and commands are executed in their order. A test compares the tutorial with the record,
    which is benchmarks/results/tutorial.json.
    """
    folder.mkdir(parents=True)
    blocks = re.findall(
        r"^```(python|console)\n(.*?)^```", TUTORIAL.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    names: dict[str, object] = {}
    command_records: dict[str, Any] = {}
    code_records: list[dict[str, Any]] = []
    with contextlib.chdir(folder):
        for language, block in blocks:
            if language == "console":
                for command, _ in shown(f"```console\n{block}```\n"):
                    command_records[command] = output_of(command, Path.cwd())
                continue
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(block, TUTORIAL.name, "exec"), names)
            code_records.append({"code": block.splitlines(), "stdout": printed.getvalue().splitlines()})
    megabytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
    write_json(TUTORIAL_RESULT, megabytes=megabytes, commands=command_records, code=code_records)


if __name__ == "__main__":
    commands(__doc__, large, gallery, prepare, outputs, tutorial, run=check_report)
