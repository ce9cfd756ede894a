"""Run the paper's method on the paper's forty models and print ours beside the published numbers.

python benchmarks/paper_table.py --device cuda                      # all forty, from the hub
python benchmarks/paper_table.py --models all-MiniLM-L6-v2 --sample 300
python benchmarks/paper_table.py --root /models                     # local copies, by model name

A model that cannot be loaded or run is listed with the reason and does not stop the others.
The published runs used sentences of eleven STS sets (--sentences paper); the sample of
sentences differs, so numbers agree in kind, not in digits, except the vocabulary's.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table

from stickytoken.cli.output.progress import progress_bar
from stickytoken.comparisons.published import published_models
from stickytoken.detection import detect
from stickytoken.encoders import Encoder, load_encoder
from stickytoken.errors import StickyTokenError
from stickytoken.measurement.resume import hardware, now, package_versions
from stickytoken.methods.std.plan import StdResultRecord
from stickytoken.methods.std.settings import StdSettings

MODELS = Path(__file__).with_name("paper_models.csv")
RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class PaperModel:
    """A model of the paper, how it is loaded here, and what was published about it.

    Attributes:
        model: the paper's name.
        hub_name: repository on the hub.
        prompt: text put in front; the published runs used none.
        dtype: precision; the largest models in bfloat16, to fit one GPU.
        padding_side: as published; without effect here, where no batch is padded.
        max_length: longest input, where the paper set one.
        trust_remote_code: whether the model is code of its repository.
        available: published number of available tokens.
        candidates: published number of candidates.
        sticky: published number of sticky tokens.
        mean_similarity: published u.
        score_threshold: published score of the last candidate.
    """

    model: str
    hub_name: str
    prompt: str
    dtype: str
    padding_side: str
    max_length: int | None
    trust_remote_code: bool
    available: int
    candidates: int
    sticky: int
    mean_similarity: float
    score_threshold: float


@dataclass(frozen=True)
class Outcome:
    """What a run gave, or why there is none."""

    model: str
    published: dict[str, Any]
    ours: dict[str, Any] | None
    failure: str | None


def paper_models(path: Path = MODELS) -> list[PaperModel]:
    """The forty models."""
    loading = pl.read_csv(path, schema_overrides={"prompt": pl.String}).with_columns(
        pl.col("prompt").fill_null("")
    )
    published = published_models().drop("parameters", "vocabulary")
    rows = published.join(loading, on="model", validate="1:1", maintain_order="left").to_dicts()
    return [PaperModel(**row) for row in rows]


def load(model: PaperModel, root: Path | None, device: str | None) -> Encoder:
    """Load a model under its published settings, from ``root`` if it is there."""
    local = root / model.model if root else None
    return load_encoder(
        local if local and local.is_dir() else model.hub_name,
        device=device,
        prompt=model.prompt,
        dtype=model.dtype,
        max_length=model.max_length,
        trust_remote_code=model.trust_remote_code,
    )


def outcome(model: PaperModel, arguments: argparse.Namespace) -> Outcome:
    """Run one model; a failure of any expected kind becomes its reason."""
    published = {
        "available": model.available,
        "candidates": model.candidates,
        "sticky": model.sticky,
        "mean_similarity": model.mean_similarity,
        "score_threshold": model.score_threshold,
    }
    try:
        encoder = load(model, arguments.root, arguments.device)
        with progress_bar() as progress:
            run = detect(
                encoder,
                sentences=None if arguments.pairs else arguments.sentences,
                pairs=arguments.pairs,
                sample=arguments.sample,
                settings=arguments.settings,
                out=arguments.out / model.model,
                progress=progress,
            )
    # torch raises RuntimeError when the device's memory ends.
    except (StickyTokenError, MemoryError, RuntimeError) as error:
        return Outcome(model.model, published, None, " ".join(str(error).split()) or type(error).__name__)
    result = run.result_of(StdResultRecord)
    ours = {
        "available": run.record.model.available,
        "scored": result.scored,
        "candidates": result.candidates,
        "sticky": result.sticky,
        "mean_similarity": run.plan.mean_similarity,
        "score_threshold": result.score_threshold,
        "seconds": result.seconds,
        "device": encoder.device,
        "tokens": run.sticky["token"].to_list(),
    }
    return Outcome(model.model, published, ours, None)


def main(arguments: list[str] | None = None, settings: StdSettings | None = None) -> list[Outcome]:
    options = parse(arguments)
    options.settings = settings or StdSettings()
    known = {model.model: model for model in paper_models()}
    unknown = [name for name in options.models or () if name not in known]
    if unknown:
        raise SystemExit(f"not among the paper's models: {', '.join(unknown)}")
    chosen = [known[name] for name in options.models or known]
    found = [outcome(model, options) for model in chosen]
    show(found)
    document = {
        "date": now(),
        "hardware": hardware(options.device or "cpu"),
        "versions": package_versions(),
        "sentences": str(options.pairs or options.sentences),
        "sample": options.sample,
        "models": [asdict(each) for each in found],
    }
    options.result.parent.mkdir(parents=True, exist_ok=True)
    options.result.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return found


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", help="names from paper_models.csv; default: all forty")
    parser.add_argument("--root", type=Path, help="folder with local copies, one folder a model name")
    parser.add_argument("--sentences", default="paper", help="corpus; default: the paper's STS sets")
    parser.add_argument("--pairs", type=Path, help="pair file, in place of sentences")
    parser.add_argument("--sample", type=int, help="look at a random sample of the vocabulary")
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, default=Path("runs/paper"), help="folder of the runs")
    parser.add_argument("--result", type=Path, default=RESULTS / "paper_table.json")
    return parser.parse_args(arguments)


def show(outcomes: list[Outcome]) -> None:
    """Print ours / published side by side, then the failures."""
    shown = Table(title="ours / published", title_justify="left")
    for column in ("model", "available", "u", "score threshold", "candidates", "sticky"):
        shown.add_column(column, justify="left" if column == "model" else "right")
    for each in outcomes:
        ours, published = each.ours, each.published
        if ours is None:
            continue
        shown.add_row(
            each.model,
            f"{ours['available']:,} / {published['available']:,}",
            f"{ours['mean_similarity']:.4f} / {published['mean_similarity']:.4f}",
            f"{ours['score_threshold']:.1f} / {published['score_threshold']:.1f}",
            f"{ours['candidates']} / {published['candidates']}",
            f"{ours['sticky']} / {published['sticky']}",
        )
    console = Console(width=120)
    console.print(shown)
    for each in outcomes:
        if each.failure is not None:
            console.print(f"not run: {each.model}: {each.failure}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
