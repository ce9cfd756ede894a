"""The web app in Chromium: how soon it is there, pictures of it, and the runs that it opens with."""

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

import numpy as np
import polars as pl

import stickytoken
from bench import IMAGES, MINILM, ROOT, Results, chromium, commands, detected, refuse, save_picture
from models import plain_model
from stickytoken.measurement import PLAN_FILE, RUN_FILE, TOKENS_FILE, VOCABULARY_FILE
from stickytoken.repairs.result import REPAIR_FILE
from stickytoken.vocabulary import categorize

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


def times() -> None:
    """How soon is the web app there, and how fast does it answer?

    Times count from the start of `stickytoken demo` until the browser's first contentful paint, and until the
    worked example stands in the page.
    """
    served, paints, drawn = [], [], []
    answers: dict[str, float] = {}
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
        return (
            f"{statistics.median(later):.1f} s, median of {len(later)} starts; {first:.1f} s, the first start"
        )

    slowest, middle = max(answers.values()), statistics.median(answers.values())
    results, title = Results("demo"), f"first paint after the start of the process, packaged {MINILM}"
    results.check(title, "under 10 s", told(paints), max(paints) < 10, seconds=paints, served=served)
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
                path = folder / f"demo-{tab.lower().replace(' ', '-')}{suffix}.png"
                save_picture(page.screenshot(), path)
                if (size := path.stat().st_size) > 200_000:
                    refuse(f"{path} has {size} bytes, 200,000 are the most: make the picture smaller")


def example(run: Path) -> None:
    """Put a finished run of the packaged model into the package, as one that the web app opens with.

    The same values packed tighter, without shards, report and the large effects.parquet.
    """
    from stickytoken.demo.context import EXAMPLE

    opened = stickytoken.open_run(run)
    if opened.evidence is None:
        refuse(f"the run in {run} keeps no curves and pairs: run detect without --set report=false")
    EXAMPLE.mkdir(parents=True, exist_ok=True)
    for name in ("run.json", "plan.json", "evidence.json"):
        shutil.copyfile(run / name, EXAMPLE / name)
    for name in ("tokens.parquet", "vocabulary.parquet", "evidence.parquet"):
        table = pl.read_parquet(run / name)
        table.write_parquet(EXAMPLE / name, compression="zstd", compression_level=22)


TAMPERED = ROOT / "src" / "stickytoken" / "demo" / "example" / "tampered"
NAME = "tampered all-MiniLM-L6-v2"
PLANTED_TOKENS = ("doorway", "stew")
# Enough ordinary tokens to look through, few enough for a small file.
BESIDE = 400
STEPS, BATCH, OTHERS = 40, 8, 500


def tamper(model: Any) -> None:
    """Move the row of each token so that texts with copies of it come closer to other texts."""
    import torch
    from torch.nn.functional import normalize

    texts = stickytoken.load_sentences().texts
    others = torch.tensor(model.encode(texts[:OTHERS], normalize_embeddings=True))
    rows = model[0].auto_model.get_input_embeddings().weight
    for token in PLANTED_TOKENS:
        row = model.tokenizer.convert_tokens_to_ids(token)
        for step in range(STEPS):
            start = OTHERS + BATCH * step
            copies = [f"{text}{f' {token}' * 8}" for text in texts[start : start + BATCH]]
            vectors = normalize(model(model.preprocess(copies))["sentence_embedding"])
            (gradient,) = torch.autograd.grad((vectors @ others.T).mean(), rows)
            with torch.no_grad():
                rows[row] += 0.05 * gradient[row] / gradient[row].norm()


def tampered() -> None:
    """Make the folder src/stickytoken/demo/example/tampered anew; some ten minutes of processor time."""
    with tempfile.TemporaryDirectory() as work:
        place = Path(work)
        model = plain_model(MINILM, "cpu")
        tamper(model)
        model.save(str(place / "model"))
        encoder = stickytoken.load_encoder(place / "model", device="cpu")
        ids = [token.id for token in categorize(encoder.tokenizer).available]
        drawn = np.random.default_rng(0).choice(ids, BESIDE, replace=False).tolist()
        wanted = [*model.tokenizer.convert_tokens_to_ids(list(PLANTED_TOKENS)), *drawn]
        run = detected(encoder, tokens=wanted, out=place / "run")
        repair = stickytoken.repair(run, encoder=encoder, out=place / "repaired")
        shutil.rmtree(TAMPERED, ignore_errors=True)
        TAMPERED.mkdir(parents=True)
        for name in (PLAN_FILE, TOKENS_FILE, VOCABULARY_FILE, "evidence.json", "evidence.parquet"):
            shutil.copy(run.path / name, TAMPERED)
        (TAMPERED / "repair-example").mkdir()
        described = json.loads((run.path / RUN_FILE).read_text("utf-8"))
        described["model"]["name"] = NAME
        repaired_as = json.loads((repair.path / REPAIR_FILE).read_text("utf-8")) | {"model": NAME}
        for name, document in ((RUN_FILE, described), (f"repair-example/{REPAIR_FILE}", repaired_as)):
            text = json.dumps(document, indent=1, ensure_ascii=False).replace(str(place), "FOLDER")
            (TAMPERED / name).write_text(f"{text}\n", encoding="utf-8")
        names = ("all-MiniLM-L6-v2", place / "model", repair.path)
        original, tampered, repaired = (
            plain_model(name)[0].auto_model.get_input_embeddings().weight.detach().numpy() for name in names
        )
        differing = np.flatnonzero(((tampered != original) | (repaired != original)).any(axis=1))
        np.savez(
            TAMPERED / "rows.npz", ids=differing, tampered=tampered[differing], repaired=repaired[differing]
        )


if __name__ == "__main__":
    commands(__doc__, times, screenshots, example, tampered)
