"""Does truncation make tokens stickier? A run in several dimensions, and runs on the truncated model.

python benchmarks/dimensions.py MODEL --tokens 500 --truncated 64 --out FOLDER
"""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import typer
from numpy.typing import NDArray

from bench import Check, commands, finish, plain_model, planted_ids, write_json
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


def main(
    model: Path,
    out: Annotated[Path, typer.Option()],
    tokens: int = 500,
    dimensions: str = "32,64,128,192,256,384",
    truncated: list[int] = [64],  # noqa: B006
    name: str = "dimensions",
) -> None:
    """Run, compare each dimension with the whole vectors, and the runs with one another.

    The tokens are random, and beside them those of planted.json, where the model folder has one. Finished
    runs in --out are opened, not computed again.
    """
    planted = set(planted_ids(model)) if (model / "planted.json").is_file() else set()

    def computed(part: str, cut: int | None, several: Any, settings: ProfileSettings = SETTINGS) -> Run:
        """Run, or open the finished run; a file beside it keeps the processor time of the first call."""
        encoder = load_encoder(plain_model(model, truncate_dim=cut))
        ids = np.array([token.id for token in categorize(encoder.tokenizer).available])
        drawn = ids[np.random.default_rng(0).permutation(len(ids))[:tokens]].tolist()
        started = time.process_time()
        run = detect(
            encoder,
            out=out / part,
            dimensions=several,
            tokens=sorted({*planted, *drawn}),
            evidence=False,
            settings=settings,
        )
        kept = out / f"{part}.json"
        if not kept.is_file():
            kept.write_text(json.dumps({"cpu_seconds": time.process_time() - started}), encoding="utf-8")
        return run

    several = computed("six", None, dimensions)
    checks = [agreement(several, computed(str(each), each, ()), each) for each in truncated]
    checks.append(cost(out, several, computed("one", None, ())))
    every = computed("unselected", None, dimensions, UNSELECTED)
    rows = [row(every, each, planted) for each in sorted(every.by_dimension()["dimension"].to_list())]
    write_json(name, model=model.name, columns=COLUMNS, rows=rows)
    finish(checks, f"{name}_checks", strict=False, model=model.name)


def agreement(several: Run, alone: Run, dimension: int) -> Check:
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
    for kind, statistic in ((True, np.mean), (False, partial(np.quantile, q=0.95))):
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


def interval(values: NDArray[np.float64], before: NDArray[np.float64], statistic: Any) -> str:
    """Return the change of a statistic with its interval, tokens drawn again in pairs."""
    generator = np.random.default_rng(0)
    drawn = generator.integers(0, len(values), (REPEATS, len(values)))
    changes = [float(statistic(values[places]) - statistic(before[places])) for places in drawn]
    low, high = np.quantile(changes, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return f"{statistic(values) - statistic(before):+.2f} [{low:+.2f}, {high:+.2f}]"


if __name__ == "__main__":
    commands(__doc__, main)
