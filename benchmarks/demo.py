"""How soon is the web app there, and how fast does it answer?

python benchmarks/demo.py    # a minute; needs Chromium

`stickytoken demo` on the packaged all-MiniLM-L6-v2 in a process of its own, used in a headless Chromium.
First paint: from the start of the process until the browser's first contentful paint: the page, its runs, and
that the model is being loaded. Worked example: until it stands in the page, pictures included. The first of
the starts is a cold one: what the system keeps of files in memory is dropped before, where that is allowed
(as root on Linux). Try: from the click until the page shows the new answer, for tokens that were not asked
before.
"""

from __future__ import annotations

import argparse
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

from playwright.sync_api import Page, sync_playwright

from checks import Check, show, write

MOST_SECONDS_TO_PAINT, MOST_SECONDS_TO_ANSWER = 10, 2
TOKENS = ("river", "trajectory", "saddam", "the", "house")
LATER_STARTS = 3
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def drop_caches() -> bool:
    """Make the next start read everything from the disk; whether that is allowed."""
    try:
        os.sync()
        DROP_CACHES.write_text("3", encoding="ascii")
    except OSError:
        return False
    return True


@contextmanager
def serving() -> Iterator[tuple[str, float]]:
    """The app in a process of its own: its address, and when the process was started."""
    with tempfile.TemporaryDirectory() as empty:
        started = time.perf_counter()
        command = [sys.executable, "-m", "stickytoken", "demo", "--port", "0", "--format", "json"]
        process = subprocess.Popen(
            [*command, "--folder", empty],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
        )
        try:
            yield _address(process), started
        finally:
            process.terminate()
            process.wait(timeout=30)


def _address(process: subprocess.Popen[str]) -> str:
    text = ""
    for line in process.stdout or ():
        text += line
        if line.startswith("}"):
            return str(json.loads(text)["url"])
    raise SystemExit("the app did not start: run `stickytoken demo` to see why")


def first_paint(page: Page, url: str, started: float) -> tuple[float, float, float]:
    """Seconds until the page was served, first painted, and until everything of the first tab was drawn."""
    served = time.perf_counter() - started
    page.goto(url)
    page.wait_for_selector("#try-answer .headline")
    page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 2")
    drawn = time.perf_counter() - started
    painted = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    return served, served + page.evaluate(painted) / 1000, drawn


def answer(page: Page, token: str) -> float:
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


def described(seconds: list[float], cold: bool) -> str:
    """The first start and the later ones in words."""
    first, *later = seconds
    kind = "a cold first start" if cold else "the first start"
    return f"{statistics.median(later):.1f} s, median of {len(later)} starts; {first:.1f} s, {kind}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--name", default="demo", help="name of the result file")
    arguments = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("no Chromium on this machine: install it first")
    served: list[float] = []
    paints: list[float] = []
    drawn: list[float] = []
    answers: dict[str, float] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        cold = drop_caches()
        for _ in range(1 + LATER_STARTS):
            with serving() as (url, started):
                page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
                times = first_paint(page, url, started)
                for found, seconds in zip((served, paints, drawn), times, strict=True):
                    found.append(seconds)
                answers = {token: answer(page, token) for token in TOKENS}
        browser.close()
    checks = [
        Check(
            "first paint after the start of the process, packaged all-MiniLM-L6-v2",
            f"under {MOST_SECONDS_TO_PAINT} s",
            described(paints, cold),
            max(paints) < MOST_SECONDS_TO_PAINT,
            {"seconds": paints, "seconds_until_served": served, "first_is_cold": cold},
        ),
        Check(
            "the worked example with its pictures",
            "none: what a user waits for",
            described(drawn, cold),
            True,
            {"seconds": drawn},
        ),
        Check(
            "answer of Try, pictures drawn",
            f"under {MOST_SECONDS_TO_ANSWER} s",
            f"{max(answers.values()):.2f} s at most, median {statistics.median(answers.values()):.2f} s",
            max(answers.values()) < MOST_SECONDS_TO_ANSWER,
            {"seconds": answers},
        ),
    ]
    write(checks, arguments.name, "cpu")
    show(checks, arguments.name)
    if not all(check.passed for check in checks):
        sys.exit(1)


if __name__ == "__main__":
    main()
