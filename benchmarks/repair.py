"""Check a repaired model, in other texts than those of the run.

After a repair, no repaired token may be sticky, and scores may hardly change. If the tokens were planted,
the model before planting shows what a perfect repair would do. With --truth, the effects of the repaired
tokens, and the similarities of texts with these tokens, are compared with those in the model before planting.

Needs a finished run whose model can be loaded. Takes about five minutes for 20 tokens on two cores, and more
with --truth.

    python benchmarks/repair.py RUN --truth all-MiniLM-L6-v2 --task stsb/test.jsonl
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import stickytoken
from bench import Results, commands, refuse, spearman, units
from models import planted_ids
from stickytoken import load_encoder
from stickytoken.cli.console import progress_bar
from stickytoken.data import bundled_sentences, text_kinds
from stickytoken.detection import Run, open_run
from stickytoken.detection.run import encoder_for
from stickytoken.encoders import Encoder
from stickytoken.insertion import Token
from stickytoken.measurement.engine import ignore_progress
from stickytoken.repairs import Repair
from stickytoken.repairs.recheck import Copies, make_recheck
from stickytoken.repairs.records import VerificationRecord
from stickytoken.settings.repair import RepairSettings, Strategy
from stickytoken.vocabulary import categorize

# Largest distances of a repaired token from the true one: of the push, a third of the way from 1 to its
# threshold; of the erased share, an eighth of its threshold.
CLOSE_PUSH = 0.17
CLOSE_ERASED = 0.05
# Least Spearman correlation between similarities of a text with the repaired and with the true word.
AGREEMENT = 0.85
# Largest push of a repaired [CLS].
CLS_PUSH = 1.25
# Largest number of minutes for 20 tokens.
MINUTES = 5.0
# Largest change of a score, in points of 100.
POINTS = 0.05
# Number of texts that the words are put into, and number of texts that they are compared with.
CONTEXTS = 12
PANEL = 300
# Seed of the choice of these texts.
TEXT_SEED = 17


def main(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    truth: Annotated[
        str | None, typer.Option(help="Name or folder of the model before tokens were planted.")
    ] = None,
    planted: Annotated[
        Path | None, typer.Option(help="A planted.json, or the folder of a model that has one: its tokens.")
    ] = None,
    tokens: Annotated[list[str] | None, typer.Option(help="A token to repair; may be repeated.")] = None,
    strategy: Annotated[str, typer.Option(help="Strategy of the repair.")] = "auto",
    task: Annotated[
        str | None, typer.Option(help="Task whose score before and after the repair is compared.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the result file, without its ending.")] = "repair",
) -> None:
    """Repair a model, and check it in other texts than those of the run.

    Repairs the tokens of --planted, those of --tokens, or all sticky tokens. With --truth, compares them with
    those of the model before planting: by their effects, and by rank agreement. Rank agreement is the
    Spearman correlation between the similarities of a text with the token to a panel of texts, in the
    repaired model and in the true one; it is the median over texts, and then over tokens.
    """
    opened_run = open_run(run)
    chosen: list[int] | list[str] | None = tokens
    if planted is not None:
        chosen = planted_ids(planted)
    results = Results(name)
    with tempfile.TemporaryDirectory() as folder, progress_bar() as progress:
        out = Path(folder) / "repaired"
        started = time.perf_counter()
        processor_started = processor_seconds()
        repair = stickytoken.repair(
            opened_run,
            chosen,
            out=out,
            task=task,
            settings=RepairSettings(strategy=Strategy(strategy)),
            progress=progress,
        )
        repair_processor_seconds = processor_seconds() - processor_started
        seconds = max(repair.record.seconds, time.perf_counter() - started)
        verification = repair.record.verification
        if verification is None:
            refuse("the repair was not verified")
        check_repair(results, repair, verification, seconds, repair_processor_seconds)
        if truth is not None:
            check_truth(results, repair, verification, opened_run, load_encoder(truth))
    results.finish(strict=False)


def processor_seconds() -> float:
    """Return the processor time of this process and its finished children so far."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def check_repair(
    results: Results,
    repair: Repair,
    verification: VerificationRecord,
    seconds: float,
    repair_processor_seconds: float,
) -> None:
    """Check verdicts, both measures, scores and time.

    Args:
        results: Gets the checks.
        repair: The repair.
        verification: The measurements of the repaired model.
        seconds: Wall-clock time of the repair.
        repair_processor_seconds: Processor time of the repair.
    """
    rows = repair.tokens.to_dicts()
    sticky = [row["token"] for row in rows if row["verdict_after"] == "sticky"]
    results.check("tokens still sticky", "0", f"{len(sticky)} of {len(rows)}", not sticky, sticky=sticky)
    check_measure(results, "push after", rows, "push")
    check_measure(results, "erased after", rows, "erased")
    # The first score is that of the main metric.
    for score in verification.scores[:1]:
        change = 100 * (score.after - score.before)
        ours = f"{100 * score.before:.2f} before, {100 * score.after:.2f} after"
        bar = f"change at most {POINTS} points"
        results.check(f"{score.task}, {score.metric}", bar, ours, abs(change) <= POINTS)
    ours = f"{seconds:.0f} s for {len(rows)}, {repair_processor_seconds:.0f} s of them on a processor"
    results.check("time", f"{MINUTES:g} minutes for 20 tokens", ours, seconds <= 60 * MINUTES)
    for check in verification.checks:
        results.check(check.name, "holds", check.finding, check.passed)
    if [row["token"] for row in rows] == ["[CLS]"]:
        push = rows[0]["push_after"]
        results.check("[CLS] through text", f"at most {CLS_PUSH}×", f"{push:.2f}×", push <= CLS_PUSH)


