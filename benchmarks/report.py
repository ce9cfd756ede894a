"""Is the report of a run small, quiet and readable, and how long does it take? Also draws its picture.

stickytoken detect all-MiniLM-L6-v2 --out RUN
python benchmarks/report.py RUN             # a minute on 2 CPU cores; needs Chromium
python benchmarks/report.py RUN --picture   # writes docs/images/report.png too

Writes report.json. The run is left as it is: the page goes to a temporary folder.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import ConsoleMessage, Error, Page, Request, ViewportSize, sync_playwright

import stickytoken
from checks import Check, show, write

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "report.png"
WIDTHS = (390, 1400)
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
    Image.open(io.BytesIO(shot)).convert("RGB").save(PICTURE, optimize=True)


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


def _wait(page: Page) -> None:
    # The page's policy forbids Playwright's own polling.
    for _ in range(600):
        if page.evaluate(DRAWN):
            return
        page.wait_for_timeout(100)
    raise SystemExit("the figures of the report were not drawn within a minute")


def _chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    raise SystemExit("no Chromium or Chrome on this machine: install one")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("--picture", action="store_true", help=f"write {PICTURE.name} of docs/images")
    parser.add_argument("--screenshots", type=Path, help="folder for pictures of the whole page")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
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
