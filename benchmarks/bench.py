"""What all benchmarks need: checks against bars, result files, models, timing by turns, Chromium."""

from __future__ import annotations

import io
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import numpy as np
import polars as pl
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import stickytoken
from stickytoken.cli.console import progress_bar
from stickytoken.encoders import IdEncoder, load_encoder
from stickytoken.encoders.loading.resolution import resolve_model
from stickytoken.measurement.resume import hardware, now, package_versions

ROOT = Path(__file__).resolve().parents[1]
RESULTS, IMAGES = ROOT / "benchmarks" / "results", ROOT / "docs" / "images"
SHARED = ROOT.parent / "shared"
PUBLISHED, PLANTED = SHARED / "paper", SHARED / "planted" / "minilm_planted.npz"
MINILM = "all-MiniLM-L6-v2"
MINILM_U, MINILM_SCORE_THRESHOLD = 0.1998460739850998, 49.2041992


class Check(NamedTuple):
    """A comparison with a bar, and the numbers behind it."""

    name: str
    bar: str
    ours: str
    passed: bool = True
    detail: Mapping[str, Any] = MappingProxyType({})


def check(name: str, bar: str, ours: str, passed: object = True, /, **detail: Any) -> Check:
    return Check(name, bar, ours, bool(passed), detail)


def write_json(name: str, device: str = "cpu", **found: Any) -> None:
    """Write results/NAME.json, with the date, the hardware and the command."""
    about = {"date": now(), "hardware": hardware(device), "versions": package_versions()}
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    text = json.dumps(about | {"command": command} | found, indent=1, default=str)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def write(checks: Sequence[Check], name: str, device: str = "cpu", **more: Any) -> None:
    """Write checks; `fill_tables.py` makes a table of them."""
    write_json(
        name, device, **more, checks=[each._asdict() | {"detail": dict(each.detail)} for each in checks]
    )


def finish(
    checks: Sequence[Check], name: str, device: str = "cpu", *, strict: bool = True, **more: Any
) -> None:
    """Write and print the checks; if strict, end with exit status 1 if a bar was missed."""
    write(checks, name, device, **more)
    show(checks, name)
    if strict and not all(each.passed for each in checks):
        sys.exit(1)


def show(checks: Sequence[Check], title: str) -> None:
    rows = [(each.name, each.bar, each.ours, "ok" if each.passed else "MISSED") for each in checks]
    show_table(title, ("check", "bar", "ours", ""), rows)


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    shown = Table(title=title, title_justify="left")
    for column in columns:
        shown.add_column(column, overflow="fold")
    for row in rows:
        shown.add_row(*row)
    Console(width=140).print(shown)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines)


def commands(
    description: str | None, *functions: Callable[..., object], **named: Callable[..., object]
) -> None:
    """Run the command line of a script: its functions are commands, or the whole script if it has one."""
    # \b keeps the lines of a paragraph of commands apart.
    description = (description or "").replace("\n\npython ", "\n\n\b\npython ")
    app = typer.Typer(
        help=description,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"max_content_width": 110},
    )
    for function in functions:
        app.command(help=None if function.__doc__ else description)(function)
    for name, function in named.items():
        app.command(name)(function)
    app()


def refuse(message: str) -> NoReturn:
    raise SystemExit(message)


def detected(encoder: Any, **options: Any) -> stickytoken.Run:
    with progress_bar() as progress:
        return stickytoken.detect(encoder, progress=progress, **options)


def plain_model(name: str | Path, device: str | None = "cpu", **options: Any) -> Any:
    """A model as sentence-transformers loads it."""
    from sentence_transformers import SentenceTransformer

    location = resolve_model(str(name)).location
    return SentenceTransformer(location, device=device, local_files_only=True, **options)


def planted_encoder(rows: Path, strength: float = 1.0, device: str | None = None) -> IdEncoder:
    """The packaged model with rows of its word embeddings overwritten, by a share of the way."""
    import torch

    if not rows.is_file():
        refuse(f"no planted rows {rows}: pass them with --rows")
    model, planted = plain_model(MINILM, device), np.load(rows)
    weight = model[0].auto_model.get_input_embeddings().weight
    ids = torch.tensor(planted["token_ids"], device=weight.device)
    with torch.no_grad():
        target = torch.tensor(planted["rows"], dtype=weight.dtype, device=weight.device)
        weight[ids] += strength * (target - weight[ids])
    encoder: IdEncoder = load_encoder(model)
    return encoder


def planted_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of planted.json, each with a token_id, or with a bare id; from a file or a model folder."""
    listed = json.loads((path / "planted.json" if path.is_dir() else path).read_text("utf-8"))
    rows = listed["token_ids"] if isinstance(listed, dict) else listed
    return [row if isinstance(row, dict) else {"token_id": row} for row in rows]


def planted_ids(path: Path) -> list[int]:
    return [int(row["token_id"]) for row in planted_rows(path)]


def published_table(folder: Path, name: str) -> pl.DataFrame:
    """One of the paper's published tables."""
    path = folder / f"{name}.csv"
    if not path.is_file():
        refuse(f"no published table {path}: pass its folder with --published")
    return pl.read_csv(path, infer_schema_length=None)


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def units(vectors: NDArray[Any]) -> NDArray[np.float64]:
    doubled = vectors.astype(np.float64)
    return np.asarray(doubled / np.linalg.norm(doubled, axis=1, keepdims=True))


def by_turns(
    ways: Mapping[str, Callable[[], object]],
    turns: int,
    clock: Callable[[], float] = time.perf_counter,
    *,
    warm: bool = False,
) -> dict[str, list[float]]:
    """Seconds of each way, which take turns; with ``warm``, after a turn that counts for nothing."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + warm):
        for name, way in ways.items():
            started = clock()
            way()
            if turn or not warm:
                found[name].append(clock() - started)
    return found


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless browser."""
    from playwright.sync_api import sync_playwright

    programs = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    program = next(filter(None, programs), None) or refuse("no Chromium on this machine: install it first")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


def save_picture(picture: bytes, path: Path) -> None:
    """Write a picture with 256 colours, a third of the size and enough for a page."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(256).save(path, optimize=True)
