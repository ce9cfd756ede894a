"""Does truncation make tokens stickier? A run in several dimensions, and runs on the truncated model.

python benchmarks/dimensions.py MODEL --tokens 500 --truncated 64 --out FOLDER --name dimensions

The tokens are random, and beside them those of planted.json, where the model folder has one, as
benchmarks/planted.py writes it. Finished runs in FOLDER are opened, not computed again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from checks import RESULTS, Check, show, write
from stickytoken import ProfileSettings, Run, detect, load_encoder
from stickytoken.vocabulary import categorize

# Fewer texts per token than by default, for as many dimensions as fit into an hour of one thread.
SETTINGS = ProfileSettings(confirming_texts=24, reference=250)
# Every token in as many texts: what is compared between dimensions was selected in none of them.
UNSELECTED = ProfileSettings(adaptive=False, budget=16, reference=250)
REPEATS, LEVEL = 2000, 0.95
COLUMNS = (
    "dimension",
    "1 SD",
    "planted: flagged",
    "planted: mean lift, SD",
    "change",
    "random: flagged",
    "random: 95th percentile, SD",
    "change",
)


def main() -> None:
    """Run, compare each dimension with the whole vectors, and the runs with one another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--dimensions", default="32,64,128,192,256,384")
    parser.add_argument("--truncated", type=int, nargs="*", default=[64])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", default="dimensions")
    given = parser.parse_args()
    planted = planted_tokens(given.model)
    several = computed(given, "six", None, given.dimensions)
    alone = {dimension: computed(given, str(dimension), dimension, ()) for dimension in given.truncated}
    one = computed(given, "one", None, ())
    checks = [agreement(several, run, dimension) for dimension, run in alone.items()]
    checks.append(cost(given.out, several, one))
    every = computed(given, "unselected", None, given.dimensions, UNSELECTED)
    dimensions = sorted(every.by_dimension()["dimension"].to_list())
    rows = [row(every, dimension, planted) for dimension in dimensions]
    show(checks, given.name)
    write(checks, f"{given.name}_checks", "cpu", model=given.model.name)
    document = {"model": given.model.name, "columns": COLUMNS, "rows": rows}
    (RESULTS / f"{given.name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def planted_tokens(model: Path) -> set[int]:
    """Return the ids of the planted tokens of a model; none without planted.json."""
    path = model / "planted.json"
    return {row["token_id"] for row in json.loads(path.read_text("utf-8"))} if path.is_file() else set()


def computed(
    given: argparse.Namespace,
    name: str,
    truncated: int | None,
    dimensions: Any,
    settings: ProfileSettings = SETTINGS,
) -> Run:
    """Run, or open the finished run; a file beside it keeps the processor time of the first call."""
    encoder = load_encoder(SentenceTransformer(str(given.model), device="cpu", truncate_dim=truncated))
    ids = np.array([token.id for token in categorize(encoder.tokenizer).available])
    drawn = ids[np.random.default_rng(0).permutation(len(ids))[: given.tokens]].tolist()
    started = time.process_time()
    run = detect(
        encoder,
        out=given.out / name,
        dimensions=dimensions,
        tokens=sorted({*planted_tokens(given.model), *drawn}),
        evidence=False,
        settings=settings,
    )
    kept = given.out / f"{name}.json"
    if not kept.is_file():
        kept.write_text(json.dumps({"cpu_seconds": time.process_time() - started}), encoding="utf-8")
    return run


def agreement(several: Run, alone: Run, dimension: int) -> Check:
    """Compare a dimension with the run on the model truncated to it."""
    found, wanted = several.at(dimension), alone.tokens
    lifts = float(np.abs(found["lift"].to_numpy() - wanted["lift"].to_numpy()).max())
    other = int((found["verdict"] != wanted["verdict"]).sum())
    return Check(
        f"dimension {dimension} against a run on the model truncated to it, {len(wanted):,} tokens",
        "same verdicts, lifts to 1e-6",
        f"{other} verdicts differ, lifts by at most {lifts:.1e}",
        other == 0 and lifts <= 1e-6,
        {"lifts": lifts, "verdicts": other},
    )


def cost(out: Path, several: Run, one: Run) -> Check:
    """Compare the texts, and the processor time where both runs were computed here."""
    texts = several.result.sequences / one.result.sequences
    times = [json.loads((out / f"{name}.json").read_text("utf-8"))["cpu_seconds"] for name in ("six", "one")]
    return Check(
        f"cost of {len(several.by_dimension())} dimensions",
        "at most 1.1 times one",
        f"{texts:.3f} of the texts, {times[0] / times[1]:.2f} of the processor time",
        max(texts, times[0] / times[1]) <= 1.1,
        {"texts": texts, "cpu_seconds": times},
    )


def row(run: Run, dimension: int, planted: set[int]) -> list[str]:
    """Describe one dimension, with intervals of the change from whole vectors by bootstrap."""
    views = {record.dimension: record for record in run.dimensions}
    tables = {each: of(run, views[each], planted) for each in (dimension, max(views))}
    kinds = [str(dimension), f"{views[dimension].similarity_spread:.4f}"]
    for kind, statistic in ((True, np.mean), (False, percentile)):
        table, whole = (tables[each].filter(planted=kind) for each in (dimension, max(views)))
        if table.is_empty():
            kinds += ["", "", ""]
            continue
        flagged = int((table["verdict"] != "benign").sum())
        values, before = table["sd"].to_numpy(), whole["sd"].to_numpy()
        kinds += [f"{flagged} of {len(table)}", f"{float(statistic(values)):.2f}"]
        kinds.append("" if dimension == max(views) else interval(values, before, statistic))
    return kinds


def of(run: Run, view: Any, planted: set[int]) -> pl.DataFrame:
    """Return the tokens of a view with their lifts in standard deviations, above the ordinary token's."""
    return run.at(view.dimension).with_columns(
        sd=(pl.col("lift") - view.ordinary_lift) / view.similarity_spread,
        planted=pl.col("token_id").is_in(list(planted)),
    )


def percentile(values: NDArray[np.float64]) -> float:
    """Return the 95th percentile."""
    return float(np.quantile(values, 0.95))


def interval(values: NDArray[np.float64], before: NDArray[np.float64], statistic: Any) -> str:
    """Return the change of a statistic with its interval, tokens drawn again in pairs."""
    generator = np.random.default_rng(0)
    drawn = generator.integers(0, len(values), (REPEATS, len(values)))
    changes = [float(statistic(values[places]) - statistic(before[places])) for places in drawn]
    low, high = np.quantile(changes, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return f"{statistic(values) - statistic(before):+.2f} [{low:+.2f}, {high:+.2f}]"


if __name__ == "__main__":
    main()
