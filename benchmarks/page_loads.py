"""How long do the pages of the documentation take to load in Chromium?

make docs && python benchmarks/page_loads.py    # a minute; results/page_loads.json

Every page is opened several times in a fresh context. A load is the time from the start of navigation to the
end of the load event, by the clock of the browser.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright

from checks import Check, show, write

SITE = Path(__file__).resolve().parent.parent / "build" / "docs"
LOADED = "performance.getEntriesByType('navigation')[0].loadEventEnd"


def loads(site: Path, times: int) -> dict[str, list[float]]:
    """Milliseconds of every load, by page."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    found: dict[str, list[float]] = {}
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for path in sorted(site.rglob("*.html")):
            for _ in range(times):
                context = browser.new_context(viewport={"width": 1400, "height": 900})
                page = context.new_page()
                page.goto(path.as_uri(), wait_until="load")
                page.wait_for_function(f"{LOADED} > 0")
                found.setdefault(path.relative_to(site).as_posix(), []).append(page.evaluate(LOADED))
                context.close()
        browser.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--times", type=int, default=5, help="loads of each page")
    arguments = parser.parse_args()
    found = loads(SITE, arguments.times)
    every = np.concatenate([np.array(times) for times in found.values()])
    p95 = float(np.quantile(every, 0.95)) / 1000
    slowest = max(found, key=lambda page: float(np.median(found[page])))
    checks = [
        Check(
            f"{len(found)} pages, {arguments.times} loads of each: 95th percentile",
            "under 1 s",
            f"{p95:.2f} s; median {np.median(every) / 1000:.2f} s",
            p95 < 1,
            {
                "slowest": slowest,
                "median_of_slowest": float(np.median(found[slowest])),
                "largest": float(every.max()),
            },
        )
    ]
    show(checks, "page loads")
    write(checks, "page_loads", "cpu", load_average=Path("/proc/loadavg").read_text("utf-8").split()[0])


if __name__ == "__main__":
    main()
