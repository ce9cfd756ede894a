"""Pictures of the web app for README and docs/demo.md.

stickytoken detect all-MiniLM-L6-v2 --out RUN
python benchmarks/demo_screenshots.py [--run RUN ...]    # a minute; needs Chromium

Every tab at 1,400 px on light ground, and Try as on a phone in the dark.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from stickytoken.corpora import load_sentences
from stickytoken.demo.app import make_app
from stickytoken.demo.context import SharedModel, Startup, find_runs, make_context
from stickytoken.demo.server import serve
from stickytoken.encoders import load_encoder

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "images"
_MOST_BYTES = 200_000
_TABS = ("Try", "Why", "Explore", "Explain", "Compare")
# Tabs that compute an example when they are opened.
_ANSWERS = {
    "Why": "#why-answer .headline",
    "Explain": "#explain-answer .headline",
    "Compare": "#compare-answer .cards",
}
_LONGEST = 180_000  # milliseconds: an answer of the model on a busy machine
_SETTLED = 1500  # milliseconds: pictures are drawn, toasts and transitions over


def open_tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()
    if name in _ANSWERS:
        page.wait_for_selector(_ANSWERS[name], timeout=_LONGEST)
    page.wait_for_timeout(_SETTLED)


def take(page: Page, url: str, tabs: tuple[str, ...], to: str, folder: Path) -> None:
    page.goto(url)
    page.wait_for_selector("#try-answer .headline", timeout=_LONGEST)
    page.wait_for_timeout(_SETTLED)
    for tab in tabs:
        open_tab(page, tab)
        path = folder / to.format(tab=tab.lower())
        page.screenshot(path=path)
        # A palette is enough for a page, and a third of the bytes.
        Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise SystemExit(f"{path} has {size} bytes, {_MOST_BYTES} are the most: make the picture smaller")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--run", type=Path, action="append", default=[], help="run folder; may be given again"
    )
    parser.add_argument("--folder", type=Path, default=PICTURES, help="where the pictures go")
    arguments = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("no Chromium on this machine: install it first")
    arguments.folder.mkdir(exist_ok=True)
    library = find_runs(arguments.run, Path("no-runs"))
    context = make_context(SharedModel(load_encoder("all-MiniLM-L6-v2")), library, load_sentences(None))
    startup = Startup(context.model.name, library)
    startup.finish(lambda: context)
    served = serve(make_app(startup), 0, share=False)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
            wide = browser.new_page(viewport={"width": 1400, "height": 1640}, color_scheme="light")
            take(wide, served.url, _TABS, "demo-{tab}.png", arguments.folder)
            phone = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
            take(phone, served.url, _TABS[:1], "demo-{tab}-phone.png", arguments.folder)
            browser.close()
    finally:
        served.close()


if __name__ == "__main__":
    main()
