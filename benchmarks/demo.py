"""Measures how soon the web app is ready, takes pictures of it, and makes the runs that it opens with.

The commands `times` and `screenshots` need Chromium and playwright, and take some minutes. The command
`tampered` takes about ten minutes of processor time, and `example` takes seconds. Run a command with
`python benchmarks/demo.py COMMAND`.
"""

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
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

import stickytoken
from bench import IMAGES, MINILM, ROOT, Results, chromium, commands, detected, refuse, save_picture
from models import plain_model
from stickytoken.measurement.store import PLAN_FILE, RUN_FILE, TOKENS_FILE, VOCABULARY_FILE
from stickytoken.repairs.records import REPAIR_FILE
from stickytoken.vocabulary import categorize

# Tokens that the browser tries, one after another.
TOKENS = ("river", "trajectory", "saddam", "the", "house")
# JavaScript that returns the milliseconds from the start of the navigation to the first contentful paint.
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
# Number of starts of the app. The first one is slower, since files are not in memory yet.
STARTS = 4


@contextmanager
def serving(*options: str) -> Iterator[tuple[str, float]]:
    """Run the app in another process, in an empty folder.

    Args:
        *options: options of `stickytoken demo`.

    Yields:
        The address of the app, and the time at which its process was started, on the clock of
        `time.perf_counter`.
    """
    with tempfile.TemporaryDirectory() as empty_folder:
        started = time.perf_counter()
        command = [sys.executable, "-m", "stickytoken", "demo", "--port", "0", "--format", "json"]
        command += ["--folder", empty_folder, *options]
        process = subprocess.Popen(
            command,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            # The app prints one JSON object as soon as it is ready. A line that begins with } ends it.
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


def answer_seconds(page: Any, token: str) -> float:
    """Try a token in the app, and return the seconds from the click until the answer is complete.

    The answer is complete when the words, the curve and the heat map are those of the token.
    """
    page.locator("#try-token").get_by_role("textbox").fill(token)
    started = time.perf_counter()
    page.get_by_role("button", name="Show what happens").click()
    # The curve has a line with the name of the token, the heat map a panel.
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
    """Measure how soon the web app is ready, and how fast it answers.

    The app is started several times. Times are measured from the start of `stickytoken demo` to the browser's
    first contentful paint, and to the moment when the page shows the worked example.
    """
    seconds_to_serving = []
    seconds_to_paint = []
    seconds_to_example = []
    answers: dict[str, float] = {}
    with chromium() as browser:
        for _ in range(STARTS):
            with serving() as (url, started):
                page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
                served = time.perf_counter() - started
                page.goto(url)
                page.wait_for_selector("#try-answer .headline")
                page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 2")
                seconds_to_example.append(time.perf_counter() - started)
                seconds_to_serving.append(served)
                seconds_to_paint.append(served + page.evaluate(PAINTED) / 1000)
                # The answers of the last start are the ones that count.
                answers = {token: answer_seconds(page, token) for token in TOKENS}
    results = Results("demo")
    results.check(
        f"first paint after the start of the process, packaged {MINILM}",
        "under 10 s",
        starts_in_words(seconds_to_paint),
        max(seconds_to_paint) < 10,
        seconds=seconds_to_paint,
        served=seconds_to_serving,
    )
    results.check(
        "the worked example with its pictures",
        "none: what a user waits for",
        starts_in_words(seconds_to_example),
        seconds=seconds_to_example,
    )
    slowest = max(answers.values())
    median = statistics.median(answers.values())
    ours = f"{slowest:.2f} s at most, median {median:.2f} s"
    results.check("answer of Try, pictures drawn", "under 2 s", ours, slowest < 2, seconds=answers)
    results.finish()


def starts_in_words(seconds: list[float]) -> str:
    """Return the seconds of the first start, and the median of the later ones, in words."""
    first, *later = seconds
    return f"{statistics.median(later):.1f} s, median of {len(later)} starts; {first:.1f} s, the first start"


# The tabs of the app. Each one is mapped to the element that appears when the example of the tab is computed;
# None if the tab computes no example when it is opened.
TABS = {
    "Try": None,
    "Why similar": "#why-answer .headline",
    "Explore": None,
}
# Maximum milliseconds that an answer takes on a busy machine.
LONGEST = 180_000
# Milliseconds after which all pictures are drawn and all transitions are over.
SETTLED = 1500
# Maximum size of a picture in bytes, so that the documentation loads fast.
PICTURE_BYTES = 200_000


class View(NamedTuple):
    """A browser window in which tabs are photographed, and the end of the pictures' names."""

    width: int
    height: int
    color_scheme: str
    tabs: tuple[str, ...]
    suffix: str


DESKTOP = View(1400, 1640, "light", tuple(TABS), "")
PHONE = View(390, 844, "dark", ("Try",), "-phone")


def screenshots(run: list[Path] | None = None, folder: Path = IMAGES) -> None:
    """Take a picture of every tab of the web app, and of the tab Try on a phone in the dark theme.

    The pictures are written to --folder. The app offers each --run, the folder of a finished run.
    """
    options = []
    for run_folder in run or ():
        options += ["--run", str(run_folder)]
    with serving("--model", MINILM, *options) as (url, _), chromium() as browser:
        for view in (DESKTOP, PHONE):
            page = browser.new_page(
                viewport={"width": view.width, "height": view.height}, color_scheme=view.color_scheme
            )
            page.goto(url)
            page.wait_for_selector("#try-answer .headline", timeout=LONGEST)
            page.wait_for_timeout(SETTLED)
            for tab in view.tabs:
                name = f"demo-{tab.lower().replace(' ', '-')}{view.suffix}.png"
                save_tab(page, tab, folder / name)


def save_tab(page: Any, tab: str, path: Path) -> None:
    """Open a tab of the app, and save its picture when its example is computed."""
    page.get_by_role("tab", name=tab, exact=True).click()
    if TABS[tab]:
        page.wait_for_selector(TABS[tab], timeout=LONGEST)
    page.wait_for_timeout(SETTLED)
    save_picture(page.screenshot(), path)
    size = path.stat().st_size
    if size > PICTURE_BYTES:
        refuse(f"{path} has {size} bytes, {PICTURE_BYTES:,} are the most: make the picture smaller")


def example(run: Path) -> None:
    """Copy a finished run of the packaged model into the package, so that the web app opens with it.

    The tables have the same values, but are compressed more. Shards, the report and effects.parquet, which is
    large, are left out.
    """
    from stickytoken.demo.context import EXAMPLE

    stickytoken.open_run(run)  # only for the error if it cannot be opened
    EXAMPLE.mkdir(parents=True, exist_ok=True)
    for name in ("run.json", "plan.json", "normalizer.json"):
        shutil.copyfile(run / name, EXAMPLE / name)
    for name in ("tokens.parquet", "vocabulary.parquet"):
        table = pl.read_parquet(run / name)
        table.write_parquet(EXAMPLE / name, compression="zstd", compression_level=22)


TAMPERED = ROOT / "src" / "stickytoken" / "demo" / "example" / "tampered"
# Name of the tampered model in the web app.
NAME = "tampered all-MiniLM-L6-v2"
PLANTED_TOKENS = ("doorway", "stew")
# Number of ordinary tokens in the run: enough to look through, but few enough for a small file.
BESIDE = 400
# Each planted token is moved in so many steps, each of them with so many texts.
STEPS = 40
BATCH = 8
# Number of texts that texts with copies should come closer to.
OTHERS = 500


def tamper(model: Any) -> None:
    """Change the token vectors of `PLANTED_TOKENS` so that texts with copies come closer to other texts.

    Args:
        model: the SentenceTransformer, changed in place.
    """
    import torch
    from torch.nn.functional import normalize

    texts = stickytoken.load_sentences().texts
    other_vectors = torch.tensor(model.encode(texts[:OTHERS], normalize_embeddings=True))
    token_vectors = model[0].auto_model.get_input_embeddings().weight
    for token in PLANTED_TOKENS:
        token_id = model.tokenizer.convert_tokens_to_ids(token)
        copies = f" {token}" * 8
        for step in range(STEPS):
            start = OTHERS + BATCH * step
            texts_with_copies = [text + copies for text in texts[start : start + BATCH]]
            features = model.preprocess(texts_with_copies)
            vectors = normalize(model(features)["sentence_embedding"])
            mean_similarity = (vectors @ other_vectors.T).mean()
            (gradient,) = torch.autograd.grad(mean_similarity, token_vectors)
            with torch.no_grad():
                token_vectors[token_id] += 0.05 * gradient[token_id] / gradient[token_id].norm()


def tampered() -> None:
    """Make the folder src/stickytoken/demo/example/tampered anew.

    The folder holds a run of a model with planted tokens, the record of the model's repair, and the token
    vectors that differ from those of the packaged model. This takes about ten minutes of processor time.
    """
    with tempfile.TemporaryDirectory() as temporary_folder:
        work_folder = Path(temporary_folder)
        tampered_folder = work_folder / "model"
        model = plain_model(MINILM, "cpu")
        tamper(model)
        model.save(str(tampered_folder))
        encoder = stickytoken.load_encoder(tampered_folder, device="cpu")
        available_ids = [token.id for token in categorize(encoder.tokenizer).available]
        ordinary_ids = np.random.default_rng(0).choice(available_ids, BESIDE, replace=False).tolist()
        planted_ids = model.tokenizer.convert_tokens_to_ids(list(PLANTED_TOKENS))
        run = detected(encoder, tokens=[*planted_ids, *ordinary_ids], out=work_folder / "run")
        repair = stickytoken.repair(run, encoder=encoder, out=work_folder / "repaired")
        shutil.rmtree(TAMPERED, ignore_errors=True)
        TAMPERED.mkdir(parents=True)
        write_run_and_repair(run.path, repair.path, work_folder)
        write_changed_rows(tampered_folder)


def write_run_and_repair(run_folder: Path, repair_folder: Path, work_folder: Path) -> None:
    """Copy a run and the record of a repair into the folder `TAMPERED`, without paths of this machine."""
    for name in (PLAN_FILE, TOKENS_FILE, VOCABULARY_FILE, "normalizer.json"):
        shutil.copy(run_folder / name, TAMPERED)
    (TAMPERED / "repair-example").mkdir()
    run_record = json.loads((run_folder / RUN_FILE).read_text("utf-8"))
    run_record["model"]["name"] = NAME
    repair_record = json.loads((repair_folder / REPAIR_FILE).read_text("utf-8"))
    repair_record["model"] = NAME
    documents = {RUN_FILE: run_record, f"repair-example/{REPAIR_FILE}": repair_record}
    for name, document in documents.items():
        text = json.dumps(document, indent=1, ensure_ascii=False)
        text = text.replace(str(work_folder), "FOLDER")
        (TAMPERED / name).write_text(f"{text}\n", encoding="utf-8")


def write_changed_rows(tampered_folder: Path) -> None:
    """Write the token vectors in which the tampered model differs from the packaged one.

    The file is small, and the web app makes the tampered model from it and the packaged model.
    """
    tampered_rows = token_vectors_of(tampered_folder)
    changed_ids = np.flatnonzero((tampered_rows != token_vectors_of(MINILM)).any(axis=1))
    np.savez(TAMPERED / "rows.npz", ids=changed_ids, tampered=tampered_rows[changed_ids])


def token_vectors_of(model: str | Path) -> NDArray[np.float32]:
    """Return the token vectors of a model, shape (entries, d)."""
    embeddings = plain_model(model)[0].auto_model.get_input_embeddings()
    weights: NDArray[np.float32] = embeddings.weight.detach().numpy()
    return weights


if __name__ == "__main__":
    commands(__doc__, times, screenshots, example, tampered)
