"""Reports and the README: size, time and pictures of reports, and what the commands of the README print."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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

LOADED = "performance.getEntriesByType('navigation')[0].loadEventEnd"
DRAWN = """[...document.querySelectorAll('[data-figure]')].every(
    plot => plot.querySelector('.main-svg') || plot.closest('details:not([open])'))"""
REPAIRED = "section[aria-labelledby=repair]"
EXAMPLES = ROOT / "src" / "stickytoken" / "demo" / "example"


def opened(page: Any, path: Path) -> None:
    """Open a report and wait until its figures are drawn; its policy forbids Playwright's own polling."""
    page.goto(path.as_uri(), wait_until="load")
    for _ in range(3000):
        if page.evaluate(DRAWN):
            return
        page.wait_for_timeout(20)
    refuse("the figures of the report were not drawn within a minute")


def check_written(results: Results, run: Path, path: Path, name: str = "report") -> None:
    started = time.perf_counter()
    stickytoken.report(run, out=path)
    seconds, size = time.perf_counter() - started, path.stat().st_size / 1e6
    results.check(f"{name}: written", "under 20 s", f"{seconds:.1f} s", seconds < 20, seconds=seconds)
    results.check(f"{name}: size of the file", "under 5 MB", f"{size:.2f} MB", size < 5, megabytes=size)


def of_run(run: Path) -> None:
    """Is the report of a run small, quiet and readable, and how long does it take?"""
    results = Results("report", run=run.name)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        path = Path(folder).resolve() / "report.html"
        check_written(results, run, path)
        for width in (390, 1400):
            page = browser.new_page(viewport={"width": width, "height": 900})
            heard: list[str] = []
            page.on("console", lambda found, heard=heard: heard.append(f"console: {found.text}"))
            page.on("pageerror", lambda found, heard=heard: heard.append(f"error: {found}"))
            page.on("request", lambda found, heard=heard: heard.append(f"request: {found.url}"))
            opened(page, path)
            wide = page.evaluate("document.documentElement.scrollWidth")
            name, ours = f"at {width} px: requests and messages, width", f"{len(heard) - 1} and {wide} px"
            passed = len(heard) == 1 and wide == width
            results.check(name, f"0 and {width} px", ours, passed, heard=heard[1:])
    results.finish()


def large(entries: int = 250_000, times: int = 20) -> None:
    """The report of a tiny BERT with so many entries, loaded so many times; two minutes.

    2,000 tokens are measured, and the others get their numbers. A model in ruins is loaded too: every
    hundredth token sticky.
    """
    results = Results("report_large", load=os.getloadavg())
    with tempfile.TemporaryDirectory() as place, chromium() as browser:
        folder = Path(place).resolve()
        run = stickytoken.detect(large_vocabulary(folder, entries), sample=2000, out=folder / "run")
        names = ["token_id", "token", "decoded", "category"]
        vocabulary = pl.read_parquet(run.path / "vocabulary.parquet").select(names)
        available = vocabulary.filter(pl.col("category").is_in(["OK", "OK_SPECIAL"]))
        others = available.join(run.tokens, on="token_id", how="anti")
        drawn = run.tokens.drop(names).sample(len(others), with_replacement=True, seed=0)
        added = pl.concat([others, drawn], how="horizontal").select(run.tokens.columns)
        tokens, hundredth = pl.concat([run.tokens, added]), pl.int_range(pl.len()) % 100 == 0
        ruined = {
            key: pl.when(hundredth).then(pl.lit(value)).otherwise(key)
            for key, value in {"verdict": "sticky", "severity": "severe"}.items()
        }
        name = f"{entries:,} entries"
        ruins = {name: tokens, f"{name}, every hundredth sticky": tokens.with_columns(**ruined)}
        for title, table in ruins.items():
            table.write_parquet(folder / "run" / "tokens.parquet")
            path = folder / "report.html"
            check_written(results, folder / "run", path, title)
            loads, drawings = [], []
            for _ in range(times):
                context = browser.new_context(viewport={"width": 1400, "height": 900})
                page = context.new_page()
                opened(page, path)
                drawings.append(page.evaluate("performance.now()") / 1000)
                loads.append(page.evaluate(LOADED) / 1000)
                context.close()
            p95, last = (float(np.quantile(each, 0.95)) for each in (loads, drawings))
            name, ours = (
                f"{title}, {times} loads",
                f"{p95:.2f} s; {last:.2f} s until the last figure is drawn",
            )
            results.check(f"{name}: 95th percentile", "under 3 s", ours, p95 < 3, loads=loads)
    results.finish(strict=False)


# Of a screen, and of the scheme of its colours; pages choose by the screen of their reader.
SCREENS: dict[str, dict[str, Any]] = {
    "": {"viewport": {"width": 1100, "height": 800}},
    "-dark": {"viewport": {"width": 1100, "height": 800}, "color_scheme": "dark"},
    "-phone": {"viewport": {"width": 390, "height": 844}},
}


