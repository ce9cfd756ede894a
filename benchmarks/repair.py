"""Does a repair keep its promises? The unplanted model is the truth that planted tokens are judged by.

RUN is a finished run of the planted (or a real) model, --planted a model folder with a planted.json, --truth
the model before planting.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import stickytoken
from bench import Results, commands, refuse, spearman, units
from models import planted_ids
from stickytoken.cli.console import progress_bar
from stickytoken.data import bundled_sentences, text_kinds
from stickytoken.detection import Run, open_run
from stickytoken.detection.run import encoder_for, flagged_tokens
from stickytoken.encoders import Encoder, load_encoder
from stickytoken.insertion import Token
from stickytoken.measurement.engine import ignore_progress
from stickytoken.repairs import Repair
from stickytoken.repairs.recheck import Copies, make_recheck
from stickytoken.repairs.result import VerificationRecord
from stickytoken.vocabulary import categorize

# Largest distances of a repaired token from the true one: a third and an eighth of the thresholds.
CLOSE_LIFT = 0.15  # SD
CLOSE_ERASED = 0.05  # share of a text
# Least Spearman correlation between similarities of a text with the repaired and with the true word.
AGREEMENT = 0.85
# Largest lift of [CLS] as plain text, in SD, with that of an ordinary token.
CLS_LIFT = 0.45
# For 20 tokens.
MINUTES = 5.0
# Largest change of a score of 100.
POINTS = 0.05
# Texts that the words are put into, and texts that they are compared with.
CONTEXTS = 12
PANEL = 300


def main(
    run: Path,
    truth: str | None = None,
    planted: Path | None = None,
    tokens: list[str] | None = None,
    strategy: str = "auto",
    task: str | None = None,
    name: str = "repair",
) -> None:
    """Repair --tokens, those of --planted, or the sticky ones, and check on texts the run has not used.

    Rank agreement is the Spearman correlation between similarities to a panel of texts of a text with the
    word in the repaired model and in the true one, median over texts, then over tokens.
    """
    opened = open_run(run)
    chosen = planted_ids(planted) if planted else tokens
    results = Results(name)
    with tempfile.TemporaryDirectory() as place, progress_bar() as progress:
        started = time.perf_counter()
        processor = sum(os.times()[:4])
        out = Path(place) / "repaired"
        repair = stickytoken.repair(opened, chosen, out=out, strategy=strategy, task=task, progress=progress)
        computing = sum(os.times()[:4]) - processor
        seconds = max(repair.record.seconds, time.perf_counter() - started)
        verification = repair.record.verification
        if verification is None:
            refuse("the repair was not verified")
        check_repair(results, repair, verification, seconds, computing)
        if truth is not None:
            check_truth(results, repair, verification, opened, load_encoder(truth))
    results.finish(strict=False)


def check_repair(
    results: Results, repair: Repair, verification: VerificationRecord, seconds: float, computing: float
) -> None:
    """Check verdicts, both measures, scores and time."""
    rows = repair.tokens.to_dicts()
    sticky = [row["token"] for row in rows if row["verdict_after"] == "sticky"]
    results.check("tokens still sticky", "0", f"{len(sticky)} of {len(rows)}", not sticky, sticky=sticky)
    check_measure(results, "lift after, beyond an ordinary token's", rows, "lift_sd", " SD")
    check_measure(results, "erased after", rows, "erased", "")
    for score in verification.scores[:1]:
        change = 100 * (score.after - score.before)
        ours = f"{100 * score.before:.2f} before, {100 * score.after:.2f} after"
        bar = f"change at most {POINTS} points"
        results.check(f"{score.task}, {score.metric}", bar, ours, abs(change) <= POINTS)
    ours = f"{seconds:.0f} s for {len(rows)}, {computing:.0f} s of them on a processor"
    results.check("time", f"{MINUTES:g} minutes for 20 tokens", ours, seconds <= 60 * MINUTES)
    for check in verification.checks:
        results.check(check.name, "holds", check.finding, check.passed)
    if [row["token"] for row in rows] == ["[CLS]"]:
        ordinary = verification.ordinary_lift / verification.similarity_spread
        lift = rows[0]["lift_sd_after"] + ordinary
        results.check("[CLS] through text", f"at most {CLS_LIFT} SD", f"{lift:.2f} SD", lift <= CLS_LIFT)


def check_measure(results: Results, name: str, rows: list[dict[str, Any]], measure: str, unit: str) -> None:
    """Report a measure of the repaired tokens; erased shares of tokens that became pieces are missing."""
    before = [row[f"{measure}_before"] for row in rows if row[f"{measure}_before"] is not None]
    after = [row[f"{measure}_after"] for row in rows if row[f"{measure}_after"] is not None]
    if not after:
        return
    ours = (
        f"median {np.median(after):.2f}, at most {max(after):.2f}{unit} (before: at most {max(before):.2f})"
    )
    results.check(name, "-", ours, tokens=rows)


def check_truth(
    results: Results, repair: Repair, verification: VerificationRecord, run: Run, truth: Encoder
) -> None:
    """Compare the repaired tokens with the true ones, on the texts of the verification."""
    model = encoder_for(None, run, "benchmark")
    vocabulary = categorize(model.tokenizer)
    tokens = [Token(token.token_id, token.text) for token in repair.record.tokens]
    not_ordinary = [token.id for token in tokens]
    not_ordinary += [neighbour.token_id for neighbour in verification.neighbours]
    recheck = make_recheck(
        run,
        model,
        vocabulary,
        bundled_sentences(),
        seed=repair.record.settings["seed"],
        excluded=flagged_tokens(run).union(not_ordinary),
        progress=ignore_progress,
    )
    true = recheck.of_model(truth, vocabulary, "truth").judged(Copies(tokens, [])).tokens
    lifts_away = []
    erased_away = []
    for row in repair.tokens.to_dicts():
        true_token = true[row["token_id"]]
        lifts_away.append(abs(row["lift_sd_after"] - true_token.lift_sd))
        if row["erased_after"] is not None and true_token.erased is not None:
            erased_away.append(abs(row["erased_after"] - true_token.erased))
    check_distances(results, "lift against the true row's", lifts_away, CLOSE_LIFT, " SD")
    if erased_away:
        check_distances(results, "erased share against the true row's", erased_away, CLOSE_ERASED, "")
    words = [token.text.strip() for token in repair.record.tokens]
    before = agreements(truth, load_encoder(run.record.model.name), words)
    after = agreements(truth, load_encoder(repair.path), words)
    ours = f"{np.median(after):.2f} (before the repair: {np.median(before):.2f})"
    title, bar = "rank agreement with the true word", f"median at least {AGREEMENT}"
    results.check(title, bar, ours, np.median(after) >= AGREEMENT, after=after, before=before)


def check_distances(results: Results, name: str, away: list[float], close: float, unit: str) -> None:
    """Check that each distance is within a bar."""
    within = sum(distance <= close for distance in away)
    ours = f"median {np.median(away):.2f}, at most {max(away):.2f}; {within} of {len(away)} within"
    results.check(name, f"each within {close}{unit}", ours, max(away) <= close, away=away)


def agreements(truth: Encoder, other: Encoder, words: list[str]) -> list[float]:
    """Rank agreement of each word with the true model, median over contexts with it in their middle."""
    texts = [*text_kinds().texts, *bundled_sentences().texts]
    order = np.random.default_rng(17).permutation(len(texts))
    drawn = [texts[place] for place in order[: PANEL + CONTEXTS]]
    panel = drawn[:PANEL]
    contexts = [text.split() for text in drawn[PANEL:]]
    placed = []
    for word in words:
        for context in contexts:
            middle = len(context) // 2
            placed.append(" ".join([*context[:middle], word, *context[middle:]]))
    true_similarities = units(truth.encode(placed)) @ units(truth.encode(panel)).T
    other_similarities = units(other.encode(placed)) @ units(other.encode(panel)).T
    ranks = [spearman(true, found) for true, found in zip(true_similarities, other_similarities, strict=True)]
    medians: list[float] = np.median(np.reshape(ranks, (len(words), len(contexts))), axis=1).tolist()
    return medians


if __name__ == "__main__":
    commands(__doc__, main)
