"""Do the weights of a vocabulary entry predict what copies of the entry do to texts?

For each model, three columns of `stickytoken tokens --weights` are compared with the contractions that a run
measured. If the model's folder has a planted.json, the benchmark also counts the planted entries
among the 100 entries with the largest values, and among the 100 with the smallest.

Needs a finished run of the profile method for each model. Takes seconds, because no text is encoded.

    python benchmarks/weights.py all-MiniLM-L6-v2=RUN FOLDER=RUN ...
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from bench import Results, commands, spearman
from models import planted_ids
from stickytoken.encoders import load_tokenizer
from stickytoken.entries import entry_weights
from stickytoken.vocabulary import categorize

# Columns of `entry_weights` that may predict effects.
INDICATORS = ("norm", "distance", "cosine_distance")
# Number of entries at either end of a ranking in which planted entries are counted.
EXTREMES = 100


def main(runs: list[str]) -> None:
    """Compare weights of vocabulary entries with the contractions that runs measured.

    Each of RUNS is MODEL=RUN: the name or folder of a model, and the folder of a finished run of the profile
    method. If the folder of a model has a planted.json, the planted entries are counted among the entries
    with the largest and the smallest values.
    """
    results = Results("weights")
    for model_and_run in runs:
        model, run = model_and_run.rsplit("=", 1)
        table = weights_and_effects(model, Path(run))
        check_correlations(results, model, table)
        if (Path(model) / "planted.json").is_file():
            check_planted(results, set(planted_ids(Path(model))), table)
    results.finish(strict=False)


def weights_and_effects(model: str, run: Path) -> pl.DataFrame:
    """Return one row for each measured token: its id, contraction and the `INDICATORS`."""
    weights = entry_weights(model, categorize(load_tokenizer(model)))
    indicators = weights.tokens.select("token_id", *INDICATORS)
    effects = pl.read_parquet(run / "tokens.parquet").select("token_id", "contraction")
    return effects.join(indicators, on="token_id").drop_nulls()


def check_correlations(results: Results, model: str, table: pl.DataFrame) -> None:
    """Check the rank correlation of each indicator with the contraction."""
    for indicator in INDICATORS:
        correlation = spearman(table[indicator], table["contraction"])
        results.check(
            f"{Path(model).name}, {len(table):,} tokens: {indicator}, Spearman with the contraction",
            "0.5",
            f"{correlation:.2f}",
            abs(correlation) >= 0.5,
        )


def check_planted(results: Results, planted: set[int], table: pl.DataFrame) -> None:
    """Count the planted tokens among those with the largest and the smallest values of each column.

    The contraction, which is a measured effect and not a weight, is ranked for comparison.
    """
    for column in (*INDICATORS, "contraction"):
        ascending_ids = table.sort(column)["token_id"]
        among_largest = len(planted & set(ascending_ids.tail(EXTREMES)))
        among_smallest = len(planted & set(ascending_ids.head(EXTREMES)))
        results.check(
            f"{len(planted)} planted rows among {EXTREMES} by {column}",
            "half",
            f"{among_largest} with the largest, {among_smallest} with the smallest",
            2 * among_largest >= len(planted),
        )


if __name__ == "__main__":
    commands(__doc__, main)