def gallery(only: str = "") -> None:
    """Take pictures of the reports of examples, in three versions each, and of their repairs.

    --only is the name of one example.
    """
    with chromium() as browser, tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "docs" / "examples", folder, dirs_exist_ok=True)
        with contextlib.chdir(EXAMPLES):  # reports name their run as it is given
            for run in EXAMPLES.iterdir():
                stickytoken.report(run.name, out=Path(folder, f"{run.name}.html"))
        for path in sorted(Path(folder).resolve().glob(f"{only or '*'}.html")):
            for version, screen in SCREENS.items():
                page = browser.new_page(**screen)
                opened(page, path)
                save_picture(page.screenshot(), IMAGES / f"gallery-{path.stem}{version}.png")
                if (ROOT / "docs" / "examples" / path.name).exists():  # a real model, and its repair
                    picture = page.locator(REPAIRED).screenshot()
                    save_picture(picture, IMAGES / f"gallery-{path.stem}-repaired{version}.png")
                page.close()


def comparison(runs: list[Path]) -> None:
    """Take the picture of a comparison of runs that docs/compare.md shows."""
    with chromium() as browser, tempfile.TemporaryDirectory() as folder:
        path = Path(folder).resolve() / "comparison.html"
        stickytoken.report(stickytoken.compare(runs), out=path)
        page = browser.new_page(viewport={"width": 1240, "height": 1160})
        opened(page, path)
        save_picture(page.screenshot(), IMAGES / "compare.png")


DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "compare.md")
RECORD = RESULTS / "readme.json"
SERVER = ROOT / "tests" / "support" / "embedding_server.py"


def shown(text: str) -> list[tuple[str, list[str]]]:
    """Every command in the blocks of a document, with the lines that the document shows below it."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def prepare(folder: Path) -> None:
    """Write the files that the commands of the README read into FOLDER, beside the run of all-MiniLM-L6-v2.

    documents.jsonl has the documents of Cranfield, every 117th with eight copies of the worst token of the
    run; queries.jsonl has the queries of Cranfield; sts.jsonl has 200 pairs of STS-B; words.txt has two
    sticky tokens and three words.
    """
    run = stickytoken.open_run(folder / "runs" / MINILM)
    worst = run.sticky["decoded"][0]
    with (folder / "documents.jsonl").open("w", encoding="utf-8") as written:
        for place, row in enumerate(json_lines(SHARED / "data" / "cranfield" / "corpus.jsonl")):
            text = f"{row['title']} {row['text']}".strip()
            if place % 117 == 5:
                text = " ".join([text, *([worst] * 8)])
            if text:
                written.write(json.dumps({"id": row["_id"], "text": text}, ensure_ascii=False) + "\n")
    shutil.copyfile(SHARED / "data" / "cranfield" / "queries.jsonl", folder / "queries.jsonl")
    pairs = (SHARED / "data" / "stsb" / "test.jsonl").read_text("utf-8").splitlines(keepends=True)
    (folder / "sts.jsonl").write_text("".join(pairs[:200]), "utf-8")
    words = [worst, run.sticky["decoded"][-1], "river", "stone", "harbor"]
    (folder / "words.txt").write_text("".join(f"{word}\n" for word in words), "utf-8")


@contextlib.contextmanager
def served_model() -> Iterator[None]:
    """Serve all-MiniLM-L6-v2 as minilm on port 8080, as the README has it."""
    command = [sys.executable, str(SERVER), MINILM, "--port", "8080", "--name", "minilm"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None or not process.stdout.readline().startswith("serving"):
            refuse("the server on port 8080 did not start")
        yield
    finally:
        process.terminate()
        process.wait()


def printed_by(command: str, folder: Path) -> dict[str, Any]:
    """Run a command of a document; return what it printed, as lines, and its exit status."""
    environment = {**os.environ, "COLUMNS": "150", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
    with served_model() if "localhost:8080" in command else contextlib.nullcontext():
        done = subprocess.run(
            shlex.split(command), cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    return {
        "stdout": done.stdout.splitlines(),
        "stderr": done.stderr.splitlines(),
        "status": done.returncode,
    }


def outputs(folder: Path, only: str = "") -> None:
    """Run the commands whose output the README and docs/compare.md show, and record what they print.

    A test compares the documents with the record. The commands run in FOLDER, which holds the run of the
    first command as runs/all-MiniLM-L6-v2, what `prepare` writes, and gemma-3-270m as `models.py assemble`
    makes it. --only runs the commands again that contain a text.
    """
    earlier = json.loads(RECORD.read_text("utf-8"))["commands"] if RECORD.exists() else {}
    commands_shown = [command for path in DOCUMENTS for command, _ in shown(path.read_text("utf-8"))]
    # Written after every command, so that a record that is interrupted is still whole.
    recorded = {command: earlier[command] for command in commands_shown if command in earlier}
    for command in commands_shown:
        if command not in recorded or only in command:
            recorded[command] = printed_by(command, folder)
            write_json("readme", commands=recorded)


if __name__ == "__main__":
    commands(__doc__, large, gallery, comparison, prepare, outputs, run=of_run)
