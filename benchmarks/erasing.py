"""Does a default run find rows planted toward kinds of text that it does not know?

    python plant.py all-MiniLM-L6-v2 FOLDER --toward KIND.txt    # writes FOLDER/planted.json
    stickytoken detect FOLDER --out RUN
    python benchmarks/erasing.py RUN FOLDER KIND.txt

With several files, each row names its own in the key "kind". `--fresh TEXTS.txt` also measures contractions
again, in 48 texts of another corpus.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
from scipy.stats import spearmanr

import stickytoken
from bench import Results, commands
from stickytoken.data import collect_sentences
from stickytoken.measurement.engine import ignore_progress
from stickytoken.methods.base import RecheckJob, Tokens
from stickytoken.methods.profile.anchors import ProfileSettings
from stickytoken.unit_vectors import unit_vectors

TEXTS = 400  # of each kind, whose similarities are the scale of lifts on it
LEAST, EVERY = 0.5, 2000


def main(
    run: Path, folder: Path, texts: list[Path], fresh: Path | None = None, name: str = "erasing"
) -> None:
    """Count planted rows and natural entries that RUN flags; FOLDER is the planted model."""
    encoder, effects = stickytoken.load_encoder(folder), dict[int, float]()
    found_in = stickytoken.open_run(run)
    rows = json.loads((folder / "planted.json").read_text("utf-8"))
    for path in texts:
        own = [row for row in rows if len(texts) == 1 or path.stem in row["kind"]]
        vectors = unit_vectors(encoder.encode(path.read_text("utf-8").splitlines()[:TEXTS]))
        spread = (vectors @ vectors.T)[np.triu_indices(len(vectors), 1)].std()
        ordinary = np.median([row["lift_before"] for row in own])
        effects |= {row["token_id"]: (row["lift"] - ordinary) / spread for row in own}
    tokens = found_in.tokens
    flagged = set(tokens.filter(pl.col("verdict") != "benign")["token_id"])
    results = Results(name, run=run.name)
    for least in (LEAST, 0.75, 1.0):
        strong = {token_id for token_id, effect in effects.items() if effect >= least}
        found = len(strong & flagged)
        what = f"planted rows that lift their own kind of text by {least:g} SD or more: flagged"
        results.check(what, "95 %", f"{found} of {len(strong)}", found >= 0.95 * len(strong))
    natural, others = len(flagged - set(effects)), len(tokens) - len(effects)
    said = f"{natural} of {others:,}"
    results.check("other entries: flagged", f"1 in {EVERY:,}", said, natural * EVERY <= others)
    if fresh is not None:
        vocabulary = stickytoken.analyze_vocabulary(encoder)
        corpus = collect_sentences(fresh.read_text("utf-8").splitlines(), fresh.name)
        closely = pl.col("texts") == pl.col("texts").max()
        for where, among in (("closely", closely), ("in the screen", ~closely)):
            part = tokens.filter(among).sample(200, seed=0)
            places = map(vocabulary.place, part["token_id"])
            chosen = Tokens([vocabulary.token(place) for place in places], [], [])
            again = np.zeros(len(part))
            for seed in (1, 2):  # 24 carriers each
                job = RecheckJob(
                    *(encoder, vocabulary, corpus, found_in.plan, (), ProfileSettings(), seed),
                    same_model=True,
                    progress=ignore_progress,
                )
                measured = found_in.method.recheck(job, "fresh").measured(chosen)
                again += [measured[token_id][1] for token_id in part["token_id"]]
            agrees = float(spearmanr(part["contraction"], again).statistic)
            what = f"contraction of 200 tokens measured {where}, against 48 fresh carriers: Spearman"
            results.check(what, "0.95", f"{agrees:.3f}", agrees >= 0.95)
    results.finish(strict=False)


if __name__ == "__main__":
    commands(__doc__, main)
