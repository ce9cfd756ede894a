"""Does a default run flag entries that were planted toward kinds of text that no run uses?

Planted entries are vocabulary entries whose rows in the word embeddings were moved, so that copies pull texts
toward one kind of text. The benchmark counts the planted entries and the natural entries that a run flags.

Needs a model folder that `plant.py` wrote, a finished run of that model, and the sentences toward which each
row was moved, one file for each kind. Takes seconds, or minutes with --fresh.

    python plant.py all-MiniLM-L6-v2 FOLDER --toward KIND.txt    # writes FOLDER/planted.json
    stickytoken detect FOLDER --out RUN
    python benchmarks/erasing.py RUN FOLDER KIND.txt

With several files, each row of planted.json names its file under the key "kind". `--fresh TEXTS.txt` also
measures contractions again, in 48 texts of another corpus.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

import stickytoken
from bench import Results, commands, spearman
from models import planted_rows
from stickytoken.data import collect_sentences
from stickytoken.detection import Run
from stickytoken.detection.run import flagged_tokens
from stickytoken.encoders import Encoder
from stickytoken.measurement.engine import ignore_progress
from stickytoken.repairs.recheck import Recheck, make_recheck
from stickytoken.unit_vectors import unit_vectors
from stickytoken.vocabulary import Vocabulary

# Number of texts of each kind. The standard deviation of their similarities is the unit of lifts on the kind.
TEXTS = 400
# Planted rows are counted if they lift their own kind by at least so many standard deviations (SD).
SMALLEST_LIFTS = (0.5, 0.75, 1.0)
# Smallest share of these planted rows that a run must flag.
FLAGGED_SHARE = 0.9
# A run may flag one of so many natural entries.
NATURAL_PER_FLAGGED = 1000
# Number of tokens whose contractions are measured again.
SAMPLE = 200
# Contractions are measured once with each seed, in 24 texts each time.
SEEDS = (1, 2)
# Smallest rank correlation between contractions of the run and those in fresh texts.
SMALLEST_AGREEMENT = 0.95


def main(
    run: Path, folder: Path, texts: list[Path], fresh: Path | None = None, name: str = "erasing"
) -> None:
    """Count the planted and the natural entries that a run flags.

    RUN is a finished run of the planted model in FOLDER. TEXTS are the files toward whose sentences rows were
    moved. --fresh also measures contractions again, in 48 texts of that file; this takes minutes. --name is
    the name of the results file.
    """
    encoder = stickytoken.load_encoder(folder)
    opened = stickytoken.open_run(run)
    lift_by_id = planted_lifts(encoder, folder, texts)
    flagged = flagged_tokens(opened)
    results = Results(name, run=run.name)
    for smallest_lift in SMALLEST_LIFTS:
        strong_ids = {token_id for token_id, lift in lift_by_id.items() if lift >= smallest_lift}
        flagged_count = len(strong_ids & flagged)
        results.check(
            f"planted rows that lift their own kind of text by {smallest_lift:g} SD or more: flagged",
            f"{FLAGGED_SHARE:.0%}",
            f"{flagged_count} of {len(strong_ids)}",
            flagged_count >= FLAGGED_SHARE * len(strong_ids),
        )
    flagged_natural = len(flagged - set(lift_by_id))
    natural = len(opened.tokens) - len(lift_by_id)
    results.check(
        "other entries: flagged",
        f"1 in {NATURAL_PER_FLAGGED:,}",
        f"{flagged_natural} of {natural:,}",
        flagged_natural * NATURAL_PER_FLAGGED <= natural,
    )
    if fresh is not None:
        check_contractions(results, opened, encoder, fresh)
    results.finish(strict=False)


def planted_lifts(encoder: Encoder, folder: Path, texts: list[Path]) -> dict[int, float]:
    """Return the lift of each planted row on its own kind of text, keyed by token id.

    `plant.py` measured the lifts. They are given here relative to the median lift of the same rows before
    they were moved, in standard deviations of the similarities between texts of that kind.
    """
    rows = planted_rows(folder)
    lift_by_id: dict[int, float] = {}
    for path in texts:
        rows_of_kind = rows
        if len(texts) > 1:
            rows_of_kind = [row for row in rows if path.stem in row["kind"]]
        kind_texts = path.read_text("utf-8").splitlines()[:TEXTS]
        vectors = unit_vectors(encoder.encode(kind_texts))
        similarities = vectors @ vectors.T
        spread = similarities[np.triu_indices(len(vectors), 1)].std()
        ordinary_lift = np.median([row["lift_before"] for row in rows_of_kind])
        for row in rows_of_kind:
            lift_by_id[row["token_id"]] = float((row["lift"] - ordinary_lift) / spread)
    return lift_by_id


def check_contractions(results: Results, run: Run, encoder: Encoder, fresh: Path) -> None:
    """Compare contractions of the run with contractions in texts of another corpus.

    Tokens that the run confirmed and tokens that it only screened are compared separately.
    """
    vocabulary = stickytoken.analyze_vocabulary(encoder)
    rechecks = fresh_rechecks(run, encoder, vocabulary, fresh)
    measured = run.tokens.drop_nulls("contraction")
    groups = {"closely": pl.col("confirmed"), "in the screen": ~pl.col("confirmed")}
    for how_measured, is_in_group in groups.items():
        candidates = measured.filter(is_in_group)
        sample = candidates.sample(min(SAMPLE, len(candidates)), seed=0)
        ids = sample["token_id"].to_list()
        tokens = [vocabulary.token(vocabulary.place(token_id)) for token_id in ids]
        contractions_by_seed = []
        for recheck in rechecks:
            contraction_by_id = recheck.contractions(tokens)
            contractions_by_seed.append([contraction_by_id[token_id] for token_id in ids])
        fresh_contractions = np.mean(contractions_by_seed, axis=0)
        agreement = spearman(sample["contraction"].to_numpy(), fresh_contractions)
        results.check(
            f"contraction of {len(ids)} tokens measured {how_measured}, against 48 fresh texts: Spearman",
            f"{SMALLEST_AGREEMENT}",
            f"{agreement:.3f}",
            agreement >= SMALLEST_AGREEMENT,
        )


def fresh_rechecks(run: Run, encoder: Encoder, vocabulary: Vocabulary, fresh: Path) -> list[Recheck]:
    """Return one recheck for each seed, with texts of the file that the run has not used."""
    corpus = collect_sentences(fresh.read_text("utf-8").splitlines(), fresh.name)
    flagged = flagged_tokens(run)
    rechecks = []
    for seed in SEEDS:
        recheck = make_recheck(
            run, encoder, vocabulary, corpus, seed=seed, excluded=flagged, progress=ignore_progress
        )
        rechecks.append(recheck)
    return rechecks


if __name__ == "__main__":
    commands(__doc__, main)
