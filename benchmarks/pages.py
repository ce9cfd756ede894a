"""Make the documentation files that come from runs of real models.

These are the model pages, the example reports, the pictures of reports and of the web app, and the packaged
runs. Each file is the product of a `Step`, which names the runs that the file is made from. A step is
repeated if a file is missing, or if one of its runs is missing or follows an older rule.

`python benchmarks/models.py all` makes all steps. It needs Chromium for the pictures, and takes about two
hours on two CPU cores.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import stickytoken
from bench import IMAGES, MINILM, RESULTS, ROOT, refuse
from stickytoken.detection import IDENTITY_VERSION
from stickytoken.errors import StickyTokenError

SCRIPTS = ROOT / "benchmarks"
PAGES = ROOT / "docs" / "models"
EXAMPLES = ROOT / "docs" / "examples"
PACKAGED = ROOT / "src" / "stickytoken" / "demo" / "example"
# Name of the packaged run of a model with planted tokens.
TAMPERED = "tampered"
PACKAGED_PREFIX = "packaged "
# Lists the runs that each file was made from, and its digest. A file that is not listed counts as missing.
# It also has the row that `card --table` printed for each run.
RECORD = RESULTS / "pages.json"
# Characters of a run's identity that the record and the pages show.
IDENTITY_LENGTH = 12


@dataclass(frozen=True)
class PageModel:
    """A model that has a page.

    Args:
        name: Name of the run and of the page.
        model: Name for `detect`: a packaged model, or one that `models.py assemble` makes.
        is_packaged: Whether the model is installed, so that it need not be assembled.
        options: Options of `detect`.
        has_example: Whether docs/examples has its report, with a repair.
    """

    name: str
    model: str
    is_packaged: bool = False
    options: tuple[str, ...] = ()
    has_example: bool = False


# All but the first are measured on a sample, because a whole run takes one to two hours on two CPU cores.
MODELS = (
    PageModel(MINILM, MINILM, is_packaged=True),
    PageModel("all-mpnet-base-v2", "all-mpnet-base-v2", options=("--sample", "5000")),
    PageModel(
        "multilingual-e5-small-4bit",
        "multilingual-e5-small-4bit",
        # Saved with the names of its own prompts, not with those that sentence-transformers looks for.
        options=("--prompt", "passage", "--set", "query-prompt=query", "--sample", "5000"),
        has_example=True,
    ),
    PageModel("embeddinggemma-300m", "embeddinggemma-300m", options=("--sample", "5000")),
    PageModel(
        "gemma-3-270m-prompteol",
        "gemma-3-270m",
        options=("--prompt", "prompteol", "--layer", "-1", "--sample", "1000"),
    ),
)
# Each report is photographed with the light and the dark theme, and on a phone.
SCREEN_VERSIONS = ("", "-dark", "-phone")
# Pictures of the web app, named after its tabs.
TAB_PICTURES = ("try", "why-similar", "explore", "try-phone")


@dataclass(frozen=True)
class Step:
    """One part of the documentation.

    Args:
        name: What is made.
        sources: Names of the runs that it is made from; a packaged run has the prefix `PACKAGED_PREFIX`.
        products: The files that are made; none if the step makes a run.
        make: Makes the files, or the run.
    """

    name: str
    sources: tuple[str, ...]
    products: tuple[Path, ...]
    make: Callable[[], None]


def run_identity(folder: Path) -> str | None:
    """Return the short identity of a run; None unless the run is finished and follows the current rule."""
    try:
        run = stickytoken.open_run(folder)
    except StickyTokenError:
        return None
    if run.record.identity_parts.get("version") != IDENTITY_VERSION:
        return None
    return run.record.identity[:IDENTITY_LENGTH]


class Workshop:
    """Knows all steps, and makes those that are missing or follow an older rule.

    All commands run in the folder of models, so that runs and reports name a model by its name alone, without
    the path on one machine.

    Args:
        work: Folder for models, runs and repaired models.
    """

    def __init__(self, work: Path) -> None:
        self.work = work.expanduser().resolve()
        self.models = self.work / "models"

    def folder_of(self, source: str) -> Path:
        """Return the folder of a run by its name in `Step.sources`."""
        if source.startswith(PACKAGED_PREFIX):
            return PACKAGED / source.removeprefix(PACKAGED_PREFIX)
        return self.work / "runs" / source

    def steps(self) -> Iterator[Step]:
        """Yield every step, after the steps that make its runs."""
        yield from self.run_steps()
        yield from self.page_steps()
        yield from self.picture_steps()

    def run_steps(self) -> Iterator[Step]:
        """Yield the steps that make the runs."""
        for model in MODELS:
            yield Step(f"run of {model.name}", (model.name,), (), partial(self.detect, model))
        yield Step(
            f"packaged run of {MINILM}",
            (PACKAGED_PREFIX + MINILM,),
            (),
            partial(self.script, "demo.py", "example", f"../runs/{MINILM}"),
        )
        yield Step(
            f"packaged run of the {TAMPERED} model",
            (PACKAGED_PREFIX + TAMPERED,),
            (),
            partial(self.script, "demo.py", "tampered"),
        )

    def page_steps(self) -> Iterator[Step]:
        """Yield the steps that write the model pages and the example reports."""
        for model in MODELS:
            page = PAGES / f"{model.name}.md"
            yield Step(f"page of {model.name}", (model.name,), (page,), partial(self.write_page, model))
            if model.has_example:
                example = EXAMPLES / f"{model.name}.html"
                yield Step(
                    f"report of {model.name}",
                    (model.name,),
                    (example,),
                    partial(self.write_example, model),
                )

    def picture_steps(self) -> Iterator[Step]:
        """Yield the steps that take pictures of the reports and of the web app."""
        for name in (MINILM, TAMPERED):
            yield self.gallery_step(PACKAGED_PREFIX + name, name, (name,))
        for model in MODELS:
            if model.has_example:
                yield self.gallery_step(model.name, model.name, (model.name, f"{model.name}-repaired"))
        yield Step(
            "pictures of the web app",
            (PACKAGED_PREFIX + MINILM, PACKAGED_PREFIX + TAMPERED),
            tuple(IMAGES / f"demo-{name}.png" for name in TAB_PICTURES),
            partial(self.script, "demo.py", "screenshots"),
        )

    def gallery_step(self, source: str, name: str, picture_names: Sequence[str]) -> Step:
        """Return the step that takes pictures of a report.

        Args:
            source: Name of the run, as in `Step.sources`.
            name: Name of the report in the command `report.py gallery`.
            picture_names: Names of the pictured parts of the report, each of which has one picture for each
                of `SCREEN_VERSIONS`.
        """
        products = tuple(
            IMAGES / f"gallery-{picture_name}{version}.png"
            for picture_name in picture_names
            for version in SCREEN_VERSIONS
        )
        make = partial(self.script, "report.py", "gallery", "--only", name)
        return Step(f"pictures of the report of {name}", (source,), products, make)

    def identities(self, step: Step) -> dict[str, str | None]:
        """Return the identity of each run that a step is made from; None for a run that must be made."""
        return {source: run_identity(self.folder_of(source)) for source in step.sources}

    def is_current(self, step: Step) -> bool:
        """Return whether all files of a step exist and were made from the runs that exist now."""
        identities = self.identities(step)
        if None in identities.values():
            return False
        made = record()["made"]
        return all(
            product.exists() and made.get(relative(product)) == identities for product in step.products
        )

    def make(self, step: Step) -> None:
        """Make the files of a step, and record the runs that they were made from.

        Exit with an error if a file or a run of the step is still missing afterwards.
        """
        step.make()
        identities = self.identities(step)
        absent = [relative(product) for product in step.products if not product.exists()]
        outdated = [source for source, identity in identities.items() if identity is None]
        if absent or outdated:
            refuse(f"{step.name}: still missing or of an older rule: {', '.join(absent + outdated)}")
        made = {relative(product): identities for product in step.products}
        digests = {relative(product): digest_of(product) for product in step.products}
        write_record(made=made, sha256=digests)

    def detect(self, model: PageModel) -> None:
        """Detect the sticky tokens of a model, or continue a run that was stopped.

        A run that follows an older rule cannot be continued, and is renamed first.
        """
        if not model.is_packaged:
            self.script("models.py", "assemble", model.model, "--out", ".")
        folder = self.work / "runs" / model.name
        version = started_version(folder)
        if version is not None and version != IDENTITY_VERSION:
            folder.rename(folder.with_name(f"{folder.name}-rule-{version}"))
        self.stickytoken("detect", model.model, *model.options, "--out", f"../runs/{model.name}")

    def write_page(self, model: PageModel) -> None:
        """Write the page of a model, and record its row for the table of measured models."""
        self.script("model_card.py", f"../runs/{model.name}", "--name", model.name)
        command = [sys.executable, "-m", "stickytoken", "card", f"../runs/{model.name}", "--table"]
        printed = subprocess.run(command, cwd=self.models, stdout=subprocess.PIPE, text=True, check=True)
        write_record(rows={model.name: printed.stdout.strip()})

    def write_example(self, model: PageModel) -> None:
        """Write the report of a model, after a repair, which adds a section to the report."""
        repairs = list((self.work / "runs" / model.name).glob("repair-*"))
        if not repairs:
            self.stickytoken("repair", f"../runs/{model.name}", "--out", f"../repaired/{model.name}")
        EXAMPLES.mkdir(exist_ok=True)
        self.stickytoken("report", f"../runs/{model.name}", "--out", str(EXAMPLES / f"{model.name}.html"))

    def script(self, name: str, *arguments: str) -> None:
        """Run a benchmark script with these arguments."""
        self._run([sys.executable, str(SCRIPTS / name), *arguments])

    def stickytoken(self, *arguments: str) -> None:
        """Run the command stickytoken with these arguments."""
        self._run([sys.executable, "-m", "stickytoken", *arguments])

    def _run(self, command: list[str]) -> None:
        """Run a command in the folder of models, and exit with an error if it fails."""
        self.models.mkdir(parents=True, exist_ok=True)
        status = subprocess.run(command, cwd=self.models, env=os.environ, check=False).returncode
        if status != 0:
            refuse(f"exit status {status}: {shlex.join(command)}")


def started_version(folder: Path) -> int | None:
    """Return the version of the rule that a run follows, finished or not; None if there is no run."""
    path = folder / "identity.json"
    if not path.is_file():
        return None
    document: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return int(document["identity_parts"]["version"])


def relative(path: Path) -> str:
    """Return the path of a file, relative to the repository."""
    return path.relative_to(ROOT).as_posix()


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def record() -> dict[str, dict[str, Any]]:
    """Return what is recorded of the files that were made.

    Returns:
        ``made``: for each file, keyed by its path in the repository, the identities of its runs, keyed by
        their names. ``sha256``: for each file, its digest. ``rows``: for each run, the row that
        `card --table` printed.
    """
    document: dict[str, dict[str, Any]] = {"made": {}, "sha256": {}, "rows": {}}
    if RECORD.exists():
        document |= json.loads(RECORD.read_text("utf-8"))
    return document


def write_record(**parts: Mapping[str, Any]) -> None:
    """Add entries to the parts of the record."""
    document = record()
    for part, entries in parts.items():
        document[part] = dict(sorted({**document[part], **entries}.items()))
    RECORD.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def make_all(work: Path, only: str = "", *, again: bool = False, plan: bool = False) -> None:
    """Make every step that is missing or follows an older rule.

    If a step fails, the others are still made, and the errors are printed at the end.

    Args:
        work: Folder for models and runs.
        only: Make only the steps whose name contains this text.
        again: Make these steps even if they are up to date.
        plan: Only print the steps that would be made.
    """
    workshop = Workshop(work)
    workshop.work.mkdir(parents=True, exist_ok=True)
    failures = []
    for step in workshop.steps():
        if only not in step.name:
            continue
        if workshop.is_current(step) and not again:
            print(f"up to date: {step.name}", flush=True)
            continue
        print(f"to make:    {step.name}", flush=True)
        if plan:
            continue
        try:
            workshop.make(step)
        except SystemExit as failure:
            failures.append(f"{step.name}: {failure}")
    if failures:
        refuse("\n".join(["not made:", *failures]))
