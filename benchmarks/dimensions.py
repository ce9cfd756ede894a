"""Does truncation make tokens stickier? A run in several dimensions, and runs on the truncated model."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import typer

from bench import Results, commands, write_json
from models import plain_model, planted_ids
from stickytoken import ProfileSettings, Run, detect, load_encoder
from stickytoken.vocabulary import categorize

# Fewer texts per token than by default, for as many dimensions as fit into an hour of one thread.
SETTINGS = ProfileSettings(confirming_texts=24, reference=250)
# Every token in as many texts: what is compared between dimensions was selected in none of them.
UNSELECTED = ProfileSettings(adaptive=False, budget=16, reference=250)
REPEATS = 2000
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
    truncated: int = 64,
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
        wanted, started = sorted({*planted, *drawn}), time.process_time()
        chosen: Any = {"dimensions": several, "tokens": wanted, "settings": settings}
        run = detect(encoder, out=out / part, evidence=False, **chosen)
        if not (kept := out / f"{part}.json").is_file():
            kept.write_text(json.dumps(time.process_time() - started), encoding="utf-8")
        return run

    results = Results(f"{name}_checks", model=model.name)
    several, alone = computed("six", None, dimensions), computed(str(truncated), truncated, ()).tokens
    found = several.at(truncated)
    lifts = float(np.abs(found["lift"].to_numpy() - alone["lift"].to_numpy()).max())
    other = int((found["verdict"] != alone["verdict"]).sum())
    title = f"dimension {truncated} against a run on the model truncated to it, {len(alone):,} tokens"
    ours = f"{other} verdicts differ, lifts by at most {lifts:.1e}"
    results.check(title, "same verdicts, lifts to 1e-6", ours, other == 0 and lifts <= 1e-6)
    texts = several.result.sequences / computed("one", None, ()).result.sequences
    six, one = (json.loads((out / f"{part}.json").read_text("utf-8")) for part in ("six", "one"))
    title, bar = f"cost of {len(several.by_dimension())} dimensions", "at most 1.1 times one"
    ours = f"{texts:.3f} of the texts, {six / one:.2f} of the processor time"
    results.check(title, bar, ours, max(texts, six / one) <= 1.1, cpu_seconds=[six, one])
    every = computed("unselected", None, dimensions, UNSELECTED)
    views = {record.dimension: record for record in every.dimensions}
    tables = {
        dimension: every.at(dimension).with_columns(
            sd=(pl.col("lift") - view.ordinary_lift) / view.similarity_spread,
            planted=pl.col("token_id").is_in(list(planted)),
        )
        for dimension, view in sorted(views.items())
    }
    rows = [
        [str(each), f"{views[each].similarity_spread:.4f}", *cells(table, tables[max(tables)])]
        for each, table in tables.items()
    ]
    write_json(name, model=model.name, columns=COLUMNS, rows=rows)
    results.finish(strict=False)


def cells(every: pl.DataFrame, whole: pl.DataFrame) -> list[str]:
    """Describe one dimension, and its change from whole vectors with bootstrap intervals."""
    found = []
    for planted, statistic in ((True, np.mean), (False, partial(np.quantile, q=0.95))):
        table, before = every.filter(planted=planted), whole.filter(planted=planted)
        if table.is_empty():
            found += ["", "", ""]
            continue
        flagged, value = int((table["verdict"] != "benign").sum()), float(statistic(table["sd"].to_numpy()))
        change = "" if every is whole else interval(table["sd"], before["sd"], statistic)
        found += [f"{flagged} of {len(table)}", f"{value:.2f}", change]
    return found


def interval(after: pl.Series, before: pl.Series, statistic: Callable[[Any], Any]) -> str:
    """The change of a statistic with its 95 % interval, tokens drawn again in pairs."""
    values, others = after.to_numpy(), before.to_numpy()
    drawn = np.random.default_rng(0).integers(0, len(values), (REPEATS, len(values)))
    changes = [float(statistic(values[places]) - statistic(others[places])) for places in drawn]
    low, high = np.quantile(changes, [0.025, 0.975])
    return f"{statistic(values) - statistic(others):+.2f} [{low:+.2f}, {high:+.2f}]"


if __name__ == "__main__":
    commands(__doc__, main)
