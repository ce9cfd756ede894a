"""The web app in Chromium: how soon it is there, and pictures of it."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from bench import IMAGES, MINILM, Results, chromium, commands, refuse, save_picture
from stickytoken.detection import open_run

TOKENS = ("river", "trajectory", "saddam", "the", "house")
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


@contextmanager
def serving(*options: str) -> Iterator[tuple[str, float]]:
    """The app in a process of its own: its address, and when the process was started."""
    with tempfile.TemporaryDirectory() as empty:
        started = time.perf_counter()
        command = [sys.executable, "-m", "stickytoken", "demo", "--port", "0", "--format", "json"]
        environment = os.environ | {"HF_HUB_OFFLINE": "1"}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        process = subprocess.Popen([*command, "--folder", empty, *options], env=environment, **pipes)
        try:
            text = ""
            for line in process.stdout or ():
                text += line
                if line.startswith("}"):
                    yield str(json.loads(text)["url"]), started
                    return
            refuse("the app did not start: run `stickytoken demo` to see why")
        finally:
            process.terminate()
            process.wait(timeout=30)


def answer(page: Any, token: str) -> float:
    """Seconds from the click until the words, the curve and the heat-map are those of the token."""
    page.locator("#try-token").get_by_role("textbox").fill(token)
    started = time.perf_counter()
    page.get_by_role("button", name="Show what happens").click()
    # The curve has a line with the name of the token, the heat-map a panel.
    page.wait_for_function(
        """name => document.querySelector('#try-answer .lead .token')?.textContent === name
            && [...document.querySelectorAll('.js-plotly-plot[role=img]')]
                .some(each => each.data.some(line => line.name?.includes(name)))
            && [...document.querySelectorAll('.annotation-text')]
                .some(each => each.textContent.includes(name))""",
        arg=token,
    )
    return time.perf_counter() - started


def times(name: str = "demo") -> None:
    """How soon is the web app there, and how fast does it answer?

    Times count from the start of `stickytoken demo` until the browser's first contentful paint, and until the
    worked example stands in the page with its pictures. The first start is a cold one where the system's file
    cache may be dropped (as root on Linux). Try: from the click until the answer, for new tokens.
    """
    served, paints, drawn = [], [], []
    answers: dict[str, float] = {}
    try:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3", encoding="ascii")
        cold = True
    except OSError:
        cold = False
    with chromium() as browser:
        for _ in range(4):
            with serving() as (url, started):
                page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
                served.append(time.perf_counter() - started)
                page.goto(url)
                page.wait_for_selector("#try-answer .headline")
                page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 2")
                drawn.append(time.perf_counter() - started)
                paints.append(served[-1] + page.evaluate(PAINTED) / 1000)
                answers = {token: answer(page, token) for token in TOKENS}

    def told(seconds: list[float]) -> str:
        first, *later = seconds
        kind = "a cold first start" if cold else "the first start"
        return f"{statistics.median(later):.1f} s, median of {len(later)} starts; {first:.1f} s, {kind}"

    slowest, middle = max(answers.values()), statistics.median(answers.values())
    results = Results(name)
    results.check(
        f"first paint after the start of the process, packaged {MINILM}",
        "under 10 s",
        told(paints),
        max(paints) < 10,
        seconds=paints,
        seconds_until_served=served,
        first_is_cold=cold,
    )
    title, bar = "the worked example with its pictures", "none: what a user waits for"
    results.check(title, bar, told(drawn), seconds=drawn)
    ours = f"{slowest:.2f} s at most, median {middle:.2f} s"
    results.check("answer of Try, pictures drawn", "under 2 s", ours, slowest < 2, seconds=answers)
    results.finish()


# Tabs, with what shows that an example was computed when they were opened.
TABS = {
    "Try": None,
    "Why similar": "#why-answer .headline",
    "Explore": None,
    "Why sticky": "#explain-answer .headline",
    "Compare": "#compare-answer .cards",
}
LONGEST, SETTLED = 180_000, 1500  # milliseconds: an answer on a busy machine; pictures and transitions over


def screenshots(run: list[Path] | None = None, folder: Path = IMAGES) -> None:
    """Every tab at 1,400 px on light ground, and Try as on a phone in the dark, with each --run."""
    options = [option for each in run or () for option in ("--run", str(each))]
    with serving("--model", MINILM, *options) as (url, _), chromium() as browser:
        for width, height, scheme, tabs, suffix in (
            (1400, 1640, "light", tuple(TABS), ""),
            (390, 844, "dark", ("Try",), "-phone"),
        ):
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.goto(url)
            page.wait_for_selector("#try-answer .headline", timeout=LONGEST)
            page.wait_for_timeout(SETTLED)
            for tab in tabs:
                page.get_by_role("tab", name=tab, exact=True).click()
                if TABS[tab]:
                    page.wait_for_selector(TABS[tab], timeout=LONGEST)
                page.wait_for_timeout(SETTLED)
                path = folder / f"demo-{tab.lower()}{suffix}.png"
                save_picture(page.screenshot(), path)
                if (size := path.stat().st_size) > 200_000:
                    refuse(f"{path} has {size} bytes, 200,000 are the most: make the picture smaller")


def example(run: Path) -> None:
    """Put a finished run of the packaged model into the package, as the one that the web app opens with.

    The same values packed tighter. Shards, report and effects.parquet stay behind; the last is large, and
    only `stickytoken judge` needs it.
    """
    from stickytoken.demo.context import EXAMPLE

    opened = open_run(run)
    if opened.evidence is None:
        refuse(f"the run in {run} keeps no curves and pairs: run detect without --set report=false")
    EXAMPLE.mkdir(parents=True, exist_ok=True)
    for name in ("run.json", "plan.json", "evidence.json"):
        shutil.copyfile(run / name, EXAMPLE / name)
    for name in ("tokens.parquet", "vocabulary.parquet", "evidence.parquet"):
        table = pl.read_parquet(run / name)
        table.write_parquet(EXAMPLE / name, compression="zstd", compression_level=22)


if __name__ == "__main__":
    commands(__doc__, times, screenshots, example)
