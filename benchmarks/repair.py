"""Does a repair keep its promises? The unplanted model is the truth that planted tokens are judged by.

RUN is a finished run of the planted (or a real) model, --planted a model folder with a planted.json, --truth
the model before planting.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import numpy as np

import stickytoken
from bench import Results, commands, refuse, spearman, units
from models import planted_ids
from stickytoken.cli.console import progress_bar
from stickytoken.data import bundled_sentences, text_kinds
from stickytoken.detection import Run, open_run
from stickytoken.detection.run import encoder_for, restored_settings
from stickytoken.encoders import Encoder, load_encoder
from stickytoken.encoders.protocol import require_ids
from stickytoken.insertion import Token
from stickytoken.measurement.engine import ignore_progress
from stickytoken.methods.base import RecheckJob, Tokens
from stickytoken.methods.profile.anchors import ProfilePlanRecord, ProfileSettings
from stickytoken.methods.profile.other_texts import recheck
from stickytoken.repairs import Repair
from stickytoken.vocabulary import categorize

CLOSE, AGREEMENT, CLS, MINUTES, POINTS = 0.15, 0.85, 0.45, 5.0, 0.05


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
    opened, chosen = open_run(run), planted_ids(planted) if planted else tokens
    results = Results(name)
    with tempfile.TemporaryDirectory() as place, progress_bar() as progress:
        started, processor = time.perf_counter(), sum(os.times()[:4])
        out = Path(place) / "repaired"
        repair = stickytoken.repair(opened, chosen, out=out, strategy=strategy, task=task, progress=progress)
        computing = sum(os.times()[:4]) - processor
        seconds = max(repair.record.seconds, time.perf_counter() - started)
        check_repair(results, repair, seconds, computing)
        if truth is not None:
            check_truth(results, repair, opened, load_encoder(truth))
    results.finish(strict=False)


def check_repair(results: Results, repair: Repair, seconds: float, computing: float) -> None:
    verification = repair.record.verification
    if verification is None:
        refuse("the repair was not verified")
    rows = repair.tokens.to_dicts()
    sticky = [row["token"] for row in rows if row["verdict_after"] == "sticky"]
    results.check("tokens still sticky", "0", f"{len(sticky)} of {len(rows)}", not sticky, sticky=sticky)
    before, after = ([row[f"deviations_{side}"] for row in rows] for side in ("before", "after"))
    ours = f"median {np.median(after):.2f}, at most {max(after):.2f} SD (before: at most {max(before):.2f})"
    results.check("lift after, beyond an ordinary token's", "-", ours, tokens=rows)
    for score in verification.scores[:1]:
        change = 100 * (score.after - score.before)
        ours = f"{100 * score.before:.2f} before, {100 * score.after:.2f} after"
        title, bar = f"{score.task}, {score.metric}", f"change at most {POINTS} points"
        results.check(title, bar, ours, abs(change) <= POINTS)
    ours = f"{seconds:.0f} s for {len(rows)}, {computing:.0f} s of them on a processor"
    results.check("time", f"{MINUTES:g} minutes for 20 tokens", ours, seconds <= 60 * MINUTES)
    for each in verification.checks:
        results.check(each.name, "holds", each.finding, each.passed)
    if [row["token"] for row in rows] == ["[CLS]"]:
        lift = rows[0]["lift_after"] / verification.similarity_spread
        results.check("[CLS] through text", f"at most {CLS} SD", f"{lift:.2f} SD", lift <= CLS)


def check_truth(results: Results, repair: Repair, run: Run, truth: Encoder) -> None:
    # Lifts of the tokens in the true model, on the texts of the verification, in its deviations.
    plan, settings = run.plan_of(ProfilePlanRecord), restored_settings(run)
    if not isinstance(settings, ProfileSettings):
        refuse("the run must be of the method profile")
    model = require_ids(encoder_for(None, run, "benchmark"), "benchmark")
    used = [*plan.carriers, *(anchor.text for anchor in plan.anchors)]
    vocabulary, seed = categorize(model.tokenizer), repair.record.settings["seed"]
    job = RecheckJob(
        model, vocabulary, bundled_sentences(), plan, used, settings, seed, True, ignore_progress
    )
    again = recheck(job, "again").of_model(require_ids(truth, "benchmark"), vocabulary, "again")
    tokens = [Token(token.token_id, token.text) for token in repair.record.tokens]
    found = again.judged(Tokens(tokens, [], []), ())
    true = {
        token.id: (found.lifts[token.id] - found.ordinary_lift) / again.similarity_spread for token in tokens
    }
    away = [abs(row["deviations_after"] - true[row["token_id"]]) for row in repair.tokens.to_dicts()]
    close = sum(each <= CLOSE for each in away)
    ours = f"median {np.median(away):.2f}, at most {max(away):.2f}; {close} of {len(away)} within"
    title, bar = "lift against the true row's", f"each within {CLOSE} SD"
    results.check(title, bar, ours, max(away) <= CLOSE, away=away)
    words = [token.text.strip() for token in repair.record.tokens]
    before, after = (
        agreements(truth, load_encoder(place), words) for place in (run.record.model.name, repair.path)
    )
    ours = f"{np.median(after):.2f} (before the repair: {np.median(before):.2f})"
    title, bar = "rank agreement with the true word", f"median at least {AGREEMENT}"
    results.check(title, bar, ours, np.median(after) >= AGREEMENT, after=after, before=before)


def agreements(truth: Encoder, other: Encoder, words: list[str]) -> list[float]:
    """Rank agreement of each word with the true model, median over contexts with it in their middle."""
    texts = [*text_kinds().texts, *bundled_sentences().texts]
    drawn = [texts[k] for k in np.random.default_rng(17).permutation(len(texts))[:312]]
    panel, contexts = drawn[:300], [text.split() for text in drawn[300:]]
    placed = [
        " ".join([*parts[: len(parts) // 2], word, *parts[len(parts) // 2 :]])
        for word in words
        for parts in contexts
    ]
    true, found = (units(each.encode(placed)) @ units(each.encode(panel)).T for each in (truth, other))
    ranks = [spearman(a, b) for a, b in zip(true, found, strict=True)]
    return list(np.median(np.reshape(ranks, (len(words), len(contexts))), axis=1).tolist())


if __name__ == "__main__":
    commands(__doc__, main)
