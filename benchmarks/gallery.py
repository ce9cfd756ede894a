"""Take the pictures of the gallery from finished runs.

python benchmarks/gallery.py clean=RUN tampered=RUN endpoint=RUN    # needs Chromium

Writes docs/images/gallery-NAME.png; a run with the record of a repair also gives gallery-NAME-repaired.png.
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import stickytoken

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
DRAWN = "[...document.querySelectorAll('[data-figure]')].every(plot => plot.querySelector('.main-svg'))"
REPAIRED = "section[aria-labelledby='repair-symptom'], section[aria-labelledby*='repair']"


def save(picture: bytes, name: str) -> None:
    """Write a picture with 256 colours, a third of the size."""
    image = Image.open(io.BytesIO(picture)).convert("RGB").quantize(256)
    image.save(IMAGES / f"gallery-{name}.png", optimize=True)


def photograph(page: Page, report: Path, name: str) -> None:
    """The top of a report, and its first section about a repair."""
    page.goto(report.as_uri())
    while not page.evaluate(DRAWN):
        page.wait_for_timeout(200)
    save(page.screenshot(), name)
    if page.locator(REPAIRED).count():
        save(page.locator(REPAIRED).first.screenshot(), f"{name}-repaired")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN")
    arguments = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as started, tempfile.TemporaryDirectory() as folder:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 900})
        for given in arguments.runs:
            name, _, run = given.partition("=")
            stickytoken.report(run, out=Path(folder) / f"{name}.html")
            photograph(page, Path(folder) / f"{name}.html", name)
        browser.close()


if __name__ == "__main__":
    main()
