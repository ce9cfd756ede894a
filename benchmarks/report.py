"""Is the report of a run small, quiet and readable, and how long does it take? Also draws its picture.

stickytoken detect all-MiniLM-L6-v2 --out RUN
python benchmarks/report.py RUN             # a minute on 2 CPU cores; needs Chromium
python benchmarks/report.py RUN --picture   # writes docs/images/report.png too
python benchmarks/report.py --entries 250000    # a tiny BERT with so many entries instead; two minutes

Writes report.json, or report_large.json. The run is left as it is: the page goes to a temporary folder. With
--entries, 2,000 tokens are measured, and every other available token gets the numbers of one of them, since a
report depends on the size of its tables. A model in ruins is loaded too: every hundredth token sticky.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from PIL import Image
from playwright.sync_api import ConsoleMessage, Error, Page, Request, ViewportSize, sync_playwright

import stickytoken
from checks import Check, show, write
from scaling import large_vocabulary

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "report.png"
WIDTHS = (390, 1400)
LOADED = "performance.getEntriesByType('navigation')[0].loadEventEnd"
DRAWN = "[...document.querySelectorAll('[data-figure]')].every(plot => plot.querySelector('.main-svg'))"
_PICTURE = ViewportSize(width=1200, height=1430)


def written(run: Path, path: Path) -> list[Check]:
    """Time and size."""
    started = time.perf_counter()
    stickytoken.report(run, out=path)
    seconds = time.perf_counter() - started
    size = path.stat().st_size / 1e6
    return [
        Check("report written", "under 20 s", f"{seconds:.1f} s", seconds < 20, {"seconds": seconds}),
        Check("size of the file", "under 5 MB", f"{size:.2f} MB", size < 5, {"megabytes": size}),
    ]


def opened(path: Path, pictures: Path | None) -> list[Check]:
    """What a browser hears, and whether the page fits; screenshots of the whole page on request."""
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=_chromium(), args=["--no-sandbox"])
        checks = []
        for width in WIDTHS:
            page = browser.new_page(viewport={"width": width, "height": 900})
            heard = _listened(page)
            page.goto(path.as_uri())
            _wait(page)
            wide = page.evaluate("document.documentElement.scrollWidth")
            detail: dict[str, Any] = {"heard": heard[1:], "page_width": wide}
            passed = len(heard) == 1 and wide == width
            ours = f"{len(heard) - 1} and {wide} px"
            checks.append(
                Check(
                    f"at {width} px: requests and messages, width", f"0 and {width} px", ours, passed, detail
                )
            )
            if pictures is not None:
                page.screenshot(path=pictures / f"report-{width}.png", full_page=True)
            page.close()
        browser.close()
    return checks


def loaded(path: Path, times: int, name: str) -> Check:
    """How long the page takes in a fresh context: until its load event, and until every figure is drawn."""
    loads, drawings = [], []
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=_chromium(), args=["--no-sandbox"])
        for _ in range(times):
            context = browser.new_context(viewport=ViewportSize(width=1400, height=900))
            page = context.new_page()
            page.goto(path.as_uri(), wait_until="load")
            _wait(page, 20)
            drawings.append(page.evaluate("performance.now()") / 1000)
            loads.append(page.evaluate(LOADED) / 1000)
            context.close()
        browser.close()
    p95, drawn = (float(np.quantile(each, 0.95)) for each in (loads, drawings))
    detail = {"loads": loads, "drawings": drawings}
    ours = f"{p95:.2f} s; {drawn:.2f} s until the last figure is drawn"
    return Check(f"{name}, {times} loads: 95th percentile", "under 3 s", ours, p95 < 3, detail)


def extended(run: stickytoken.Run) -> pl.DataFrame:
    """All available tokens of a sampled run; the numbers of those that it left out are those of others."""
    names = ["token_id", "token", "decoded", "category"]
    vocabulary = pl.read_parquet(run.path / "vocabulary.parquet").select(names)
    available = vocabulary.filter(pl.col("category").is_in(["OK", "OK_SPECIAL"]))
    others = available.join(run.tokens, on="token_id", how="anti")
    drawn = run.tokens.drop(names).sample(len(others), with_replacement=True, seed=0)
    return pl.concat([run.tokens, pl.concat([others, drawn], how="horizontal").select(run.tokens.columns)])


def large(entries: int, folder: Path, times: int) -> list[Check]:
    """The report of a vocabulary of so many entries, as it is and with every hundredth token sticky."""
    run = stickytoken.detect(large_vocabulary(folder, entries), sample=2000, out=folder / "run")
    tokens = extended(run)
    tokens.write_parquet(folder / "run" / "tokens.parquet")
    checks = []
    for name in (f"{entries:,} entries", f"{entries:,} entries, every hundredth sticky"):
        path = folder / "report.html"
        size, time_taken = written(folder / "run", path)[::-1]
        checks += [replace(size, name=f"{name}: size"), replace(time_taken, name=f"{name}: written")]
        checks.append(loaded(path, times, name))
        hundredth = pl.int_range(pl.len()) % 100 == 0
        names = {"verdict": "sticky", "severity": "severe"}
        given = {key: pl.when(hundredth).then(pl.lit(name)).otherwise(key) for key, name in names.items()}
        tokens.with_columns(**given).write_parquet(folder / "run" / "tokens.parquet")
    return checks


def draw(path: Path) -> None:
    """The top of the page, as a reader first sees it on a wide screen."""
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=_chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport=_PICTURE)
        page.goto(path.as_uri())
        _wait(page)
        shot = page.screenshot()
        browser.close()
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    # A palette is enough for a page, and a third of the bytes.
    Image.open(io.BytesIO(shot)).convert("RGB").quantize(256).save(PICTURE, optimize=True)


def _listened(page: Page) -> list[str]:
    """A list that gets whatever the page asks for or complains about."""
    heard: list[str] = []

    def message(found: ConsoleMessage) -> None:
        heard.append(f"console: {found.text}")

    def error(found: Error) -> None:
        heard.append(f"error: {found}")

    def request(found: Request) -> None:
        heard.append(f"request: {found.url}")

    page.on("console", message)
    page.on("pageerror", error)
    page.on("request", request)
    return heard


def _wait(page: Page, milliseconds: int = 100) -> None:
    # The page's policy forbids Playwright's own polling.
    for _ in range(60_000 // milliseconds):
        if page.evaluate(DRAWN):
            return
        page.wait_for_timeout(milliseconds)
    raise SystemExit("the figures of the report were not drawn within a minute")


def _chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    raise SystemExit("no Chromium or Chrome on this machine: install one")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="folder of a finished run")
    parser.add_argument("--entries", type=int, help="make a run of a vocabulary of so many entries instead")
    parser.add_argument("--times", type=int, default=20, help="loads of a page, with --entries")
    parser.add_argument("--picture", action="store_true", help=f"write {PICTURE.name} of docs/images")
    parser.add_argument("--screenshots", type=Path, help="folder for pictures of the whole page")
    arguments = parser.parse_args()
    if (arguments.run is None) == (arguments.entries is None):
        parser.error("pass a run folder or --entries")
    with tempfile.TemporaryDirectory() as folder:
        if arguments.entries is not None:
            checks = large(arguments.entries, Path(folder).resolve(), arguments.times)
            write(checks, "report_large", "cpu", load=os.getloadavg())
            show(checks, "report of a large vocabulary")
            return
        path = Path(folder).resolve() / "report.html"
        checks = [*written(arguments.run, path), *opened(path, arguments.screenshots)]
        if arguments.picture:
            draw(path)
    write(checks, "report", "cpu", run=arguments.run.name)
    show(checks, "report")
    if not all(check.passed for check in checks):
        sys.exit(1)


if __name__ == "__main__":
    main()
