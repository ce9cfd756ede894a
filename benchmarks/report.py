"""Reports and the README: size, time and pictures of reports, and what the commands of the README print."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import stickytoken
from bench import IMAGES, RESULTS, ROOT, Results, chromium, commands, refuse, save_picture, write_json
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


def gallery() -> None:
    """Take pictures of the reports of examples, in three versions each, and of their repairs."""
    with chromium() as browser, tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "docs" / "examples", folder, dirs_exist_ok=True)
        with contextlib.chdir(EXAMPLES):  # reports name their run as it is given
            for run in EXAMPLES.iterdir():
                stickytoken.report(run.name, out=Path(folder, f"{run.name}.html"))
        for path in sorted(Path(folder).resolve().glob("*.html")):
            for version, screen in SCREENS.items():
                page = browser.new_page(**screen)
                opened(page, path)
                save_picture(page.screenshot(), IMAGES / f"gallery-{path.stem}{version}.png")
                if (ROOT / "docs" / "examples" / path.name).exists():  # a real model, and its repair
                    picture = page.locator(REPAIRED).screenshot()
                    save_picture(picture, IMAGES / f"gallery-{path.stem}-repaired{version}.png")
                page.close()


TEXT, OTHER, COPIES = "An octopus has three hearts", "Leaves on the line make the rails slippery.", 8
STICKY, ORDINARY, MENDED = "#b3391f", "#3d6b99", "#2f7d4f"


def figure(tampered: Path, repaired: Path, real: Path, mended: Path) -> None:
    """Draw the picture of the README: what copies of a sticky token do, before and after a repair.

    TAMPERED is a model with planted rows and REPAIRED its copy: stickytoken detect TAMPERED --out RUN &&
    stickytoken repair RUN --out REPAIRED. REAL and MENDED are the same of a model that nobody tampered with.
    """
    shown = []  # of each repair, the token that raised unrelated texts most
    for folder in (repaired, mended):
        verified = [each for each in stickytoken.open_repair(folder).record.tokens if each.curve is not None]
        if not verified:
            refuse(f"the repair in {folder} was not verified: there is nothing to draw")
        shown.append(max(verified, key=lambda each: max(each.curve.before) if each.curve else 0.0))
    worst, other = shown

    def similarity(model: Path, text: str) -> float:
        first, second = stickytoken.load_encoder(str(model), device="cpu").encode([text, OTHER])
        return float(first @ second / (first @ first * (second @ second)) ** 0.5)

    copies = f"{TEXT} {' '.join([worst.token] * COPIES)}"
    pair = {
        "as written": similarity(tampered, TEXT),
        "tampered": similarity(tampered, copies),
        "repaired": similarity(repaired, copies),
    }
    curves = {each.token.strip("▁ "): each.curve.model_dump() for each in shown if each.curve}
    runs = [stickytoken.detect(str(model), tokens=[other.token]) for model in (real, mended)]
    ahead = [moved._asdict() for run in runs if (moved := run.moved(other.token_id))]
    write_json("readme_figure", token=worst.token, copies=COPIES, pair=pair, curves=curves, ahead=ahead)
    for name, shape in SHAPES.items():
        draw(name, shape, pair, curves)


# Panels side by side, and one above the other on a phone.
SHAPES = {"lift": (1, 3, (11.5, 3.5)), "lift-narrow": (3, 1, (4.4, 9.4))}
# Browsers draw the colours of the page's scheme; the marks have enough contrast on both grounds.
DARK = (
    "<style>@media (prefers-color-scheme: dark) { svg { fill: #e6e9ee } "
    "[style*='fill: #ffffff'] { fill: #161b22 !important } "
    "[style*='stroke: #000000'], [style*='stroke: #777777'] { stroke: #a3adbb !important } "
    "[style*='#3d6b99'] { stroke: #6ea3d8 !important } [style*='fill: #3d6b99'] { fill: #6ea3d8 !important } "
    "[style*='#2f7d4f'] { stroke: #4fb37a !important } [style*='fill: #2f7d4f'] { fill: #4fb37a !important } "
    "[style*='#b3391f'] { stroke: #e8704f !important } [style*='fill: #b3391f'] { fill: #e8704f !important } "
    "}</style>"
)


def draw(
    name: str, shape: tuple[int, int, tuple[float, float]], pair: dict[str, float], curves: dict[str, Any]
) -> None:
    """Cosines of two texts, then mean cosines of unrelated texts by number of copies, in docs/NAME.svg."""
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "stickytoken"  # the same picture for the same numbers
    rows, columns, size = shape
    shown, (left, *others) = plt.subplots(
        rows, columns, figsize=size, layout="constrained", facecolor="white"
    )
    names = [f"{COPIES} copies,\nrepaired model", f"{COPIES} copies of\n“{next(iter(curves))}”", "as written"]
    bars = left.barh(names, list(pair.values())[::-1], color=[MENDED, STICKY, ORDINARY], height=0.55)
    left.bar_label(bars, fmt=lambda value: f"{value:.2f}".replace("-", "−"), padding=4)
    left.axvline(0, color="#777777", linewidth=0.8)
    left.margins(x=0.3)
    left.set_xlabel("cosine similarity")
    left.set_title("\n".join(textwrap.wrap(f"“{TEXT}” and “{OTHER}”", 40 if rows == 1 else 32)), fontsize=9.5)
    titles = ("Tampered all-MiniLM-L6-v2:", "multilingual-e5-small, a real model:")
    for axes, title, (token, curve) in zip(others, titles, curves.items(), strict=True):
        for line, colour, label in (
            ("before", STICKY, f"“{token}”"),
            ("ordinary", ORDINARY, "ordinary tokens"),
            ("after", MENDED, f"“{token}”, repaired model"),
        ):
            style: dict[str, Any] = {"linewidth": 2, "marker": "o", "markersize": 3}
            axes.plot(curve["copies"], curve[line], color=colour, label=label, **style)
        axes.set_xlabel("copies of the token in a text")
        axes.set_ylabel("mean cosine similarity")
        axes.set_xticks([0, 1, 2, 4, 8, 16])
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.5 * (high - low))  # room for the legend
        axes.set_title(f"{title}\nmean over unrelated texts", fontsize=9.5)
        axes.legend(frameon=False, fontsize=8.5, loc="upper right")
    for axes in (left, *others):
        axes.spines[["top", "right"]].set_visible(False)
    path = ROOT / "docs" / f"{name}.svg"
    shown.savefig(path, metadata={"Date": None})
    path.write_text(path.read_text("utf-8").replace("<defs>", f"{DARK}<defs>", 1), encoding="utf-8")


DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "compare.md")
RECORD = RESULTS / "readme.json"


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


def outputs(folder: Path, only: str = "") -> None:
    """Run the commands whose output the README and the how-to pages show, and record what they print.

    A test compares the documents with the record. The commands run in FOLDER, which holds what they need:
    ``tampered``, a copy of all-MiniLM-L6-v2 with planted rows; ``questions.txt``, the questions of TREC;
    ``runs`` with the runs of docs/compare.md; and on port 8451 a server with ``tampered``
    (tests/support/embedding_server.py). --only runs the commands again that contain a text.
    """
    earlier = json.loads(RECORD.read_text("utf-8"))["commands"] if RECORD.exists() else {}
    environment = {**os.environ, "COLUMNS": "150", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
    found: dict[str, Any] = {}
    for command, _ in [each for path in DOCUMENTS for each in shown(path.read_text("utf-8"))]:
        if only not in command and command in earlier:
            found[command] = earlier[command]
        else:
            done = subprocess.run(
                shlex.split(command), cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            printed = {name: getattr(done, name).splitlines() for name in ("stdout", "stderr")}
            found[command] = {**printed, "status": done.returncode}
        write_json("readme", commands=found)


if __name__ == "__main__":
    commands(__doc__, large, gallery, figure, outputs, run=of_run)
