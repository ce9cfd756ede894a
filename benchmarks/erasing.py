"""Does a default run find rows planted toward kinds of text that it does not know?

    python plant.py all-MiniLM-L6-v2 FOLDER --toward KIND.txt    # writes FOLDER/planted.json
    stickytoken detect FOLDER --out RUN
    python benchmarks/erasing.py RUN FOLDER KIND.txt

With several files, each row names its own in the key "kind".
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl

import stickytoken
from bench import Results, commands
from stickytoken.unit_vectors import unit_vectors

TEXTS = 400  # of each kind, whose similarities are the scale of lifts on it
LEAST, EVERY = 0.5, 2000


def main(run: Path, folder: Path, texts: list[Path]) -> None:
    """Count planted rows and natural entries that RUN flags; FOLDER is the planted model."""
    encoder, effects = stickytoken.load_encoder(folder), dict[int, float]()
    rows = json.loads((folder / "planted.json").read_text("utf-8"))
    for path in texts:
        own = [row for row in rows if len(texts) == 1 or path.stem in row["kind"]]
        vectors = unit_vectors(encoder.encode(path.read_text("utf-8").splitlines()[:TEXTS]))
        spread = (vectors @ vectors.T)[np.triu_indices(len(vectors), 1)].std()
        ordinary = np.median([row["lift_before"] for row in own])
        effects |= {row["token_id"]: (row["lift"] - ordinary) / spread for row in own}
    tokens = stickytoken.open_run(run).tokens
    flagged = set(tokens.filter(pl.col("verdict") != "benign")["token_id"])
    results = Results("erasing", run=run.name)
    for least in (LEAST, 0.75, 1.0):
        strong = {token_id for token_id, effect in effects.items() if effect >= least}
        found = len(strong & flagged)
        what = f"planted rows that lift their own kind of text by {least:g} SD or more: flagged"
        results.check(what, "95 %", f"{found} of {len(strong)}", found >= 0.95 * len(strong))
    natural, others = len(flagged - set(effects)), len(tokens) - len(effects)
    said = f"{natural} of {others:,}"
    results.check("other entries: flagged", f"1 in {EVERY:,}", said, natural * EVERY <= others)
    results.finish(strict=False)


if __name__ == "__main__":
    commands(__doc__, main)