def check_measure(results: Results, name: str, rows: list[dict[str, Any]], measure: str) -> None:
    """Report a measure of the repaired tokens, before and after the repair.

    Tokens without a value are left out: the erased share is unknown if a repair makes the tokenizer split the
    token into pieces.

    Args:
        results: Gets the check.
        name: Name of the check.
        rows: The table of the repaired tokens.
        measure: Name of the measure, as in the columns of the table.
    """
    before = [row[f"{measure}_before"] for row in rows if row[f"{measure}_before"] is not None]
    after = [row[f"{measure}_after"] for row in rows if row[f"{measure}_after"] is not None]
    if not after:
        return
    after_values = f"median {np.median(after):.2f}, at most {max(after):.2f}"
    ours = f"{after_values} (before: at most {max(before):.2f})"
    results.check(name, "-", ours, tokens=rows)


def check_truth(
    results: Results, repair: Repair, verification: VerificationRecord, run: Run, truth: Encoder
) -> None:
    """Compare the repaired tokens with those of the true model, on the texts of the verification.

    Args:
        results: Gets the checks.
        repair: The repair.
        verification: The measurements of the repaired model.
        run: The run of the model before the repair.
        truth: The model before tokens were planted.
    """
    model = encoder_for(None, run, "benchmark")
    vocabulary = categorize(model.tokenizer)
    tokens = [Token(token.token_id, token.text) for token in repair.record.tokens]
    # As in the verification, so that both measure the same ordinary tokens.
    not_ordinary = [token.id for token in tokens]
    not_ordinary += [neighbour.token_id for neighbour in verification.neighbours]
    recheck = make_recheck(
        run,
        model,
        vocabulary,
        bundled_sentences(),
        seed=repair.record.settings["seed"],
        excluded=run.sticky_ids.union(not_ordinary),
        progress=ignore_progress,
    )
    true_tokens = recheck.of_model(truth, vocabulary, "truth").judge(Copies(tokens, [])).tokens
    push_distances = []
    erased_distances = []
    for row in repair.tokens.to_dicts():
        true_token = true_tokens[row["token_id"]]
        if row["push_after"] is not None and true_token.push is not None:
            push_distances.append(abs(row["push_after"] - true_token.push))
        if row["erased_after"] is not None and true_token.erased is not None:
            erased_distances.append(abs(row["erased_after"] - true_token.erased))
    if push_distances:
        check_distances(results, "push against the true row's", push_distances, CLOSE_PUSH)
    if erased_distances:
        check_distances(results, "erased share against the true row's", erased_distances, CLOSE_ERASED)
    words = [token.text.strip() for token in repair.record.tokens]
    before = agreements(truth, load_encoder(run.record.model.name), words)
    after = agreements(truth, load_encoder(repair.path), words)
    ours = f"{np.median(after):.2f} (before the repair: {np.median(before):.2f})"
    title = "rank agreement with the true word"
    bar = f"median at least {AGREEMENT}"
    results.check(title, bar, ours, np.median(after) >= AGREEMENT, after=after, before=before)


def check_distances(results: Results, name: str, distances: list[float], bar: float) -> None:
    """Check that all distances of repaired tokens from the true ones are within a bar.

    Args:
        results: Gets the check.
        name: Name of the check.
        distances: Distance of each token.
        bar: Largest distance.
    """
    largest = max(distances)
    close_count = sum(distance <= bar for distance in distances)
    counts = f"{close_count} of {len(distances)} within"
    ours = f"median {np.median(distances):.2f}, at most {largest:.2f}; {counts}"
    results.check(name, f"each within {bar}", ours, largest <= bar, away=distances)


def agreements(truth: Encoder, other: Encoder, words: list[str]) -> list[float]:
    """Return the rank agreement of each word in another model with the same word in the true model.

    Each word is put into the middle of a few texts, and the agreement is the median over these texts.
    """
    texts = [*text_kinds().texts, *bundled_sentences().texts]
    order = np.random.default_rng(TEXT_SEED).permutation(len(texts))
    chosen_texts = [texts[index] for index in order[: PANEL + CONTEXTS]]
    panel = chosen_texts[:PANEL]
    contexts = [text.split() for text in chosen_texts[PANEL:]]
    texts_with_words = []
    for word in words:
        for context in contexts:
            middle = len(context) // 2
            texts_with_words.append(" ".join([*context[:middle], word, *context[middle:]]))
    true_similarities = units(truth.encode(texts_with_words)) @ units(truth.encode(panel)).T
    other_similarities = units(other.encode(texts_with_words)) @ units(other.encode(panel)).T
    correlations = []
    for true_row, other_row in zip(true_similarities, other_similarities, strict=True):
        correlations.append(spearman(true_row, other_row))
    correlations_of_words = np.reshape(correlations, (len(words), len(contexts)))
    medians: list[float] = np.median(correlations_of_words, axis=1).tolist()
    return medians


if __name__ == "__main__":
    commands(__doc__, main)
