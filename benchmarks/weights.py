"""Do the weights of an entry predict what its copies do?

    python benchmarks/weights.py all-MiniLM-L6-v2=RUN FOLDER=RUN ...

Each model is a name or folder with the folder of a finished run. Found are rank correlations of each column
and, where the folder has a planted.json, how many planted rows are among the 100 largest and smallest.
"""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
from scipy.stats import spearmanr

from bench import Results, commands
from stickytoken.encoders import load_tokenizer
from stickytoken.entries import entry_weights
from stickytoken.vocabulary import categorize

INDICATORS = ("norm", "distance", "cosine_distance")


def main(runs: list[str]) -> None:
    """Compare the indicators of every model with the lifts and contractions of its run."""
    results = Results("weights")
    for model, run in (each.rsplit("=", 1) for each in runs):
        weights = entry_weights(model, categorize(load_tokenizer(model)))
        measured = pl.read_parquet(Path(run) / "tokens.parquet").select("token_id", "lift", "contraction")
        table = measured.join(weights.tokens.select("token_id", *INDICATORS), on="token_id").drop_nulls()
        for name in INDICATORS:
            k, lift = (spearmanr(table[name], table[column]).statistic for column in ("contraction", "lift"))
            said = f"contraction {k:.2f}, lift {lift:.2f}"
            what = f"{Path(model).name}, {len(table):,} tokens: {name}, Spearman"
            results.check(what, "0.5", said, max(abs(k), abs(lift)) >= 0.5)
        if (listed := Path(model) / "planted.json").is_file():
            planted = {int(row["token_id"]) for row in json.loads(listed.read_text("utf-8"))}
            for name in (*INDICATORS, "contraction"):
                ordered = table.sort(name)["token_id"]
                most, least = (len(planted & set(part)) for part in (ordered.tail(100), ordered.head(100)))
                said = f"{most} with the largest, {least} with the smallest"
                what = f"{len(planted)} planted rows among 100 by {name}"
                results.check(what, "half", said, 2 * most >= len(planted))
    results.finish(strict=False)


if __name__ == "__main__":
    commands(__doc__, main)
