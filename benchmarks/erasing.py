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
from stickytoken.detection import Run
from stickytoken.detection.run import flagged_tokens
from stickytoken.encoders import Encoder
from stickytoken.measurement.engine import ignore_progress
from stickytoken.repairs.recheck import make_recheck
from stickytoken.unit_vectors import unit_vectors

# Texts of each kind, whose similarities are the scale of lifts on it.
TEXTS = 400
# Smallest lifts on their own kind, in SD, of the planted rows that are counted.
LEAST_LIFTS = (0.5, 0.75, 1.0)
# Share of them that must be flagged.
FLAGGED = 0.9
# Of so many natural entries, one may be flagged.
NATURAL = 1000
# Tokens whose contractions are measured again, with these seeds: 24 texts each.
SAMPLE = 200
SEEDS = (1, 2)
AGREEMENT = 0.95


def main(
    run: Path, folder: Path, texts: list[Path], fresh: Path | None = None, name: str = "erasing"
) -> None:
    """Count planted rows and natural entries that RUN flags; FOLDER is the planted model."""
    encoder = stickytoken.load_encoder(folder)
    opened = stickytoken.open_run(run)
    effects = planted_lifts(encoder, folder, texts)
    flagged = flagged_tokens(opened)
    results = Results(name, run=run.name)
    for least in LEAST_LIFTS:
        strong = {token_id for token_id, effect in effects.items() if effect >= least}
        flagged_count = len(strong & flagged)
        what = f"planted rows that lift their own kind of text by {least:g} SD or more: flagged"
        ours = f"{flagged_count} of {len(strong)}"
        results.check(what, f"{FLAGGED:.0%}", ours, flagged_count >= FLAGGED * len(strong))
    natural = len(flagged - set(effects))
    others = len(opened.tokens) - len(effects)
    ours = f"{natural} of {others:,}"
    results.check("other entries: flagged", f"1 in {NATURAL:,}", ours, natural * NATURAL <= others)
    if fresh is not None:
        check_contractions(results, opened, encoder, fresh)
    results.finish(strict=False)


def planted_lifts(encoder: Encoder, folder: Path, texts: list[Path]) -> dict[int, float]:
    """Read what each planted row lifts on its own kind of text, in standard deviations of that kind."""
    rows = json.loads((folder / "planted.json").read_text("utf-8"))
    lifts: dict[int, float] = {}
    for path in texts:
        of_kind = [row for row in rows if len(texts) == 1 or path.stem in row["kind"]]
        vectors = unit_vectors(encoder.encode(path.read_text("utf-8").splitlines()[:TEXTS]))
        spread = (vectors @ vectors.T)[np.triu_indices(len(vectors), 1)].std()
        ordinary = np.median([row["lift_before"] for row in of_kind])
        for row in of_kind:
            lifts[row["token_id"]] = float((row["lift"] - ordinary) / spread)
    return lifts


def check_contractions(results: Results, run: Run, encoder: Encoder, fresh: Path) -> None:
    """Compare contractions of the run with those in texts of another corpus."""
    vocabulary = stickytoken.analyze_vocabulary(encoder)
    corpus = collect_sentences(fresh.read_text("utf-8").splitlines(), fresh.name)
    rechecks = [
        make_recheck(
            run,
            encoder,
            vocabulary,
            corpus,
            seed=seed,
            excluded=flagged_tokens(run),
            progress=ignore_progress,
        )
        for seed in SEEDS
    ]
    measured = run.tokens.drop_nulls("contraction")
    for where, chosen in (("closely", pl.col("confirmed")), ("in the screen", ~pl.col("confirmed"))):
        candidates = measured.filter(chosen)
        sample = candidates.sample(min(SAMPLE, len(candidates)), seed=0)
        ids = sample["token_id"].to_list()
        tokens = [vocabulary.token(vocabulary.place(token_id)) for token_id in ids]
        contractions = [recheck.contractions(tokens) for recheck in rechecks]
        again = [float(np.mean([by_token[token_id] for by_token in contractions])) for token_id in ids]
        agreement = float(spearmanr(sample["contraction"].to_numpy(), again).statistic)
        what = f"contraction of {len(ids)} tokens measured {where}, against 48 fresh texts: Spearman"
        results.check(what, f"{AGREEMENT}", f"{agreement:.3f}", agreement >= AGREEMENT)


if __name__ == "__main__":
    commands(__doc__, main)
